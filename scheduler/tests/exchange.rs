//! A model is exchanged for another one of its name.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod stage;

use baton_rdma::Transport;
use baton_rdma::wire::{CatalogChange, ChangeKind, ModelFailed, Role};
use stage::changes::{add, answer, ask, change, loaded, newest, send_report, serve_one, stage};
use stage::{Member, Stage, Told, ms};

/// Another model of the same name, for smaller batches.
const SMALLER: &str = "[[model]]\nname = \"new\"\nalpha_ms = 1\nbeta_ms = 4\nbatch_max = 4\n";

/// Asks for the replacement of `new`; returns the operator and the id under which the backend is to load it.
fn replace(stage: &mut Stage, backend: &mut Member) -> (Member, u32) {
    let mut operator = stage.member(Role::Operator);
    ask(stage, &mut operator, ChangeKind::Set, SMALLER);
    let told = stage.exchange(backend);
    let [Told::Table { model, ref text }] = told[..] else { panic!("received {told:?}") };
    assert!(text.contains("batch_max = 4") && text.contains("slo_ms = 30"), "{text}");
    assert!(text.contains("subcluster = \"a\"") && text.contains("Replaces"), "{text}");
    (operator, model)
}

#[test]
fn a_model_is_replaced_once_its_successor_is_loaded_and_serves_what_waits() {
    let mut stage = stage();
    let mut backend = stage.backend("a", 0, 1);
    let mut client = stage.frontend();
    stage.exchange(&mut backend);
    let (former, thread) = add(&mut stage, &mut backend, &mut client);
    let (mut operator, id) = replace(&mut stage, &mut backend);
    assert_eq!(stage.exchange(&mut operator), [], "not loaded yet");
    let (first, second) = (client.task(0, 0), client.task(1, 0));
    for task in [first, second] {
        client.submit_to(thread, former, task, stage.now + ms(30));
        assert_eq!(stage.exchange(&mut client), [], "the former one serves");
    }
    loaded(&mut stage, &mut backend, id);
    let done = (true, "model `new` is replaced, and served by 1 GPU slot".to_owned());
    assert_eq!(answer(&mut stage, &mut operator), done);
    assert_eq!(stage.exchange(&mut client), [Told::ModelDown { model: former }]);
    let model = newest(&client);
    assert_eq!(model.0, id, "both at once");
    assert!(change(&mut stage, ChangeKind::Set, "[[model]]\nname = \"new\"\nslo_ms = 30\n").0);
    stage.exchange(&mut client);
    assert_eq!(newest(&client), model, "the name is its own while the former one still serves");
    for expected in [first, second] {
        let told = stage.exchange(&mut backend);
        let [Told::Action { batch, ref tasks, .. }] = told[..] else { panic!("{told:?}") };
        assert_eq!(tasks[..], [expected], "what waited");
        send_report(&mut stage, &mut backend, thread, batch);
    }
    assert_eq!(stage.exchange(&mut backend), [Told::ModelDown { model: former }]);
    serve_one(&mut stage, &mut backend, &mut client, model, 2);
    let (mut again, newer) = replace(&mut stage, &mut backend);
    assert!(newer & 0xffff < id & 0xffff, "the first number again");
    let (done, text) = change(&mut stage, ChangeKind::Remove, "new");
    assert!(done && text.contains("is not replaced, and served as before"), "{text}");
    assert!(!answer(&mut stage, &mut again).0);
    stage.exchange(&mut backend);
    let (mut again, newer) = replace(&mut stage, &mut backend);
    loaded(&mut stage, &mut backend, newer);
    assert!(answer(&mut stage, &mut again).0, "and once more");
}

#[test]
fn a_successor_that_cannot_be_loaded_or_is_not_wanted_any_more_changes_nothing() {
    let mut stage = stage();
    let mut backend = stage.backend("a", 0, 1);
    let mut client = stage.frontend();
    stage.exchange(&mut backend);
    let model = add(&mut stage, &mut backend, &mut client);
    let (done, why) =
        change(&mut stage, ChangeKind::Set, "[[model]]\nname = \"new\"\nsubcluster = \"b\"\n");
    let exchanges = "\nthese keys exchange the model, which keeps slo_ms, its quotas and its sub-cluster; give each other key again";
    assert!(!done && why.contains("alpha_ms: is missing") && why.ends_with(exchanges), "{why}");
    let (mut operator, id) = replace(&mut stage, &mut backend);
    for text in [SMALLER, "[[model]]\nname = \"new\"\nslo_ms = 40\n"] {
        let (done, why) = change(&mut stage, ChangeKind::Set, text);
        assert!(!done && why.contains("`new` is being replaced"), "{why}");
    }
    backend.send(&ModelFailed { model: id.into() }, b"no memory");
    assert_eq!(stage.exchange(&mut backend), [Told::ModelDown { model: id }]);
    let (done, why) = answer(&mut stage, &mut operator);
    assert!(!done && why.contains("no memory"), "{why}");
    serve_one(&mut stage, &mut backend, &mut client, model, 0);
    let (mut operator, id) = replace(&mut stage, &mut backend);
    let (done, text) = change(&mut stage, ChangeKind::Remove, "new");
    assert!(done && text.contains("is not replaced, and served as before"), "{text}");
    assert!(!answer(&mut stage, &mut operator).0);
    assert_eq!(stage.exchange(&mut backend), [Told::ModelDown { model: id }]);
    serve_one(&mut stage, &mut backend, &mut client, model, 1);
    let unknown = SMALLER.replace("new", "newer");
    let (done, why) = change(&mut stage, ChangeKind::Set, &unknown);
    assert!(!done && why.contains("no model named `newer`"), "{why}");
    let unreadable = format!("{SMALLER}gpus = 3\n");
    let (done, why) = change(&mut stage, ChangeKind::Set, &unreadable);
    assert!(!done && why.contains("gpus"), "{why}");
}

#[test]
fn of_two_operators_who_exchange_a_model_at_once_one_does() {
    let mut stage = stage();
    let mut backend = stage.backend("a", 0, 1);
    let mut client = stage.frontend();
    stage.exchange(&mut backend);
    add(&mut stage, &mut backend, &mut client);
    let [mut first, mut second] = [(); 2].map(|()| stage.member(Role::Operator));
    for operator in [&mut first, &mut second] {
        let change = CatalogChange { kind: ChangeKind::Set as u8, reserved: [0; 3] };
        operator.send(&change, SMALLER.as_bytes());
        operator.transport.flush();
    }
    stage.settle();
    let told = stage.exchange(&mut backend);
    assert!(matches!(told[..], [Told::Table { .. }]), "one is to be loaded: {told:?}");
    let mut answers = |operator: &mut Member| stage.exchange(operator);
    let answered = [answers(&mut first), answers(&mut second)].concat();
    let [Told::Changed { done: false, ref text }] = answered[..] else { panic!("{answered:?}") };
    assert!(text.contains("`new` is being replaced"), "{text}");
}
