//! Who counts as silent, and when the ControlThread looks.

mod stage;

use baton_core::{Nanos, Policy};
use baton_rdma::wire::{ChangeKind, Pace, Ready, RefuseCode, Role};
use baton_scheduler::Assembly;
use baton_topo::{Agent, SLEEP_MAX};
use stage::changes::{TABLE, answer, ask, loaded};
use stage::{Member, Stage, Told, cluster, ms};

#[test]
fn whatever_a_member_says_is_a_sign_of_life() {
    let mut stage = Stage::new(&cluster(Policy::Eager, 1));
    let mut frontend = stage.frontend();
    for _ in 0..4 {
        stage.advance(ms(600));
        frontend.send(&Ready { reserved: 0.into() }, &[]);
        assert_eq!(stage.exchange(&mut frontend), []);
    }
}

/// It has nothing to say until then.
#[test]
fn an_operator_is_given_its_answer_however_long_that_takes() {
    let mut stage = Stage::new(&cluster(Policy::Eager, 1));
    let mut backend = stage.backend("a", 0, 1);
    let mut operator = stage.member(Role::Operator);
    ask(&mut stage, &mut operator, ChangeKind::Add, TABLE);
    for _ in 0..4 {
        stage.advance(ms(600));
        backend.ping();
        let told = stage.exchange(&mut backend);
        assert!(matches!(told.last(), Some(Told::Pong { .. })), "{told:?}");
    }
    loaded(&mut stage, &mut backend, 2);
    assert!(answer(&mut stage, &mut operator).0);
}

/// When the ControlThread looks next, from now on.
fn next_look(stage: &mut Stage) -> Nanos {
    stage.settle();
    let look = stage.scheduler.control.next_timer().expect("there is always a next look");
    look - stage.now
}

/// The member says how often it pings.
fn pings_every(stage: &mut Stage, member: &mut Member, every: Nanos) {
    member.send(&Pace { every_ns: every.0.into() }, &[]);
    stage.exchange(member);
}

fn is_refused(told: &[Told]) -> bool {
    matches!(told, [Told::Refused { code: Some(RefuseCode::Silent), .. }, ..])
}

#[test]
fn the_control_thread_looks_for_silence_eight_times_in_a_member_timeout() {
    let mut stage = Stage::new(&cluster(Policy::Eager, 1));
    let mut backend = stage.backend("a", 0, 1);
    for _ in 0..20 {
        assert!(next_look(&mut stage) <= ms(125));
        stage.advance(ms(100));
        backend.ping();
        stage.exchange(&mut backend);
    }
}

/// How often the ControlThread wakes by itself.
fn wakes_of_control(stage: &mut Stage, within: Nanos) -> usize {
    let end = stage.now + within;
    let mut wakes = 0;
    while stage.now + next_look(stage) <= end {
        stage.now = stage.now + next_look(stage);
        wakes += 1;
    }
    wakes
}

#[test]
fn while_no_member_has_work_the_control_thread_looks_once_a_second() {
    let mut stage = Stage::new(&cluster(Policy::Eager, 1));
    let (mut backend, mut frontend) = (stage.backend("a", 0, 1), stage.frontend());
    pings_every(&mut stage, &mut backend, ms(1_000));
    stage.advance(ms(200));
    assert!(next_look(&mut stage) <= ms(125), "the frontend may have work");
    pings_every(&mut stage, &mut frontend, ms(1_000));
    stage.advance(ms(200));
    assert_eq!(stage.scheduler.control.sleep_max(), ms(1_000));
    assert_eq!(wakes_of_control(&mut stage, ms(2_000)), 2, "one look at silence and at loads");
    assert_eq!(stage.scheduler.rank.sleep_max(), SLEEP_MAX);
    for every in [ms(100), ms(99), Nanos::ZERO] {
        pings_every(&mut stage, &mut backend, every);
        assert!(next_look(&mut stage) <= ms(125), "{every:?} is as often as there is");
        assert!(stage.scheduler.control.sleep_max() <= ms(100));
        pings_every(&mut stage, &mut backend, ms(1_000));
        stage.advance(ms(200));
    }
}

