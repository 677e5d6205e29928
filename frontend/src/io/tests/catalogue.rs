//! Models come, go and get other objectives while the client serves.

use std::time::Duration;

use baton_rdma::ReadStatus;
use baton_rdma::wire::{CatalogEnd, ModelDesc, TensorDesc, VariantDesc};
use baton_topo::signature::{ElementType, Extent, TensorSpec};
use baton_types::{CostHint, DropReason, Nanos, TaskId};

use super::world::*;
use crate::end::End;
use crate::session::Asked;
use crate::{Client, Deadline, InputError, ModelVariant, Outcome, SubmitReason};

/// The first new model of the tests, and where its slab begins.
const GAMMA: u32 = 2;
const BEHIND: u32 = 2 * SLOTS;

/// The model is added and can be used; where its slab begins.
fn add(world: &mut World, id: u32, name: &str) -> u32 {
    world.control.take();
    world.add_model(model_desc(id), name);
    let heard = world.control.take();
    let [Heard::Slab { model, first_slot, slots: SLOTS, .. }] = heard[..] else {
        panic!("{heard:?}")
    };
    assert_eq!(model, id);
    world.slab_known(MEMBER, first_slot);
    first_slot
}

/// A task of the model is served.
fn serve(world: &mut World, client: &Client, name: &str) -> TaskId {
    let ticket = world.submit(&client.model(name).unwrap(), 7, Deadline::Slo);
    let task = ticket.task();
    world.backend.take();
    assert_eq!(world.pull(task), (ReadStatus::Done, vec![7; INPUT]));
    world.answer(task, &[1; OUTPUT]);
    assert!(matches!(ticket.wait(), Outcome::Completed(_)));
    task
}

fn slots(world: &World) -> usize {
    world.io.as_ref().unwrap().serving.as_ref().unwrap().models.slots()
}

#[test]
fn a_model_that_is_added_is_used_once_the_backends_know_its_slab() {
    let (mut world, client) = World::open();
    world.add_model(model_desc(GAMMA), "gamma");
    let (first_slot, slots, input_bytes) = (BEHIND, SLOTS, INPUT as u32);
    let slab = Heard::Slab { model: GAMMA, first_slot, slots, input_bytes };
    assert_eq!(world.control.take(), [slab]);
    assert_eq!(client.model("gamma").unwrap_err().known, MODELS);
    world.slab_known(MEMBER + 1, BEHIND);
    world.slab_known(MEMBER, BEHIND + 1);
    world.slab_known(MEMBER, 0);
    assert!(client.model("gamma").is_err(), "that was about others");
    world.slab_known(MEMBER, BEHIND);
    let names: Vec<_> = client.models().iter().map(|model| model.name().to_owned()).collect();
    assert_eq!(names, ["alpha", "beta", "gamma"]);

    let task = serve(&mut world, &client, "gamma");
    assert_eq!(task.slot(), BEHIND);
    let heard = world.threads[0].take();
    let [Heard::Submit { task: heard, model, .. }] = heard[..] else { panic!("{heard:?}") };
    assert_eq!((heard, model), (task, GAMMA));
    serve(&mut world, &client, "alpha");
    let counters = client.counters();
    assert_eq!((counters.models_added, counters.unexpected), (1, 3));
    assert_eq!(client.slots_in_use(), 0);
}

#[test]
fn an_added_model_has_its_tensors() {
    let spec = |name: &str, len| TensorSpec {
        name: name.into(),
        element: ElementType::F32,
        shape: vec![Extent::Fixed(len)],
    };
    let (mut world, client) = World::open();
    // The second one's output is longer than its rows.
    for (id, output) in [(GAMMA, 1), (GAMMA + 1, 2)] {
        world.control.send(&model_desc(id), format!("gamma-{id}").as_bytes());
        world.control.send(&TensorDesc::new(id, false, &spec("x", 4)), b"x");
        world.control.send(&TensorDesc::new(id, true, &spec("y", output)), b"y");
        let end = CatalogEnd { scheduler_epoch: 1.into() };
        world.control.send(&end, &[]);
        world.steps(3);
        world.slab_known(MEMBER, BEHIND);
    }
    let gamma = client.model("gamma-2").unwrap();
    assert_eq!((gamma.inputs()[0].name.as_str(), gamma.outputs()[0].name.as_str()), ("x", "y"));
    let answer = gamma.tensors_of(&[0, 0, 128, 63]).unwrap();
    let [one] = &answer[..] else { panic!("{answer:?}") };
    assert_eq!((one.shape.as_slice(), one.bytes), (&[1][..], &[0, 0, 128, 63][..]));
    assert!(gamma.tensors_of(&[0; 5]).is_err());
    assert!(client.model("gamma-3").is_err());
    assert_eq!(client.counters().unexpected, 2, "the catalogue, and what is known of no slab");
    add(&mut world, GAMMA + 2, "delta");
    assert!(client.model("delta").is_ok(), "what comes later is not affected");
}

