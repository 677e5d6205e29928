//! LOADs: models come to a slot that has not room for both, batches wait for theirs, and victims leave.

use baton_backend::execute::EngineError;
use baton_rdma::TcpConfig;
use baton_rdma::wire::{Load, LoadFault, ModelDown};
use baton_topo::{Sha256, WeightsCacheSpec, WeightsSpec};
use baton_types::Nanos;

use crate::catalogue::{describe, describe_added, table};
use crate::party::{FAILED, LATE, LOADED, NO_PAGES, Said};
use crate::world::{
    ActionSpec, EXECUTED, EXPIRED, FIRST_GPU, LOAD_WINDOW, MODEL, OFFSET, PAGES, SMALL, World,
};

/// The executor copies a model, and takes it in.
fn copied(world: &mut World) {
    world.hands[0].finish_aside();
    world.settle(&mut []);
    assert_eq!(world.hands[0].other().map(|(what, _)| what), Some("install"));
    world.hands[0].finish_other();
    world.settle(&mut []);
}

fn loaded(load: u64, status: u8, pages_free: u32) -> Said {
    Said::Loaded { load, status, fault: LoadFault::Other as u8, pages_free }
}

fn failed(load: u64, fault: LoadFault, pages_free: u32) -> Said {
    Said::Loaded { load, status: FAILED, fault: fault as u8, pages_free }
}

/// A slot that holds the model, which takes all of its pages.
fn with_model() -> World {
    let mut world = World::cached([PAGES, 1]);
    let load = world.load(MODEL, &[]);
    world.settle(&mut []);
    copied(&mut world);
    assert_eq!(world.thread.take(), [loaded(load, LOADED, 0)]);
    world
}

#[test]
fn a_batch_waits_until_its_model_is_copied_and_taken_in() {
    let mut world = World::cached([PAGES, 1]);
    let mut a = world.connected_frontend(1);
    let task = a.submit(1);
    let load = world.load(MODEL, &[]);
    let batch = world.infer(&ActionSpec::default(), &[task]);
    world.settle(&mut [&mut a]);
    assert_eq!(world.hands[0].aside(), Some(0), "by this process's id of it");
    assert_eq!(world.hands[0].batch(), None, "the model is not there");
    world.hands[0].finish_aside();
    world.settle(&mut [&mut a]);
    assert_eq!(world.thread.take(), [loaded(load, LOADED, 0)], "reported once it is copied");
    assert_eq!((world.hands[0].other(), world.hands[0].batch()), (Some(("install", 0)), None));
    world.hands[0].finish_other();
    world.settle(&mut [&mut a]);
    assert_eq!(world.hands[0].batch(), Some(1));
    world.hands[0].finish(world.now, world.now);
    world.settle(&mut [&mut a]);
    assert_eq!(world.reports(), [(batch, 1, EXECUTED)]);
    assert_eq!((world.counter("loads"), world.counter("unloads")), (1, 0));
}

#[test]
fn a_victim_leaves_at_once_and_its_batches_go_back_with_their_windows() {
    let mut world = with_model();
    let mut a = world.connected_frontend(1);
    let load = world.load(SMALL, &[MODEL]);
    let task = a.submit(1);
    let batch = world.infer(&ActionSpec::default(), &[task]);
    world.settle(&mut [&mut a]);
    assert_eq!((world.hands[0].other(), world.hands[0].aside()), (Some(("remove", 0)), Some(1)));
    world.hands[0].finish_other();
    copied(&mut world);
    assert_eq!(world.hands[0].batch(), None);
    assert_eq!(world.thread.take(), [loaded(load, LOADED, PAGES - 1)]);
    world.steps(700);
    assert_eq!(world.reports(), [(batch, 0, EXPIRED)]);
    assert_eq!((world.counter("loads"), world.counter("unloads")), (2, 1));
}

