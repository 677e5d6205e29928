//! The whole path on a quiet network: what must happen when little goes wrong. What must hold
//! whatever goes wrong is the swarm's business.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::net::SocketAddr;

use baton_core::{ModelId, Nanos, Profile, QuotaLimits, SubclusterId};
use baton_scheduler::{Counter, ModelThreadCounters};
use baton_swarm::{Applications, Conditions, Link, Load, Tally, World};
use baton_topo::{
    BackendSpec, Cluster, EngineSpec, FabricSpec, FrontendSpec, Idle, ModelSpec, NetworkSpec,
    PolicyName, SchedulerSpec,
};
use rand::RngExt;

const MODELS: usize = 3;

/// Nobody changes their mind, and every deadline is 12 to 40 ms away.
const LOAD: Load = Load {
    gap: Nanos::ZERO,
    burst: 1,
    deadline_percent: (40, 133),
    cancels: 0,
    drops: 0,
    keeps: 0,
};

fn ms(value: u64) -> Nanos {
    Nanos::from_millis(value)
}

fn cluster(model_threads: u32, policy: PolicyName) -> Cluster {
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
    };
    let backend = |name: &str| BackendSpec {
        name: name.into(),
        subcluster: SubclusterId(0),
        gpus: 2,
        cores: Vec::new(),
        idle: Idle::Park,
        credit_bytes: 512,
    };
    Cluster {
        scheduler: SchedulerSpec {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            model_threads,
            idle: Idle::Park,
            cores: Vec::new(),
            policy,
            member_timeout: ms(1_000),
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
    }
}

/// A cluster of two backends and two frontends, and its applications.
struct Served {
    world: World,
    applications: Applications,
    offered: u32,
}

impl Served {
    fn new(model_threads: u32, policy: PolicyName, seed: u64) -> Self {
        Self::of(cluster(model_threads, policy), Conditions::quiet(), seed)
    }

    fn of(cluster: Cluster, conditions: Conditions, seed: u64) -> Self {
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
    fn offer(&mut self, models: &[usize], gap_us: u64, span: Nanos, load: &Load) {
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

    fn run(&mut self, span: Nanos, load: &Load) {
        self.world.run(span);
        self.applications.collect(&mut self.world, load, true);
    }

    /// Lets every deadline and lease pass: each ticket has its outcome then, and nothing is held.
    fn finish(&mut self) -> Tally {
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

fn completed(tasks: u32) -> Tally {
    Tally { completed: tasks, ..Tally::default() }
}

#[test]
fn a_modest_load_is_served_completely_and_in_time() {
    for policy in [PolicyName::Symphony, PolicyName::Eager] {
        let mut served = Served::new(2, policy, 1);
        served.offer(&[0, 1, 2], 4_000, ms(1_500), &LOAD);
        assert!(served.offered > 300, "{} offered", served.offered);
        assert_eq!(served.finish(), completed(served.offered), "{policy:?}");
    }
}

#[test]
fn cancelled_tasks_are_told_once() {
    let mut served = Served::new(2, PolicyName::Symphony, 3);
    served.offer(&[0, 1, 2], 1_000, ms(200), &Load { cancels: 100, ..LOAD });
    let tally = served.finish();
    assert!(tally.dropped() > 0 && tally.failed() == 0, "{tally:?}");
    assert_eq!(served.world.duplicates(), 0);
}

#[test]
fn drained_backends_lose_nothing_and_a_late_one_is_used() {
    let mut served = Served::new(2, PolicyName::Symphony, 2);
    served.world.start_backend(2);
    served.offer(&[0, 1, 2], 2_000, ms(100), &LOAD);
    assert!(served.world.all_joined());
    for backend in [0, 1] {
        let left = served.world.leave(backend, ms(200));
        assert!(matches!(left, Some(Ok(()))), "it leaves in order: {left:?}");
    }
    served.offer(&[0, 1, 2], 2_000, ms(100), &LOAD);
    let tally = served.finish();
    // Some deadlines leave no time to wait for anything.
    assert!(tally.failed() == 0 && tally.dropped() * 20 < served.offered, "{tally:?}");
}

/// Answers that wait for room in a narrow connection leave before their backend does.
#[test]
fn a_backend_that_leaves_has_sent_what_it_answered() {
    let mut cluster = cluster(2, PolicyName::Eager);
    cluster.models.iter_mut().for_each(|model| model.output_bytes = 4_000);
    let link = Link { window: 2_048, ..Link::QUIET };
    let mut served = Served::of(cluster, Conditions { link, ..Conditions::quiet() }, 4);
    for round in 0..20 {
        served.offer(&[0, 1, 2], 600, ms(25), &LOAD);
        // Each life has its place; two live at a time.
        let left = served.world.leave(round, ms(100));
        assert!(matches!(left, Some(Ok(()))), "it leaves in order: {left:?}");
        served.world.start_backend(round % 2);
        served.offer(&[0, 1, 2], 600, ms(25), &LOAD);
    }
    let tally = served.finish();
    assert!(tally.completed > 1_000 && tally.failed() == 0, "{tally:?}");
}

/// Models move from thread to thread at random moments.
#[test]
fn models_that_move_lose_no_task() {
    for seed in 0..6 {
        let policy = PolicyName::ALL[seed as usize % PolicyName::ALL.len()];
        let mut served = Served::new(3, policy, seed);
        for _ in 0..20 {
            let model = ModelId(served.world.rng.random_range(0..MODELS as u32));
            let to = served.world.rng.random_range(0..3);
            let scheduler = served.world.scheduler.as_mut().unwrap();
            scheduler.assembly.control.move_model(model, to);
            let span = Nanos::from_micros(served.world.rng.random_range(0..15_000));
            served.offer(&[0, 1, 2], 250, span, &Load { cancels: 50, ..LOAD });
        }
        served.finish();
        assert_eq!(served.world.duplicates(), 0, "a task has two outcomes");
        let counters = served.world.scheduler.as_ref().unwrap().assembly.counters();
        let sum = |of: fn(&ModelThreadCounters) -> &Counter| -> u64 {
            counters.model_threads.iter().map(|thread| of(thread).get()).sum()
        };
        let moved = counters.control_thread.models_moved.get();
        assert!(moved > 0);
        assert_eq!([sum(|c| &c.models_released), sum(|c| &c.models_adopted)], [moved, moved]);
        assert_eq!(sum(|c| &c.unknown_model), 0, "a request came before its model");
    }
}

#[test]
fn a_busy_threads_model_moves_to_an_idle_one_by_itself() {
    let mut served = Served::new(2, PolicyName::Baton, 5);
    let homes = |served: &Served| {
        served.world.scheduler.as_ref().unwrap().assembly.control.homes().to_vec()
    };
    // Models 0 and 2 live on the first thread; only they are asked for.
    assert_eq!(homes(&served), [0, 1, 0]);
    served.offer(&[0, 2], 700, ms(3_400), &LOAD);
    let after = homes(&served);
    assert_ne!(after[0], after[2], "{after:?}");
    let tally = served.finish();
    let counters = served.world.scheduler.as_ref().unwrap().assembly.counters();
    assert_eq!(counters.control_thread.models_moved.get(), 1, "once is enough");
    let passed_on = counters.model_threads[0].passed_on.get();
    assert!(passed_on < 100, "frontends go on by way of the former home: {passed_on}");
    // Some deadlines leave no time to wait for anything; the move adds nothing that shows.
    assert!(tally.failed() == 0 && tally.dropped() * 50 < served.offered, "{tally:?}");
}
