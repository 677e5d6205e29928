//! Builds of different protocol versions in one cluster: the hello settles on the newest that both sides
//! speak, and everybody is served.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use baton_core::Nanos;
use baton_rdma::wire::{COLD_SINCE, VERSION_MAX, VERSION_MIN, Versions};
use baton_swarm::{Applications, Conditions, Load, Plan, Speaks, Tally, World};

const LOAD: Load = Load {
    gap: Nanos::ZERO,
    burst: 1,
    deadline_percent: (100, 100),
    cancels: 0,
    drops: 0,
    keeps: 0,
};
const TASKS: u32 = 20;

fn up_to(max: u16) -> Versions {
    Versions { min: VERSION_MIN, max }
}

/// A cluster of one scheduler, one backend and one frontend that speak this, in this order; `None`: they
/// do not all join.
fn serve(speaks: [Versions; 3]) -> Option<Tally> {
    serve_from(Plan::without_caches(11), speaks)
}

fn serve_from(plan: Plan, speaks: [Versions; 3]) -> Option<Tally> {
    let conditions = Conditions { speaks: Speaks::Fixed(speaks), ..Conditions::quiet() };
    let mut cluster = plan.cluster;
    cluster.backends.truncate(1);
    let mut world = World::new(cluster, conditions, 3);
    world.start_scheduler();
    world.start_backend(0);
    world.start_frontend(0);
    world.run(Nanos::from_millis(300));
    if !world.all_joined() {
        return None;
    }
    let mut applications = Applications::default();
    for _ in 0..TASKS {
        applications.submit(&mut world, &LOAD);
        world.run(Nanos::from_millis(20));
        applications.collect(&mut world, &LOAD, true);
    }
    world.run(Nanos::from_millis(2_000));
    applications.collect(&mut world, &LOAD, true);
    assert_eq!(world.ledger.borrow().failure(), None, "{speaks:?}");
    Some(applications.tally)
}

#[test]
fn every_mixture_of_old_new_and_newer_builds_serves() {
    let builds: Vec<Versions> = (VERSION_MIN..=VERSION_MAX + 1).map(up_to).collect();
    for &scheduler in &builds {
        for &backend in &builds {
            for &frontend in &builds {
                let speaks = [scheduler, backend, frontend];
                let tally = serve(speaks).unwrap_or_else(|| panic!("{speaks:?} do not join"));
                assert_eq!(tally.total(), TASKS, "{speaks:?}");
                assert_eq!(tally.failed(), 0, "{speaks:?}: {tally:?}");
                assert!(tally.completed > TASKS / 2, "{speaks:?}: {tally:?}");
            }
        }
    }
}

/// The scheduler knows it, the backend passes it on, the client says it: each only to one that speaks the version.
#[test]
fn that_a_task_was_cold_is_said_where_all_three_know_the_word() {
    let is_cold = |seed: &u64| {
        let (plan, own) = (Plan::of(*seed), [Versions::SPOKEN; 3]);
        plan.has_caches() && serve_from(plan, own).is_some_and(|tally| tally.cold > 0)
    };
    let seed = (0..100).find(is_cold).expect("one run in three has caches");
    let builds: Vec<Versions> = (VERSION_MIN..=VERSION_MAX + 1).map(up_to).collect();
    for &scheduler in &builds {
        for &backend in &builds {
            for &frontend in &builds {
                let speaks = [scheduler, backend, frontend];
                let tally = serve_from(Plan::of(seed), speaks).unwrap();
                assert!(tally.completed > 0, "{speaks:?}: {tally:?}");
                assert_eq!(tally.failed(), 0, "{speaks:?}: {tally:?}");
                let all_know = speaks.iter().all(|versions| versions.max >= COLD_SINCE);
                assert_eq!(tally.cold > 0, all_know, "{speaks:?}: {tally:?}");
                assert!(tally.cold < tally.completed, "not every task: {tally:?}");
            }
        }
    }
}

#[test]
fn a_build_that_has_nothing_in_common_with_the_scheduler_does_not_join_it() {
    let ahead = Versions { min: VERSION_MAX + 1, max: VERSION_MAX + 1 };
    let own = Versions::SPOKEN;
    for speaks in [[ahead, own, own], [own, ahead, own], [own, own, ahead]] {
        assert!(serve(speaks).is_none(), "{speaks:?}");
    }
}