#[test]
fn memory_is_reserved_only_for_models_that_are_wanted() {
    let (mut world, client) = World::open_with(|config| config.models(["beta"]));
    let before = world.memory_bytes();
    world.add_model(model_desc(7), "delta");
    world.add_model(ModelDesc { thread: 0.into(), ..model_desc(7) }, "delta");
    world.add_model(ModelDesc { thread: 1.into(), ..model_desc(0) }, "alpha");
    assert_eq!((world.control.take(), world.memory_bytes()), (vec![], before));
    world.remove_model(7);
    world.remove_model(0);
    world.remove_model(1);
    assert_eq!(world.memory_bytes(), 0);
    assert_eq!(add(&mut world, 8, "beta"), 0);
    assert!(client.model("beta").is_ok() && world.memory_bytes() == before);
    assert_eq!(client.counters().unexpected, 0);
}

#[test]
fn tasks_of_a_model_that_has_moved_go_to_its_new_model_thread() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    world.add_model(ModelDesc { thread: 1.into(), ..model_desc(0) }, "alpha");
    let ticket = world.submit(&alpha, 1, Deadline::Slo);
    assert_eq!(world.threads[0].take(), []);
    let heard = world.threads[1].take();
    assert!(matches!(heard[..], [Heard::Submit { model: 0, .. }]), "{heard:?}");
    world.answer(ticket.task(), &[1; OUTPUT]);
    assert!(matches!(ticket.wait(), Outcome::Completed(_)));
}

#[test]
fn a_removed_model_takes_no_tasks_and_those_it_has_get_their_outcomes() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let answered = world.submit(&alpha, 1, Deadline::Slo);
    let dropped = world.submit(&alpha, 2, Deadline::Slo);
    let mut held = alpha.input().unwrap();
    held.fill(3);
    let before = world.memory_bytes();
    world.remove_model(0);
    assert!(alpha.is_removed());
    assert_eq!(client.model("alpha").unwrap_err().known, ["beta"]);
    let removed = InputError::ModelRemoved { model: "alpha".into() };
    assert_eq!(alpha.input().unwrap_err(), removed);
    assert_eq!(alpha.input_from(&[0; INPUT]).unwrap_err(), removed);
    let refused = world.submit_input(held, Deadline::Slo).unwrap_err();
    assert_eq!(refused.reason, SubmitReason::ModelRemoved);
    assert_eq!(refused.input[..], [3; INPUT], "the input comes back");

    world.backend.take();
    assert_eq!(world.pull(answered.task()), (ReadStatus::Done, vec![1; INPUT]));
    let (old, old_dropped) = (answered.task(), dropped.task());
    world.answer(old, &[1; OUTPUT]);
    let Outcome::Completed(reply) = answered.wait() else { panic!() };
    world.end(0, old_dropped, 1, DropReason::ModelRemoved.code());
    assert!(matches!(dropped.wait(), Outcome::Dropped(DropReason::ModelRemoved, _)));
    world.steps(2);
    assert_eq!((client.slots_in_use(), world.memory_bytes()), (2, before), "the input, the reply");
    assert_eq!(reply.bytes(), [1; OUTPUT]);
    drop((reply, refused));
    world.steps(2);
    assert_eq!(client.slots_in_use(), 0);
    assert!(world.memory_bytes() < before, "the last slot is free");

    let counters = client.counters();
    assert_eq!((counters.models_removed, counters.model_removed), (1, 3));
    assert_eq!((counters.submitted, counters.completed, counters.dropped), (2, 1, 1));
    serve(&mut world, &client, "beta");
}

