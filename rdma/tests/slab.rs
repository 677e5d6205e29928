//! Slabs against a naive model, and under two threads.
#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

#[path = "slab/naive.rs"]
mod naive;

use std::sync::Arc;
use std::sync::mpsc;

use baton_rdma::{Backing, ReadRefusal, SlabError, SlabSet, SlabSpec};
use baton_types::{FrontendId, ModelId, TaskId};

const FRONTEND: FrontendId = FrontendId(3);
const INPUT: usize = 13;
const OUTPUT: usize = 5;

fn spec(model: u32, slots: u32) -> SlabSpec {
    let (input_bytes, output_bytes) = (INPUT as u32, OUTPUT as u32);
    SlabSpec { model: ModelId(model), slots, input_bytes, output_bytes }
}

fn slabs(specs: &[SlabSpec], first_generation: u32) -> Arc<SlabSet> {
    let set = SlabSet::new(specs, first_generation).unwrap();
    set.set_frontend(FRONTEND);
    set
}

/// An input submitted with all bytes `fill`.
fn submit(set: &Arc<SlabSet>, model: u32, fill: u8) -> TaskId {
    let mut input = set.acquire(ModelId(model)).unwrap();
    input.fill(fill);
    input.submit()
}

#[test]
fn a_slot_goes_round() {
    let set = slabs(&[spec(0, 1)], 7);
    let task = submit(&set, 0, 0xaa);
    assert_eq!((task.frontend(), task.slot(), task.generation()), (FRONTEND, 0, 7));
    assert_eq!(set.acquire(ModelId(0)).unwrap_err(), SlabError::Exhausted);

    let lease = set.read(task, INPUT as u32).unwrap();
    let (input, trailer) = lease.as_ref().split_at(INPUT);
    assert_eq!((input, trailer), (&[0xaa; INPUT][..], &task.0.to_le_bytes()[..]));

    let mut landing = set.landing(task).unwrap();
    assert!(set.landing(task).is_none(), "one at a time");
    landing[..3].copy_from_slice(&[1, 2, 3]);
    landing.commit(3);
    assert!(set.landing(task).is_none(), "one answer only");
    assert!(set.output(task).is_none(), "not decided yet");
    assert!(set.complete(task));
    assert!(!set.complete(task), "decided once");
    assert_eq!(set.read(task, INPUT as u32).unwrap_err(), ReadRefusal::Stale);

    let output = set.output(task).unwrap();
    assert_eq!(&output[..], [1, 2, 3]);
    assert!(set.output(task).is_none(), "read once");
    drop(output);
    assert_eq!(set.in_use(), 1, "the lease keeps the slot");
    drop(lease);
    assert_eq!((set.in_use(), set.leases()), (0, 0));
    assert_eq!(submit(&set, 0, 0).generation(), 8);
}

#[test]
fn generations_wrap() {
    let set = slabs(&[spec(0, 1)], TaskId::GENERATIONS - 1);
    let last = submit(&set, 0, 1);
    assert!(set.complete(last));
    set.release(last);
    let first = submit(&set, 0, 2);
    assert_eq!((last.generation(), first.generation()), (TaskId::GENERATIONS - 1, 0));
    assert!(!set.complete(last));
}

#[test]
fn a_renewed_task_has_another_id_and_the_same_input() {
    let set = slabs(&[spec(0, 1)], 7);
    let old = submit(&set, 0, 0xaa);
    let lease = set.read(old, INPUT as u32).unwrap();
    assert_eq!(set.renew(old), None, "its trailer is being read");
    drop(lease);
    let landing = set.landing(old).unwrap();
    assert_eq!(set.renew(old), None, "an answer is landing");
    drop(landing);

    set.set_frontend(FrontendId(4));
    assert!(set.read(old, INPUT as u32).is_ok(), "still in flight under the number it has");
    let new = set.renew(old).unwrap();
    assert_eq!((new.frontend(), new.slot(), new.generation()), (FrontendId(4), 0, 8));
    assert_eq!(set.task(0), new);
    assert_eq!(set.read(old, INPUT as u32).unwrap_err(), ReadRefusal::Stale);
    assert!(set.landing(old).is_none() && !set.complete(old) && set.renew(old).is_none());
    let lease = set.read(new, INPUT as u32).unwrap();
    let (input, trailer) = lease.as_ref().split_at(INPUT);
    assert_eq!((input, trailer), (&[0xaa; INPUT][..], &new.0.to_le_bytes()[..]));
    drop(lease);

    set.landing(new).unwrap().commit(1);
    assert_eq!(set.renew(new), None, "it has its answer");
    assert!(set.complete(new));
    drop(set.output(new));
    assert_eq!(set.in_use(), 0);
}

