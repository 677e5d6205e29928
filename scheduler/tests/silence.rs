//! Who counts as silent, and when the ControlThread looks.

mod stage;

use baton_core::Policy;
use baton_rdma::wire::{ChangeKind, Ready, Role};
use baton_topo::Agent;
use stage::changes::{TABLE, answer, ask, loaded};
use stage::{Stage, Told, cluster, ms};

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

#[test]
fn the_control_thread_looks_for_silence_eight_times_in_a_member_timeout() {
    let mut stage = Stage::new(&cluster(Policy::Eager, 1));
    for _ in 0..20 {
        stage.settle();
        let looks = stage.scheduler.control.next_timer().expect("there is always a next look");
        assert!(looks <= stage.now + ms(125), "{looks:?} at {:?}", stage.now);
        stage.advance(ms(100));
    }
}
