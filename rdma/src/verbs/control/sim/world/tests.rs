//! Whole worlds at random, and single cases step by step.

use baton_types::Nanos;

use super::{TIMEOUT, World};
use crate::verbs::control::{Arrival, HEADER_LEN, Header, ONLY_CREDITS};
use crate::verbs::engine::LinkFailure;

fn from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn run(seed: u64) -> World {
    let mut world = World::new(seed);
    (0..20_000).for_each(|_| world.act());
    world.come_to_rest();
    world
}

/// Worlds until `BATON_SIM_OPS` SENDs have arrived. `BATON_SIM_OPS=10000000 cargo test --release
/// -p baton-rdma --lib no_message` is the long run; `BATON_SIM_SEED` replays one world.
#[test]
fn no_message_is_lost_doubled_or_overtaken_while_its_link_lives() {
    if let Some(seed) = from_env("BATON_SIM_SEED") {
        run(seed);
        return;
    }
    let total = from_env("BATON_SIM_OPS").unwrap_or(40_000);
    let (mut sends, mut ends, mut full, mut bare, mut unsignalled) = (0, 0, 0, 0, 0);
    for seed in 0.. {
        if sends >= total {
            break;
        }
        let world = run(seed);
        (sends, ends, full) = (sends + world.sends, ends + world.ends, full + world.full);
        for side in &world.sides {
            let counters = side.control.counters;
            bare += counters.bare;
            unsignalled += counters.sends - counters.signalled;
        }
    }
    eprintln!("sends {sends}, bare {bare}, unsignalled {unsignalled}, ends {ends}, full {full}");
    let all = [ends, full, bare, unsignalled];
    assert!(all.iter().all(|count| *count > 100), "everything is exercised: {all:?}");
}

/// A pair of sides with one link each, a window of four, two slots of which one SEND fills each.
fn small_world() -> World {
    let mut world = World::new(1);
    for side in &mut world.sides {
        (side.window, side.slots) = (4, 2);
        side.device.free = (0..6).collect();
        side.device.buffers = vec![Vec::new(); 6];
    }
    (world.send_bytes, world.queue_bytes) = (HEADER_LEN as u32 + 10, 60);
    world.connect(0);
    world
}

/// A peer that takes nothing out of its buffers stops the sender, whose queue is bounded.
#[test]
fn a_peer_that_does_not_take_messages_fills_the_queue() {
    let mut world = small_world();
    let frame = |bytes: &mut Vec<u8>| bytes.extend([7; 10]);
    let mut pushed = 0;
    while world.sides[0].control.push(0, 10, frame) && pushed < 100 {
        pushed += 1;
        world.pass(0, true);
        world.land(0, 0);
        world.acknowledge(0, 0);
    }
    // Four in its buffers, six that wait; the last is refused and nothing of it is queued.
    assert_eq!(pushed, 10);
    assert_eq!(world.sides[1].device.free.len(), 2, "those for credits are left");
}

/// Nothing comes back and nothing fails: the clock ends the link, once its queue pair is drained.
#[test]
fn a_dead_peer_is_noticed_by_the_clock() {
    let mut world = small_world();
    assert!(world.sides[0].control.push(0, 3, |bytes| bytes.extend([1, 2, 3])));
    world.pass(0, true);
    let side = &mut world.sides[0];
    assert_eq!(side.control.next_deadline(), Some(world.now + TIMEOUT));
    side.control.expire(world.now + TIMEOUT, &mut side.device);
    assert!(!side.device.pairs[0].is_failed, "not yet");
    side.control.expire(world.now + TIMEOUT + Nanos(1), &mut side.device);
    assert!(side.device.pairs[0].is_failed && side.control.ended.is_empty());
    while !side.device.pairs[0].posted.is_empty() {
        side.device.flush_one(0);
    }
    while let Some(signal) = side.device.completions.pop_front() {
        side.control.complete(&signal, &mut side.device);
    }
    assert_eq!(side.control.ended.len(), 1);
    assert_eq!(side.control.ended[0].why, LinkFailure::Timeout);
    assert!(!side.control.push(0, 1, |_| unreachable!("there is no link")));
}

/// A peer that sends beyond its credits, or gives back what it did not take, loses its link.
#[test]
fn rules_of_credits_are_enforced() {
    let stream = |credits| Header { credits, flags: 0 };
    let bare = |credits| Header { credits, flags: ONLY_CREDITS };
    let run = |headers: &[Header]| {
        let mut world = small_world();
        let side = &mut world.sides[0];
        let mut arrivals =
            headers.iter().map(|header| side.control.arrived(0, Some(*header), &mut side.device));
        arrivals.find(|arrival| *arrival == Arrival::Broken)
    };
    assert_eq!(run(&[stream(0); 4]), None);
    assert_eq!(run(&[stream(0); 5]), Some(Arrival::Broken));
    assert_eq!(run(&[stream(1)]), Some(Arrival::Broken), "nothing was sent to be given back");
    assert_eq!(run(&[bare(4)]), Some(Arrival::Broken));
    let mut world = small_world();
    (0..2).for_each(|_| {
        assert!(world.sides[0].control.push(0, 10, |bytes| bytes.extend([0; 10])));
    });
    world.pass(0, true);
    let side = &mut world.sides[0];
    assert_eq!(side.control.arrived(0, Some(bare(1)), &mut side.device), Arrival::Broken);
    for bytes in
        [&[][..], &[0, 0, 0], &[0, 0, 0, 0], &[0, 0, 1, 0], &[1, 0, 1, 0, 9], &[0, 0, 2, 0, 9]]
    {
        assert_eq!(Header::read(bytes), None, "{bytes:?}");
    }
}

#[test]
fn the_first_send_that_takes_too_long_is_noticed_first() {
    for order in [[0, 1], [1, 0]] {
        let mut world = small_world();
        world.connect(1);
        let first = world.now;
        for place in order {
            assert!(world.sides[0].control.push(place, 1, |bytes| bytes.push(7)));
            world.pass(0, true);
            world.now = world.now + Nanos(10);
        }
        assert_eq!(world.sides[0].control.next_deadline(), Some(first + TIMEOUT));
    }
}

/// What is posted may still arrive where a link is closed in full. Else it is given up at once.
#[test]
fn a_link_that_is_closed_waits_for_what_is_posted_only_if_it_is_to() {
    for (in_full, waits) in [(true, true), (false, false)] {
        let mut world = small_world();
        assert!(world.sides[0].control.push(0, 1, |bytes| bytes.push(7)));
        world.pass(0, true);
        let side = &mut world.sides[0];
        side.control.close(0, in_full, &mut side.device);
        assert_eq!(!side.device.pairs[0].is_failed, waits);
        assert!(!side.control.is_up(0), "it takes nothing more");
    }
}