/// Whether the ControlThread asks the ModelThread for its load within this time.
fn is_asked_within(stage: &mut Stage, time: Nanos) -> bool {
    let Assembly { control, model_threads, .. } = &mut stage.scheduler;
    let waker = model_threads[0].waker();
    waker.prepare_sleep();
    stage.now = stage.now + time;
    control.poll(stage.now);
    !waker.is_asleep()
}

fn is_model_thread_woken(stage: &mut Stage) -> bool {
    is_asked_within(stage, ms(1_000))
}

#[test]
fn what_is_lost_is_asked_for_sixteen_times_a_second() {
    let mut stage = Stage::new(&cluster(Policy::Baton, 1));
    let _backend = stage.backend("a", 0, 1);
    let asked = (0..900).filter(|_| {
        stage.settle();
        is_asked_within(&mut stage, ms(1))
    });
    let asked = asked.count();
    assert!((14..=16).contains(&asked), "{asked} times in .9 s");
}

#[test]
fn while_no_member_has_work_no_model_thread_is_asked_for_its_load() {
    let mut stage = Stage::new(&cluster(Policy::Eager, 1));
    let mut backend = stage.backend("a", 0, 1);
    assert!(is_model_thread_woken(&mut stage));
    pings_every(&mut stage, &mut backend, ms(1_000));
    stage.advance(ms(200));
    assert!(!is_model_thread_woken(&mut stage));
    pings_every(&mut stage, &mut backend, ms(100));
    assert!(is_model_thread_woken(&mut stage));
}

/// Runs until the ControlThread has closed the connection, and says how long that took.
fn silence_of(stage: &mut Stage, member: &mut Member) -> Nanos {
    let began = stage.now;
    while !is_refused(&stage.exchange(member)) {
        assert!(stage.now < began + ms(20_000), "it counts as alive for ever");
        stage.advance(ms(10));
    }
    stage.now - began
}

#[test]
fn who_pings_less_often_is_waited_for_longer_but_not_as_long_as_it_pleases() {
    for (every, bounds) in [
        (ms(100), ms(1_000)..ms(1_150)),
        (ms(400), ms(2_400)..ms(3_500)),
        (ms(1_000_000), ms(3_000)..ms(4_100)),
    ] {
        let mut stage = Stage::new(&cluster(Policy::Eager, 1));
        let mut backend = stage.backend("a", 0, 1);
        pings_every(&mut stage, &mut backend, every);
        let silence = silence_of(&mut stage, &mut backend);
        assert!(bounds.contains(&silence), "{every:?}: {silence:?}");
    }
}

#[test]
fn who_has_work_again_is_waited_for_no_longer_than_others() {
    let mut stage = Stage::new(&cluster(Policy::Eager, 1));
    let mut backend = stage.backend("a", 0, 1);
    pings_every(&mut stage, &mut backend, ms(1_000));
    stage.advance(ms(900));
    pings_every(&mut stage, &mut backend, ms(100));
    let silence = silence_of(&mut stage, &mut backend);
    assert!((ms(1_000)..ms(1_150)).contains(&silence), "{silence:?}");
}

/// A pause of the whole host, in which its members cannot have said anything either.
#[test]
fn a_pause_while_no_member_has_work_costs_none_of_them() {
    let mut stage = Stage::new(&cluster(Policy::Eager, 1));
    let mut backend = stage.backend("a", 0, 1);
    pings_every(&mut stage, &mut backend, ms(1_000));
    stage.advance(ms(1_500));
    backend.ping();
    stage.exchange(&mut backend);
    stage.advance(ms(990));
    stage.now = stage.now + ms(60_000);
    stage.settle();
    stage.advance(ms(900));
    let told = stage.exchange(&mut backend);
    assert!(!is_refused(&told), "{told:?}");
}
