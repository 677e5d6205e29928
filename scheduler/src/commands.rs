//! What the ControlThread tells the other threads, and what they tell it.

use baton_core::{
    Alternative, BackendId, Enough, FrontendId, Gpu, ModelId, Nanos, Patience, Quota, Record,
    Replica, Slowdown, SubclusterId, Verdict, Weights,
};
use baton_rdma::ConnId;
use baton_topo::ModelTable;

use crate::migration::channel::{MigrationChannel, MigrationReceiver, ModelInTransit};
use crate::profiles::Profiles;

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
    /// Serve a model that was added.
    Serve {
        /// Which.
        model: ModelId,
        /// The model, without tasks.
        state: Box<ModelInTransit>,
    },
    /// Another objective or quota.
    Set {
        /// Which model.
        model: ModelId,
        /// Its objective.
        slo: Nanos,
        /// Its quota, if that changes too: `Some(None)` lifts it.
        quota: Option<Option<Box<Quota>>>,
    },
    /// The model is removed: accept no more tasks for it, and tell when none waits.
    Retire {
        /// Which.
        model: ModelId,
    },
    /// No trace of the model is to be left here: tell when that is so.
    Forget {
        /// Which.
        model: ModelId,
    },
    /// The next model with this number has this life. Tasks of earlier ones are dropped.
    NextLife {
        /// The number.
        model: ModelId,
        /// How many models had it before.
        life: u16,
    },
    /// Backends measured these profiles.
    Profiles {
        /// Of which model.
        model: ModelId,
        /// Of each variant, the cheapest first; of a model without any, its own.
        profiles: Profiles,
        /// Of the first profile.
        patience: Patience,
    },
    /// A model will come from another ModelThread, and after it what still arrives there for it.
    Adopt {
        /// Which.
        model: ModelId,
        /// Where it comes from.
        from: MigrationReceiver,
    },
    /// Hand a model over to another ModelThread.
    Release {
        /// Which.
        model: ModelId,
        /// Where it goes.
        to: MigrationChannel,
    },
    /// Write down how many requests each model has had: see [`crate::LoadBoard`].
    ReportLoad,
    /// Record what arrives for the models of a sub-cluster, for a trial: see [`Notice::Recorded`].
    Record {
        /// Which.
        subcluster: SubclusterId,
        /// This thread's part.
        enough: Enough,
    },
    /// Enough is recorded.
    EndRecording,
    /// Other rules for the models of a sub-cluster.
    Follow {
        /// Which.
        subcluster: SubclusterId,
        /// What they follow from now on.
        rules: Alternative,
    },
    /// End every waiting task: the scheduler stops.
    Shutdown,
}

/// The memory for weights of a slot that has not room for every model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SlotMemory {
    /// How large it is.
    pub pages: u32,
    /// What it holds already.
    pub models: Vec<ModelId>,
}

/// What the ControlThread tells the RankThread.
#[derive(Clone, Debug)]
pub enum RankCommand {
    /// All slots of a backend that is ready. They share its port.
    Join {
        /// The slots.
        gpus: Vec<Gpu>,
        /// Where they belong.
        subcluster: SubclusterId,
        /// The memory for weights of each; empty: they hold every model.
        memory: Vec<SlotMemory>,
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
    /// A model that was added.
    Serve {
        /// Which.
        model: ModelId,
        /// The sub-cluster that serves it.
        subcluster: SubclusterId,
        /// What it takes, if slots of the sub-cluster have not room for every model.
        weights: Option<Weights>,
    },
    /// A model that is removed.
    Forget {
        /// Which.
        model: ModelId,
    },
    /// [`Notice::Slots`] is to say which slots a sub-cluster has.
    TellSlots {
        /// Which sub-cluster.
        subcluster: SubclusterId,
        /// Empty, with room for them.
        slowdowns: Vec<Slowdown>,
    },
}

/// What a ModelThread has recorded.
#[derive(Debug)]
pub struct RecordedPart {
    /// The models of the sub-cluster that are here, as they decide now.
    pub models: Vec<Replica>,
    /// What arrived.
    pub record: Record,
}

/// What the other threads tell the ControlThread.
#[derive(Debug)]
pub enum Notice {
    /// A draining slot has finished everything.
    Drained(Gpu),
    /// A frontend's connection to a ModelThread broke.
    FrontendLost(FrontendId),
    /// A backend's connection to a ModelThread broke, or it has none although it is ready.
    BackendLost(BackendId),
    /// A model has arrived at its new ModelThread.
    Adopted(ModelId),
    /// The RankThread grants slots to the model that was added.
    Ranked(ModelId),
    /// A ModelThread serves the model that was added.
    Served(ModelId),
    /// No task of the model that is removed waits, and none is with a backend.
    Retired(ModelId),
    /// The RankThread has forgotten the model.
    Unranked {
        /// Which.
        model: ModelId,
        /// Grants that its number has had.
        grants: u32,
    },
    /// A ModelThread has forgotten the model.
    Forgotten(ModelId),
    /// The table of a model that is to be added was read.
    TableRead(Box<TableRead>),
    /// The end of a recording. Each ModelThread sends one.
    Recorded(Box<RecordedPart>),
    /// How slow each slot of the sub-cluster is.
    Slots {
        /// Which sub-cluster.
        subcluster: SubclusterId,
        /// One for each slot that takes batches.
        slowdowns: Vec<Slowdown>,
    },
    /// What came of a trial.
    Tried {
        /// Where.
        subcluster: SubclusterId,
        /// What it found, if anything; or why there was none.
        verdict: Result<Option<Verdict>, String>,
    },
    /// The journal was written, or why not.
    JournalWritten(Result<(), String>),
}

/// A table to be read.
#[derive(Clone, Debug)]
pub struct TableRequest {
    /// The operator's connection.
    pub operator: ConnId,
    /// The table.
    pub text: String,
    /// The id of the model whose place the new one takes.
    pub replaces: Option<u32>,
}

/// What came of reading a table.
#[derive(Debug)]
pub struct TableRead {
    /// What was to be read.
    pub request: TableRequest,
    /// What it says, and its text with the checksums of its files; or what is wrong with it.
    pub result: Result<(ModelTable, String), String>,
}
