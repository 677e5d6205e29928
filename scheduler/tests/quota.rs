//! Quotas on the stage: what is refused, what the frontend hears, and that a move changes nothing.

mod stage;

use baton_core::{DropReason, ModelId, Policy, QuotaLimits, RateLimit};
use baton_rdma::wire::ChangeKind;
use baton_topo::Cluster;
use stage::asking::status;
use stage::changes::change;
use stage::{Member, Stage, Told, cluster, ms};

/// Both models take 1,000 tasks/s in all, 100 at once, and 50 of each frontend, 16 at once.
fn limited(model_threads: u32) -> Cluster {
    let mut cluster = cluster(Policy::Eager, model_threads);
    let [model, frontend] = [1_000.0, 50.0].map(|rps| Some(RateLimit::per_second(rps)));
    for spec in &mut cluster.models {
        spec.quota = QuotaLimits { model, frontend };
        spec.queue_capacity = 1024;
    }
    cluster
}

/// Submits tasks for the slots `from .. from + count`; what the frontend hears at once.
fn submit(stage: &mut Stage, frontend: &mut Member, from: u32, count: u32) -> Vec<Told> {
    for slot in from..from + count {
        let task = frontend.task(slot, 0);
        frontend.submit(0, task, stage.now + ms(10_000));
    }
    stage.exchange(frontend)
}

fn refused(task: u64, why: DropReason, retry_ms: u16) -> Told {
    Told::Ended { task, kind: 1, reason: why.code(), retry_ms }
}

fn dropped_for_quota(stage: &Stage) -> u64 {
    let threads = &stage.scheduler.counters().model_threads;
    threads.iter().map(|thread| thread.dropped_quota.get()).sum()
}

#[test]
fn what_is_above_a_frontends_quota_is_refused_with_the_time_to_come_again() {
    let mut stage = Stage::new(&limited(1));
    let (mut frontend, _backend) = (stage.frontend(), stage.backend("b", 0, 1));
    let told = submit(&mut stage, &mut frontend, 0, 18);
    // A token comes every 20 ms.
    let [over, further] = [16, 17].map(|slot| frontend.task(slot, 0));
    let quota = DropReason::Quota;
    assert_eq!(told, [refused(over, quota, 20), refused(further, quota, 20)]);
    assert_eq!(dropped_for_quota(&stage), 2);
    assert_eq!(stage.scheduler.model_threads[0].model(0).counters().received, 16);

    stage.advance(ms(19));
    assert_eq!(submit(&mut stage, &mut frontend, 18, 1), [refused(frontend.task(18, 0), quota, 1)]);
    stage.advance(ms(1));
    assert_eq!(submit(&mut stage, &mut frontend, 19, 1), []);
}

#[test]
fn one_frontends_flood_leaves_the_other_its_own() {
    let mut stage = Stage::new(&limited(1));
    let (mut greedy, mut modest) = (stage.frontend(), stage.frontend());
    let _backend = stage.backend("b", 0, 1);
    let mut refusals = 0;
    for round in 0..20 {
        refusals += submit(&mut stage, &mut greedy, round * 20, 20).len();
        assert_eq!(submit(&mut stage, &mut modest, round, 1), [], "half a frontend's quota");
        stage.advance(ms(40));
    }
    // 16 at once, then one in 20 ms: 38 until the last round.
    assert_eq!(refusals, 400 - 16 - 38);
}

#[test]
fn the_quota_goes_where_the_model_goes() {
    let mut stage = Stage::new(&limited(2));
    let (mut frontend, _backend) = (stage.frontend(), stage.backend("b", 0, 1));
    assert_eq!(submit(&mut stage, &mut frontend, 0, 16), []);
    assert!(stage.scheduler.control.move_model(ModelId(0), 1));
    stage.settle();
    // By way of the former home: this frontend does not listen to where models go.
    let task = frontend.task(16, 0);
    assert_eq!(
        submit(&mut stage, &mut frontend, 16, 1),
        [refused(task, DropReason::Quota, 20)],
        "a move is no new bucket"
    );
    let refused_at =
        |thread: usize| stage.scheduler.counters().model_threads[thread].dropped_quota.get();
    assert_eq!((refused_at(0), refused_at(1)), (0, 1));
}

#[test]
fn another_objective_is_no_new_bucket_and_another_quota_is_one() {
    let mut stage = Stage::new(&limited(1));
    let (mut frontend, _backend) = (stage.frontend(), stage.backend("b", 0, 1));
    assert_eq!(submit(&mut stage, &mut frontend, 0, 16), []);
    for (at, key, is_refused) in [(16, "slo_ms = 60", true), (17, "frontend_max_rps = 40", false)] {
        let text = format!("[[model]]\nname = \"model-0\"\n{key}\n");
        assert!(change(&mut stage, ChangeKind::Set, &text).0);
        let told = submit(&mut stage, &mut frontend, at, 1);
        assert_eq!(
            told.iter().any(|told| matches!(told, Told::Ended { .. })),
            is_refused,
            "{told:?}"
        );
    }
}

/// Of 20 tasks, 16 are let in.
#[test]
fn the_status_tells_apart_what_is_refused_and_does_not_call_it_bad() {
    let mut stage = Stage::new(&limited(1));
    let (mut frontend, mut backend) = (stage.frontend(), stage.backend("b", 0, 1));
    submit(&mut stage, &mut frontend, 0, 20);
    for _ in 0..20 {
        for member in [&mut frontend, &mut backend] {
            member.ping();
            stage.exchange(member);
        }
        stage.advance(ms(100));
    }
    let models = status(&mut stage).models;
    let model = &models[0];
    assert!((model.refused_rps / model.rate_rps - 0.2).abs() < 0.001, "{model:?}");
    assert_eq!(model.bad_rate, None, "{model:?}");
    assert_eq!(models[1].refused_rps, 0.0);
}