#[test]
fn an_answer_after_the_decision_does_not_count() {
    let set = slabs(&[spec(0, 1)], 0);
    let task = submit(&set, 0, 1);
    let landing = set.landing(task).unwrap();
    assert!(set.complete(task));
    set.release(task);
    assert_eq!(set.in_use(), 1, "the landing keeps the slot");
    landing.commit(2);
    assert!(set.output(task).is_none());
    assert_eq!(set.in_use(), 0);
}

#[test]
fn refusals() {
    let set = slabs(&[spec(0, 2), spec(9, 1)], 0);
    assert_eq!(set.acquire(ModelId(1)).unwrap_err(), SlabError::UnknownModel);
    let task = submit(&set, 9, 1);
    assert_eq!(task.slot(), 2, "slots are numbered through all slabs");
    let other = |slot, generation| TaskId::new(FRONTEND, slot, generation);
    let refused = |task, len| set.read(task, len).unwrap_err();
    assert_eq!(refused(other(3, 0), INPUT as u32), ReadRefusal::NoSuchSlot);
    assert_eq!(refused(task, INPUT as u32 + 8), ReadRefusal::WrongSize);
    assert_eq!(refused(other(2, 1), INPUT as u32), ReadRefusal::Stale);
    assert_eq!(refused(TaskId::new(FrontendId(4), 2, 0), INPUT as u32), ReadRefusal::Stale);
    assert!(!set.complete(other(2, 1)) && !set.complete(other(3, 0)));
    assert!(set.landing(other(2, 1)).is_none() && set.output(task).is_none());
}

#[test]
fn absurd_specs() {
    let new = |specs: &[SlabSpec]| SlabSet::new(specs, 0).unwrap_err();
    assert_eq!(new(&[spec(0, 0)]), SlabError::BadSize(ModelId(0)));
    assert_eq!(new(&[SlabSpec { input_bytes: 0, ..spec(1, 1) }]), SlabError::BadSize(ModelId(1)));
    assert_eq!(new(&[SlabSpec { output_bytes: 0, ..spec(1, 1) }]), SlabError::BadSize(ModelId(1)));
    let huge = SlabSpec { input_bytes: u32::MAX, ..spec(2, 1) };
    assert_eq!(new(&[huge]), SlabError::BadSize(ModelId(2)));
    let over = (u64::from(TaskId::SLOTS_MAX) + 1, TaskId::SLOTS_MAX);
    assert_eq!(new(&[spec(0, over.1), spec(1, 1)]), SlabError::TooManySlots(over.0));
    assert_eq!(new(&[spec(5, 1), spec(5, 1)]), SlabError::DuplicateModel(ModelId(5)));
}

#[test]
fn descriptions() {
    let set = slabs(&[spec(4, 2), spec(1, 3)], 0);
    let descs = set.descs();
    assert_eq!(descs.len(), 2);
    assert_eq!((descs[0].first_slot.get(), descs[0].slots.get()), (0, 2));
    assert_eq!((descs[1].first_slot.get(), descs[1].slots.get()), (2, 3));
    assert_eq!((descs[1].model.get(), descs[1].input_bytes.get()), (1, INPUT as u32));
    assert_eq!((descs[0].frontend.get(), descs[0].stride.get()), (3, 64));
}

// --- two threads -------------------------------------------------------------------------------

