//! What the log of a TCP transport says of connections that end.
#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod common;

use std::io::Write as _;
use std::sync::{Arc, Mutex};

use baton_rdma::wire::Leave;
use baton_types::Nanos;
use common::raw::{Raw, TcpNode, node};
use common::settle;
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Lines of at least INFO: level and text.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<(Level, String)>>>);

impl Log {
    fn take(&self) -> Vec<(Level, String)> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

struct Text(String);

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.0 = format!("{value:?}");
        }
    }
}

impl Subscriber for Log {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::INFO
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut text = Text(String::new());
        event.record(&mut text);
        self.0.lock().unwrap().push((*event.metadata().level(), text.0));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// Connects `count` times, and sends what is no frame each time.
fn break_rules(node: &mut TcpNode, count: usize) {
    for _ in 0..count {
        let mut raw = Raw::open(node);
        raw.stream.write_all(&[255; 64]).unwrap();
        raw.until(node, |raw, _| raw.ended);
    }
}

#[test]
fn who_breaks_the_rules_is_told_of_and_a_storm_only_counted() {
    let log = Log::default();
    let _guard = tracing::subscriber::set_default(log.clone());
    let mut node = node();
    let mut good = Raw::open(&mut node);
    good.send(&Leave { reserved: 0.into() }, &[], &[]);
    drop(good);
    settle([&mut node], |[node]| !node.closed().is_empty());
    assert_eq!(log.take(), [], "a good end is no news");

    break_rules(&mut node, 20);
    let line = (Level::INFO, "closed a connection that broke the rules".to_owned());
    assert_eq!(log.take(), vec![line.clone(); 8]);
    node.now = node.now + Nanos::from_millis(1_000);
    node.poll();
    let rest = "... and 12 more connections in the last second".to_owned();
    assert_eq!(log.take(), [(Level::WARN, rest)]);
    break_rules(&mut node, 1);
    assert_eq!(log.take(), [line]);
}
