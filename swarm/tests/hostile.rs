//! Peers that speak the protocol nearly right, beside honest ones who must hardly notice.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use std::net::SocketAddr;
use std::num::NonZeroUsize;

use baton_core::{ModelId, Nanos, Policy, Profile, QuotaLimits, SubclusterId};
use baton_swarm::{
    Applications, Attack, AttackerKind, Conditions, Kind, Load, Plan, World, run_seed, run_traced,
    swarm,
};
use baton_topo::{
    BackendSpec, Cluster, EngineSpec, FabricSpec, FrontendSpec, Idle, ModelSpec, NetworkSpec,
    ReconnectSpec, SchedulerSpec,
};
use rand::RngExt;

const SEEDS: u64 = 12;
const SLO: Nanos = Nanos::from_millis(30);
/// Half of what two GPUs make of it: ℓ(16) = 20 ms.
const RATE_RPS: f64 = 800.0;
const LOAD: Load = Load {
    gap: Nanos::ZERO,
    burst: 1,
    deadline_percent: (100, 100),
    cancels: 0,
    drops: 0,
    keeps: 0,
};

fn ms(value: u64) -> Nanos {
    Nanos::from_millis(value)
}

#[test]
fn everything_holds_in_the_first_hostile_seeds() {
    let summary =
        swarm(Kind::Hostile, 0, NonZeroUsize::new(2).unwrap(), |begun| begun < SEEDS, |_| ());
    let failures: Vec<String> =
        summary.failures.iter().map(|seed| format!("{} ({})", seed.what, seed.replay)).collect();
    assert!(summary.conserved, "{failures:#?}");
    let done = &summary.hostility;
    assert!(done.messages > 100_000 && done.joins > 20, "they exercise little: {done:?}");
    assert!(done.refused > 1_000, "their peers say why: {done:?}");
    assert!(summary.completed > 1_000 && summary.hostile_rows >= 4, "{summary:?}");
}

#[test]
fn a_hostile_seed_is_the_same_run_again() {
    for seed in 0..2 {
        let (logged, lines) = run_traced(Kind::Hostile, seed);
        assert_eq!(logged, run_seed(Kind::Hostile, seed), "seed {seed}");
        assert!(lines.iter().any(|line| line.contains("ATTACKER")));
    }
}

#[test]
fn every_temper_is_drawn_and_most_runs_have_no_other_trouble() {
    let plans: Vec<Plan> = (0..300).map(Plan::hostile).collect();
    for kind in
        [AttackerKind::Stranger, AttackerKind::Frontend, AttackerKind::Idler, AttackerKind::Thief]
    {
        let has = |plan: &&Plan| plan.attacks.iter().any(|attack| attack.kind == kind);
        assert!(plans.iter().filter(has).count() > 30, "{kind:?}");
    }
    let alone = plans.iter().filter(|plan| plan.faults.is_empty()).count();
    assert!((180..280).contains(&alone), "{alone}");
}

fn cluster() -> Cluster {
    let backend = |name: &str| BackendSpec {
        name: name.into(),
        subcluster: SubclusterId(0),
        gpus: 1,
        cores: Vec::new(),
        idle: Idle::Park,
        credit_bytes: 16 * 1024,
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
            model_threads: 2,
            idle: Idle::Park,
            cores: Vec::new(),
            policy: Policy::Baton,
            prefer: baton_core::Prefer::default(),
            member_timeout: ms(300),
            metrics: None,
            etcd: None,
        },
        network: NetworkSpec {
            ctrl: Nanos::from_micros(300),
            data_per_task: Nanos::from_micros(20),
            response: Nanos::from_micros(300),
            jitter: Nanos::from_micros(100),
        },
        fabric: FabricSpec::default(),
        subclusters: vec!["gpu".into()],
        models: vec![ModelSpec {
            id: ModelId(0),
            name: "m".into(),
            subcluster: SubclusterId(0),
            profile: Profile::linear(ms(1), ms(4), 32).unwrap(),
            slo: SLO,
            input_bytes: 1_000,
            output_bytes: 8,
            queue_capacity: 4096,
            quota: QuotaLimits::default(),
            expected_rps: None,
            engine: EngineSpec::Emulated { jitter: 0.0 },
            variants: Vec::new(),
            weights: None,
        }],
        backends: ["b0", "b1"].map(backend).into(),
        frontend: FrontendSpec { slots_per_model: 4096, lease_grace: ms(200) },
        gateway: baton_topo::GatewaySpec::default(),
        reconnect: ReconnectSpec::default(),
    }
}

/// The bad rate of an honest frontend at half load beside these attackers, over two seconds.
fn bad_rate_of(seed: u64, attacks: &[Attack]) -> f64 {
    let mut world = World::new(cluster(), Conditions::quiet(), seed);
    world.start_scheduler();
    world.start_backend(0);
    world.start_backend(1);
    world.start_frontend(0);
    world.run(ms(100));
    assert!(world.all_joined());
    let (mut due, end) = (world.now, world.now + ms(2_500));
    let begin = world.now + ms(500);
    let (mut started, mut offered, mut applications) = (false, 0_u32, Applications::default());
    while world.now < end {
        if world.now >= begin && !std::mem::replace(&mut started, true) {
            attacks.iter().for_each(|&attack| world.start_attacker(attack));
        }
        while due <= world.now {
            if let Some(task) = world.submit(0, 0, SLO) {
                applications.take(0, task);
                offered += 1;
            }
            let gap_s = -(1.0 - world.rng.random::<f64>()).ln() / RATE_RPS;
            due = due + Nanos((gap_s * 1e9) as u64);
        }
        world.run(due.min(end) - world.now);
        applications.collect(&mut world, &LOAD, true);
    }
    let hostility = world.hostility();
    world.stop_attackers();
    world.run(ms(1_000));
    applications.collect(&mut world, &LOAD, true);
    assert_eq!(world.ledger.borrow().failure(), None);
    let tally = applications.tally;
    assert_eq!(tally.total(), offered, "an outcome is missing");
    // The slowest of them sends about a message each 2 ms.
    assert!(attacks.is_empty() || hostility.messages > 500, "{hostility:?}");
    let bad = 1.0 - f64::from(tally.completed - tally.late) / f64::from(offered);
    eprintln!("{:.3} % bad: {tally:?}; {hostility:?}", bad * 1e2);
    bad
}

fn attack(kind: AttackerKind) -> Attack {
    let pace = Nanos::from_micros(50);
    Attack { kind, from: Nanos::ZERO, pace, burst: 8, lines: 6, illegal: 20, serves: 990 }
}

#[test]
fn strangers_and_idle_backends_cost_the_honest_nothing() {
    for seed in [7, 11] {
        assert!(bad_rate_of(seed, &[]) <= 0.002, "seed {seed}");
        assert!(bad_rate_of(seed, &[attack(AttackerKind::Stranger); 2]) <= 0.005, "seed {seed}");
        assert!(bad_rate_of(seed, &[attack(AttackerKind::Idler); 2]) <= 0.005, "seed {seed}");
    }
}

/// It joins, announces inputs, asks for its fair share, and lets no backend read them.
#[test]
fn a_frontend_that_serves_no_inputs_costs_the_others_little() {
    let mute =
        Attack { serves: 0, illegal: 0, burst: 2, pace: ms(2), ..attack(AttackerKind::Frontend) };
    for seed in [1, 4, 8, 11] {
        assert!(bad_rate_of(seed, &[mute]) <= 0.01, "seed {seed}");
    }
}
