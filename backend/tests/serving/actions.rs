//! Actions that are refused: too many, senseless, or too early.

use baton_rdma::TcpConfig;
use baton_types::{FrontendId, Nanos, TaskId};

use crate::party::Said;
use crate::world::{ActionSpec, EXECUTED, FIRST_GPU, MODEL, REFUSED, World};

#[test]
fn beyond_four_batches_in_hand_and_eight_waiting_actions_are_refused() {
    let mut world = World::ready();
    let silent = world.add_frontend(1);
    world.settle(&mut []);
    let infer = |world: &mut World, n: u32| {
        let batch = world.infer(&ActionSpec::default(), &[TaskId::new(silent.id, n % 8, n)]);
        world.steps(2);
        batch
    };
    for n in 0..12 {
        infer(&mut world, n);
    }
    assert_eq!(world.reports(), []);
    let one_too_many = infer(&mut world, 12);
    assert_eq!(world.reports(), [(one_too_many, 0, REFUSED)]);
    assert_eq!(world.counter("plans_queue_full"), 1);
}

#[test]
fn actions_that_make_no_sense_are_refused_and_counted() {
    let mut world = World::ready();
    let mut a = world.connected_frontend(1);
    let task = a.submit(1);
    let five: Vec<TaskId> = (0..5).map(|n| TaskId::new(a.id, n, 1)).collect();
    let fine = ActionSpec::default();
    let backwards = ActionSpec { exec_in: Nanos(2), invalid_in: Nanos(1), ..fine.clone() };
    let mut refused = Vec::new();
    for (spec, tasks) in [
        (&ActionSpec { model: 99, ..fine.clone() }, &[task][..]),
        (&ActionSpec { model: 0, ..fine.clone() }, &[task]),
        (&ActionSpec { gpu: 9, ..fine.clone() }, &[task]),
        (&ActionSpec { gpu: 11, ..fine.clone() }, &[task]),
        (&fine, &[]),
        (&fine, &five),
        (&backwards, &[task]),
        (&ActionSpec { kind: 9, ..fine.clone() }, &[task]),
        (&ActionSpec { variant: 1, ..fine.clone() }, &[task]),
    ] {
        refused.push((world.infer(spec, tasks), 0, REFUSED));
    }
    world.settle(&mut [&mut a]);
    assert_eq!(world.reports(), refused);
    assert_eq!((world.counter("plans_unknown"), world.counter("plans_malformed")), (4, 5));
    // A frontend that submits twice must not cost the others in its batch their answers.
    world.infer(&ActionSpec { model: MODEL, ..fine }, &[task, task]);
    world.settle(&mut [&mut a]);
    assert_eq!(world.hands[0].batch(), Some(1), "and the backend is none the worse");
    assert_eq!(world.counter("rows_repeated"), 1);
}

#[test]
fn a_report_names_the_gpu_slot_that_executed_the_batch() {
    let mut world = World::ready_with(2, TcpConfig::default());
    let mut a = world.connected_frontend(1);
    let second = ActionSpec { gpu: FIRST_GPU + 1, ..ActionSpec::default() };
    world.infer(&second, &[a.submit(1)]);
    world.settle(&mut [&mut a]);
    world.hands[1].finish(world.now, world.now);
    world.settle(&mut [&mut a]);
    let said = world.thread.take();
    assert!(matches!(said[..], [Said::Done { gpu, .. }] if gpu == FIRST_GPU + 1), "{said:?}");
}

#[test]
fn an_action_that_is_quicker_than_its_frontends_introduction_goes_back() {
    let mut world = World::ready();
    let mut known = world.connected_frontend(1);
    let (ours, stranger) = (known.submit(7), TaskId::new(FrontendId(2), 0, 0));
    let early = world.infer(&ActionSpec::default(), &[ours, stranger]);
    world.settle(&mut [&mut known]);
    assert_eq!(world.reports(), [(early, 0, REFUSED)], "the stranger could not hear its end");
    assert_eq!((world.counter("plans_early"), world.hands[0].batch()), (1, None));
    let mut frontend = world.connected_frontend(2);
    let again = world.infer(&ActionSpec::default(), &[ours, frontend.submit(8)]);
    world.settle(&mut [&mut known, &mut frontend]);
    world.hands[0].finish(world.now, world.now);
    world.settle(&mut [&mut known, &mut frontend]);
    assert_eq!(world.reports(), [(again, 2, EXECUTED)]);
}

/// The scheduler introduces a frontend and plans its first task at once; a backend that was busy sees both in one pass.
#[test]
fn an_action_that_comes_with_its_frontends_introduction_is_executed() {
    let mut world = World::ready();
    let mut frontend = world.add_frontend(1);
    let task = frontend.submit(7);
    let batch = world.infer(&ActionSpec::default(), &[task]);
    world.settle(&mut [&mut frontend]);
    assert_eq!((world.counter("plans"), world.counter("plans_early")), (1, 0), "both came at once");
    assert_eq!(world.counter("rows_fetch_failed"), 0);
    world.hands[0].finish(world.now, world.now);
    world.settle(&mut [&mut frontend]);
    assert_eq!(world.reports(), [(batch, 1, EXECUTED)]);
    assert!(frontend.answer(task).is_some());
}
