//! Models that are added and removed while the backend serves, stepped by hand.

use std::sync::Arc;

use baton_backend::execute::checksum;
use baton_rdma::wire::{ModelDesc, ModelDown, ModelTable, PeerUp, Role, SlabDesc, WireAddr};
use baton_rdma::{Identity, SlabSet, SlabSpec, TcpConfig, Transport};
use baton_types::{FrontendId, ModelId, Nanos, TaskId};

use crate::party::{Party, Said};
use crate::world::{
    ADDED, ADDED_BYTES, ActionSpec, EXECUTED, FRONTEND_TOKEN, FrontendSide, INPUT_BYTES, MODEL,
    REFUSED, SMALL, World,
};

/// Tasks of a batch of the model that is added: twice the others' most.
pub(crate) const ADDED_BATCH: u32 = 8;

/// The `[[model]]` table of an emulated model.
pub(crate) fn table(name: &str, input_bytes: u32) -> String {
    format!(
        "[[model]]\nname = \"{name}\"\nalpha_ms = 0.1\nbeta_ms = 0.2\nslo_ms = 25\n\
         batch_max = {ADDED_BATCH}\ninput_bytes = {input_bytes}\n"
    )
}

/// What the scheduler says of a model that was added.
pub(crate) fn describe(control: &mut Party, id: u32, name: &str, input_bytes: u32, table: &str) {
    let desc = ModelDesc {
        model: id.into(),
        thread: 0.into(),
        subcluster: 8.into(),
        batch_max: ADDED_BATCH.into(),
        input_bytes: input_bytes.into(),
        output_bytes: 8.into(),
        slo_ns: 25_000_000.into(),
    };
    control.tell(&desc, name.as_bytes());
    control.tell(&ModelTable { model: id.into() }, table.as_bytes());
}

/// The model that most tests add.
pub(crate) fn describe_added(control: &mut Party) {
    describe(control, ADDED, "added", ADDED_BYTES, &table("added", ADDED_BYTES));
}

/// The executors load what is aside and take it in.
pub(crate) fn load(world: &mut World) {
    for hand in world.hands.clone() {
        world.until("it is to be loaded", |_| hand.aside().is_some());
        hand.finish_aside();
    }
    for hand in world.hands.clone() {
        world.until("it is to be taken in", |_| {
            hand.other().is_some_and(|(kind, _)| kind == "install")
        });
        hand.finish_other();
    }
    world.steps(2);
}

/// A world in which the model has been added.
pub(crate) fn with_added(gpus: u32) -> World {
    let mut world = World::ready_with(gpus, TcpConfig::default());
    describe_added(&mut world.control);
    load(&mut world);
    let loaded = Said::Profile { model: ADDED, table: vec![9, 9] };
    assert!(world.control.take().contains(&loaded));
    world
}

/// A frontend that has joined with slabs of the first two models, and the slab that it has not announced.
pub(crate) fn frontend(world: &mut World, id: u16) -> (FrontendSide, SlabDesc) {
    let spec = |model, input_bytes| SlabSpec {
        model: ModelId(model),
        slots: 8,
        input_bytes,
        output_bytes: 8,
    };
    let specs = [spec(MODEL, INPUT_BYTES), spec(SMALL, 16), spec(ADDED, ADDED_BYTES)];
    let slabs: Arc<SlabSet> = SlabSet::new(&specs, 1).unwrap();
    slabs.set_frontend(FrontendId(id));
    let identity = Identity { role: Role::Frontend, member: u32::from(id) };
    let mut party = Party::new(world.network.endpoint(identity));
    party.transport.expose(slabs.clone()).unwrap();
    let descs = slabs.descs();
    descs[..2].iter().for_each(|desc| world.control.tell(desc, &[]));
    let up = PeerUp {
        frontend: u32::from(id).into(),
        reserved: 0.into(),
        token: FRONTEND_TOKEN.into(),
        addr: WireAddr::new(party.transport.local_addr()),
        slabs: 2.into(),
        reserved2: 0.into(),
    };
    world.control.tell(&up, &[]);
    let mut side = FrontendSide { party, slabs, id: FrontendId(id) };
    world.settle(&mut [&mut side]);
    (side, descs[2])
}

