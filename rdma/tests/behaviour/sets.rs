//! Several sets of slabs, which come and go while peers are connected.

use std::sync::Arc;

use baton_rdma::{BatchBuffer, ConnId, ReadStatus, SlabSet, Transport};
use baton_types::TaskId;

use crate::common::{
    Fabric, Seen, holds, landing, open, read, result, settle, slabs, slabs_at, submit,
};
use crate::{NodeOf, pair};

const BYTES: u32 = 3_000;
/// READs until a slab must be known.
const TRIES: usize = 10_000;

/// A backend that is connected to a frontend.
struct Rig<F: Fabric> {
    backend: NodeOf<F>,
    frontend: NodeOf<F>,
    conn: ConnId,
    buffer: Arc<BatchBuffer>,
}

impl<F: Fabric> Rig<F> {
    fn new(set: &Arc<SlabSet>) -> Self {
        let (mut backend, mut frontend) = pair::<F>();
        frontend.transport.expose(set.clone()).unwrap();
        let (conn, _) = open(&mut backend, &mut frontend);
        let buffer = landing(&mut backend, BYTES as usize);
        Self { backend, frontend, conn, buffer }
    }

    /// One READ; whether its row holds the input of this seed.
    fn pull(&mut self, task: TaskId, seed: u64) -> (ReadStatus, bool) {
        self.backend.seen.clear();
        let read = read(self.conn, task, &self.buffer, 0, BYTES);
        self.backend.transport.post_reads(&mut vec![read]);
        settle([&mut self.backend, &mut self.frontend], |[backend, _]| !backend.reads().is_empty());
        let done = self.backend.reads()[0];
        let seen = (done.status, holds(&done.row, seed));
        self.backend.seen.clear();
        seen
    }

    /// READs until the peer has heard of the slab, which over RDMA takes a message.
    fn pull_once_known(&mut self, task: TaskId, seed: u64) {
        for _ in 0..TRIES {
            match self.pull(task, seed) {
                (ReadStatus::Done, right) => return assert!(right, "the input of another task"),
                (ReadStatus::Refused | ReadStatus::Stale, _) => {}
                other => panic!("{other:?}"),
            }
        }
        panic!("the slab is never known");
    }

    /// Answers a task; its slot is free then.
    fn answer(&mut self, set: &Arc<SlabSet>, task: TaskId) {
        self.frontend.seen.clear();
        self.backend.transport.reply(self.conn, &result(task), b"an answer").unwrap();
        settle([&mut self.backend, &mut self.frontend], |[_, frontend]| {
            frontend.seen.iter().any(|seen| matches!(seen, Seen::Result(..)))
        });
        assert!(set.complete(task));
        assert_eq!(&set.output(task).unwrap()[..], b"an answer");
    }

    /// Answers a task that the frontend does not wait for.
    fn answer_late(&mut self, task: TaskId) {
        let before = self.frontend.transport.counters().results_stale;
        self.backend.transport.reply(self.conn, &result(task), b"late").unwrap();
        settle([&mut self.backend, &mut self.frontend], |[_, frontend]| {
            frontend.transport.counters().results_stale > before
        });
    }
}

pub(crate) fn slabs_exposed_while_connected<F: Fabric>() {
    let first = slabs(9, 2, BYTES);
    let mut rig = Rig::<F>::new(&first);
    let task = submit(&first, 1);
    rig.pull_once_known(task, 1);
    // Not next to each other, and the later one in front.
    let (far, near) = (slabs_at(10, 9, 2, BYTES, 0), slabs_at(4, 9, 2, BYTES, 0));
    for (set, seed) in [(&far, 2), (&near, 3)] {
        rig.frontend.transport.expose(set.clone()).unwrap();
        let task = submit(set, seed);
        rig.pull_once_known(task, seed);
        rig.answer(set, task);
    }
    let elsewhere = TaskId::new(task.frontend(), 7, 0);
    assert_eq!(rig.pull(elsewhere, 0).0, ReadStatus::Refused, "between the sets");
    assert_eq!(rig.pull(task, 1), (ReadStatus::Done, true));
    rig.answer(&first, task);
    let shared = slabs_at(1, 9, 2, BYTES, 0);
    assert!(rig.frontend.transport.expose(shared).is_err(), "a slot of another set");
    assert!(rig.backend.closed().is_empty() && rig.frontend.closed().is_empty());
}

pub(crate) fn withdrawn_slabs<F: Fabric>() {
    let first = slabs(9, 2, BYTES);
    let mut rig = Rig::<F>::new(&first);
    let bytes = rig.frontend.transport.counters().memory_bytes;
    let second = slabs_at(2, 9, 2, BYTES, 0);
    rig.frontend.transport.expose(second.clone()).unwrap();
    assert!(rig.frontend.transport.counters().memory_bytes > bytes);
    let (stays, goes) = (submit(&first, 1), submit(&second, 2));
    rig.pull_once_known(goes, 2);
    assert!(!second.retire(), "a task is in flight");
    rig.answer(&second, goes);
    assert!(second.retire());
    rig.frontend.transport.withdraw(&second);
    rig.frontend.transport.withdraw(&second);
    assert_eq!(rig.frontend.transport.counters().memory_bytes, bytes);
    let memory = Arc::downgrade(&second);
    drop(second);
    assert!(memory.upgrade().is_none(), "nothing refers to it");

    let refused = rig.pull(goes, 2).0;
    assert!(matches!(refused, ReadStatus::Refused | ReadStatus::Stale), "{refused:?}");
    rig.answer_late(goes);
    assert_eq!(rig.pull(stays, 1), (ReadStatus::Done, true));
    rig.answer(&first, stays);
    // Without any slab a late answer is no reason to part either.
    assert!(first.retire());
    rig.frontend.transport.withdraw(&first);
    rig.answer_late(stays);
    assert!(rig.backend.closed().is_empty() && rig.frontend.closed().is_empty());
}

/// The generation refuses a late READ or answer with the id of a task of the former set.
pub(crate) fn slots_of_withdrawn_slabs_serve_again<F: Fabric>() {
    let first = slabs(9, 2, BYTES);
    let mut rig = Rig::<F>::new(&first);
    let (mut generation, mut former) = (0, Vec::new());
    for seed in 1..5 {
        let set = slabs_at(2, 9, 2, BYTES, generation);
        rig.frontend.transport.expose(set.clone()).unwrap();
        let task = submit(&set, seed);
        assert!(!former.contains(&task), "an id came twice");
        rig.pull_once_known(task, seed);
        for &old in &former {
            assert_eq!(rig.pull(old, 0).0, ReadStatus::Stale);
            rig.answer_late(old);
        }
        former.push(task);
        rig.answer(&set, task);
        assert!(set.retire());
        generation = set.next_generation();
        rig.frontend.transport.withdraw(&set);
    }
    assert!(rig.backend.closed().is_empty() && rig.frontend.closed().is_empty());
}
