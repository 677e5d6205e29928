//! A model is removed while tasks of it wait.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod stage;

use baton_core::{DropReason, FailReason, ModelId};
use baton_rdma::wire::{ChangeKind, Role};
use stage::changes::{TABLE, add, answer, ask, loaded, remove, send_report, stage};
use stage::{Stage, Told, ms};

#[test]
fn a_removed_model_serves_what_waits_and_takes_no_more() {
    let mut stage = stage();
    let mut backend = stage.backend("a", 0, 1);
    let mut client = stage.frontend();
    stage.exchange(&mut backend);
    let (id, thread) = add(&mut stage, &mut backend, &mut client);
    let task = |slot| client.task(slot, 0);
    let [first, second, late] = [0, 1, 2].map(task);
    client.submit_to(thread, id, first, stage.now + ms(30));
    stage.exchange(&mut client);
    client.submit_to(thread, id, second, stage.now + ms(30));
    stage.exchange(&mut client);
    let mut operator = remove(&mut stage);
    client.submit_to(thread, id, late, stage.now + ms(30));
    let reason = DropReason::ModelRemoved.code();
    let dropped = |task| Told::Ended { task, kind: 1, reason, retry_ms: 0 };
    assert_eq!(stage.exchange(&mut client), [Told::ModelDown { model: id }, dropped(late)]);
    assert!(!stage.scheduler.control.move_model(ModelId(2), 1 - thread), "it ends where it is");
    let joins = |stage: &mut Stage, role| stage.member(role).models.len();
    assert_eq!([Role::Backend, Role::Frontend].map(|role| joins(&mut stage, role)), [3, 2]);
    for expected in [first, second] {
        let told = stage.exchange(&mut backend);
        let [Told::Action { batch, ref tasks, .. }] = told[..] else { panic!("{told:?}") };
        assert_eq!(
            tasks[..],
            [expected],
            "the backend has no order to unload before the last batch"
        );
        assert_eq!(stage.exchange(&mut operator), [], "it has a task left");
        send_report(&mut stage, &mut backend, thread, batch);
    }
    assert_eq!(stage.exchange(&mut backend), [Told::ModelDown { model: id }]);
    assert_eq!(answer(&mut stage, &mut operator), (true, "model `new` is removed".to_owned()));
    let last = client.task(3, 0);
    client.submit_to(thread, id, last, stage.now + ms(30));
    assert_eq!(stage.exchange(&mut client), [dropped(last)], "the id stands for nothing else");
    client.submit_to(thread, id + (7 << 16), last, stage.now + ms(30));
    let reason = FailReason::UnknownModel.code();
    let unknown = Told::Ended { task: last, kind: 2, reason, retry_ms: 0 };
    assert_eq!(stage.exchange(&mut client), [unknown], "a life that has not been");
    assert_eq!(stage.frontend().models.len(), 2);
}

/// Another model's batch has the only slot, so no backend has a task of the removed one.
#[test]
fn a_removed_model_is_there_until_what_waits_for_a_slot_is_served() {
    let mut stage = stage();
    let mut backend = stage.backend("a", 0, 1);
    let mut client = stage.frontend();
    stage.exchange(&mut backend);
    let (id, thread) = add(&mut stage, &mut backend, &mut client);
    let [other, waits] = [0, 1].map(|slot| client.task(slot, 0));
    client.submit(0, other, stage.now + ms(30));
    stage.exchange(&mut client);
    client.submit_to(thread, id, waits, stage.now + ms(30));
    stage.exchange(&mut client);
    let mut operator = remove(&mut stage);
    loaded(&mut stage, &mut backend, id);
    let told = stage.exchange(&mut backend);
    let [Told::Action { batch, model: 0, .. }] = told[..] else { panic!("{told:?}") };
    assert_eq!(stage.exchange(&mut operator), [], "it has a task left");
    send_report(&mut stage, &mut backend, 0, batch);
    let told = stage.exchange(&mut backend);
    let [Told::Action { batch, ref tasks, .. }] = told[..] else { panic!("{told:?}") };
    assert_eq!(tasks[..], [waits]);
    send_report(&mut stage, &mut backend, thread, batch);
    assert_eq!(stage.exchange(&mut backend), [Told::ModelDown { model: id }]);
    assert!(answer(&mut stage, &mut operator).0);
}

/// Who added it waits no longer, and another one may come under that name.
#[test]
fn a_model_that_is_removed_before_it_is_loaded_was_never_added() {
    let mut stage = stage();
    let mut backend = stage.backend("a", 0, 1);
    let mut client = stage.frontend();
    stage.exchange(&mut backend);
    let mut adding = stage.member(Role::Operator);
    ask(&mut stage, &mut adding, ChangeKind::Add, TABLE);
    let told = stage.exchange(&mut backend);
    let [Told::Table { model, .. }] = told[..] else { panic!("{told:?}") };
    let mut removing = remove(&mut stage);
    assert_eq!(answer(&mut stage, &mut removing), (true, "model `new` is not added".to_owned()));
    let (done, why) = answer(&mut stage, &mut adding);
    assert!(!done && why.contains("removed before every backend had loaded it"), "{why}");
    assert_eq!(stage.exchange(&mut backend), [Told::ModelDown { model }]);
    loaded(&mut stage, &mut backend, model);
    assert_eq!(stage.frontend().models.len(), 2);
    stage.exchange(&mut backend);
    add(&mut stage, &mut backend, &mut client);
}
