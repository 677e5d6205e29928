//! Changes of the catalogue are written down for the next scheduler.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod stage;

use std::collections::BTreeMap;

use baton_rdma::wire::ChangeKind;
use baton_topo::Journal;
use stage::changes::{change, stage};
use stage::cluster;

#[test]
fn an_operator_is_answered_once_its_change_is_written_down() {
    let file = std::env::temp_dir().join(format!("baton-{}-journal.toml", std::process::id()));
    let mut stage = stage();
    stage.scheduler.control.keep_journal(Journal::open(&file).unwrap(), BTreeMap::new());
    let keys = "[[model]]\nname = \"model-0\"\nslo_ms = 71\n";
    let (is_done, text) = change(&mut stage, ChangeKind::Set, keys);
    assert!(is_done, "{text}");
    let replayed = Journal::open(&file).unwrap().replay(&cluster(baton_core::Policy::Eager, 2));
    let slo = |name: &str| {
        let models = &replayed.cluster.models;
        models.iter().find(|model| model.name == name).unwrap().slo
    };
    assert_eq!(slo("model-0"), stage::ms(71), "the next scheduler knows of it");
    std::fs::remove_file(file).unwrap();
}
