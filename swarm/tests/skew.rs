//! Builds of different protocol versions in one cluster: the hello settles on the newest that both sides
//! speak, and everybody is served.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use baton_core::Nanos;
use baton_rdma::wire::{VERSION_MAX, VERSION_MIN, Versions};
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
    let conditions = Conditions { speaks: Speaks::Fixed(speaks), ..Conditions::quiet() };
    let mut cluster = Plan::without_caches(11).cluster;
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

#[test]
fn a_build_that_has_nothing_in_common_with_the_scheduler_does_not_join_it() {
    let ahead = Versions { min: VERSION_MAX + 1, max: VERSION_MAX + 1 };
    let own = Versions::SPOKEN;
    for speaks in [[ahead, own, own], [own, ahead, own], [own, own, ahead]] {
        assert!(serve(speaks).is_none(), "{speaks:?}");
    }
}