#[test]
fn a_load_that_fails_gives_its_pages_back() {
    let mut world = World::cached([PAGES, 1]);
    let first = world.load(MODEL, &[]);
    world.settle(&mut []);
    world.hands[0].fail_aside();
    world.settle(&mut []);
    assert_eq!(world.thread.take(), [loaded(first, FAILED, PAGES)]);
    assert_eq!((world.counter("load_errors"), world.counter("models_beyond_memory")), (1, 1));
    let second = world.load(MODEL, &[]);
    world.settle(&mut []);
    copied(&mut world);
    assert_eq!(world.thread.take(), [loaded(second, LOADED, 0)]);
}

#[test]
fn what_finds_no_pages_comes_too_late_or_is_there_is_reported_at_once() {
    let mut world = with_model();
    let beside = world.load(SMALL, &[]);
    let again = world.load(MODEL, &[]);
    world.settle(&mut []);
    assert_eq!(world.thread.take(), [loaded(beside, NO_PAGES, 0), loaded(again, FAILED, 0)]);
    let mut world = World::cached([1, 1]);
    let first = world.load(MODEL, &[]);
    let second = world.load(SMALL, &[]);
    world.settle(&mut []);
    world.pass_awake(LOAD_WINDOW + Nanos::from_millis(1));
    world.settle(&mut []);
    assert_eq!(world.thread.take(), [loaded(second, LATE, 1)], "the first one took too long");
    copied(&mut world);
    assert_eq!(world.thread.take(), [loaded(first, LOADED, 1)]);
    assert_eq!(world.counter("loads_expired"), 1);
}

/// What the backend says of its slot's memory when it joins the next scheduler.
fn memory_at_the_next(world: &mut World) -> Said {
    world.restart_scheduler();
    world.pass_awake(Nanos::from_millis(3_000));
    world.let_in();
    world.settle(&mut []);
    let said = world.control.heard.iter().find(|said| matches!(said, Said::Memory { .. }));
    said.expect("it says what it holds").clone()
}

#[test]
fn the_next_scheduler_hears_what_is_there_and_serves_from_it() {
    let mut world = with_model();
    let memory = memory_at_the_next(&mut world);
    assert_eq!(memory, Said::Memory { pages: PAGES, models: vec![MODEL] });
    let mut a = world.connected_frontend(1);
    let task = a.submit(1);
    world.infer(&ActionSpec::default(), &[task]);
    world.settle(&mut [&mut a]);
    assert_eq!(world.hands[0].batch(), Some(1));
}

#[test]
fn a_load_of_a_lost_scheduler_is_not_reported_to_the_next_and_gives_its_pages_back() {
    let mut world = World::cached([PAGES, 1]);
    world.load(MODEL, &[]);
    world.settle(&mut []);
    let memory = memory_at_the_next(&mut world);
    assert_eq!(memory, Said::Memory { pages: PAGES, models: vec![] }, "they will come back");
    let early = world.load(SMALL, &[]);
    world.settle(&mut []);
    assert_eq!(world.thread.take(), [loaded(early, NO_PAGES, 0)], "it is still being copied");
    world.hands[0].finish_aside();
    world.settle(&mut []);
    assert_eq!(world.thread.take(), [], "no scheduler knows of it");
    let mut done = Vec::new();
    while let Some((what, _)) = world.hands[0].other() {
        done.push(what);
        world.hands[0].finish_other();
        world.settle(&mut []);
    }
    assert_eq!(done, ["install", "remove"], "its memory is not kept");
    let next = world.load(SMALL, &[]);
    world.settle(&mut []);
    copied(&mut world);
    assert_eq!(world.thread.take(), [loaded(next, LOADED, PAGES - 1)]);
}

#[test]
fn a_copy_that_does_not_end_fails_after_a_minute_and_the_slot_loads_again() {
    let mut world = World::cached([PAGES, 1]);
    let hung = world.load(MODEL, &[]);
    world.settle(&mut []);
    for _ in 0..599 {
        world.pass(Nanos::from_millis(100));
        world.settle(&mut []);
    }
    assert_eq!((world.thread.take(), world.hands[0].aside()), (vec![], Some(0)), "not yet");
    world.pass(Nanos::from_millis(100));
    world.settle(&mut []);
    assert_eq!(world.thread.take(), [failed(hung, LoadFault::Hung, PAGES)]);
    let next = world.load(MODEL, &[]);
    world.settle(&mut []);
    copied(&mut world);
    assert_eq!(world.thread.take(), [loaded(next, LOADED, 0)]);
}

