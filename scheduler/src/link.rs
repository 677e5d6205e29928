//! How the threads talk: typed ends, so that no thread sees another's queue.
//!
//! ModelThread → RankThread: the candidate board (latest value) and a ring of slot updates.
//! RankThread → ModelThread: a ring of grants. ControlThread → both: commands, off the request
//! path. Every ring is sized so that it cannot be full; see `limits.rs`.

use std::time::Duration;

use baton_core::{
    BackendId, FrontendId, Gpu, GpuUpdate, Grant, ModelId, Nanos, Profile, SubclusterId,
};
use baton_topo::Waker;
use crossbeam_channel::{Receiver, Sender};

use crate::board::{BoardReader, BoardWriter, Published, board};
use crate::limits::{COMMANDS_MAX, GPU_UPDATES_MAX};
use crate::passage::{Passage, PassageEnd};

/// What the ControlThread tells a ModelThread.
#[derive(Debug)]
pub enum ModelCommand {
    /// A frontend joined.
    FrontendUp {
        /// Which.
        frontend: FrontendId,
        /// What it will present.
        token: u64,
    },
    /// A frontend is gone.
    FrontendDown {
        /// Which.
        frontend: FrontendId,
    },
    /// A backend joined.
    BackendUp {
        /// Which.
        backend: BackendId,
        /// What it will present.
        token: u64,
        /// Its slots.
        gpus: Vec<Gpu>,
    },
    /// A backend is gone.
    BackendDown {
        /// Which.
        backend: BackendId,
    },
    /// How many slots serve the sub-cluster now.
    Serving {
        /// Which.
        subcluster: SubclusterId,
        /// Slots that take batches.
        gpus: u32,
    },
    /// A backend measured this profile.
    Profile {
        /// Of which model.
        model: ModelId,
        /// As measured.
        profile: Profile,
    },
    /// A model will come from another ModelThread, and after it what still arrives there for it.
    Adopt {
        /// Which.
        model: ModelId,
        /// Where it comes from.
        from: PassageEnd,
    },
    /// Hand a model over to another ModelThread.
    Release {
        /// Which.
        model: ModelId,
        /// Where it goes.
        to: Passage,
    },
    /// Write down how many requests each model has had: see [`crate::LoadBoard`].
    ReportLoad,
    /// End every waiting task: the scheduler stops.
    Shutdown,
}

/// What the ControlThread tells the RankThread.
#[derive(Clone, Debug)]
pub enum RankCommand {
    /// Slots of a backend that is ready.
    Join {
        /// The slots.
        gpus: Vec<Gpu>,
        /// Where they belong.
        subcluster: SubclusterId,
    },
    /// Slots of a backend that wants to leave.
    Drain {
        /// The slots.
        gpus: Vec<Gpu>,
    },
    /// Slots of a backend that is gone.
    Leave {
        /// The slots.
        gpus: Vec<Gpu>,
    },
}

/// What the other threads tell the ControlThread.
#[derive(Clone, Copy, Debug)]
pub enum Notice {
    /// A draining slot has finished everything.
    Drained(Gpu),
    /// A frontend's connection to a ModelThread broke.
    FrontendLost(FrontendId),
    /// A backend's connection to a ModelThread broke.
    BackendLost(BackendId),
    /// A model has arrived at its new ModelThread.
    Adopted(ModelId),
}

/// A ModelThread's end of everything.
#[derive(Debug)]
pub struct ModelLink {
    board: BoardWriter,
    updates: rtrb::Producer<GpuUpdate>,
    grants: rtrb::Consumer<(ModelId, Grant)>,
    /// From the ControlThread.
    pub commands: Receiver<ModelCommand>,
    /// To the ControlThread.
    pub notices: NoticeSender,
    rank: Waker,
    /// Something was written since the RankThread was last woken.
    unannounced: bool,
}

/// The RankThread's end towards one ModelThread.
#[derive(Debug)]
pub struct RankLink {
    updates: rtrb::Consumer<GpuUpdate>,
    grants: rtrb::Producer<(ModelId, Grant)>,
    waker: Waker,
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
pub(crate) fn link(
    models: usize,
    model_waker: Waker,
    rank_waker: Waker,
    notices: NoticeSender,
) -> (ModelLink, (BoardReader, RankLink), CommandSender<ModelCommand>) {
    let (writer, reader) = board(models);
    let (update_in, update_out) = rtrb::RingBuffer::new(GPU_UPDATES_MAX);
    // A model gets no second grant before it has answered the first.
    let (grant_in, grant_out) = rtrb::RingBuffer::new(models.max(1));
    let (commands, inbox) = command_queue(model_waker.clone());
    let model = ModelLink {
        board: writer,
        updates: update_in,
        grants: grant_out,
        commands: inbox,
        notices,
        rank: rank_waker,
        unannounced: false,
    };
    let rank =
        RankLink { updates: update_out, grants: grant_in, waker: model_waker, unannounced: false };
    (model, (reader, rank), commands)
}

/// A bounded command queue whose sender wakes the receiver.
pub(crate) fn command_queue<C>(waker: Waker) -> (CommandSender<C>, Receiver<C>) {
    let (commands, inbox) = crossbeam_channel::bounded(COMMANDS_MAX);
    (CommandSender { commands, waker }, inbox)
}

impl ModelLink {
    /// Publishes a candidate.
    pub fn candidate(&mut self, model: ModelId, value: Published) {
        self.board.publish(model.0 as usize, value);
        self.unannounced = true;
    }

    /// The candidate as last published here.
    pub fn last_candidate(&self, model: ModelId) -> Published {
        self.board.last(model.0 as usize)
    }

    /// Tells the RankThread about a slot.
    pub fn update(&mut self, update: GpuUpdate) {
        self.updates.push(update).expect("the ring has room for every slot's updates");
        self.unannounced = true;
    }

    /// The next grant, if there is one.
    pub fn grant(&mut self) -> Option<(ModelId, Grant)> {
        self.grants.pop().ok()
    }

    /// Wakes the RankThread if it has anything to look at. Once per pass.
    pub fn announce(&mut self) {
        if std::mem::take(&mut self.unannounced) {
            self.rank.wake();
        }
    }
}

impl RankLink {
    /// The next slot update, if there is one.
    pub fn update(&mut self) -> Option<GpuUpdate> {
        self.updates.pop().ok()
    }

    /// Sends a grant to the model's thread.
    pub fn grant(&mut self, model: ModelId, grant: Grant) {
        self.grants.push((model, grant)).expect("a model has one grant at a time");
        self.unannounced = true;
    }

    /// Wakes the ModelThread if it was granted anything. Once per pass.
    pub fn announce(&mut self) {
        if std::mem::take(&mut self.unannounced) {
            self.waker.wake();
        }
    }
}

impl NoticeSender {
    /// Makes the ControlThread's notice queue.
    pub fn new(control: Waker) -> (Self, Receiver<Notice>) {
        let (notices, inbox) = crossbeam_channel::bounded(COMMANDS_MAX);
        (Self { notices, control }, inbox)
    }

    /// Tells the ControlThread. A full queue loses nothing that matters for long: lost members
    /// are also noticed by their silence, and a drained slot is drained for good.
    pub fn send(&self, notice: Notice) {
        if self.notices.try_send(notice).is_err() {
            tracing::warn!(?notice, "the ControlThread's queue is full; notice left out");
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
