//! A model is added: read → loaded by the backends → served by RankThread and ModelThread → told to clients.

use baton_core::{BackendId, ModelId, Patience, Quota, SubclusterId};
use baton_rdma::wire::{ModelDown, ModelFailed, RefuseCode, Role};
use baton_rdma::{ConnId, Transport};
use baton_topo::{JournalKind, ModelTable};

use super::{Change, ControlThread, Handled, Step};
use crate::board::PublishedCandidate;
use crate::cache::cold::ColdSpan;
use crate::catalog::{Known, ModelStage};
use crate::commands::{ModelCommand, RankCommand, TableRead, TableRequest};
use crate::control::refuse;
use crate::control::status::EventKind;
use crate::limits::{FRONTENDS_MAX, READS_MAX};
use crate::migration::channel::ModelInTransit;
use crate::peers::Member;

/// An operator who names one key may not know that it takes another model.
const EXCHANGES: &str = "\nthese keys exchange the model, which keeps slo_ms, its quotas and its sub-cluster; give each other key again";

impl<T: Transport> ControlThread<T> {
    /// The first step: the table is read. `replaces` is the id of the model whose place the new one takes.
    pub(super) fn read_table(
        &mut self,
        operator: ConnId,
        text: String,
        replaces: Option<u32>,
    ) -> Result<Option<String>, String> {
        if self.changes.reads >= READS_MAX {
            return Err(format!("{READS_MAX} models are being read; try again"));
        }
        self.changes.reads += 1;
        let request = TableRequest { operator, text, replaces };
        let network = *self.parts.common.network();
        self.parts.slow_work.read_table(request, network, &self.parts.notice_sender);
        Ok(None)
    }

    /// The second step: backends load the model.
    pub(in crate::control) fn on_table_read(&mut self, read: TableRead) {
        let TableRead { request: TableRequest { operator, replaces, .. }, result } = read;
        self.changes.reads -= 1;
        let result = result.map_err(|why| if replaces.is_some() { why + EXCHANGES } else { why });
        let entered = result.and_then(|(table, text)| self.enter(table, text, replaces));
        let model = match entered {
            Ok(model) => model,
            Err(why) => return self.answer_operator(operator, Err(why)),
        };
        self.changes
            .under_way
            .insert(model, Change { operator: Some(operator), step: Step::Loaded });
        let entry = self.parts.catalog.entry(model).expect("just entered").clone();
        tracing::info!(model = model.0, name = entry.spec.name, "a model is added");
        let subcluster = Some(entry.spec.subcluster);
        self.tell_backends(subcluster, |transport, conn| {
            entry.send(transport, conn, Role::Backend)
        });
        self.check_loaded(model);
    }

    fn enter(
        &mut self,
        table: ModelTable,
        text: String,
        replaces: Option<u32>,
    ) -> Result<ModelId, String> {
        let ModelTable { mut spec, subcluster } = table;
        let replaces = replaces.map(|id| self.still_replaceable(id)).transpose()?;
        let catalog = &mut self.parts.catalog;
        if replaces.is_none() && catalog.named(&spec.name).is_some() {
            return Err(format!(
                "there is a model named `{0}` already; exchange it (`baton model set {0} file=FILE`), remove it first, \
                 or choose another name",
                spec.name
            ));
        }
        let unknown = |name: &str| {
            let known: Vec<&str> =
                catalog.subclusters().map(|id| catalog.subcluster_name(id)).collect();
            format!("there is no sub-cluster `{name}`; there are: {}", known.join(", "))
        };
        spec.subcluster = match &subcluster {
            Some(name) => catalog.subcluster_named(name).ok_or_else(|| unknown(name))?,
            None => SubclusterId(0),
        };
        self.check_weights(&spec)?;
        let catalog = &mut self.parts.catalog;
        let max = catalog.models_max();
        spec.id = catalog.vacancy().ok_or_else(|| {
            format!("there are {max} models, as many as models_max in [scheduler] allows")
        })?;
        let model = spec.id;
        catalog.enter(spec, Some(text));
        catalog.entry_mut(model).expect("just entered").replaces = replaces;
        Ok(model)
    }

    /// A backend that has joined has loaded a model.
    pub(in crate::control) fn on_loaded(&mut self, backend: BackendId, model: ModelId, id: u32) {
        if let Some(record) = self.roster.backend(backend)
            && !record.loaded.contains(&id)
        {
            record.loaded.push(id);
        }
        self.serve_with(backend);
        self.check_loaded(model);
    }

    /// A backend could not load a model that was added.
    pub(in crate::control) fn on_model_failed(
        &mut self,
        conn: ConnId,
        failed: &ModelFailed,
        why: &str,
    ) -> Handled {
        let member = self.member(conn);
        let Some(Member::Backend(id)) = member else {
            return refuse(RefuseCode::UnexpectedMessage, "only a joined backend loads models");
        };
        let Known::Now(model) = self.parts.catalog.known(failed.model.get()) else {
            return Ok(());
        };
        let name = self.roster.backend(id).map(|backend| backend.name.clone()).unwrap_or_default();
        if self.changes.step(model) == Some(Step::Loaded) {
            self.abandon_addition(model, &format!("backend `{name}` cannot load it: {why}"));
            return Ok(());
        }
        let detail = format!("backend `{name}` cannot load a model of its sub-cluster: {why}");
        refuse(RefuseCode::BadRequest, detail)
    }

