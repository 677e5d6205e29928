//! Whole worlds at random, and single cases step by step.

use baton_types::Nanos;

use super::{INPUT, LINKS, SLICE, TIMEOUT, World, task};
use crate::protocol::wire::TRAILER_LEN;
use crate::transport::{ConnId, Read, ReadStatus};
use crate::verbs::engine::{LinkFailure, Notice, Outcome, PullBounds, ReadEngine, TRIES_MAX};

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

/// Worlds until `BATON_SIM_OPS` READs have ended. `BATON_SIM_OPS=10000000 cargo test --release
/// -p baton-rdma --lib no_byte` is the long run; `BATON_SIM_SEED` replays one world.
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
    world.read_engine.close(place, &mut world.device);
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

/// An engine with one link that is up, and at most `ops_max` READs in work.
fn one_link(ops_max: usize) -> World {
    let mut world = World::new(1, TIMEOUT);
    let (slice_bytes, credit_bytes, posted_max) = (SLICE, 0, 100);
    world.read_engine =
        ReadEngine::new(PullBounds { slice_bytes, credit_bytes, posted_max, ops_max });
    world.read_engine.open(0, ConnId(0));
    world.connect_with(0, 16);
    world
}

fn push(world: &mut World, number: u32) {
    let row = world.buffer.lend(number, INPUT).unwrap();
    let (task, tag) = (task(0, number, 0), number.into());
    world.read_engine.push(0, Read { conn: ConnId(0), task, row, tag });
}

/// What is posted completes, and the engine looks at it `later`.
fn attempt(world: &mut World, later: Nanos) {
    world.read_engine.pump(world.now, &mut world.device);
    while !world.device.pairs[0].posted.is_empty() {
        world.device.step(0, world.now, &mut world.dice, &world.frontends);
    }
    world.now = world.now + later;
    for completion in world.device.poll(&mut world.dice, true) {
        world.read_engine.complete(completion, world.now, &mut world.device);
    }
}

const TOO_LATE: Nanos = Nanos(TIMEOUT.0 + 1);

/// Tags and ends of the READs that have ended since the last call.
fn ended(world: &mut World) -> Vec<(u64, ReadStatus)> {
    let mut ended: Vec<_> =
        world.read_engine.done.drain(..).map(|done| (done.tag, done.status)).collect();
    ended.sort_by_key(|&(tag, _)| tag);
    ended
}

#[test]
fn an_input_takes_its_bytes_and_its_trailer_of_the_window() {
    let mut world = one_link(8);
    push(&mut world, 0);
    world.read_engine.pump(world.now, &mut world.device);
    let bytes = u64::from(INPUT) + TRAILER_LEN as u64;
    assert_eq!(world.read_engine.credit.in_flight(), bytes);
}

#[test]
fn a_link_that_finds_no_credit_keeps_its_turn() {
    let mut world = one_link(8);
    let (slice_bytes, credit_bytes) = (SLICE, u64::from(SLICE) * 3 / 2);
    world.read_engine =
        ReadEngine::new(PullBounds { slice_bytes, credit_bytes, posted_max: 100, ops_max: 100 });
    for place in 0..2usize {
        world.read_engine.open(place, ConnId(place as u64));
        world.connect_with(place, 16);
        let row = world.buffer.lend(place as u32, INPUT).unwrap();
        let (conn, task, tag) = (ConnId(place as u64), task(place, 0, 0), place as u64);
        world.read_engine.push(place, Read { conn, task, row, tag });
    }
    attempt(&mut world, Nanos(1));
    world.read_engine.pump(world.now, &mut world.device);
    let posted = [0, 1].map(|place: usize| world.device.pairs[place].posted.len());
    assert_eq!(posted, [0, 1], "the first has had a slice");
}

/// One link has several turns in a pass, and another, which is not connected yet, none.
#[test]
fn a_link_that_cannot_go_takes_no_turns_of_another() {
    let mut world = one_link(8);
    world.read_engine.open(1, ConnId(1));
    let (row, task) = (world.buffer.lend(5, INPUT).unwrap(), task(1, 0, 0));
    world.read_engine.push(1, Read { conn: ConnId(1), task, row, tag: 5 });
    (0..4).for_each(|number| push(&mut world, number));
    world.read_engine.pump(world.now, &mut world.device);
    let slices = 4 * INPUT.div_ceil(SLICE) as usize;
    assert!(slices <= 16, "the link has room for all");
    assert_eq!(world.device.pairs[0].posted.len(), slices);
}

#[test]
fn an_input_is_read_so_often_and_no_more() {
    let mut world = one_link(8);
    push(&mut world, 0);
    let tries = (1..).find(|_| {
        attempt(&mut world, TOO_LATE);
        !world.read_engine.done.is_empty()
    });
    assert_eq!(tries, Some(u32::from(TRIES_MAX)));
    assert_eq!(ended(&mut world), [(0, ReadStatus::PeerLost)]);
}

#[test]
fn tries_of_a_read_that_was_given_up_do_not_count_for_the_next_with_its_tag() {
    let mut world = one_link(8);
    push(&mut world, 0);
    (1..TRIES_MAX).for_each(|_| attempt(&mut world, TOO_LATE));
    world.read_engine.abort(0, 0, &mut world.device);
    assert_eq!(ended(&mut world), [(0, ReadStatus::Aborted)]);
    push(&mut world, 0);
    attempt(&mut world, TOO_LATE);
    assert_eq!(ended(&mut world), [], "it is read again");
    attempt(&mut world, Nanos(1));
    assert_eq!(ended(&mut world), [(0, ReadStatus::Done)]);
}

#[test]
fn what_is_read_again_goes_before_what_was_never_read() {
    let mut world = one_link(1);
    (0..2).for_each(|number| push(&mut world, number));
    attempt(&mut world, TOO_LATE);
    attempt(&mut world, Nanos(1));
    assert_eq!(ended(&mut world), [(0, ReadStatus::Done)]);
    attempt(&mut world, Nanos(1));
    assert_eq!(ended(&mut world), [(1, ReadStatus::Done)]);
}

/// That the READs before it have no completion of their own does not mean that they were refused.
#[test]
fn only_the_read_that_the_device_refused_ends_as_refused() {
    let mut world = one_link(8);
    (0..2).for_each(|number| push(&mut world, number));
    world.read_engine.pump(world.now, &mut world.device);
    let slices = INPUT.div_ceil(SLICE) as usize;
    while world.device.pairs[0].posted.len() > slices {
        world.device.step(0, world.now, &mut world.dice, &world.frontends);
    }
    world.device.lose(0, Outcome::Refused);
    while world.read_engine.done.len() < 2 {
        attempt(&mut world, Nanos(1));
    }
    assert_eq!(ended(&mut world), [(0, ReadStatus::PeerLost), (1, ReadStatus::Refused)]);
}
