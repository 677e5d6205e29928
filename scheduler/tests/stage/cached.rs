//! A scripted backend with room for two of three models.

use baton_core::{Nanos, Policy, SubclusterId};
use baton_rdma::Transport;
use baton_rdma::wire::{
    ActionStatus, JoinBackend, LoadDone, LoadStatus, ProfileDesc, Ready, RefuseCode, Role,
    SlotMemory,
};
use baton_topo::{Cluster, ModelSpec, WeightsCacheSpec, WeightsSpec};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

use super::caches::with_cache;
use super::{Member, Stage, Told, cluster, ms};

pub const PAGE: u64 = 1 << 20;
pub const PAGES: u32 = 4;
pub const LOAD: Nanos = Nanos::from_millis(5);
pub const MODELS: u32 = 3;

/// Three models of two pages, ℓ(b) = b + 4 ms, objective 100 ms; slots of four pages.
pub fn cached(model_threads: u32) -> Cluster {
    let base = cluster(Policy::Baton, model_threads);
    let model = |id: u32| ModelSpec {
        id: baton_core::ModelId(id),
        name: format!("model-{id}"),
        subcluster: SubclusterId(0),
        slo: ms(100),
        weights: Some(WeightsSpec { bytes: 2 * PAGE, load: LOAD, is_guess: false }),
        ..base.models[0].clone()
    };
    let backend = with_cache(WeightsCacheSpec { pages: PAGES, page_bytes: PAGE });
    let models = (0..MODELS).map(model).collect();
    Cluster { models, backends: vec![backend], ..base }
}

pub fn announce(member: &mut Member, slot: u32, (pages, page_bytes): (u32, u64), models: &[u32]) {
    let models: Vec<U32> = models.iter().map(|&model| model.into()).collect();
    let memory =
        SlotMemory { slot: slot.into(), pages: pages.into(), page_bytes: page_bytes.into() };
    member.send(&memory, models.as_bytes());
}

pub fn describe(member: &mut Member, model: u32, pages: u32) {
    member.send(&ProfileDesc { model: model.into(), pages: pages.into() }, &[]);
}

/// A backend that holds `models` already.
pub fn backend(stage: &mut Stage, models: &[u32]) -> Member {
    let mut member = stage.member(Role::Backend);
    (0..MODELS).for_each(|model| describe(&mut member, model, 2));
    announce(&mut member, 0, (PAGES, PAGE), models);
    member.send(&JoinBackend { subcluster: 0.into(), gpus: 1.into() }, b"b");
    stage.connect(&mut member);
    member.send(&Ready { reserved: 0.into() }, &[]);
    stage.exchange(&mut member);
    member
}

pub fn done(member: &mut Member, load: u64, status: LoadStatus, took: Nanos, now: Nanos) {
    report(member, load, (status, 0), [now - took, now]);
}

pub fn report(member: &mut Member, load: u64, how: (LoadStatus, u8), [from, to]: [Nanos; 2]) {
    let done = LoadDone {
        load: load.into(),
        started_ns: from.0.into(),
        finished_ns: to.0.into(),
        gpu: 0.into(),
        pages_free: 0.into(),
        status: how.0 as u8,
        fault: how.1,
        reserved: [0; 2],
    };
    let thread = member.threads[0];
    member.transport.send(thread, &done, &[]).unwrap();
}

/// The one LOAD that was sent: its name and its victims.
pub fn load_of(told: &[Told], of: u32) -> (u64, Vec<u32>) {
    match told {
        [Told::Load { load, gpu: 0, model, victims, .. }] if *model == of => {
            (*load, victims.clone())
        }
        other => panic!("expected a LOAD of model {of}, received {other:?}"),
    }
}

pub fn batch_of(told: &[Told], of: u32) -> u64 {
    match told {
        [Told::Action { batch, model, .. }] if *model == of => *batch,
        other => panic!("expected a batch of model {of}, received {other:?}"),
    }
}

pub struct Cold {
    pub stage: Stage,
    pub frontend: Member,
    pub backend: Member,
    pub submitted: u32,
}

impl Cold {
    pub fn lose_backend(&mut self) {
        let conn = self.backend.control;
        self.backend.transport.close(conn, RefuseCode::Shutdown, "gone");
        self.stage.exchange(&mut self.backend);
    }

    pub fn start(models: &[u32]) -> Self {
        Self::on(Stage::new(&cached(1)), models)
    }

    pub fn on(mut stage: Stage, models: &[u32]) -> Self {
        let frontend = stage.frontend();
        let backend = backend(&mut stage, models);
        Self { stage, frontend, backend, submitted: 0 }
    }

    /// Submits a task; what the backend hears.
    pub fn submit(&mut self, model: u32) -> Vec<Told> {
        let task = self.frontend.task(self.submitted, 0);
        self.submitted += 1;
        self.frontend.submit(model, task, self.stage.now + ms(100));
        assert_eq!(self.stage.exchange(&mut self.frontend), []);
        self.stage.exchange(&mut self.backend)
    }

    /// Time passes; what the backend hears.
    pub fn wait(&mut self, by: Nanos) -> Vec<Told> {
        self.stage.advance(by);
        self.stage.exchange(&mut self.backend)
    }

    pub fn loaded(&mut self, load: u64) -> Vec<Told> {
        self.stage.advance(LOAD);
        done(&mut self.backend, load, LoadStatus::Loaded, LOAD, self.stage.now);
        self.stage.exchange(&mut self.backend)
    }

    pub fn execute(&mut self, batch: u64) {
        let now = self.stage.now;
        self.backend.report(batch, 0, ActionStatus::Executed, (now, now + ms(5)));
        self.wait(ms(5));
    }

    /// From a task of a cold model to the end of its batch; the victims of its LOAD.
    pub fn serve_cold(&mut self, model: u32) -> Vec<u32> {
        let (load, victims) = load_of(&self.submit(model), model);
        let batch = batch_of(&self.loaded(load), model);
        self.execute(batch);
        victims
    }
}
