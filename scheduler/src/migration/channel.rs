//! The channel by which a model moves from one ModelThread to another, and by which its former thread passes on what
//! still arrives there. One ring for each move, made by the ControlThread; neither thread waits for the other.

use baton_core::{
    BatchShape, Grant, ModelState, Nanos, Quota, Request, SubclusterId, TaskId, Unserved,
};
use baton_topo::Waker;

use crate::board::PublishedCandidate;
use crate::cache::cold::ColdSpan;
use crate::limits::MIGRATION_MAX;

/// What a channel carries: first the model, then messages about it.
#[derive(Debug)]
pub(crate) enum MigrationMessage {
    /// The model with the tasks that wait.
    Model(Box<ModelInTransit>),
    /// A request, as it was submitted.
    Submit(Request),
    /// A wish to cancel.
    Cancel(TaskId),
    /// A slot that was granted at the former home.
    Grant(Grant),
    /// A task of a batch that was planned at the former home and came back.
    Requeue(Request, Unserved),
    /// How long a batch that was planned at the former home took.
    Measured(BatchShape, Nanos),
}

/// A model on its way.
#[derive(Debug)]
pub struct ModelInTransit {
    pub(crate) state: ModelState,
    pub(crate) subcluster: SubclusterId,
    pub(crate) quota: Option<Box<Quota>>,
    /// When it was cold.
    pub(crate) cold: ColdSpan,
    /// Its candidate, as published at its former home. Of a model that was added: none yet.
    pub(crate) last: PublishedCandidate,
}

/// The former home's end.
#[derive(Debug)]
pub struct MigrationChannel {
    ring: rtrb::Producer<MigrationMessage>,
    receiver: Waker,
    /// Something was sent since the receiver was last woken.
    unannounced: bool,
}

/// The new home's end.
#[derive(Debug)]
pub struct MigrationReceiver(rtrb::Consumer<MigrationMessage>);

/// Makes both ends; `receiver` wakes the new home.
pub(crate) fn channel(receiver: Waker) -> (MigrationChannel, MigrationReceiver) {
    let (ring, end) = rtrb::RingBuffer::new(MIGRATION_MAX + RESERVED);
    (MigrationChannel { ring, receiver, unannounced: false }, MigrationReceiver(end))
}

/// Room kept for what must not be refused: the model itself, and a grant, of which a model has one
/// at a time.
const RESERVED: usize = 2;

impl MigrationChannel {
    /// Sends something that may be refused: false if there is no room for it.
    pub(crate) fn offer(&mut self, item: MigrationMessage) -> bool {
        let room = self.ring.slots() > RESERVED;
        if room {
            self.send(item);
        }
        room
    }

    /// Sends the model, or a grant.
    pub(crate) fn send(&mut self, item: MigrationMessage) {
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

impl MigrationReceiver {
    /// The next item, if there is one.
    pub(crate) fn take(&mut self) -> Option<MigrationMessage> {
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
    use baton_core::{Gpu, GpuId, SlotPart, Slowdown};

    #[test]
    fn a_full_channel_refuses_tasks_and_still_has_room_for_a_grant() {
        let (mut from, mut to) = channel(Waker::new(|| ()));
        let cancel = |n| MigrationMessage::Cancel(TaskId(n));
        let sent = (0..).take_while(|&n| from.offer(cancel(n))).count();
        assert_eq!(sent, MIGRATION_MAX);
        let gpu = Gpu { id: GpuId(1), life: 0 };
        from.send(MigrationMessage::Grant(Grant {
            gpu,
            free_at: Nanos(5),
            port_wait: Nanos::ZERO,
            slowdown: Slowdown::NONE,
            slot_wait: Nanos(6),
            longest: Nanos::MAX,
            spare: 1,
            part: SlotPart::NONE,
            is_short_of_slots: false,
            others_lose: false,
        }));
        assert!(matches!(to.take(), Some(MigrationMessage::Cancel(TaskId(0)))), "oldest first");
        assert!(!from.offer(cancel(0)), "the room for a grant stays");
    }

    #[test]
    fn the_receiver_is_woken_once_for_all_that_was_sent_in_a_pass() {
        let waker = Waker::new(|| ());
        let (mut from, _to) = channel(waker.clone());
        let wakes = |from: &mut MigrationChannel| {
            waker.prepare_sleep();
            from.announce();
            !waker.is_asleep()
        };
        assert!(!wakes(&mut from), "nothing was sent");
        assert!((1..3).all(|n| from.offer(MigrationMessage::Cancel(TaskId(n)))));
        assert_eq!([wakes(&mut from), wakes(&mut from)], [true, false]);
    }

    #[test]
    fn it_is_over_when_the_sender_is_gone_and_everything_was_taken() {
        let (mut from, mut to) = channel(Waker::new(|| ()));
        assert!(!to.is_over());
        assert!(from.offer(MigrationMessage::Cancel(TaskId(1))));
        drop(from);
        assert!(!to.is_over(), "one is left");
        assert!(to.take().is_some());
        assert!(to.is_over());
    }
}
