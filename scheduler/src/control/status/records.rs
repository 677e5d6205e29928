//! The records of each section, and where in them a part begins.

use baton_core::{BackendId, FrontendId, GpuId, Nanos, SubclusterId};
use baton_rdma::status::{
    GpuStatus, MemberRole, MemberStatus, ModelCacheStatus, ModelStatus, Record, SchedulerStatus,
    SubclusterStatus, VariantStatus, rounded, shortened,
};
use baton_rdma::wire::VERSION_MAX;
use baton_rdma::{ConnId, Transport};
use baton_topo::{GPUS_PER_BACKEND_MAX, VariantSpec, per_cent};

use super::window::{Figures, Shares, seconds};
use crate::cache::levels::ModelLevels;
use crate::catalog::Entry;
use crate::control::ControlThread;
use crate::profiles::Profiles;
use crate::roster::{Backend, Frontend};

/// Models of which a backend is said to lack them.
const MISSING_MAX: usize = 8;

/// Sections follow each other in this order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) enum Section {
    Scheduler,
    Models,
    Frontends,
    Backends,
    Gpus,
    Events,
    // Behind the others: an operator that is asking while the scheduler is exchanged finds each section where it was.
    Loads,
}

/// Where in the answer a part begins: a record's section and its index there, which stays the same while others come and go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Place {
    pub(super) section: Section,
    pub(super) index: u32,
}

impl Section {
    pub(super) const ALL: [Self; 7] = [
        Self::Scheduler,
        Self::Models,
        Self::Frontends,
        Self::Backends,
        Self::Gpus,
        Self::Events,
        Self::Loads,
    ];
}

impl Place {
    /// Behind the last part.
    pub(super) const END: u64 = 0;

    pub(super) fn to_wire(self) -> u64 {
        (self.section as u64) << 32 | u64::from(self.index)
    }

    /// A place that is none begins behind everything.
    pub(super) fn from_wire(wire: u64) -> Self {
        let section = Section::ALL.get((wire >> 32) as usize).copied();
        let Some(section) = section else {
            return Self { section: Section::Loads, index: u32::MAX };
        };
        Self { section, index: wire as u32 }
    }
}

type Records<'a> = Box<dyn Iterator<Item = (u32, Record)> + 'a>;