#[test]
fn the_slots_of_a_removed_model_serve_another_under_other_ids() {
    let (mut world, client) = World::open();
    let old: Vec<_> = (0..3).map(|_| serve(&mut world, &client, "alpha")).collect();
    let alpha = client.model("alpha").unwrap();
    world.remove_model(0);
    assert_eq!(add(&mut world, 0x1_0000, "alpha"), 0, "the first place is free");
    assert!(alpha.is_removed(), "a handle of the old one stays one");
    assert!(alpha.input().is_err());

    let again = client.model("alpha").unwrap();
    let tickets: Vec<_> = (0..4).map(|_| world.submit(&again, 9, Deadline::Slo)).collect();
    assert!(tickets.iter().all(|ticket| !old.contains(&ticket.task())));
    for &late in &old {
        world.backend.take();
        assert_eq!(world.pull(late).0, ReadStatus::Stale);
        world.answer(late, &[6; OUTPUT]);
        world.end(0, late, 1, DropReason::Window.code());
    }
    for ticket in tickets {
        world.backend.take();
        assert_eq!(world.pull(ticket.task()), (ReadStatus::Done, vec![9; INPUT]));
        world.answer(ticket.task(), &[2; OUTPUT]);
        let Outcome::Completed(reply) = ticket.wait() else { panic!() };
        assert_eq!(reply.bytes(), [2; OUTPUT]);
    }
    assert_eq!(client.counters().duplicates, old.len() as u64);
}

/// The application has submitted, and the client learns of the removal before it sees the task.
#[test]
fn a_task_that_slips_in_behind_the_removal_is_dropped() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let input = alpha.model().acquire().unwrap();
    world.remove_model(0);
    let (now, session) = (world.now, &client.guard.session);
    let asked = Asked { cost: CostHint::NONE, accuracy_min: 0 };
    let task = session.submit(alpha.model(), input, asked, now, now + SLO);
    world.threads[0].take();
    world.steps(2);
    let end = alpha.model().cell(task).take().expect("it has its outcome");
    assert!(matches!(end, End::Dropped(DropReason::ModelRemoved, _)));
    alpha.model().recycle(task);
    assert_eq!((world.threads[0].take(), client.slots_in_use()), (vec![], 0));
}

/// An answer names the variant that gave it.
#[test]
fn a_model_tells_its_variants_and_a_reply_how_accurate_it_is() {
    let (mut world, client) = World::open();
    world.control.take();
    world.control.send(&model_desc(GAMMA), b"gamma");
    for (accuracy, name) in [(70_500, "small"), (76_100, "large")] {
        let desc = VariantDesc { model: GAMMA.into(), accuracy: accuracy.into() };
        world.control.send(&desc, name.as_bytes());
    }
    world.control.send(&CatalogEnd { scheduler_epoch: 1.into() }, &[]);
    world.steps(3);
    world.slab_known(MEMBER, BEHIND);
    let gamma = client.model("gamma").unwrap();
    let told = |variant: &ModelVariant| (variant.name().to_owned(), variant.accuracy());
    let variants: Vec<_> = gamma.variants().iter().map(told).collect();
    assert_eq!(variants, [("small".to_owned(), 70.5), ("large".to_owned(), 76.1)]);
    assert_eq!(client.model("alpha").unwrap().variants(), []);

    for (model, variant, accuracy) in [(&gamma, 1, Some(76.1)), (&gamma, 0, Some(70.5))] {
        let ticket = world.submit(model, 1, Deadline::Slo);
        world.answer_as(ticket.task(), variant, &[1; OUTPUT]);
        let Outcome::Completed(reply) = ticket.wait() else { panic!() };
        assert_eq!(reply.accuracy(), accuracy);
        assert_eq!(reply.variant().map(ModelVariant::index), Some(variant));
    }
    let ticket = world.submit(&client.model("alpha").unwrap(), 1, Deadline::Slo);
    world.answer(ticket.task(), &[1; OUTPUT]);
    let Outcome::Completed(reply) = ticket.wait() else { panic!() };
    assert_eq!(reply.accuracy(), None);
}

#[test]
fn an_objective_that_changes_counts_from_the_next_submit() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let slo = Nanos::from_millis(80);
    world.control.send(&ModelDesc { slo_ns: slo.0.into(), ..model_desc(0) }, b"alpha");
    world.steps(3);
    assert_eq!(alpha.slo(), Duration::from_millis(80));
    let ticket = world.submit(&alpha, 1, Deadline::Slo);
    assert_eq!(ticket.deadline() - ticket.submitted(), slo);
    assert_eq!(client.model("beta").unwrap().slo().as_nanos() as u64, SLO.0);
    assert_eq!(client.counters().models_added, 0);
}

