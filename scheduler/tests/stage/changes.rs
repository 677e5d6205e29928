//! Operators and what follows from their changes, in steps that several tests take.

use baton_core::Policy;
use baton_rdma::Transport;
use baton_rdma::wire::{ActionStatus, CatalogChange, ChangeKind, ProfileDesc, Role};

use super::{Member, Stage, Told, cluster, ms};

pub const TABLE: &str = "[[model]]\nname = \"new\"\nalpha_ms = 1\nbeta_ms = 4\nslo_ms = 30\n\
                     batch_max = 8\nsubcluster = \"a\"\n";

pub fn stage() -> Stage {
    Stage::new(&cluster(Policy::Eager, 2))
}

pub fn ask(stage: &mut Stage, operator: &mut Member, kind: ChangeKind, text: &str) {
    let change = CatalogChange { kind: kind as u8, reserved: [0; 3] };
    operator.send(&change, text.as_bytes());
    operator.transport.flush();
    stage.settle();
}

/// What the operator is answered, once: whether it was done, and the text.
pub fn answer(stage: &mut Stage, operator: &mut Member) -> (bool, String) {
    match &stage.exchange(operator)[..] {
        [Told::Changed { done, text }] => (*done, text.clone()),
        other => panic!("expected an answer, received {other:?}"),
    }
}

/// What a new operator is answered to this change.
pub fn change(stage: &mut Stage, kind: ChangeKind, text: &str) -> (bool, String) {
    let mut operator = stage.member(Role::Operator);
    ask(stage, &mut operator, kind, text);
    answer(stage, &mut operator)
}

pub fn loaded(stage: &mut Stage, backend: &mut Member, model: u32) {
    backend.send(&ProfileDesc { model: model.into(), pages: 0.into() }, &[]);
    backend.transport.flush();
    stage.settle();
}

/// The id and the ModelThread of the model that the client heard of last.
pub fn newest(client: &Member) -> (u32, usize) {
    let desc = client.described.last().unwrap();
    (desc.model.get(), desc.thread.get() as usize)
}

/// Adds `new` with the help of the one backend of its sub-cluster; returns its id and ModelThread.
pub fn add(stage: &mut Stage, backend: &mut Member, client: &mut Member) -> (u32, usize) {
    let mut operator = stage.member(Role::Operator);
    ask(stage, &mut operator, ChangeKind::Add, TABLE);
    let told = stage.exchange(backend);
    let [Told::Table { model, .. }] = told[..] else { panic!("received {told:?}") };
    loaded(stage, backend, model);
    assert_eq!(
        answer(stage, &mut operator),
        (true, "model `new` is served by 1 GPU slot".to_owned())
    );
    stage.exchange(client);
    assert_eq!(newest(client).0, model);
    newest(client)
}

pub fn remove(stage: &mut Stage) -> Member {
    let mut operator = stage.member(Role::Operator);
    ask(stage, &mut operator, ChangeKind::Remove, "new");
    operator
}

/// Submits a task of the model and executes it.
pub fn serve_one(
    stage: &mut Stage,
    backend: &mut Member,
    client: &mut Member,
    (id, thread): (u32, usize),
    slot: u32,
) {
    let task = client.task(slot, 0);
    client.submit_to(thread, id, task, stage.now + ms(30));
    stage.exchange(client);
    let told = stage.exchange(backend);
    let [Told::Action { batch, model, ref tasks, .. }] = told[..] else {
        panic!("expected an action, received {told:?}")
    };
    assert_eq!((model, &tasks[..]), (id, &[task][..]));
    report(stage, backend, thread, batch);
}

/// Reports the batch as executed. The backend has yet to hear what follows.
pub fn send_report(stage: &mut Stage, backend: &mut Member, thread: usize, batch: u64) {
    backend.threads.swap(0, thread);
    backend.report(batch, 0, ActionStatus::Executed, (stage.now, stage.now + ms(5)));
    backend.threads.swap(0, thread);
    backend.transport.flush();
    stage.settle();
}

pub fn report(stage: &mut Stage, backend: &mut Member, thread: usize, batch: u64) {
    send_report(stage, backend, thread, batch);
    stage.exchange(backend);
}
