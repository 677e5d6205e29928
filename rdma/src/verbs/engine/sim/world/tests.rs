//! Whole worlds at random, and single cases step by step.

use baton_core::Nanos;

use super::{INPUT, LINKS, SLICE, TIMEOUT, World, task};
use crate::transport::{ConnId, Read, ReadStatus};
use crate::verbs::engine::{LinkFailure, Notice, PullBounds, ReadEngine};

/// Runs `actions` random actions; returns how many READs ended in which status, and how many rows
/// that counted held foreign bytes.
fn run(seed: u64, actions: u64, rest: Nanos) -> ([u64; 5], u64) {
    let mut world = World::new(seed, rest);
    (0..actions).for_each(|_| world.act());
    world.come_to_rest();
    (world.by_status, world.foreign)
}

fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Worlds until so many READs have ended. `BATON_SIM_OPS=10000000 cargo test --release -p baton-rdma
/// --lib no_byte` is the long run; `BATON_SIM_SEED` replays one world.
#[test]
fn no_byte_of_a_recycled_slot_is_ever_consumed() {
    if let Some(seed) = from_env("BATON_SIM_SEED") {
        return assert_eq!(run(seed, 20_000, TIMEOUT).1, 0);
    }
    let total = from_env("BATON_SIM_OPS").unwrap_or(20_000);
    let mut sums = [0; 5];
    for seed in 0.. {
        if sums.iter().sum::<u64>() >= total {
            break;
        }
        let (by_status, foreign) = run(seed, 20_000, TIMEOUT);
        assert_eq!(foreign, 0, "rows with foreign bytes counted; BATON_SIM_SEED={seed}");
        sums.iter_mut().zip(by_status).for_each(|(sum, count)| *sum += count);
    }
    eprintln!("done, stale, refused, lost, aborted: {sums:?}");
    assert!(sums.iter().all(|sum| *sum > 100), "every ending is exercised: {sums:?}");
}

/// The world is bad enough: slots that are written again at once do get torn rows taken for inputs.
#[test]
fn without_rest_the_simulator_shows_torn_rows() {
    let foreign: u64 = (0..20).map(|seed| run(seed, 20_000, Nanos::ZERO).1).sum();
    assert!(foreign > 0);
}

/// A READ that is given up frees its link's other READs to be read again.
#[test]
fn an_abort_costs_the_others_a_second_try_and_no_more() {
    let mut world = World::new(1, TIMEOUT);
    world.read_engine = ReadEngine::new(PullBounds {
        slice_bytes: SLICE,
        credit_bytes: 0,
        posted_max: 100,
        ops_max: 100,
    });
    world.read_engine.open(0, ConnId(0));
    world.down = Vec::new();
    world.connect_with(0, 16);
    for row in 0..2u32 {
        let row_mut = world.buffer.lend(row, INPUT).unwrap();
        let task = task(0, row, 0);
        world.reading[row as usize] = Some((task, 0));
        world.posted += 1;
        world.read_engine.push(0, Read { conn: ConnId(0), task, row: row_mut, tag: row.into() });
    }
    world.pass(true);
    world.read_engine.abort(0, 0, &mut world.device);
    world.settle();
    assert!(world.reading[0].is_some(), "its row is still within reach");
    world.come_to_rest();
    let count = |status: ReadStatus| world.by_status[status as usize];
    assert_eq!((count(ReadStatus::Aborted), count(ReadStatus::Done)), (1, 1));
    assert_eq!(world.read_engine.counters.rereads, 1);
}

/// A link on which nothing moves is given up in time, and says so.
#[test]
fn a_dead_peer_is_noticed_by_the_clock() {
    let mut world = World::new(3, TIMEOUT);
    world.connect();
    let place = LINKS - 1;
    world.device.pause(place, Nanos::MAX);
    let row = world.buffer.lend(0, INPUT).unwrap();
    let task = task(place, 0, 0);
    world.read_engine.push(place, Read { conn: ConnId(place as u64), task, row, tag: 0 });
    world.read_engine.pump(world.now, &mut world.device);
    let deadline = world.read_engine.next_deadline();
    assert_eq!(deadline, Some(world.now + TIMEOUT));
    world.now = world.now + TIMEOUT + Nanos(1);
    world.read_engine.expire(world.now, &mut world.device);
    assert!(world.read_engine.done.is_empty(), "not before the queue pair is drained");
    for _ in 0..8 {
        world.device.step(place, world.now, &mut world.dice, &world.frontends);
        for completion in world.device.poll(&mut world.dice, true) {
            world.read_engine.complete(completion, world.now, &mut world.device);
        }
    }
    let statuses: Vec<_> = world.read_engine.done.iter().map(|done| done.status).collect();
    assert_eq!(statuses, [ReadStatus::PeerLost]);
    assert_eq!(world.read_engine.notices, [Notice::Lost(place, LinkFailure::Timeout)]);
}

/// The time that counts begins with the first slice and ends when the completion is looked at.
#[test]
fn an_input_that_took_too_long_is_read_again() {
    let mut world = World::new(5, TIMEOUT);
    let (slice_bytes, credit_bytes) = (SLICE, u64::from(SLICE));
    world.read_engine =
        ReadEngine::new(PullBounds { slice_bytes, credit_bytes, posted_max: 100, ops_max: 100 });
    world.read_engine.open(0, ConnId(0));
    world.down = Vec::new();
    world.connect_with(0, 16);
    let row = world.buffer.lend(0, INPUT).unwrap();
    world.reading[0] = Some((task(0, 0, 0), 0));
    world.posted = 1;
    world.read_engine.push(0, Read { conn: ConnId(0), task: task(0, 0, 0), row, tag: 0 });
    // One slice at a time is all the window has room for.
    for _ in 0..INPUT.div_ceil(SLICE) {
        world.read_engine.pump(world.now, &mut world.device);
        (0..200).for_each(|_| {
            world.device.step(0, world.now, &mut world.dice, &world.frontends);
        });
        world.now = world.now + Nanos(TIMEOUT.0 / 2);
        for completion in world.device.poll(&mut world.dice, true) {
            world.read_engine.complete(completion, world.now, &mut world.device);
        }
    }
    assert!(world.read_engine.done.is_empty());
    assert_eq!(world.read_engine.counters.rereads, 1);
    world.come_to_rest();
    assert_eq!(world.by_status[ReadStatus::Done as usize], 1);
}