/// The same, and the slab was announced too.
pub(crate) fn frontend_with_all(world: &mut World, id: u16) -> FrontendSide {
    let (mut side, slab) = frontend(world, id);
    world.control.tell(&slab, &[]);
    world.settle(&mut [&mut side]);
    side
}

fn infer_added(world: &mut World, tasks: &[TaskId]) -> u64 {
    world.infer(&ActionSpec { model: ADDED, ..ActionSpec::default() }, tasks)
}

/// The executor is done with its batch.
fn finish(world: &mut World, sides: &mut [&mut FrontendSide]) {
    world.hands[0].finish(world.now, world.now);
    world.settle(sides);
}

#[test]
fn a_model_is_loaded_beside_a_batch_which_is_not_delayed_and_then_served() {
    let mut world = World::ready();
    let (mut a, slab) = frontend(&mut world, 1);
    world.control.take();
    let first = a.submit(1);
    world.infer(&ActionSpec::default(), &[first]);
    world.settle(&mut [&mut a]);
    describe_added(&mut world.control);
    world.settle(&mut [&mut a]);
    assert_eq!(world.hands[0].aside(), Some(2), "the first number that is free");
    finish(&mut world, &mut [&mut a]);
    assert_eq!(a.answer(first).unwrap(), checksum(&[1; 64]), "while the model is being loaded");

    let second = a.submit(2);
    world.infer(&ActionSpec::default(), &[second]);
    world.settle(&mut [&mut a]);
    world.hands[0].finish_aside();
    world.settle(&mut [&mut a]);
    assert_eq!((world.hands[0].batch(), world.hands[0].other()), (Some(1), None));
    assert_eq!(world.reports().len(), 1);
    let early = infer_added(&mut world, &[first]);
    finish(&mut world, &mut [&mut a]);
    assert_eq!(world.reports().iter().find(|report| report.0 == early).unwrap().2, REFUSED);
    assert_eq!(world.hands[0].other(), Some(("install", 2)));
    assert_eq!(world.control.take(), [], "it is not served before the executor has it");
    world.hands[0].finish_other();
    world.settle(&mut [&mut a]);
    assert_eq!(world.control.take(), [Said::Profile { model: ADDED, table: vec![9, 9] }]);
    assert_eq!(world.counter("models_added"), 1);

    world.control.tell(&slab, &[]);
    world.settle(&mut [&mut a]);
    let first_slot = slab.first_slot.get();
    assert_eq!(world.control.take(), [Said::Known { frontend: 1, first_slot }]);
    let tasks: Vec<TaskId> = (0..8).map(|byte| a.submit_for(ADDED, byte)).collect();
    let batch = infer_added(&mut world, &tasks);
    world.settle(&mut [&mut a]);
    assert_eq!(world.hands[0].batch(), Some(ADDED_BATCH));
    finish(&mut world, &mut [&mut a]);
    assert_eq!(world.reports(), [(batch, 8, EXECUTED)]);
    for (byte, &task) in (0..8).zip(&tasks) {
        assert_eq!(a.answer(task).unwrap(), checksum(&[byte; ADDED_BYTES as usize]));
    }
}

