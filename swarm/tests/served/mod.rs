//! A small cluster on a quiet network, and what is asked of it.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::net::SocketAddr;

use baton_core::{ModelId, Nanos, Policy, Profile, QuotaLimits, SubclusterId};
use baton_swarm::{Applications, Conditions, Load, Tally, World};
use baton_topo::{
    BackendSpec, Cluster, EngineSpec, FabricSpec, FrontendSpec, Idle, ModelSpec, NetworkSpec,
    ReconnectSpec, SchedulerSpec,
};
use rand::RngExt;

pub const MODELS: usize = 3;

/// No application changes its mind, and every deadline is 12 to 40 ms away.
pub const LOAD: Load = Load {
    gap: Nanos::ZERO,
    burst: 1,
    deadline_percent: (40, 133),
    cancels: 0,
    drops: 0,
    keeps: 0,
};

pub fn ms(value: u64) -> Nanos {
    Nanos::from_millis(value)
}

pub fn cluster(model_threads: u32, policy: Policy) -> Cluster {
    let model = |id: u32| ModelSpec {
        id: ModelId(id),
        name: format!("m{id}"),
        subcluster: SubclusterId(0),
        profile: Profile::linear(ms(1), ms(2 + 2 * u64::from(id)), 16).unwrap(),
        slo: ms(30),
        input_bytes: 100 + id,
        output_bytes: 8,
        queue_capacity: 64,
        quota: QuotaLimits::default(),
        expected_rps: None,
        engine: EngineSpec::Emulated { jitter: 0.0 },
        variants: Vec::new(),
        weights: None,
    };
    let backend = |name: &str| BackendSpec {
        name: name.into(),
        subcluster: SubclusterId(0),
        gpus: 2,
        cores: Vec::new(),
        idle: Idle::Park,
        credit_bytes: 512,
        metrics: None,
        model_memory: None,
        host_weights: 0,
        model_folder: baton_topo::ModelFolderSpec::default(),
        weights_cache: None,
        cards: baton_topo::CardsSpec::default(),
    };
    Cluster {
        scheduler: SchedulerSpec {
            models_max: None,
            journal: None,
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            model_threads,
            idle: Idle::Park,
            cores: Vec::new(),
            policy,
            prefer: baton_core::Prefer::default(),
            member_timeout: ms(1_000),
            metrics: None,
            etcd: None,
        },
        network: NetworkSpec {
            ctrl: Nanos::from_micros(300),
            data_per_task: Nanos::from_micros(50),
            response: Nanos::from_micros(200),
            jitter: Nanos::from_micros(100),
        },
        fabric: FabricSpec::default(),
        subclusters: vec!["gpu".into()],
        models: (0..MODELS as u32).map(model).collect(),
        backends: ["b0", "b1", "b2"].map(backend).into(),
        frontend: FrontendSpec { slots_per_model: 32, lease_grace: ms(200) },
        gateway: baton_topo::GatewaySpec::default(),
        reconnect: ReconnectSpec::default(),
    }
}

/// A cluster of two backends and two frontends, and its applications.
pub struct Served {
    pub world: World,
    pub applications: Applications,
    pub offered: u32,
}

impl Served {
    pub fn new(model_threads: u32, policy: Policy, seed: u64) -> Self {
        Self::of(cluster(model_threads, policy), Conditions::quiet(), seed)
    }

    pub fn of(cluster: Cluster, conditions: Conditions, seed: u64) -> Self {
        let mut world = World::new(cluster, conditions, seed);
        world.start_scheduler();
        world.start_backend(0);
        world.start_backend(1);
        world.start_frontend(0);
        world.start_frontend(1);
        world.run(ms(100));
        assert!(world.all_joined());
        Self { world, applications: Applications::default(), offered: 0 }
    }

    /// Offers about one task per `gap_us` for `span`, to random ones of these models.
    pub fn offer(&mut self, models: &[usize], gap_us: u64, span: Nanos, load: &Load) {
        let end = self.world.now + span;
        while self.world.now < end {
            let frontend = self.world.rng.random_range(0..2);
            let model = models[self.world.rng.random_range(0..models.len())];
            let within = Nanos::from_micros(self.world.rng.random_range(12_000..40_000));
            if let Some(task) = self.world.submit(frontend, model, within) {
                self.applications.take(frontend, task);
                self.applications.change_mind(&mut self.world, frontend, load);
                self.offered += 1;
            }
            let gap = self.world.rng.random_range(0..=2 * gap_us);
            self.run(Nanos::from_micros(gap), load);
        }
    }

    pub fn run(&mut self, span: Nanos, load: &Load) {
        self.world.run(span);
        self.applications.collect(&mut self.world, load, true);
    }

    /// Lets every deadline and lease pass: each ticket has its outcome then, and nothing is held.
    pub fn finish(&mut self) -> Tally {
        self.run(ms(1_500), &LOAD);
        assert_eq!(self.world.ledger.borrow().failure(), None);
        assert_eq!(self.applications.tally.total(), self.offered, "an outcome is missing");
        assert_eq!([0, 1].map(|frontend| self.world.slots_in_use(frontend)), [0, 0]);
        let scheduler = &self.world.scheduler.as_ref().unwrap().assembly;
        let held =
            scheduler.model_threads.iter().map(|thread| thread.in_flight() + thread.waiting());
        assert_eq!(held.sum::<usize>() + scheduler.rank.outstanding(), 0);
        self.applications.tally
    }
}
