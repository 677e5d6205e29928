//! The whole path in one thread: real agents, hand-moved time, seeded interleavings. Whatever dies,
//! every task of a living frontend ends exactly once, no answer is wrong, and nothing leaks.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

#[allow(unreachable_pub, reason = "a module of this test only")]
mod whole;

use std::time::Duration;

use baton_core::{ModelId, Nanos, Profile, SubclusterId};
use baton_scheduler::{Counter, ModelThreadCounters};
use baton_topo::{
    BackendSpec, Cluster, EngineSpec, FrontendSpec, Idle, ModelSpec, NetworkSpec, PolicyName,
    SchedulerSpec,
};
use rand::RngExt;
use whole::{Submitted, Tally, Whole};

const MODELS: [&str; 3] = ["alpha", "beta", "gamma"];

fn ms(value: u64) -> Nanos {
    Nanos::from_millis(value)
}

fn cluster(policy: PolicyName) -> Cluster {
    let model = |(id, name): (usize, &&str)| ModelSpec {
        id: ModelId(id as u32),
        name: (*name).into(),
        subcluster: SubclusterId(0),
        profile: Profile::linear(ms(1), ms(2 + 2 * id as u64), 16).unwrap(),
        slo: ms(30),
        input_bytes: 100 + id as u32,
        output_bytes: 8,
        queue_capacity: 64,
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
            listen: "127.0.0.1:0".parse().unwrap(),
            model_threads: 2,
            idle: Idle::Park,
            cores: Vec::new(),
            policy,
            member_timeout: ms(1_000),
        },
        network: NetworkSpec {
            ctrl: Nanos::from_micros(100),
            data_per_task: Nanos::from_micros(10),
            response: Nanos::from_micros(100),
            jitter: Nanos::from_micros(100),
        },
        fabric: baton_topo::FabricSpec::default(),
        subclusters: vec!["gpu".into()],
        models: MODELS.iter().enumerate().map(model).collect(),
        backends: ["b0", "b1", "b2", "b3"].map(backend).into(),
        frontend: FrontendSpec { slots_per_model: 32, lease_grace: ms(200) },
    }
}

/// Two frontends and two backends, all joined.
fn running(policy: PolicyName, seed: u64) -> Whole {
    running_on(2, policy, seed)
}

fn running_on(model_threads: u32, policy: PolicyName, seed: u64) -> Whole {
    let mut cluster = cluster(policy);
    cluster.scheduler.model_threads = model_threads;
    let mut whole = Whole::new(cluster, seed);
    whole.start_backend("b0");
    whole.start_backend("b1");
    whole.start_frontend();
    whole.start_frontend();
    whole.run(ms(100));
    assert!(whole.all_joined());
    whole
}

/// Submitted tasks without outcome, by frontend, and the outcomes of the others.
struct Tasks {
    /// What is asked for.
    models: Vec<&'static str>,
    offered: u32,
    open: Vec<Vec<Submitted>>,
    /// Went down with their frontend.
    lost: u32,
    ended: Tally,
}

impl Default for Tasks {
    fn default() -> Self {
        let (open, ended) = (Vec::new(), Tally::default());
        Self { models: MODELS.to_vec(), offered: 0, open, lost: 0, ended }
    }
}

impl Tasks {
    /// Offers about one task per `gap_us` for `span`, to random models from random frontends.
    fn offer(&mut self, whole: &mut Whole, gap_us: u64, span: Nanos) {
        let end = whole.now + span;
        while whole.now < end {
            let frontend = whole.rng.random_range(0..whole.frontends.len());
            let model = self.models[whole.rng.random_range(0..self.models.len())];
            let within = Duration::from_micros(whole.rng.random_range(12_000..40_000));
            self.open.resize_with(whole.frontends.len(), Vec::new);
            if let Some(task) = whole.submit(frontend, model, within) {
                self.open[frontend].push(task);
                self.offered += 1;
            }
            let gap = whole.rng.random_range(0..=2 * gap_us);
            whole.run(Nanos::from_micros(gap));
            self.collect();
        }
    }

    fn collect(&mut self) {
        self.open.iter_mut().for_each(|tasks| self.ended.collect(tasks));
    }