#[test]
fn a_larger_model_gets_its_memory_while_every_batch_slot_is_wanted() {
    let mut world = World::ready();
    let mut a = frontend_with_all(&mut world, 1);
    let patient = ActionSpec { invalid_in: Nanos::from_millis(1_000), ..ActionSpec::default() };
    let small = world.worker.counters().transport.memory_bytes;
    world.control.take();
    let mut outstanding: Vec<TaskId> = Vec::new();
    let mut answered = 0;
    describe_added(&mut world.control);
    for _ in 0..40 {
        while outstanding.len() < 7 {
            let task = a.submit(3);
            world.infer(&patient, &[task]);
            outstanding.push(task);
        }
        world.settle(&mut [&mut a]);
        if world.hands[0].aside().is_some() {
            world.hands[0].finish_aside();
        }
        match world.hands[0].other() {
            Some(_) => world.hands[0].finish_other(),
            None => world.hands[0].finish(world.now, world.now),
        }
        world.settle(&mut [&mut a]);
        let before = outstanding.len();
        outstanding.retain(|&task| {
            let said = |said: &Said| matches!(said, Said::Result { task: of, .. } if *of == task.0);
            let is_answered = a.party.heard.iter().any(said);
            if is_answered {
                assert_eq!(a.answer(task).unwrap(), checksum(&[3; 64]));
            }
            !is_answered
        });
        answered += before - outstanding.len();
    }
    let loaded = Said::Profile { model: ADDED, table: vec![9, 9] };
    assert_eq!(world.control.take(), [loaded], "nothing ever was idle");
    assert_eq!(answered, 39, "an installation took one turn of the executor, and no more");
    let large = world.worker.counters().transport.memory_bytes;
    let page = 4096;
    assert_eq!(large - small, 4 * (8 * page - page), "the smaller memory is given up");
}

#[test]
fn a_removed_model_is_unloaded_and_its_id_means_nothing() {
    let mut world = with_added(2);
    let (mut a, slab) = frontend(&mut world, 1);
    world.control.tell(&slab, &[]);
    world.settle(&mut [&mut a]);
    world.control.take();
    world.control.tell(&ModelDown { model: ADDED.into() }, &[]);
    world.settle(&mut [&mut a]);
    assert_eq!(world.hands[0].other(), Some(("remove", 2)));
    world.hands[0].finish_other();
    let task = a.submit_for(ADDED, 1);
    let refused = infer_added(&mut world, &[task]);
    world.settle(&mut [&mut a]);
    assert_eq!(world.reports(), [(refused, 0, REFUSED)]);
    assert_eq!((world.counter("models_removed"), world.counter("plans_unknown")), (1, 1));

    // The number is taken while an executor knows the model.
    let again = ADDED + (1 << 16);
    describe(&mut world.control, again, "added", 64, &table("added", 64));
    world.settle(&mut [&mut a]);
    assert_eq!(world.hands[0].aside(), Some(3));
    world.hands[1].finish_other();
    load(&mut world);
    describe(&mut world.control, 9, "other", 64, &table("other", 64));
    world.settle(&mut [&mut a]);
    assert_eq!(world.hands[0].aside(), Some(2), "free again");
    world.control.take();
    // The removed model's slots are the frontend's to use again.
    world.control.tell(&SlabDesc { model: again.into(), ..slab }, &[]);
    world.settle(&mut [&mut a]);
    assert!(matches!(world.control.take()[..], [Said::Known { frontend: 1, .. }]));
    assert_eq!(world.worker.result(), None);
}

#[test]
fn a_model_goes_only_when_its_last_batch_has() {
    let mut world = with_added(1);
    let mut a = frontend_with_all(&mut world, 1);
    let tasks = [1, 2].map(|byte| a.submit_for(ADDED, byte));
    for task in tasks {
        infer_added(&mut world, &[task]);
    }
    world.settle(&mut [&mut a]);
    world.control.tell(&ModelDown { model: ADDED.into() }, &[]);
    world.settle(&mut [&mut a]);
    finish(&mut world, &mut [&mut a]);
    assert_eq!(world.hands[0].batch(), Some(1), "it was admitted before");
    finish(&mut world, &mut [&mut a]);
    assert_eq!(world.reports().len(), 2);
    assert_eq!(world.hands[0].other(), Some(("remove", 2)));
}

#[test]
fn a_model_of_the_file_that_is_removed_can_be_added_again_by_its_table() {
    let mut world = World::ready();
    world.control.tell(&ModelDown { model: MODEL.into() }, &[]);
    world.until("it goes", |w| w.hands[0].other() == Some(("remove", 0)));
    world.hands[0].finish_other();
    let id = MODEL | 1 << 16;
    describe(&mut world.control, id, "resnet50", 64, &table("resnet50", 64));
    load(&mut world);
    let loaded = Said::Profile { model: id, table: vec![9, 9] };
    assert!(world.control.heard.contains(&loaded));
}

