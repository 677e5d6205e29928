//! How the threads talk: typed ends, so that no thread sees another's queue.
//!
//! ModelThread → RankThread: the candidate board (latest value), and a ring of slot updates and of
//! what has changed on the board. RankThread → ModelThread: a ring of grants. ControlThread → both:
//! commands, off the request path. The ring of grants cannot be full; what the other one has no room
//! for waits before it. See `limits.rs`.

use std::collections::VecDeque;
use std::time::Duration;

use baton_core::{GpuUpdate, Grant, ModelId, Nanos};
use baton_topo::Waker;
use crossbeam_channel::{Receiver, Sender, TrySendError};

use crate::board::{BoardReader, BoardWriter, PublishedCandidate, board};
use crate::cache::link::{CacheLink, LoadReport};
use crate::commands::{ModelCommand, Notice};
use crate::limits::{
    ASIDE_NOTICES_MAX, COMMANDS_MAX, GPU_UPDATES_MAX, MODEL_NOTICES_MAX, NOTICES_PER_MODEL,
    RANK_MAIL_RING, RANK_NOTICES_MAX,
};
use crate::mail::{self, Packed, ToRank};
use crate::ring::{RingReceiver, RingSender, ring};

/// A ModelThread's end of everything.
#[derive(Debug)]
pub struct ModelLink {
    board: BoardWriter,
    rank_mail: RingSender<{ mail::WORDS }>,
    /// Slot updates that are not in the ring yet, in order.
    unsent: VecDeque<(ModelId, GpuUpdate)>,
    grants: RingReceiver<{ mail::WORDS }>,
    /// From the ControlThread.
    pub commands: Receiver<ModelCommand>,
    /// To the ControlThread.
    pub notices: NoticeSender,
    /// Of weights; `None`: every backend holds every model.
    pub(crate) cache: Option<CacheLink>,
    /// `None`: the RankThread never sleeps.
    rank: Option<Waker>,
    /// Something was written since the RankThread was last woken.
    unannounced: bool,
}

/// The RankThread's end towards one ModelThread.
#[derive(Debug)]
pub struct RankLink {
    mail: RingReceiver<{ mail::WORDS }>,
    grants: RingSender<{ mail::WORDS }>,
    /// `None`: the ModelThread never sleeps.
    waker: Option<Waker>,
    /// Something was granted since the ModelThread was last woken.
    unannounced: bool,
}

/// To the ControlThread, from any thread.
#[derive(Clone, Debug)]
pub struct NoticeSender {
    notices: Sender<Notice>,
    control: Waker,
}

/// Commands to one thread.
#[derive(Debug)]
pub struct CommandSender<C> {
    commands: Sender<C>,
    waker: Waker,
}

impl<C> Clone for CommandSender<C> {
    fn clone(&self) -> Self {
        Self { commands: self.commands.clone(), waker: self.waker.clone() }
    }
}

/// What a thread without a transport sleeps on.
#[derive(Debug)]
pub struct Sleeper(Receiver<()>);

impl Sleeper {
    /// The sleeper, and the waker that ends its sleep.
    pub fn new() -> (Self, Waker) {
        // One wake-up is as good as many: a full channel is no loss.
        let (wake, woken) = crossbeam_channel::bounded(1);
        (Self(woken), Waker::new(move || _ = wake.try_send(())))
    }

    /// Blocks until woken or until `timeout` has passed.
    pub fn sleep(&self, timeout: Option<Nanos>) {
        match timeout {
            Some(timeout) => drop(self.0.recv_timeout(Duration::from_nanos(timeout.0))),
            None => drop(self.0.recv()),
        }
    }
}