    fn cancel_some(&mut self, whole: &mut Whole) {
        for task in self.open.iter_mut().flatten() {
            if whole.rng.random_range(0..20) == 0 {
                task.ticket.cancel();
            }
        }
    }

    fn lose(&mut self, frontend: usize) {
        self.lost += self.open[frontend].len() as u32;
        self.open[frontend].clear();
    }

    /// Lets every deadline and lease pass: each ticket of a living frontend has its outcome then.
    fn finish(mut self, whole: &mut Whole) -> Tally {
        whole.run(ms(1_500));
        self.collect();
        assert_eq!(self.ended.total() + self.lost, self.offered, "an outcome is missing");
        assert_nothing_leaks(whole);
        self.ended
    }
}

/// Nothing is left anywhere once every outcome has been taken.
fn assert_nothing_leaks(whole: &Whole) {
    for frontend in 0..whole.frontends.len() {
        assert_eq!(whole.slots_in_use(frontend), 0, "frontend {frontend} leaks slots");
    }
    for (number, thread) in whole.scheduler.model_threads.iter().enumerate() {
        assert_eq!(thread.in_flight(), 0, "ModelThread {number} keeps batches");
        assert_eq!(thread.waiting(), 0, "ModelThread {number} keeps tasks");
    }
}

#[test]
fn a_modest_load_is_served_completely_and_in_time() {
    for policy in [PolicyName::Symphony, PolicyName::Eager] {
        let mut whole = running(policy, 1);
        let mut tasks = Tasks::default();
        tasks.offer(&mut whole, 1_000, ms(400));
        let offered = tasks.offered;
        assert!(offered > 300, "{offered} offered");
        let served = Tally { completed: offered, ..Tally::default() };
        assert_eq!(tasks.finish(&mut whole), served, "{policy:?}");
    }
}

#[test]
fn cancelled_tasks_are_told_once() {
    let mut whole = running(PolicyName::Symphony, 3);
    let mut tasks = Tasks::default();
    for _ in 0..20 {
        tasks.offer(&mut whole, 1_000, ms(10));
        tasks.cancel_some(&mut whole);
    }
    let tally = tasks.finish(&mut whole);
    assert!(tally.dropped > 0 && tally.failed == 0, "{tally:?}");
    assert_eq!(whole.duplicates(), 0);
}

#[test]
fn drained_backends_lose_nothing_and_a_late_one_is_used() {
    let mut whole = running(PolicyName::Symphony, 2);
    let mut tasks = Tasks::default();
    whole.start_backend("b2");
    tasks.offer(&mut whole, 2_000, ms(100));
    assert!(whole.all_joined());
    assert!(whole.leave(0, ms(200)), "it leaves in order");
    assert!(whole.leave(1, ms(200)), "so does the other one of the first two");
    tasks.offer(&mut whole, 2_000, ms(100));
    let served = Tally { completed: tasks.offered, ..Tally::default() };
    assert_eq!(tasks.finish(&mut whole), served);
}

fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|n| n.parse::<u64>().expect("a number"));
    match number("BATON_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("BATON_SEEDS").unwrap_or(10),
    }
}

/// Processes die and join at random moments under more load than the rest can bear.
fn chaos(seed: u64) -> Tally {
    let policy = if seed.is_multiple_of(2) { PolicyName::Symphony } else { PolicyName::Eager };
    let mut whole = running(policy, seed);
    let mut tasks = Tasks::default();
    let mut next_backend = 2;
    for _ in 0..5 {
        tasks.offer(&mut whole, 300, ms(40));
        tasks.cancel_some(&mut whole);
        match whole.rng.random_range(0..4) {
            0 => {
                let victim = whole.rng.random_range(0..whole.backends.len());
                whole.backends[victim] = None;
            }
            1 if next_backend < 4 => {
                whole.start_backend(&format!("b{next_backend}"));
                next_backend += 1;
            }
            2 => {
                let victim = whole.rng.random_range(0..whole.frontends.len());
                tasks.lose(victim);
                whole.frontends[victim] = None;
            }
            _ => whole.start_frontend(),
        }
    }
    tasks.finish(&mut whole)
}

