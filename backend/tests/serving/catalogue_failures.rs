//! Models that cannot be loaded, are removed before they are, or outlive their scheduler; and slabs that make no sense.

use baton_backend::execute::checksum;
use baton_backend::{BackendError, Stage};
use baton_rdma::wire::{
    CatalogEnd, LeaveAck, ModelDown, ModelTable, SlabDesc, SubclusterDesc, ThreadDesc, WireAddr,
};
use baton_rdma::{TcpConfig, Transport};
use baton_types::Nanos;

use crate::catalogue::{
    describe, describe_added, frontend, frontend_with_all, load, table, with_added,
};
use crate::hand::Hand;
use crate::party::Said;
use crate::world::{ADDED, ADDED_BYTES, ActionSpec, MODEL, World};

/// What the scheduler heard of a model that could not be loaded.
fn failure(world: &mut World) -> (u32, String) {
    world.steps(5);
    let mut said = world.control.take();
    let Some(Said::Failed { model, why }) = said.pop() else { panic!("{said:?}") };
    assert_eq!(said, [], "and nothing else");
    (model, why)
}

/// The backend serves as if nothing had happened.
fn serves(world: &mut World) {
    let mut a = world.connected_frontend(7);
    let task = a.submit(5);
    world.infer(&ActionSpec::default(), &[task]);
    world.settle(&mut [&mut a]);
    world.hands[0].finish(world.now, world.now);
    world.settle(&mut [&mut a]);
    assert_eq!(a.answer(task).unwrap(), checksum(&[5; 64]));
}

#[test]
fn a_model_that_does_not_load_is_reported_and_everything_else_goes_on() {
    let mut world = World::ready_with(3, TcpConfig::default());
    world.control.take();
    describe_added(&mut world.control);
    world.until("the first loads it", |w| w.hands[0].aside().is_some());
    describe(&mut world.control, 9, "other", 64, &table("other", 64));
    for at in 0..2 {
        world.hands[at].finish_aside();
        world.until("the next one loads it", |w| w.hands[at + 1].aside().is_some());
        assert!(world.hands[at].has_loose());
    }
    world.hands[2].fail_aside();
    let (model, why) = failure(&mut world);
    assert_eq!(model, ADDED);
    assert!(why.contains("`added`") && why.contains("raise model_memory_mib"), "{why}");
    assert!(!world.hands.iter().any(Hand::has_loose), "no executor keeps what is of no use");
    assert_eq!(world.counter("model_load_failures"), 1);
    assert_eq!(world.counter("models_beyond_memory"), 1);
    load(&mut world);
    assert!(world.control.take().contains(&Said::Profile { model: 9, table: vec![9, 9] }));
    serves(&mut world);
}

#[test]
fn a_table_that_describes_no_such_model_is_reported_with_its_problems() {
    let mut world = World::ready();
    world.control.take();
    let other = table("other", 64);
    let of = |text: &str, world: &mut World| {
        describe(&mut world.control, ADDED, "added", 64, text);
        world.until("it is to be loaded", |w| w.hands[0].aside().is_some());
        world.hands[0].finish_aside();
        failure(world).1
    };
    let why = of("[[model]]\nname = \"added\"\n", &mut world);
    assert!(why.contains("`added`") && why.contains("slo_ms") && why.contains("fix:"), "{why}");
    let why = of(&other, &mut world);
    assert!(why.contains("`added`") && why.contains("that of `other`"), "{why}");
    let why = of(&table("added", 65), &mut world);
    assert!(why.contains("input_bytes is 64 at the scheduler and 65 here"), "{why}");
    serves(&mut world);
}

#[test]
fn a_reason_that_is_too_long_for_a_message_is_cut_off() {
    let mut world = World::ready();
    world.control.take();
    let nonsense: String = (0..99).map(|n| format!("nonsense_{n}_{n}_{n} = 1\n")).collect();
    let text = format!("[[model]]\nname = \"added\"\n{nonsense}");
    describe(&mut world.control, ADDED, "added", 64, &text);
    world.until("it is to be loaded", |w| w.hands[0].aside().is_some());
    world.hands[0].finish_aside();
    let (_, why) = failure(&mut world);
    assert!((4_090..=4_096).contains(&why.len()), "{} bytes", why.len());
    serves(&mut world);
}

#[test]
fn a_model_whose_batches_do_not_fit_is_reported_with_what_to_do() {
    let mut world = World::ready_with(40, TcpConfig::default());
    world.control.take();
    let bytes = baton_topo::signature::INPUT_BYTES_MAX;
    describe(&mut world.control, ADDED, "added", bytes, &table("added", bytes));
    world.until("it is to be loaded", |w| w.hands[0].aside().is_some());
    world.hands[0].finish_aside();
    let (model, why) = failure(&mut world);
    assert_eq!(model, ADDED);
    assert!(why.contains("80 GiB") && why.contains("lower that model's batch_max"), "{why}");
    serves(&mut world);
}