impl<T: Transport> ControlThread<T> {
    /// The records of a section from an index on.
    pub(super) fn records(&self, now: Nanos, section: Section, first: u32) -> Records<'_> {
        match section {
            Section::Scheduler => Box::new(self.about_scheduler(now).skip(first as usize)),
            Section::Models => {
                let models = self.parts.catalog.entries().filter(|(_, entry)| entry.is_served());
                let models = models.filter(move |(model, _)| model.0 >= first);
                Box::new(models.map(|(model, entry)| (model.0, self.about_model(entry))))
            }
            Section::Frontends => {
                let frontends = self.roster.frontends();
                let frontends = frontends.filter(move |(id, _)| u32::from(id.0) >= first);
                let about = move |(id, f): (FrontendId, _)| {
                    (u32::from(id.0), self.about_frontend(now, id, f))
                };
                Box::new(frontends.map(about))
            }
            Section::Backends => {
                let backends = self.roster.backends().filter(move |(id, _)| id.0 >= first);
                Box::new(backends.map(move |(id, b)| (id.0, self.about_backend(now, id, b))))
            }
            Section::Gpus => {
                let gpus =
                    self.roster.backends().flat_map(move |(id, b)| self.about_gpus(now, id, b));
                Box::new(gpus.filter(move |(index, _)| *index >= first))
            }
            Section::Events => {
                let events = self.status.events.records(now);
                let events = events.map(|(number, event)| (number as u32, Record::Event(event)));
                Box::new(events.filter(move |(number, _)| *number >= first))
            }
            Section::Loads => {
                let loads = self.status.loads.records(now);
                let loads = loads.map(|(number, load)| (number as u32, Record::Load(load)));
                Box::new(loads.filter(move |(number, _)| *number >= first))
            }
        }
    }

    fn about_scheduler(&self, now: Nanos) -> impl Iterator<Item = (u32, Record)> {
        let window = self.status.window.as_ref();
        let scheduler = SchedulerStatus {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            protocol: VERSION_MAX,
            policy: self.parts.common.policy().name().to_owned(),
            uptime_s: rounded(seconds(now - self.status.started_at)),
            window_s: rounded(window.map_or(0.0, |window| window.span_s(now))),
            gpus_needed: self.autoscale.needed_in_all(),
            model_threads: self.parts.model_threads.len() as u32,
            events_total: self.status.events.total(),
        };
        let subclusters = self.parts.catalog.subclusters().map(|id| self.about_subcluster(id));
        (0..).zip(std::iter::once(Record::Scheduler(scheduler)).chain(subclusters))
    }

    fn about_subcluster(&self, id: SubclusterId) -> Record {
        Record::Subcluster(SubclusterStatus {
            name: shortened(self.parts.catalog.subcluster_name(id)),
            gpus: self.roster.serving(id),
            gpus_needed: self.autoscale.needed(id),
            rules: self.rules(id).map(|rules| rules.name().to_owned()),
        })
    }

    fn about_model(&self, entry: &Entry) -> Record {
        let model = entry.spec.id;
        let boards = (&*self.parts.load, &self.parts.tasks);
        let window = self.status.window.as_ref();
        let figures = window.map(|window| window.figures(model, boards)).unwrap_or_default();
        Record::Model(ModelStatus {
            name: shortened(&entry.spec.name),
            subcluster: shortened(self.parts.catalog.subcluster_name(entry.spec.subcluster)),
            slo_ms: entry.spec.slo.as_millis_f64(),
            queue: self.parts.load.of(model).waiting,
            rate_rps: rounded(figures.rate_rps),
            refused_rps: rounded(figures.refused_rps),
            bad_rate: figures.bad_rate.map(|rate| (rate * 1e6).round() / 1e6),
            mean_batch: figures.mean_batch.map(rounded),
            p50_ms: figures.p50_ms.map(rounded),
            p99_ms: figures.p99_ms.map(rounded),
            model_thread: self.balance.home(model) as u32,
            variants: variants(&entry.spec.variants, self.planned_profiles(entry), &figures),
            cache: self.cache_of(entry),
        })
    }

    pub(super) fn cache_of(&self, entry: &Entry) -> Option<ModelCacheStatus> {
        let levels =
            self.parts.levels.as_ref().filter(|_| self.has_cache(entry.spec.subcluster))?;
        let ModelLevels { copies, cold, cold_in_time, failed, failure } =
            levels.model(entry.spec.id);
        let failure = failure.map(|failure| failure.as_str().to_owned());
        Some(ModelCacheStatus { copies, cold, cold_in_time, failed, failure })
    }

    fn about_frontend(&self, now: Nanos, id: FrontendId, frontend: &Frontend) -> Record {
        Record::Member(MemberStatus {
            role: MemberRole::Frontend,
            number: u32::from(id.0),
            name: None,
            addr: frontend.addr.to_string(),
            member_s: self.member_s(now, frontend.conn),
            state: "serving".to_owned(),
            outstanding: self.parts.tasks.outstanding_of(id),
            gpus: None,
            subcluster: None,
            missing: Vec::new(),
        })
    }

    fn about_backend(&self, now: Nanos, id: BackendId, backend: &Backend) -> Record {
        let peer = self.conversations.get(&backend.conn).map(|c| c.peer.addr);
        let subcluster = self.parts.catalog.subcluster_name(backend.subcluster);
        Record::Member(MemberStatus {
            role: MemberRole::Backend,
            number: id.0,
            name: Some(shortened(&backend.name)),
            addr: peer.map(|addr| addr.to_string()).unwrap_or_default(),
            member_s: self.member_s(now, backend.conn),
            state: backend.state().to_owned(),
            outstanding: self.parts.tasks.outstanding_at(id),
            gpus: Some(backend.gpus.len() as u32),
            subcluster: Some(shortened(subcluster)),
            missing: self.missing_at(backend),
        })
    }

    /// What keeps a backend from serving, beside what it is to do itself.
    fn missing_at(&self, backend: &Backend) -> Vec<String> {
        if backend.is_serving {
            return Vec::new();
        }
        let models = self.parts.catalog.served_by(backend.subcluster);
        let missing = models.filter(|(_, entry)| !backend.loaded.contains(&entry.id()));
        missing.map(|(_, entry)| shortened(&entry.spec.name)).take(MISSING_MAX).collect()
    }

    fn about_gpus(
        &self,
        now: Nanos,
        id: BackendId,
        backend: &Backend,
    ) -> impl Iterator<Item = (u32, Record)> {
        let first = id.0 * GPUS_PER_BACKEND_MAX;
        let joined_at = self.joined_at(backend.conn);
        (first..).zip(&backend.gpus).map(move |(index, gpu)| {
            let shares = self.shares(now, gpu.id.0, joined_at);
            let has_cache = !backend.memory.is_empty();
            let record = GpuStatus {
                slot: gpu.id.0,
                backend: shortened(&backend.name),
                subcluster: shortened(self.parts.catalog.subcluster_name(backend.subcluster)),
                busy: rounded(shares.busy),
                pages_free: self.pages_free(backend, gpu.id),
                loads: has_cache.then(|| self.parts.tasks.slot(gpu.id.0).loads),
                loader_busy: has_cache.then(|| rounded(shares.loader_busy)),
            };
            (index, Record::Gpu(record))
        })
    }

    fn pages_free(&self, backend: &Backend, slot: GpuId) -> Option<u32> {
        let levels = self.parts.levels.as_ref().filter(|_| !backend.memory.is_empty())?;
        levels.pages_free(slot)
    }

    /// What the slot did in the window.
    pub(super) fn shares(&self, now: Nanos, slot: u32, joined_at: Nanos) -> Shares {
        let window = self.status.window.as_ref();
        let shares = window.map(|window| window.shares(now, slot, joined_at, &self.parts.tasks));
        shares.unwrap_or_default()
    }

    pub(super) fn joined_at(&self, conn: ConnId) -> Nanos {
        self.conversations.get(&conn).map_or(Nanos::ZERO, |conversation| conversation.joined_at)
    }

    fn member_s(&self, now: Nanos, conn: ConnId) -> f64 {
        rounded(seconds(now - self.joined_at(conn)))
    }
}

fn variants(
    specs: &[VariantSpec],
    profiles: Profiles,
    Figures { variants, .. }: &Figures,
) -> Vec<VariantStatus> {
    let of_specs = specs.iter().zip(profiles).zip(variants);
    let about = of_specs.map(|((spec, profile), &(tasks, mean_batch))| VariantStatus {
        name: shortened(&spec.name),
        accuracy: per_cent(spec.accuracy),
        latency_ms: rounded(profile.latency(profile.batch_max()).as_millis_f64()),
        tasks,
        mean_batch: mean_batch.map(rounded),
    });
    about.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_survives_the_wire_and_none_is_taken_for_another() {
        for section in Section::ALL {
            let place = Place { section, index: 7 };
            assert_eq!(Place::from_wire(place.to_wire()), place);
        }
        assert_eq!(Place::from_wire(0), Place { section: Section::Scheduler, index: 0 });
        let nowhere = Place { section: Section::Loads, index: u32::MAX };
        assert_eq!(Place::from_wire(u64::MAX), nowhere);
    }
}