    /// The addition comes to nothing.
    pub(super) fn abandon_addition(&mut self, model: ModelId, why: &str) {
        let Some(entry) = self.parts.catalog.entry(model) else { return };
        let (id, name) = (entry.id(), entry.spec.name.clone());
        let down = ModelDown { model: id.into() };
        let subcluster = Some(entry.spec.subcluster);
        self.tell_backends(subcluster, |transport, conn| transport.send(conn, &down, &[]));
        let (grants, life) =
            (self.parts.catalog.grants_before(model), self.parts.catalog.next_life(model));
        self.tell_model_threads(|| ModelCommand::NextLife { model, life });
        self.free(model, grants);
        self.end_change(model, Err(format!("model `{name}` was not added: {why}")));
    }

    /// The third step, once every backend that serves the sub-cluster has loaded the model: others serve once they have.
    pub(in crate::control) fn check_loaded(&mut self, model: ModelId) {
        let Some(entry) = self.parts.catalog.entry(model) else { return };
        let (id, subcluster) = (entry.id(), entry.spec.subcluster);
        let mut serving = self.roster.backends().filter(|(_, backend)| {
            backend.subcluster == subcluster && backend.is_serving && backend.draining.is_none()
        });
        let all_have = serving.all(|(_, backend)| backend.loaded.contains(&id));
        if all_have && self.changes.step(model) == Some(Step::Loaded) {
            let thread = self.emptiest_thread();
            self.changes.set_step(model, Step::Served { thread });
            let weights = self.weights_of(model);
            self.parts.rank.send(RankCommand::Serve { model, subcluster, weights });
        }
    }

    /// Models of which backends have come, gone or loaded something.
    pub(in crate::control) fn check_all_loaded(&mut self) {
        let waiting = self.changes.under_way.iter().filter(|(_, c)| c.step == Step::Loaded);
        let models: Vec<ModelId> = waiting.map(|(&model, _)| model).collect();
        models.into_iter().for_each(|model| self.check_loaded(model));
    }

    /// The ModelThread with the fewest models.
    fn emptiest_thread(&self) -> usize {
        let mut models = vec![0; self.parts.model_threads.len()];
        let serving = |stage| stage != ModelStage::Loading;
        let placed = self.parts.catalog.entries().filter(|(_, entry)| serving(entry.stage));
        placed.for_each(|(model, _)| models[self.balance.home(model)] += 1);
        let emptiest = models.iter().enumerate().min_by_key(|&(_, &count)| count);
        emptiest.map_or(0, |(thread, _)| thread)
    }

    /// The fourth step: the RankThread knows the model; it gets its ModelThread.
    pub(in crate::control) fn on_ranked(&mut self, model: ModelId) {
        let Some(Step::Served { thread }) = self.changes.step(model) else { return };
        self.adopt_profiles([model].into_iter());
        let Some(entry) = self.parts.catalog.entry(model) else { return };
        let resident = self.parts.common.resident(&entry.spec);
        let mut state = resident.state();
        if let Some(measured) = self.profiles.get(&model) {
            state.set_profiles(measured, Patience::new(&measured[0]));
        }
        let grants = self.parts.catalog.grants_before(model);
        let moves = self.parts.catalog.count_move(model);
        let state = Box::new(ModelInTransit {
            state: state.after(grants),
            subcluster: resident.subcluster,
            quota: Quota::new(resident.quota, FRONTENDS_MAX).map(Box::new),
            cold: ColdSpan::NEVER,
            last: PublishedCandidate { candidate: None, grants, moves },
        });
        self.balance.set_home(model, thread);
        self.parts.model_threads[thread].send(ModelCommand::Serve { model, state });
    }

    /// The last step: clients learn of the model.
    pub(in crate::control) fn on_served(&mut self, model: ModelId) {
        let Some(Step::Served { thread }) = self.changes.step(model) else { return };
        let replaced = self.parts.catalog.serve(model, thread);
        self.parts.counters.models_added.add(1);
        if let Some(former) = replaced {
            self.retire(former, None);
        }
        let entry = self.parts.catalog.entry(model).expect("it is served").clone();
        let end = self.parts.catalog.end();
        self.tell_clients(|transport, conn| {
            entry.send(transport, conn, Role::Frontend)?;
            transport.send(conn, &end, &[])
        });
        let backends = self.roster.serving(entry.spec.subcluster);
        let name = &entry.spec.name;
        let former = if replaced.is_some() { "in the place of a former one" } else { "" };
        self.note_event(EventKind::ModelAdded, &format!("model {name}"), former);
        let (done, and) = match replaced {
            Some(_) => ("is replaced", " is replaced, and"),
            None => ("is added", " is"),
        };
        let served = match backends {
            0 => format!("model `{name}` {done}; no backend serves its sub-cluster yet"),
            1 => format!("model `{name}`{and} served by 1 GPU slot"),
            gpus => format!("model `{name}`{and} served by {gpus} GPU slots"),
        };
        if replaced.is_some() {
            // What takes its place is written behind.
            self.write_down(JournalKind::Remove, name, "");
        }
        self.write_down(JournalKind::Add, name, entry.table().unwrap_or_default());
        self.end_change(model, Ok(served));
    }
}