/// Models move from thread to thread at random moments, some on their way while members die.
fn moves(seed: u64) -> (Tally, u64) {
    let policy = PolicyName::ALL[seed as usize % PolicyName::ALL.len()];
    let mut whole = running_on(3, policy, seed);
    let mut tasks = Tasks::default();
    for round in 0..20 {
        let model = ModelId(whole.rng.random_range(0..MODELS.len() as u32));
        let to = whole.rng.random_range(0..3);
        whole.scheduler.control.move_model(model, to);
        let span = Nanos::from_micros(whole.rng.random_range(0..15_000));
        tasks.offer(&mut whole, 250, span);
        tasks.cancel_some(&mut whole);
        match (round, seed % 3) {
            (7, 0) => whole.backends[1] = None,
            (7, 1) => {
                tasks.lose(0);
                whole.frontends[0] = None;
            }
            _ => {}
        }
    }
    let tally = tasks.finish(&mut whole);
    assert_eq!(whole.duplicates(), 0, "a task has two outcomes");
    let counters = whole.scheduler.counters();
    let sum = |of: fn(&ModelThreadCounters) -> &Counter| -> u64 {
        counters.model_threads.iter().map(|thread| of(thread).get()).sum()
    };
    assert_eq!(sum(|c| &c.models_released), counters.control_thread.models_moved.get());
    assert_eq!(sum(|c| &c.models_adopted), counters.control_thread.models_moved.get());
    assert_eq!(sum(|c| &c.unknown_model), 0, "a request came before its model");
    (tally, sum(|c| &c.passed_on))
}

/// `BATON_SEED=n cargo test -p baton-bench --test whole_path models_that_move` replays one run;
/// `BATON_SEEDS=n` tries that many.
#[test]
fn models_that_move_lose_no_task() {
    let (mut sum, mut passed_on) = (Tally::default(), 0);
    let seeds = seeds();
    for seed in seeds.clone() {
        let (tally, passed) = std::panic::catch_unwind(|| moves(seed)).unwrap_or_else(|_| {
            panic!("replay: BATON_SEED={seed} cargo test -p baton-bench --test whole_path models_that_move")
        });
        sum.completed += tally.completed;
        sum.dropped += tally.dropped;
        passed_on += passed;
    }
    if seeds.count() > 5 {
        assert!(sum.completed > 1_000 && passed_on > 100, "little exercised: {sum:?} {passed_on}");
    }
}

#[test]
fn a_busy_threads_model_moves_to_an_idle_one_by_itself() {
    let mut whole = running_on(2, PolicyName::Baton, 5);
    // Models 0 and 2 live on the first thread; only they are asked for.
    assert_eq!(whole.scheduler.control.homes(), [0, 1, 0]);
    let mut tasks = Tasks { models: vec!["alpha", "gamma"], ..Tasks::default() };
    tasks.offer(&mut whole, 700, ms(3_400));
    let homes = whole.scheduler.control.homes().to_vec();
    assert_ne!(homes[0], homes[2], "{homes:?}");
    let counters = whole.scheduler.counters();
    assert_eq!(counters.control_thread.models_moved.get(), 1, "once is enough");
    let passed_on = counters.model_threads[0].passed_on.get();
    assert!(passed_on < 100, "frontends go on by way of the former home: {passed_on}");
    let (offered, tally) = (tasks.offered, tasks.finish(&mut whole));
    // Some deadlines leave no time to wait for anything; the move adds nothing that shows.
    assert!(tally.failed == 0 && tally.dropped * 100 < offered, "{tally:?} of {offered}");
}

/// `BATON_SEED=n cargo test -p baton-bench --test whole_path chaos` replays one run;
/// `BATON_SEEDS=n` tries that many.
#[test]
fn chaos_ends_every_task_exactly_once_and_leaks_nothing() {
    let seeds = seeds();
    let mut sum = Tally::default();
    for seed in seeds.clone() {
        let tally = std::panic::catch_unwind(|| chaos(seed)).unwrap_or_else(|_| {
            panic!("replay: BATON_SEED={seed} cargo test -p baton-bench --test whole_path chaos")
        });
        sum.completed += tally.completed;
        sum.dropped += tally.dropped;
        sum.failed += tally.failed;
    }
    if seeds.count() > 5 {
        assert!(sum.completed > 1_000 && sum.dropped > 100, "the runs exercise little: {sum:?}");
    }
}
