//! Plans that are refused: too many, senseless, or too early.

use baton_core::{FrontendId, Nanos, TaskId};

use crate::world::{MODEL, PlanSpec, World};

const EXECUTED: u8 = 0;
const REFUSED: u8 = 3;

#[test]
fn beyond_four_batches_in_hand_and_eight_waiting_plans_are_refused() {
    let mut world = World::ready();
    let silent = world.add_frontend(1);
    world.settle(&mut []);
    let plan = |world: &mut World, n: u32| {
        let batch = world.plan(&PlanSpec::default(), &[TaskId::new(silent.id, n % 8, n)]);
        world.steps(2);
        batch
    };
    for n in 0..12 {
        plan(&mut world, n);
    }
    assert_eq!(world.reports(), []);
    let one_too_many = plan(&mut world, 12);
    assert_eq!(world.reports(), [(one_too_many, 0, REFUSED)]);
    assert_eq!(world.counter("plans_queue_full"), 1);
}

#[test]
fn plans_that_make_no_sense_are_refused_and_counted() {
    let mut world = World::ready();
    let mut a = world.connected_frontend(1);
    let task = a.submit(1);
    let five: Vec<TaskId> = (0..5).map(|n| TaskId::new(a.id, n, 1)).collect();
    let fine = PlanSpec::default();
    let backwards = PlanSpec { exec_in: Nanos(2), invalid_in: Nanos(1), ..fine.clone() };
    let mut refused = Vec::new();
    for (spec, tasks) in [
        (&PlanSpec { model: 99, ..fine.clone() }, &[task][..]),
        (&PlanSpec { model: 0, ..fine.clone() }, &[task]),
        (&PlanSpec { gpu: 9, ..fine.clone() }, &[task]),
        (&PlanSpec { gpu: 11, ..fine.clone() }, &[task]),
        (&fine, &[]),
        (&fine, &five),
        (&backwards, &[task]),
    ] {
        refused.push((world.plan(spec, tasks), 0, REFUSED));
    }
    world.settle(&mut [&mut a]);
    assert_eq!(world.reports(), refused);
    assert_eq!((world.counter("plans_unknown"), world.counter("plans_malformed")), (4, 3));
    // A frontend that submits twice must not cost the others in its batch their answers.
    world.plan(&PlanSpec { model: MODEL, ..fine }, &[task, task]);
    world.settle(&mut [&mut a]);
    assert_eq!(world.hands[0].batch(), Some(1), "and the backend is none the worse");
    assert_eq!(world.counter("rows_repeated"), 1);
}

#[test]
fn a_plan_that_is_quicker_than_its_frontends_introduction_goes_back() {
    let mut world = World::ready();
    let mut known = world.connected_frontend(1);
    let (ours, stranger) = (known.submit(7), TaskId::new(FrontendId(2), 0, 0));
    let early = world.plan(&PlanSpec::default(), &[ours, stranger]);
    world.settle(&mut [&mut known]);
    assert_eq!(world.reports(), [(early, 0, REFUSED)], "nobody could tell the stranger its end");
    assert_eq!((world.counter("plans_early"), world.hands[0].batch()), (1, None));
    let mut frontend = world.connected_frontend(2);
    let again = world.plan(&PlanSpec::default(), &[ours, frontend.submit(8)]);
    world.settle(&mut [&mut known, &mut frontend]);
    world.hands[0].finish(world.now, world.now);
    world.settle(&mut [&mut known, &mut frontend]);
    assert_eq!(world.reports(), [(again, 2, EXECUTED)]);
}