/// Makes the two ends between a ModelThread and the RankThread, of a scheduler with `models` models.
/// Neither end wakes a thread that never sleeps (`sleepy` is false): asking whether a thread sleeps
/// waits until all that was written has reached the other core.
pub(crate) fn link(
    models: usize,
    sleepy: bool,
    (model_waker, rank_waker): (Waker, Waker),
    notices: NoticeSender,
    cache: Option<CacheLink>,
) -> (ModelLink, (BoardReader, RankLink), CommandSender<ModelCommand>) {
    let (writer, reader) = board(models);
    let (rank_mail, mail) = ring(RANK_MAIL_RING);
    // A model gets no second grant before it has answered the first.
    let (grant_in, grant_out) = ring(models);
    let (commands, inbox) = command_queue(model_waker.clone());
    let model = ModelLink {
        board: writer,
        rank_mail,
        unsent: VecDeque::with_capacity(RANK_MAIL_RING),
        grants: grant_out,
        commands: inbox,
        notices,
        cache,
        rank: sleepy.then_some(rank_waker),
        unannounced: false,
    };
    let waker = sleepy.then_some(model_waker);
    let rank = RankLink { mail, grants: grant_in, waker, unannounced: false };
    (model, (reader, rank), commands)
}

/// A bounded command queue whose sender wakes the receiver.
pub(crate) fn command_queue<C>(waker: Waker) -> (CommandSender<C>, Receiver<C>) {
    let (commands, inbox) = crossbeam_channel::bounded(COMMANDS_MAX);
    (CommandSender { commands, waker }, inbox)
}

impl ModelLink {
    /// Publishes a candidate.
    pub fn candidate(&mut self, model: ModelId, value: PublishedCandidate) {
        self.board.publish(model.0 as usize, value);
        self.unannounced = true;
    }

    /// The candidate as last published here.
    pub fn last_candidate(&self, model: ModelId) -> PublishedCandidate {
        self.board.last(model.0 as usize)
    }

    /// Tells the RankThread about a slot that was granted to the model.
    #[inline]
    pub fn update(&mut self, model: ModelId, update: GpuUpdate) {
        debug_assert!(self.unsent.len() < GPU_UPDATES_MAX, "more than every slot's updates");
        self.unsent.push_back((model, update));
        self.unannounced = true;
    }

    /// Tells the RankThread how a LOAD went. False if there is no room.
    pub(crate) fn report_load(&mut self, report: LoadReport) -> bool {
        self.unannounced = true;
        self.cache.as_ref().is_some_and(|cache| cache.report(report))
    }

    /// Moves the grants that have arrived to the end of `grants`: see [`mail::unpack_grant`].
    pub(crate) fn take_grants(&mut self, grants: &mut Vec<Packed>) {
        self.grants.take_all(grants);
    }

    /// Hands over what was published since the last time, and wakes the RankThread to look at it.
    /// False if the ring had no room for all of it: the rest waits for the next time.
    pub fn announce(&mut self) -> bool {
        if !std::mem::take(&mut self.unannounced) {
            return true;
        }
        let Self { board, rank_mail, unsent, .. } = self;
        // Updates before candidates: a slot that has just become free can serve what comes next.
        while let Some(&(model, update)) = unsent.front()
            && rank_mail.push(ToRank::Update(model, update).pack())
        {
            unsent.pop_front();
        }
        let told = unsent.is_empty()
            && board.tell_changed(|word, models| {
                rank_mail.push(ToRank::Changed { word, models }.pack())
            });
        rank_mail.announce();
        self.unannounced = !told;
        self.rank.iter().for_each(Waker::wake);
        told
    }
}

impl RankLink {
    /// Moves what has arrived to the end of `mail`: see [`ToRank::unpack`].
    pub(crate) fn take_mail(&mut self, mail: &mut Vec<Packed>) {
        self.mail.take_all(mail);
    }

    /// Grants a slot to a model of this thread.
    pub fn grant(&mut self, model: ModelId, grant: Grant) {
        let sent = self.grants.push(mail::pack_grant(model, grant));
        assert!(sent, "a model has one grant at a time");
        self.unannounced = true;
    }

    /// The ModelThread has orders of the cache.
    pub(crate) fn has_orders(&mut self) {
        self.unannounced = true;
    }

    /// Hands over what was granted, and wakes the ModelThread. Once per pass.
    pub fn announce(&mut self) {
        if std::mem::take(&mut self.unannounced) {
            self.grants.announce();
            self.waker.iter().for_each(Waker::wake);
        }
    }
}

