//! From one ModelThread to another: a model that moves, and behind it whatever still arrives at its
//! former home. One ring for each move, made by the ControlThread; nobody waits for anybody.

use baton_core::{Grant, ModelState, Nanos, Quota, Request, SubclusterId, TaskId, Unserved};
use baton_topo::Waker;

use crate::board::Published;
use crate::limits::PASSAGE_MAX;

/// What passes. The model comes first; everything else is about it.
#[derive(Debug)]
pub(crate) enum Handover {
    /// The model with the tasks that wait.
    Model(Box<Moving>),
    /// A request, as it was submitted.
    Submit(Request),
    /// A wish to cancel.
    Cancel(TaskId),
    /// A slot that was granted at the former home.
    Grant(Grant),
    /// A task of a batch that was planned at the former home and came back.
    Requeue(Request, Unserved),
    /// How long a batch that was planned at the former home took.
    Measured(u32, Nanos),
}

/// A model on its way.
#[derive(Debug)]
pub(crate) struct Moving {
    pub(crate) state: ModelState,
    pub(crate) subcluster: SubclusterId,
    pub(crate) quota: Option<Box<Quota>>,
    /// Its candidate, as published at its former home.
    pub(crate) last: Published,
}

/// The former home's end.
#[derive(Debug)]
pub struct Passage {
    ring: rtrb::Producer<Handover>,
    receiver: Waker,
    /// Something was sent since the receiver was last woken.
    unannounced: bool,
}

/// The new home's end.
#[derive(Debug)]
pub struct PassageEnd(rtrb::Consumer<Handover>);

/// Makes both ends; `receiver` wakes the new home.
pub(crate) fn passage(receiver: Waker) -> (Passage, PassageEnd) {
    let (ring, end) = rtrb::RingBuffer::new(PASSAGE_MAX + RESERVED);
    (Passage { ring, receiver, unannounced: false }, PassageEnd(end))
}

/// Room kept for what must not be refused: the model itself, and a grant, of which a model has one
/// at a time.
const RESERVED: usize = 2;

impl Passage {
    /// Sends something that may be refused: false if there is no room for it.
    pub(crate) fn offer(&mut self, item: Handover) -> bool {
        let room = self.ring.slots() > RESERVED;
        if room {
            self.send(item);
        }
        room
    }

    /// Sends the model, or a grant.
    pub(crate) fn send(&mut self, item: Handover) {
        self.ring.push(item).expect("room is kept for the model and one grant");
        self.unannounced = true;
    }

    /// Wakes the receiver if it has anything to look at. Once per pass.
    pub(crate) fn announce(&mut self) {
        if std::mem::take(&mut self.unannounced) {
            self.receiver.wake();
        }
    }
}

impl PassageEnd {
    /// The next item, if there is one.
    pub(crate) fn take(&mut self) -> Option<Handover> {
        self.0.pop().ok()
    }

    /// Nothing is in it, and nothing will be.
    pub(crate) fn is_over(&self) -> bool {
        // In this order: what was sent before the other end was dropped is seen.
        self.0.is_abandoned() && self.0.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_core::{Gpu, GpuId, Slowdown};

    #[test]
    fn a_full_passage_refuses_tasks_and_still_has_room_for_a_grant() {
        let (mut from, mut to) = passage(Waker::new(|| ()));
        let cancel = |n| Handover::Cancel(TaskId(n));
        let sent = (0..).take_while(|&n| from.offer(cancel(n))).count();
        assert_eq!(sent, PASSAGE_MAX);
        let gpu = Gpu { id: GpuId(1), life: 0 };
        from.send(Handover::Grant(Grant {
            gpu,
            free_at: Nanos(5),
            slowdown: Slowdown::NONE,
            slot_wait: Nanos(6),
            longest: Nanos::MAX,
        }));
        assert!(matches!(to.take(), Some(Handover::Cancel(TaskId(0)))), "oldest first");
        assert!(!from.offer(cancel(0)), "the room for a grant stays");
    }

    #[test]
    fn it_is_over_when_the_sender_is_gone_and_everything_was_taken() {
        let (mut from, mut to) = passage(Waker::new(|| ()));
        assert!(!to.is_over());
        assert!(from.offer(Handover::Cancel(TaskId(1))));
        drop(from);
        assert!(!to.is_over(), "one is left");
        assert!(to.take().is_some());
        assert!(to.is_over());
    }
}