/// One thread submits and recycles as fast as it can, another reads what it hears of, often late.
/// Whatever a lease shows must be the bytes that belong to the id.
#[test]
fn lend_read_recycle() {
    const ROUNDS: u32 = if cfg!(miri) { 20 } else { 20_000 };
    const BYTES: u32 = 512;
    let set = slabs(&[SlabSpec { input_bytes: BYTES, ..spec(0, 4) }], 0);
    let (to_reader, tasks) = mpsc::sync_channel::<(TaskId, u8)>(8);
    let reading = set.clone();
    let reader = std::thread::spawn(move || {
        let (mut read, mut stale) = (0, 0);
        for (task, fill) in tasks.into_iter().flat_map(|task| [task; 3]) {
            let Ok(lease) = reading.read(task, BYTES) else {
                stale += 1;
                continue;
            };
            let (input, trailer) = lease.as_ref().split_at(BYTES as usize);
            assert_eq!(trailer, task.0.to_le_bytes());
            assert!(input.iter().all(|&byte| byte == fill));
            read += 1;
        }
        (read, stale)
    });
    for round in 0..ROUNDS {
        let fill = round as u8;
        let mut input = loop {
            match set.acquire(ModelId(0)) {
                Ok(input) => break input,
                Err(_) => std::thread::yield_now(),
            }
        };
        input.fill(fill);
        let task = input.submit();
        to_reader.send((task, fill)).unwrap();
        assert!(set.complete(task));
        set.release(task);
    }
    drop(to_reader);
    let (read, stale): (u32, u32) = reader.join().unwrap();
    assert_eq!(read + stale, 3 * ROUNDS);
    assert_eq!((set.in_use(), set.leases()), (0, 0));
}

#[test]
fn sets_are_numbered_apart() {
    let [low, high] = [4, 9].map(|first_slot| {
        let set =
            SlabSet::new_at(first_slot, &[spec(0, 2), spec(1, 3)], 7, Backing::Shared).unwrap();
        set.set_frontend(FRONTEND);
        set
    });
    assert_eq!((low.slots(), high.slots()), (4..9, 9..14));
    let firsts = |set: &SlabSet| set.descs().iter().map(|d| d.first_slot.get()).collect::<Vec<_>>();
    assert_eq!((firsts(&low), firsts(&high)), (vec![4, 6], vec![9, 11]));
    let task = submit(&high, 1, 0xcc);
    assert_eq!((task.slot(), high.task(11)), (11, task));
    assert_eq!(low.read(task, INPUT as u32).unwrap_err(), ReadRefusal::NoSuchSlot);
    assert!(low.landing(task).is_none() && !low.complete(task));
    assert_eq!(high.read(task, INPUT as u32).unwrap().as_ref()[..INPUT], [0xcc; INPUT]);
    assert_eq!(high.renew(task).map(|task| (task.slot(), task.generation())), Some((11, 8)));
    let beyond =
        SlabSet::new_at(TaskId::SLOTS_MAX - 1, &[spec(0, 2)], 0, Backing::Private).unwrap_err();
    assert_eq!(beyond, SlabError::TooManySlots(u64::from(TaskId::SLOTS_MAX) + 1));
}

/// The set that has the slots next begins behind every generation there was, also across the end of
/// the generations.
#[test]
fn a_retired_set_gives_no_slot_and_says_where_its_generations_end() {
    for first_generation in [0, TaskId::GENERATIONS - 2, u32::MAX - 1] {
        let set = slabs(&[spec(0, 2)], first_generation);
        let mut used = Vec::new();
        // One slot has one use more than the other.
        for _ in 0..6 {
            let task = submit(&set, 0, 1);
            assert!(set.complete(task));
            set.release(task);
            used.push(task);
        }
        let (held, input) = (submit(&set, 0, 1), set.acquire(ModelId(0)).unwrap());
        used.push(held);
        assert!(!set.retire());
        drop(input);
        assert!(set.complete(held));
        set.release(held);
        assert_eq!(set.in_use(), 0);
        assert!(set.retire() && set.retire());
        assert_eq!(set.acquire(ModelId(0)).unwrap_err(), SlabError::Exhausted);
        assert_eq!(set.in_use(), 0);
        let next = slabs(&[spec(0, 2)], set.next_generation());
        for task in [submit(&next, 0, 1), submit(&next, 0, 2)] {
            assert!(!used.contains(&task), "{task:?} of {used:?}");
        }
    }
}