#[test]
fn a_model_that_is_removed_while_it_is_loaded_is_dropped_without_a_word() {
    let mut world = World::ready();
    world.control.take();
    describe_added(&mut world.control);
    describe(&mut world.control, 9, "other", 64, &table("other", 64));
    world.until("it is to be loaded", |w| w.hands[0].aside().is_some());
    for model in [ADDED, 9] {
        world.control.tell(&ModelDown { model: model.into() }, &[]);
    }
    world.steps(5);
    world.hands[0].finish_aside();
    world.steps(5);
    assert_eq!((world.hands[0].has_loose(), world.hands[0].aside()), (false, None));
    assert_eq!((world.hands[0].other(), world.control.take()), (None, vec![]));

    // Removed while the executor takes it in: it goes again.
    let id = ADDED + (1 << 16);
    describe(&mut world.control, id, "added", ADDED_BYTES, &table("added", ADDED_BYTES));
    world.until("it is to be loaded", |w| w.hands[0].aside().is_some());
    world.hands[0].finish_aside();
    world.until("it is taken in", |w| w.hands[0].other().is_some());
    world.control.tell(&ModelDown { model: id.into() }, &[]);
    world.steps(5);
    world.hands[0].finish_other();
    world.steps(5);
    assert_eq!(world.hands[0].other(), Some(("remove", 2)));
    assert_eq!((world.control.take(), world.counter("model_load_failures")), (vec![], 0));
}

#[test]
fn a_model_that_is_removed_before_its_turn_is_not_loaded_and_the_others_are() {
    let mut world = World::ready();
    describe_added(&mut world.control);
    for id in [9, 10] {
        let name = format!("model-{id}");
        describe(&mut world.control, id, &name, 64, &table(&name, 64));
    }
    world.steps(5);
    world.control.tell(&ModelDown { model: 9.into() }, &[]);
    for id in [ADDED, 10] {
        world.control.take();
        load(&mut world);
        assert!(matches!(world.control.take()[..], [Said::Profile { model, .. }] if model == id));
    }
    world.steps(5);
    assert_eq!((world.hands[0].aside(), world.counter("models_added")), (None, 2));
}

#[test]
fn a_slab_of_a_joined_frontend_that_makes_no_sense_is_refused() {
    let mut world = World::ready();
    let (_a, slab) = frontend(&mut world, 1);
    world.control.tell(&SlabDesc { first_slot: (u32::MAX - 2).into(), ..slab }, &[]);
    world.until("it ends", |w| w.worker.result().is_some() || w.stage() == Stage::Left);
    assert!(matches!(world.worker.result(), Some(Err(BackendError::Protocol(_)))));
}

#[test]
fn a_model_that_is_listed_twice_ends_the_backend() {
    // One that is served, one that is being loaded, and one that waits.
    for id in [MODEL, ADDED, 9] {
        let mut world = World::ready();
        describe_added(&mut world.control);
        world.until("it loads the first", |w| w.hands[0].aside().is_some());
        describe(&mut world.control, 9, "other", 64, &table("other", 64));
        world.steps(3);
        assert_eq!(world.worker.result(), None);
        describe(&mut world.control, id, "again", 64, &table("again", 64));
        world.until("it ends", |w| w.worker.result().is_some() || w.stage() == Stage::Left);
    }
}

#[test]
fn a_table_without_its_model_ends_the_backend() {
    let mut world = World::ready();
    world.control.tell(&ModelTable { model: 9.into() }, b"");
    world.until("it ends", |w| w.worker.result().is_some());
}

fn lose_scheduler(world: &mut World) {
    world.restart_scheduler();
    world.until("it has let go", |w| w.stage() == Stage::Away);
    world.pass(Nanos::from_millis(50));
}

#[test]
fn what_the_next_scheduler_has_again_is_kept_and_announced_with_its_profile() {
    let mut world = with_added(1);
    lose_scheduler(&mut world);
    let id = 12;
    world.let_in_with(|control| {
        describe(control, id, "added", ADDED_BYTES, &table("added", ADDED_BYTES));
    });
    let heard = world.control.take();
    let join = heard.iter().position(|said| matches!(said, Said::Join { .. })).unwrap();
    assert!(heard[..join].contains(&Said::Profile { model: id, table: vec![9, 9] }), "{heard:?}");
    world.steps(5);
    assert_eq!((world.hands[0].aside(), world.hands[0].other()), (None, None));
}

#[test]
fn what_the_next_scheduler_has_not_goes_and_what_differs_is_loaded_anew() {
    for differs in [false, true] {
        let mut world = with_added(1);
        lose_scheduler(&mut world);
        let text = format!("{}max_rps = 5\n", table("added", ADDED_BYTES));
        world.let_in_with(|control| {
            if differs {
                describe(control, ADDED, "added", ADDED_BYTES, &text);
            }
        });
        world.until("it goes", |w| w.hands[0].other() == Some(("remove", 2)));
        world.hands[0].finish_other();
        world.steps(5);
        assert_eq!(world.hands[0].aside().is_some(), differs);
        assert_eq!(world.counter("models_removed"), 1);
        if differs {
            load(&mut world);
            assert_eq!(world.counter("models_added"), 2);
        }
    }
}