impl NoticeSender {
    /// Makes the ControlThread's notice queue. It has room for all that the RankThread and the
    /// ModelThreads can have to say while the ControlThread does not listen: they say nothing again, and
    /// a model whose arrival went unheard would be the last one to move.
    pub fn new(control: Waker, model_threads: usize, models: usize) -> (Self, Receiver<Notice>) {
        let of_models = models * NOTICES_PER_MODEL * (model_threads + 1);
        let of_threads = RANK_NOTICES_MAX + model_threads * MODEL_NOTICES_MAX;
        let room = of_threads + of_models + ASIDE_NOTICES_MAX;
        let (notices, inbox) = crossbeam_channel::bounded(room);
        (Self { notices, control }, inbox)
    }

    /// Tells the ControlThread.
    pub fn send(&self, notice: Notice) {
        match self.notices.try_send(notice) {
            Ok(()) => {}
            Err(TrySendError::Full(notice)) => {
                tracing::error!(?notice, "the ControlThread's queue is full; notice left out");
            }
            Err(TrySendError::Disconnected(notice)) => {
                tracing::debug!(?notice, "the ControlThread has ended; notice left out");
            }
        }
        self.control.wake();
    }
}

impl<C> CommandSender<C> {
    /// Wakes the receiver.
    pub(crate) fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Sends a command; blocks while the queue is full, which only a stuck thread can cause.
    pub fn send(&self, command: C) {
        if self.commands.send(command).is_err() {
            tracing::debug!("a thread has ended; command left out");
        }
        self.waker.wake();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::limits::{BACKENDS_MAX, FRONTENDS_MAX, GPUS_MAX};
    use baton_core::{BackendId, FrontendId, Gpu, GpuId};

    #[test]
    fn all_that_two_model_threads_and_the_rank_thread_can_have_to_say_finds_room() {
        let (notices, inbox) = NoticeSender::new(Waker::new(|| ()), 2, 1);
        for _ in 0..2 {
            (0..FRONTENDS_MAX as u16)
                .for_each(|id| notices.send(Notice::FrontendLost(FrontendId(id))));
            (0..BACKENDS_MAX).for_each(|id| notices.send(Notice::BackendLost(BackendId(id))));
        }
        let slots = (0..GPUS_MAX).map(|id| Gpu { id: GpuId(id), life: 0 });
        slots.for_each(|gpu| notices.send(Notice::Drained(gpu)));
        notices.send(Notice::Adopted(ModelId(3)));
        assert!(matches!(inbox.try_iter().last(), Some(Notice::Adopted(ModelId(3)))));
    }

    /// More than the ring holds, and none lost: what found no room is there after the next announcements,
    /// in order, and the candidates after it.
    #[test]
    fn what_finds_no_room_in_the_ring_waits_for_the_next_time() {
        const RING: u32 = RANK_MAIL_RING as u32;
        for (updates, rounds) in [(2 * RING + 1, 3), (RING, 2), (RING - 1, 1)] {
            all_arrive_in_order(updates, rounds);
        }
    }

    fn all_arrive_in_order(updates: u32, expected: usize) {
        let no_op = || Waker::new(|| ());
        let (notices, _) = NoticeSender::new(no_op(), 1, 1);
        let (mut model, (_, mut rank), _) = link(1, false, (no_op(), no_op()), notices, None);
        let update = |id| GpuUpdate::Returned { gpu: Gpu { id: GpuId(id), life: 0 } };
        (0..updates).for_each(|id| model.update(ModelId(0), update(id)));
        model.candidate(ModelId(0), PublishedCandidate { candidate: None, grants: 0, moves: 0 });
        let (mut mail, mut rounds) = (Vec::new(), 1);
        while !model.announce() {
            rank.take_mail(&mut mail);
            rounds += 1;
        }
        rank.take_mail(&mut mail);
        let mut told: Vec<ToRank> = mail.into_iter().map(ToRank::unpack).collect();
        assert_eq!((rounds, told.pop()), (expected, Some(ToRank::Changed { word: 0, models: 1 })));
        assert_eq!(
            told,
            (0..updates).map(|id| ToRank::Update(ModelId(0), update(id))).collect::<Vec<_>>()
        );
    }
}