#[test]
fn a_model_of_the_file_is_served_until_its_successor_is() {
    let mut world = World::ready();
    let (mut a, _) = frontend(&mut world, 1);
    let id = 9;
    describe(&mut world.control, id, "resnet50", 64, &table("resnet50", 64));
    world.until("it is to be loaded", |w| w.hands[0].aside().is_some());
    let task = a.submit_for(MODEL, 1);
    world.infer(&ActionSpec::default(), &[task]);
    world.settle(&mut [&mut a]);
    finish(&mut world, &mut [&mut a]);
    assert!(matches!(world.reports()[..], [(_, 1, EXECUTED)]), "beside the load");
    load(&mut world);
    assert!(world.control.heard.contains(&Said::Profile { model: id, table: vec![9, 9] }));
    let task = a.submit_for(MODEL, 2);
    world.infer(&ActionSpec::default(), &[task]);
    world.settle(&mut [&mut a]);
    finish(&mut world, &mut [&mut a]);
    assert!(matches!(world.reports()[..], [(_, 1, EXECUTED)]), "and until it is removed");
    world.control.tell(&ModelDown { model: MODEL.into() }, &[]);
    world.until("it goes", |w| w.hands[0].other() == Some(("remove", 0)));
}

#[test]
fn a_backend_joins_with_what_it_has_and_loads_the_rest_afterwards() {
    let mut world = World::new(2, TcpConfig::default());
    world.let_in_with(|control| {
        describe_added(control);
        describe(control, 9, "other", 64, &table("other", 64));
    });
    let profiles = |world: &World| -> Vec<u32> {
        let of = |said: &Said| match said {
            Said::Profile { model, .. } => Some(*model),
            _ => None,
        };
        world.control.heard.iter().filter_map(of).collect()
    };
    assert_eq!(profiles(&world), [SMALL, MODEL]);
    load(&mut world);
    assert_eq!(profiles(&world), [SMALL, MODEL, ADDED]);
    load(&mut world);
    assert_eq!(profiles(&world), [SMALL, MODEL, ADDED, 9]);
    assert_eq!(world.counter("models_added"), 2);
}

#[test]
fn a_table_decides_over_the_file() {
    let mut world = World::new(1, TcpConfig::default());
    world.until("it asks for the catalogue", |w| w.control.conn.is_some());
    world.let_in_with(|control| {
        control.tell(&ModelTable { model: MODEL.into() }, table("resnet50", 128).as_bytes());
    });
    let announced = world.control.take();
    assert!(!announced.iter().any(|said| matches!(said, Said::Profile { model: MODEL, .. })));
    assert_eq!(world.hands[0].other(), Some(("remove", 0)), "the file's is of no use");
    world.hands[0].finish_other();
    world.until("the table's is loaded", |w| w.hands[0].aside().is_some());
    world.hands[0].finish_aside();
    // The description says what the file says.
    world.until("it is reported", |w| {
        w.control.heard.iter().any(|said| matches!(said, Said::Failed { .. }))
    });
    let Some(Said::Failed { model: MODEL, why }) = world.control.take().pop() else {
        panic!("another model")
    };
    assert!(why.contains("`resnet50`") && why.contains("is 4 at the scheduler and 8 here"));
}

#[test]
fn what_the_next_scheduler_does_not_have_is_loaded_no_further() {
    let mut world = World::ready();
    describe_added(&mut world.control);
    world.until("it is to be loaded", |w| w.hands[0].aside().is_some());
    world.restart_scheduler();
    crate::rejoin::return_to_scheduler(&mut world);
    world.let_in();
    world.hands[0].finish_aside();
    world.settle(&mut []);
    assert_eq!((world.hands[0].has_loose(), world.hands[0].other()), (false, None));
}
