//! Changes of the catalogue are written down for the next scheduler.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod stage;

use std::collections::BTreeMap;
use std::path::PathBuf;

use baton_rdma::Identity;
use baton_rdma::wire::{ChangeKind, Role};
use baton_topo::{Cluster, Journal};
use stage::changes::{TABLE, add, answer, ask, change, loaded, stage};
use stage::{Member, Stage, Told, cluster};

/// A scheduler that writes changes down, and where.
fn with_journal(name: &str) -> (Stage, PathBuf) {
    let file = std::env::temp_dir().join(format!("baton-{}-{name}.toml", std::process::id()));
    let mut stage = stage();
    stage.scheduler.control.keep_journal(Journal::open(&file).unwrap(), BTreeMap::new());
    (stage, file)
}

/// What the next scheduler makes of it.
fn replayed(file: &PathBuf) -> Cluster {
    let next = Journal::open(file).unwrap().replay(&cluster(baton_core::Policy::Eager, 2));
    std::fs::remove_file(file).unwrap();
    next.cluster
}

#[test]
fn an_operator_is_answered_once_its_change_is_written_down() {
    let (mut stage, file) = with_journal("journal");
    let keys = "[[model]]\nname = \"model-0\"\nslo_ms = 71\n";
    let (is_done, text) = change(&mut stage, ChangeKind::Set, keys);
    assert!(is_done, "{text}");
    let next = replayed(&file);
    let model = next.models.iter().find(|model| model.name == "model-0").unwrap();
    assert_eq!(model.slo, stage::ms(71), "the next scheduler knows of it");
}

#[test]
fn a_model_of_the_file_that_is_removed_does_not_come_back() {
    let removed = |stage: &mut Stage| change(stage, ChangeKind::Remove, "model-0").1;
    let (mut stage, file) = with_journal("removed");
    assert_eq!(removed(&mut stage), "model `model-0` is removed");
    assert!(replayed(&file).models.iter().all(|model| model.name != "model-0"));
    let text = removed(&mut stage::changes::stage());
    assert!(text.contains("comes back with the next scheduler"), "{text}");
}

/// The former one leaves last: what is written down of it does not concern its successor.
#[test]
fn the_next_scheduler_has_the_successor_of_a_model_that_was_replaced() {
    let (mut stage, file) = with_journal("replaced");
    let (mut backend, mut client) = (stage.backend("a", 0, 1), stage.frontend());
    stage.exchange(&mut backend);
    add(&mut stage, &mut backend, &mut client);
    let mut operator = stage.member(Role::Operator);
    let smaller = "[[model]]\nname = \"new\"\nalpha_ms = 1\nbeta_ms = 4\nbatch_max = 4\n";
    ask(&mut stage, &mut operator, ChangeKind::Set, smaller);
    let told = stage.exchange(&mut backend);
    let [Told::Table { model, .. }] = told[..] else { panic!("received {told:?}") };
    loaded(&mut stage, &mut backend, model);
    assert!(answer(&mut stage, &mut operator).0);
    let told = stage.exchange(&mut backend);
    assert!(matches!(told[..], [Told::ModelDown { .. }]), "the former one is forgotten: {told:?}");
    let next = replayed(&file);
    let model = next.models.iter().find(|model| model.name == "new").expect("it is served");
    assert_eq!(model.profile.batch_max(), 4);
}

/// Their cluster file has no such model.
#[test]
fn the_next_scheduler_describes_added_models_to_backends() {
    let (mut stage, file) = with_journal("described");
    let (mut backend, mut client) = (stage.backend("a", 0, 1), stage.frontend());
    stage.exchange(&mut backend);
    add(&mut stage, &mut backend, &mut client);
    let journal = Journal::open(&file).unwrap();
    let next = journal.replay(&cluster(baton_core::Policy::Eager, 2));
    let mut stage = Stage::new(&next.cluster);
    stage.scheduler.control.keep_journal(journal, next.tables);
    let endpoint = stage.network.endpoint(Identity { role: Role::Backend, member: 0 });
    let told = stage.exchange(&mut Member::new(endpoint, Role::Backend, stage.control_addr()));
    let [Told::Table { text, .. }] = &told[..] else { panic!("received {told:?}") };
    assert_eq!(text, TABLE);
    std::fs::remove_file(file).unwrap();
}
