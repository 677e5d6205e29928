//! Answers and where they land.

use baton_rdma::wire::{DecodeError, Kind, RefuseCode};
use baton_rdma::{Backing, CloseReason, SlabSet, SlabSpec, Transport};
use baton_types::{FrontendId, ModelId};

use crate::common::{Fabric, OUTPUT, Seen, open, pattern, refused, result, settle, slabs, submit};
use crate::pair;

pub(crate) fn answers_land<F: Fabric>() {
    let (mut a, mut b) = pair::<F>();
    let set = slabs(9, 2, 8);
    b.transport.expose(set.clone()).unwrap();
    let (conn, accepted) = open(&mut a, &mut b);
    let tasks = [submit(&set, 0), submit(&set, 1)];
    a.transport.reply(conn, &result(tasks[0]), b"forty-two").unwrap();
    a.transport.reply(conn, &result(tasks[1]), b"").unwrap();
    settle([&mut a, &mut b], |[_, b]| b.seen.len() == 3);
    for (i, len) in [(0, 9), (1, 0)] {
        let Seen::Result(from, landed, bytes) = &b.seen[i + 1] else { panic!("{:?}", b.seen) };
        assert_eq!((*from, *landed, *bytes), (accepted, result(tasks[i]), len));
        assert!(set.complete(tasks[i]));
    }
    assert_eq!(&set.output(tasks[0]).unwrap()[..], b"forty-two");
    assert_eq!(&set.output(tasks[1]).unwrap()[..], b"");
    assert_eq!(set.in_use(), 0);
}

/// Each is longer than a send queue: one is taken at a time, and none is cut.
pub(crate) fn answers_that_are_long<F: Fabric>() {
    const BYTES: u32 = 6 << 20;
    let (mut a, mut b) = pair::<F>();
    let spec = SlabSpec { model: ModelId(0), slots: 2, input_bytes: 8, output_bytes: BYTES };
    let set = SlabSet::new_at(0, &[spec], 0, Backing::Private).unwrap();
    set.set_frontend(FrontendId(9));
    b.transport.expose(set.clone()).unwrap();
    let (conn, _) = open(&mut a, &mut b);
    let answer = |seed| (0..BYTES as usize).map(|at| pattern(seed, at)).collect::<Vec<u8>>();
    for seed in 0..2 {
        let task = submit(&set, seed);
        let answer = answer(seed);
        settle([&mut a, &mut b], |_| true);
        a.transport.reply(conn, &result(task), &answer).unwrap();
        settle([&mut a, &mut b], |[_, b]| b.seen.len() as u64 == seed + 2);
        assert!(set.complete(task));
        assert!(set.output(task).unwrap()[..] == answer[..], "answer {seed}");
    }
}

pub(crate) fn answers_that_do_not_belong<F: Fabric>() {
    let (mut a, mut b) = pair::<F>();
    // Three: over verbs a slot without an answer rests before it is used again.
    let set = slabs(9, 3, 8);
    b.transport.expose(set.clone()).unwrap();
    let (conn, accepted) = open(&mut a, &mut b);
    let (task, decided) = (submit(&set, 0), submit(&set, 1));
    assert!(set.complete(decided));
    for _ in 0..2 {
        a.transport.reply(conn, &result(task), b"once").unwrap();
        a.transport.reply(conn, &result(decided), b"late").unwrap();
    }
    a.ping(conn, 1);
    settle([&mut a, &mut b], |[_, b]| b.pings() == [1]);
    let landed = b.seen.iter().filter(|seen| matches!(seen, Seen::Result(..)));
    assert_eq!((landed.count(), b.transport.counters().results_stale), (1, 3));
    assert!(set.output(decided).is_none());

    // Longer than the output slot: not an answer of this model.
    set.release(decided);
    let another = submit(&set, 2);
    a.transport.reply(conn, &result(another), &[0; OUTPUT as usize + 1]).unwrap();
    settle([&mut a, &mut b], |[a, b]| !a.closed().is_empty() && !b.closed().is_empty());
    let malformed = CloseReason::Malformed(DecodeError::PayloadLength);
    assert_eq!(b.closed(), [(accepted, malformed)]);
    assert_eq!(refused(&a.closed()[0].1).unwrap().0, RefuseCode::Malformed);
    assert!(set.landing(another).is_some(), "the slot is open for the right answer");

    // To someone who exposes nothing.
    let (to_a, conn) = open(&mut b, &mut a);
    b.transport.reply(to_a, &result(task), b"what?").unwrap();
    settle([&mut a, &mut b], |[a, _]| a.closed().len() == 2);
    assert_eq!(a.closed()[1], (conn, CloseReason::Unexpected(Kind::TaskResult)));
    assert_eq!(a.transport.counters().malformed, 1);
}
