//! Threads that have nothing to do say so, and give their cores away.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod stage;

use baton_scheduler::RankPlace;
use baton_topo::{Agent, Clock, Idle};
use stage::ms;

#[test]
fn who_has_done_everything_has_nothing_to_do() {
    let mut stage = stage::changes::stage();
    let _backend = stage.backend("a", 0, 1);
    stage.settle();
    let (now, scheduler) = (stage.now, &mut stage.scheduler);
    assert_eq!((scheduler.control.poll(now), scheduler.rank.poll(now)), (0, 0));
    for thread in &mut scheduler.model_threads {
        assert_eq!(thread.poll(now), 0);
    }
}

#[test]
fn one_thread_is_enough_where_all_park_on_cores_that_the_system_chooses() {
    let of = |model_threads, cores: &[usize], idle| {
        let mut cluster = stage::cluster(baton_core::Policy::Baton, model_threads);
        (cluster.scheduler.cores, cluster.scheduler.idle) = (cores.to_vec(), idle);
        RankPlace::of(&cluster)
    };
    assert_eq!(of(1, &[], Idle::Park), RankPlace::Shared);
    let others = [of(2, &[], Idle::Park), of(1, &[0, 1], Idle::Park), of(1, &[], Idle::Spin)];
    assert_eq!(others, [RankPlace::Own; 3]);
}

fn sleeps(agent: &mut impl Agent) -> bool {
    let clock = Clock::start();
    // It may have been woken before.
    agent.wait(Some(ms(0)));
    let begin = clock.now();
    agent.wait(Some(ms(5)));
    clock.now() - begin >= ms(5)
}

#[test]
fn each_thread_sleeps_until_it_is_woken() {
    let mut stage = stage::changes::stage();
    let scheduler = &mut stage.scheduler;
    assert!(sleeps(&mut scheduler.rank) && sleeps(&mut scheduler.control));
    assert!(scheduler.model_threads.iter_mut().all(sleeps));
}