#[test]
fn a_hundred_models_that_come_and_go_leave_nothing_behind() {
    let (mut world, client) = World::open();
    let (before, mut seen) = (world.memory_bytes(), Vec::new());
    for round in 0..100 {
        let first_slot = add(&mut world, GAMMA | round << 16, "gamma");
        assert_eq!(first_slot, BEHIND);
        let task = serve(&mut world, &client, "gamma");
        assert!(!seen.contains(&task), "no id comes twice");
        seen.push(task);
        world.remove_model(GAMMA | round << 16);
        assert_eq!(world.memory_bytes(), before);
    }
    assert_eq!(slots(&world), 3 * SLOTS as usize);
    assert_eq!(client.guard.session.known(), 2);
    assert_eq!((client.models().len(), client.slots_in_use()), (2, 0));
    let counters = client.counters();
    assert_eq!((counters.models_added, counters.models_removed), (100, 100));
    assert_eq!(counters.unexpected, 0);
}

/// The word that a slab is known must not be taken for one about the slab that has its slots next.
#[test]
fn slots_of_a_slab_that_was_never_known_are_not_used_again_before_it_is() {
    let (mut world, client) = World::open();
    let before = world.memory_bytes();
    world.add_model(model_desc(GAMMA), "gamma");
    world.remove_model(GAMMA);
    assert_eq!(world.memory_bytes(), before, "the memory is back at once");
    world.control.take();
    world.add_model(model_desc(GAMMA + 1), "delta");
    let heard = world.control.take();
    let [Heard::Slab { first_slot, .. }] = heard[..] else { panic!("{heard:?}") };
    assert_eq!(first_slot, BEHIND + SLOTS);
    world.slab_known(MEMBER, BEHIND);
    assert!(client.model("delta").is_err(), "that was gamma's");
    world.slab_known(MEMBER, first_slot);
    assert!(client.model("delta").is_ok());
    assert_eq!(add(&mut world, GAMMA + 2, "epsilon"), BEHIND);
    assert_eq!((client.counters().models_added, client.counters().unexpected), (2, 0));
}

#[test]
fn a_model_without_memory_is_done_without() {
    let (mut world, client) = World::open();
    let before = world.memory_bytes();
    let endless = ModelDesc { input_bytes: u32::MAX.into(), ..model_desc(GAMMA) };
    world.add_model(endless, "gamma");
    assert_eq!((world.control.take(), world.memory_bytes()), (vec![], before));
    world.add_model(endless, "gamma");
    world.remove_model(GAMMA);
    let counters = client.counters();
    assert_eq!((counters.models_unreserved, counters.unexpected), (1, 0), "asked for once");
    add(&mut world, GAMMA + 1, "delta");
    serve(&mut world, &client, "delta");
}

#[test]
fn what_makes_no_sense_is_counted_and_changes_nothing() {
    let (mut world, client) = World::open();
    world.add_model(model_desc(GAMMA), "alpha");
    world.remove_model(77);
    world.add_model(ModelDesc { thread: 9.into(), ..model_desc(GAMMA + 1) }, "lost");
    world.control.send(&model_desc(GAMMA + 2), b"gone");
    world.remove_model(GAMMA + 2);
    for beyond in [2, 9] {
        world.add_model(ModelDesc { thread: beyond.into(), ..model_desc(0) }, "alpha");
    }
    assert_eq!(world.control.take(), []);
    assert_eq!((client.models().len(), client.counters().unexpected), (2, 5));
    serve(&mut world, &client, "alpha");
}

#[test]
fn a_client_that_leaves_takes_no_new_models() {
    let (mut world, client) = World::open();
    let _ticket = world.submit(&client.model("alpha").unwrap(), 1, Deadline::Slo);
    client.guard.session.begin_leaving();
    world.add_model(model_desc(GAMMA), "gamma");
    world.remove_model(0);
    assert_eq!(world.control.take(), []);
    assert_eq!((client.models().len(), client.counters().unexpected), (1, 0));
}

/// An application still has an input of it.
#[test]
fn a_model_goes_once() {
    let (mut world, client) = World::open();
    let held = client.model("alpha").unwrap().input().unwrap();
    (0..2).for_each(|_| world.remove_model(0));
    let counters = client.counters();
    assert_eq!((counters.models_removed, counters.unexpected), (1, 1));
    drop(held);
    world.steps(2);
    assert!(!world.io.as_ref().unwrap().serving.as_ref().unwrap().models.has_leaving());
}
