//! Processes that stand still: who observes, who is observed, and both, as on a host that has no core for
//! either. No process takes one for gone that stood still with it, and what has arrived is read.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod served;

use baton_core::{FailReason, Nanos, Policy};
use baton_swarm::{Conditions, Holds, Link};
use rand::RngExt;
use served::{LOAD, Served, cluster, ms};

/// More than any pause here; a task is not executed much sooner than it must be.
const LONG: Nanos = Nanos::from_millis(5_000);

fn served(member_timeout: Nanos, seed: u64) -> Served {
    let mut cluster = cluster(2, Policy::ALL[seed as usize % Policy::ALL.len()]);
    cluster.scheduler.member_timeout = member_timeout;
    Served::of(cluster, Conditions::quiet(), seed)
}

/// Members that the scheduler has lost, and how often members have lost the scheduler.
fn lost(served: &Served) -> (u64, u64) {
    let scheduler = served.world.scheduler.as_ref().unwrap();
    let members = scheduler.assembly.counters().control_thread.lost.get();
    let backends = served.world.backends.iter().flatten();
    let backends: u64 = backends.map(|process| process.worker.counters().schedulers_lost).sum();
    let clients = served.world.frontends.iter().flatten().filter_map(|process| process.client());
    (members, backends + clients.map(|client| client.counters().reconnects).sum::<u64>())
}

/// Tasks with all the time in the world, one of each model from each frontend.
fn submit_long(served: &mut Served) {
    for (frontend, model) in [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)] {
        let task = served.world.submit(frontend, model, LONG).unwrap();
        served.applications.take(frontend, task);
        served.offered += 1;
    }
}

/// Freezes, with tasks under way that can wait; then everything is as before.
fn kept(mut served: Served, seed: u64, freeze: impl Fn(&mut Served)) {
    for round in 0..4 {
        served.offer(&[0, 1, 2], 4_000, ms(200), &LOAD);
        submit_long(&mut served);
        let aside = Nanos::from_micros(served.world.rng.random_range(0..10_000));
        served.run(aside, &LOAD);
        // The outcome is due by the clock: those that could not wait may be left to their lease.
        let now = served.world.now;
        served.applications.excuse(now, now + ms(3_000), Holds::All);
        freeze(&mut served);
        served.run(LONG, &LOAD);
        assert_eq!(lost(&served), (0, 0), "seed {seed}, round {round}");
    }
    let before = served.applications.tally;
    assert!(before.completed >= 24, "tasks with time were answered: {before:?}");
    assert_eq!(served.applications.outstanding(), 0, "seed {seed}");
    let offered = served.offered;
    served.offer(&[0, 1, 2], 4_000, ms(500), &LOAD);
    let (offered, tally) = (served.offered - offered, served.finish());
    assert_eq!(tally.completed - before.completed, offered, "seed {seed}: it serves as before");
}

#[test]
fn a_host_that_stands_still_keeps_its_members_and_answers_who_has_time() {
    for seed in 0..10 {
        let timeout = if seed % 2 == 0 { ms(1_000) } else { ms(300) };
        kept(served(timeout, seed), seed, |served| {
            let long = ms(served.world.rng.random_range(1_000..=3_000));
            served.world.freeze_everybody(served.world.now + long);
        });
    }
}

/// Every task that can wait is answered, whichever process was frozen.
#[test]
fn tasks_that_can_wait_outlast_a_frozen_host() {
    let mut served = served(ms(1_000), 1);
    submit_long(&mut served);
    served.world.freeze_everybody(served.world.now + ms(3_000));
    served.run(LONG, &LOAD);
    assert_eq!(served.applications.tally.completed, served.offered);
    served.finish();
}

/// Each has stood still for less than it takes to be given up; by the time at which they look at
/// each other again, more has passed.
#[test]
fn who_stands_still_in_turn_with_the_observer_is_kept() {
    for seed in 0..6 {
        kept(served(ms(1_000), seed), seed, |served| {
            let now = served.world.now;
            served.world.freeze_backend(0, now + ms(1_500));
            served.world.freeze_frontend(0, now + ms(1_500));
            served.run(ms(300), &LOAD);
            served.world.freeze_scheduler(now + ms(1_200));
        });
    }
}

#[test]
fn an_observer_that_stands_still_alone_takes_no_process_for_gone() {
    for seed in 0..6 {
        kept(served(ms(1_000), seed), seed, |served| {
            served.world.freeze_scheduler(served.world.now + ms(850));
            served.run(ms(1_000), &LOAD);
            for place in 0..2 {
                let until = served.world.now + ms(850);
                served.world.freeze_backend(place, until);
                served.world.freeze_frontend(place, until);
            }
        });
    }
}

/// Nothing tells it from a dead one. It is back as soon as it goes on, and nothing else is lost.
#[test]
fn a_member_that_stood_still_for_too_long_joins_again_at_once() {
    for seed in 0..6 {
        let mut served = served(ms(1_000), seed);
        let until = served.world.now + ms(2_500);
        served.world.freeze_backend(0, until);
        served.world.freeze_frontend(1, until);
        submit_long(&mut served);
        served.run(ms(2_400), &LOAD);
        let scheduler = served.world.scheduler.as_ref().unwrap();
        assert_eq!(scheduler.assembly.counters().control_thread.lost.get(), 2);
        served.run(ms(350), &LOAD);
        assert!(served.world.all_joined(), "seed {seed}: a quarter of a second after it went on");
        assert_eq!(lost(&served), (2, 2), "seed {seed}: those two, and only they");
        served.run(LONG, &LOAD);
        assert_eq!(served.applications.outstanding(), 0);
        assert_eq!(served.finish().completed, served.offered, "seed {seed}");
    }
}

/// The leases of its tasks end while a frontend stands still, and the answers are more than one pass takes.
#[test]
fn answers_that_have_arrived_are_read_before_a_lease_ends() {
    let mut cluster = cluster(1, Policy::Eager);
    cluster.models.iter_mut().for_each(|model| model.output_bytes = 34_000);
    cluster.frontend.lease_grace = ms(100);
    let link = Link { window: 1 << 20, ..Link::QUIET };
    let mut served = Served::of(cluster, Conditions { link, ..Conditions::quiet() }, 3);
    for _ in 0..30 {
        let task = served.world.submit(0, 0, ms(150)).unwrap();
        served.applications.take(0, task);
        served.offered += 1;
    }
    // Its inputs are read before.
    served.run(ms(2), &LOAD);
    while served.world.backends.iter().flatten().any(|b| b.worker.counters().rows_executed == 0)
        && served.applications.tally.total() == 0
    {
        served.run(Nanos::from_micros(100), &LOAD);
    }
    served.world.freeze_frontend(0, served.world.now + ms(800));
    served.run(ms(900), &LOAD);
    let tally = served.finish();
    let expired = tally.failed[usize::from(FailReason::LeaseExpired.code())];
    assert!(expired == 0 && tally.completed > 20, "{tally:?}");
}
