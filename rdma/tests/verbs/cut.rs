//! A cut cable: nothing answers any more, and nothing says so. Only in the guest, which has a cable to cut.

use std::process::Command;

use super::*;
use crate::common::{OUTPUT, result};

/// How long it may take from a cut to typed failures with the default `read_timeout_ms`: its 40 ms; and
/// for an emulated CPU to look, to drain the queue pair and to say so, 60 more.
const CUT_NOTICED: Nanos = Nanos::from_millis(100);

/// TCP says nothing for minutes, the READ's own bound does.
#[test]
fn a_cut_cable_is_noticed_within_the_bound() {
    if std::env::var_os("BATON_VERBS_PAIR").is_none() {
        return eprintln!("SKIPPED: there is no cable to cut; `./x rdma` runs this in a guest");
    }
    assert!(rdma_here());
    let took = cut_repeatedly(|backend| {
        let mut pair = Pair::new(backend, &on_device(1), 2, IMAGE);
        let tasks = [0, 1].map(|seed| submit(&pair.slabs, seed));
        pair.linked();
        let took = cut(|| {
            pair.post(&tasks, IMAGE);
            settle([&mut pair.backend], |[backend]| !backend.closed().is_empty());
        });
        let statuses: Vec<_> = pair.backend.reads().iter().map(|done| done.status).collect();
        assert_eq!(statuses, [ReadStatus::PeerLost; 2]);
        told(&pair.backend);
        took
    });
    assert!(took < CUT_NOTICED, "{took:?}");
}

/// So does the SEND's.
#[test]
fn a_cut_cable_is_noticed_by_answers_within_the_bound() {
    if std::env::var_os("BATON_VERBS_PAIR").is_none() {
        return eprintln!("SKIPPED: there is no cable to cut; `./x rdma` runs this in a guest");
    }
    assert!(rdma_here());
    let took = cut_repeatedly(|backend| {
        let mut pair = Pair::talking([backend, &on_device(1)], TcpConfig::default(), 2, OUTPUT);
        let task = submit(&pair.slabs, 1);
        let took = cut(|| {
            pair.backend.transport.reply(pair.conn, &result(task), b"lost").unwrap();
            settle([&mut pair.backend], |[backend]| !backend.closed().is_empty());
        });
        told(&pair.backend);
        took
    });
    assert!(took < CUT_NOTICED, "{took:?}");
}

/// The shortest of a few cuts with the defaults: a busy host stops the whole guest now and then.
fn cut_repeatedly(mut one: impl FnMut(&VerbsConfig) -> Nanos) -> Nanos {
    let device = on_device(0).device;
    let defaults = VerbsConfig { device, ..VerbsConfig::default() };
    assert_eq!(defaults.read_timeout, Nanos::from_millis(40));
    let took = [(); 3].map(|()| one(&defaults));
    eprintln!("noticed after {took:?}");
    // What was asked for has nearly all of its time: this side being slow loses no peer.
    assert!(took.iter().all(|took| *took > Nanos::from_millis(32)), "too early: {took:?}");
    took.into_iter().min().unwrap()
}

/// The reason is the bound's, or the device's own where that is quicker.
fn told(backend: &MixedNode) {
    let reason = &backend.closed()[0].1;
    eprintln!("{reason}");
    assert!(matches!(reason, CloseReason::Fabric(_)), "{reason}");
}

/// Cuts the cable, then times `noticed`, and mends the cable.
fn cut(noticed: impl FnOnce()) -> Nanos {
    ip(&["link", "set", "veth1", "down"]);
    let clock = Clock::start();
    let before = clock.now();
    noticed();
    let took = clock.now() - before;
    ip(&["link", "set", "veth1", "up"]);
    ip(&["route", "add", "10.77.0.1", "dev", "veth1", "src", "10.77.0.2", "table", "101"]);
    took
}

fn ip(args: &[&str]) {
    assert!(Command::new("ip").args(args).status().unwrap().success(), "ip {args:?}");
}