#[test]
fn the_scheduler_hears_why_a_load_has_failed() {
    let mut world = World::cached([PAGES, 1]);
    let (model, file) = (String::from("resnet50"), String::from("resnet50.onnx"));
    let (expected, found) = (Sha256::of(b"right"), Sha256::of(b"wrong"));
    let problem = "no such device".into();
    let unreadable = EngineError::Unreadable { model: model.clone(), file: file.clone(), problem };
    let different = EngineError::Different { model, file, expected, found };
    for (error, fault) in [(unreadable, LoadFault::Unreadable), (different, LoadFault::Different)] {
        let load = world.load(MODEL, &[]);
        world.settle(&mut []);
        assert!(!world.hands[0].keeps_files(), "a LOAD reads what is there");
        world.hands[0].fail_aside_with(error);
        world.settle(&mut []);
        assert_eq!(world.thread.take(), [failed(load, fault, PAGES)]);
    }
}

#[test]
fn files_of_a_model_that_is_added_stay_in_memory_until_it_is_removed_or_given_up() {
    const ADDED: u32 = 2;
    let mut world = World::cached([PAGES, 1]);
    let add = |world: &mut World, id| {
        let table = table("added", 64).replace("alpha_ms", "weights_mib = 1\nalpha_ms");
        describe(&mut world.control, id, "added", 64, &table);
        world.until("it is to be loaded", |w| w.hands[0].aside() == Some(ADDED));
        assert!(world.hands[0].keeps_files());
    };
    add(&mut world, ADDED);
    world.hands[0].fail_aside();
    world.settle(&mut []);
    assert_eq!(world.hands[0].without_files(), [ADDED], "it was not added");
    add(&mut world, ADDED | 1 << 16);
    world.hands[0].finish_aside();
    world.settle(&mut []);
    assert_eq!(world.hands[0].without_files(), [ADDED], "LOADs will need them");
    world.control.tell(&ModelDown { model: (ADDED | 1 << 16).into() }, &[]);
    world.settle(&mut []);
    assert_eq!(world.hands[0].without_files(), [ADDED; 2]);
}

/// A slot has one thread that loads.
#[test]
fn a_model_that_is_added_waits_for_the_copy_that_is_under_way() {
    let mut world = World::cached([PAGES, 1]);
    world.load(MODEL, &[]);
    world.settle(&mut []);
    describe_added(&mut world.control);
    world.settle(&mut []);
    assert_eq!(world.hands[0].aside(), Some(0));
    copied(&mut world);
    assert_eq!(world.hands[0].aside(), Some(2));
}

/// The first one measures what is added.
#[test]
fn only_the_first_slot_copies_nothing_while_a_model_is_added() {
    let mut world = World::with(2, TcpConfig::default(), |config| {
        config.weights_cache = Some(WeightsCacheSpec { pages: PAGES, page_bytes: 1 << 20 });
        for model in &mut config.models {
            let (bytes, load) = (1 << 20, Nanos::from_millis(1));
            model.weights = Some(WeightsSpec { bytes, load, is_guess: false });
        }
    });
    world.let_in();
    describe_added(&mut world.control);
    world.settle(&mut []);
    assert_eq!(world.hands[0].aside(), Some(2));
    let latest_ns = (world.now + LOAD_WINDOW + Nanos(OFFSET)).0.into();
    for gpu in [FIRST_GPU, FIRST_GPU + 1] {
        let (load, model) = (u64::from(gpu).into(), MODEL.into());
        world.thread.tell(&Load { load, latest_ns, model, gpu: gpu.into() }, &[]);
    }
    world.settle(&mut []);
    assert_eq!([0, 1].map(|slot| world.hands[slot].aside()), [Some(2), Some(0)]);
}