#[test]
fn a_model_of_the_file_that_was_removed_is_loaded_again_for_a_scheduler_that_has_it() {
    let mut world = World::ready();
    world.control.tell(&ModelDown { model: MODEL.into() }, &[]);
    world.until("it goes", |w| w.hands[0].other().is_some());
    world.hands[0].finish_other();
    lose_scheduler(&mut world);
    world.let_in();
    let said = |world: &World| {
        let is_it = |said: &&Said| matches!(said, Said::Profile { model: MODEL, .. });
        world.control.heard.iter().filter(is_it).count()
    };
    assert_eq!(said(&world), 0, "it is not there when the backend joins");
    load(&mut world);
    assert_eq!(said(&world), 1);
    serves(&mut world);
}

#[test]
fn a_model_that_is_being_loaded_when_the_scheduler_is_lost_is_finished_for_the_next() {
    let mut world = World::ready();
    describe_added(&mut world.control);
    world.until("it is to be loaded", |w| w.hands[0].aside().is_some());
    lose_scheduler(&mut world);
    world.let_in_with(describe_added);
    world.control.take();
    assert!(world.hands[0].aside().is_some(), "it is not loaded twice");
    load(&mut world);
    assert_eq!(world.control.take(), [Said::Profile { model: ADDED, table: vec![9, 9] }]);
    let mut a = frontend_with_all(&mut world, 1);
    let task = a.submit_for(ADDED, 6);
    world.infer(&ActionSpec { model: ADDED, ..ActionSpec::default() }, &[task]);
    world.settle(&mut [&mut a]);
    world.hands[0].finish(world.now, world.now);
    world.settle(&mut [&mut a]);
    assert_eq!(a.answer(task).unwrap(), checksum(&[6; ADDED_BYTES as usize]));
    assert!(a.party.transport.counters().reads_refused == 0);
}

/// A scheduler that is exchanging a model lists both, in any order.
#[test]
fn of_two_models_of_one_name_the_one_that_is_loaded_stays() {
    let mut world = with_added(1);
    lose_scheduler(&mut world);
    let successor = format!("{}max_rps = 5\n", table("added", ADDED_BYTES));
    world.let_in_with(|control| {
        describe(control, 9, "added", ADDED_BYTES, &successor);
        describe_added(control);
    });
    assert!(world.control.take().contains(&Said::Profile { model: ADDED, table: vec![9, 9] }));
    world.steps(5);
    assert_eq!(world.hands[0].other(), None);
}

#[test]
fn a_model_that_is_described_otherwise_is_not_taken_for_the_loaded_one() {
    let mut world = with_added(1);
    lose_scheduler(&mut world);
    let text = table("added", ADDED_BYTES);
    world.let_in_with(|control| describe(control, ADDED, "added", 2 * ADDED_BYTES, &text));
    world.until("it goes", |w| w.hands[0].other() == Some(("remove", 2)));
}

/// The next scheduler may have it.
#[test]
fn a_model_of_the_file_that_the_scheduler_lacks_stays_whatever_is_added() {
    let mut world = with_added(1);
    lose_scheduler(&mut world);
    world.until("it asks for the catalogue", |w| w.control.conn.is_some());
    let addr = WireAddr::new(world.thread.transport.local_addr());
    world.control.tell(&ThreadDesc { thread: 0.into(), addr }, &[]);
    world.control.tell(&SubclusterDesc { subcluster: 8.into() }, b"gpu");
    describe(&mut world.control, ADDED, "added", ADDED_BYTES, &table("added", ADDED_BYTES));
    describe(&mut world.control, 9, "other", 64, &table("other", 64));
    world.control.tell(&CatalogEnd { scheduler_epoch: 1.into() }, &[]);
    world.steps(5);
    world.acknowledge_join();
    world.until("it is to be loaded", |w| w.hands[0].aside().is_some());
    assert_eq!(world.hands[0].other(), None);
}

#[test]
fn a_backend_that_leaves_waits_for_its_executor() {
    let mut world = World::ready();
    describe_added(&mut world.control);
    world.until("it is to be loaded", |w| w.hands[0].aside().is_some());
    world.hands[0].finish_aside();
    world.until("it is taken in", |w| w.hands[0].other().is_some());
    world.worker.leave(world.now);
    world.until("it leaves", |w| w.control.heard.contains(&Said::Leave));
    world.control.tell(&LeaveAck { reserved: 0.into() }, &[]);
    world.steps(5);
    assert_eq!(world.worker.result(), None);
    world.hands[0].finish_other();
    world.until("it ends", |w| w.worker.result().is_some());
}
