//! The messages themselves; those about ways without TCP are in `fabric.rs` and `same_host.rs`.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::fabric::*;
use super::layout::{messages, wire_struct};
use super::same_host::MemoryOffer;
use super::tail::{self, ActionTask};
use super::{Body, DecodeError, WireAddr, WireFetch};

messages! {
    // --- opening a connection -------------------------------------------------------------
    /// First frame of the connecting side.
    1 Hello [] 24 {
        /// [`MAGIC`](super::MAGIC).
        magic: U32,
        /// Oldest version spoken.
        version_min: U16,
        /// Newest version spoken.
        version_max: U16,
        /// A [`Role`](super::Role).
        role: u8,
        /// Zero.
        reserved: [u8; 3],
        /// The member id given on join; 0 on the first connection to the ControlThread.
        member: U32,
        /// The token given on join; 0 on the first connection to the ControlThread.
        token: U64,
    }
    /// The acceptor's answer: the version both will speak.
    2 Welcome [] 8 {
        /// Chosen version.
        version: U16,
        /// A [`Role`](super::Role): the acceptor's.
        role: u8,
        /// Zero.
        reserved: u8,
        /// The acceptor's number (which ModelThread, which frontend); 0 for the ControlThread.
        member: U32,
    }
    /// Last frame before the sender closes the connection. Tail: what is wrong and what to do.
    3 Refuse [text: str] 2 {
        /// A [`RefuseCode`](super::RefuseCode).
        code: U16,
    }
    // --- membership, on the control connection --------------------------------------------
    /// One ModelThread's address. Sent to a new member after [`Welcome`].
    10 ThreadDesc [] 24 {
        /// The ModelThread's number.
        thread: U32,
        /// Where it listens.
        addr: WireAddr,
    }
    /// One model of the catalogue. Tail: its name.
    11 ModelDesc [text: str] 32 {
        /// The model's id.
        model: U32,
        /// The ModelThread it lives on.
        thread: U32,
        /// The sub-cluster that serves it.
        subcluster: U32,
        /// Largest batch.
        batch_max: U32,
        /// Bytes of one input row.
        input_bytes: U32,
        /// Bytes of one output row.
        output_bytes: U32,
        /// Its latency objective, ns: the default deadline.
        slo_ns: U64,
    }
    /// One tensor of a model, after its [`ModelDesc`], in the order of a row; without any: bytes. Tail: its name.
    26 TensorDesc [text: str] 40 {
        /// The model.
        model: U32,
        /// 0 of the input, 1 of the output.
        side: u8,
        /// An `ElementType`.
        element: u8,
        /// How many of `extents` count.
        rank: u8,
        /// Zero.
        reserved: u8,
        /// Without the batch dimension. The top bit is set where a task may have fewer.
        extents: [U32; 8],
    }
    /// One variant of a model, behind its [`ModelDesc`] and [`TensorDesc`]s, the cheapest first. Tail: its name.
    35 VariantDesc [text: str] 8 {
        /// The model.
        model: U32,
        /// How often its answers are right, in 1/100,000.
        accuracy: U32,
    }
    /// One sub-cluster. Tail: its name.
    12 SubclusterDesc [text: str] 4 {
        /// Its id.
        subcluster: U32,
    }
    /// The catalogue is complete; the new member may join.
    13 CatalogEnd [] 8 {
        /// Drawn at the scheduler's start; a rejoining member sees whether it is the same one.
        scheduler_epoch: U64,
    }
    /// A frontend joins. Announce slabs first.
    14 JoinFrontend [] 24 {
        /// Where backends pull from.
        addr: WireAddr,
        /// How many [`SlabDesc`] preceded this message.
        slabs: U32,
    }
    /// One of the frontend's slabs: how backends find a slot's input.
    15 SlabDesc [] 24 {
        /// The frontend; 0 while it has not joined yet.
        frontend: U32,
        /// First slot index of the slab.
        first_slot: U32,
        /// Slots in the slab.
        slots: U32,
        /// Distance between slots, bytes.
        stride: U32,
        /// Bytes of the input in a slot; the trailer with the task id follows it.
        input_bytes: U32,
        /// The model the slab serves.
        model: U32,
    }
    /// A backend joins, after its [`ProfileDesc`]s. Tail: its name.
    16 JoinBackend [text: str] 8 {
        /// The sub-cluster its GPU slots belong to.
        subcluster: U32,
        /// GPU slots.
        gpus: U32,
    }
    /// The measured ℓ(b) of a loaded model. Tail: ℓ(1), ℓ(2), … ns, of each variant in turn; empty: as the cluster file says.
    17 ProfileDesc [list: [U64]] 8 {
        /// The model.
        model: U32,
        /// Pages that it takes of a slot's memory for weights, as the sender counts; 0: its slots have room for every model.
        pages: U32,
    }
    /// From a backend whose GPU slots have not room for every model, before [`JoinBackend`], for each slot. Tail: the models
    /// that it holds already.
    37 SlotMemory [list: [U32]] 16 {
        /// Which of its slots, from 0.
        slot: U32,
        /// Memory for weights, in pages.
        pages: U32,
        /// Bytes of a page.
        page_bytes: U64,
    }
    /// The member is in.
    18 JoinAck [] 16 {
        /// Its number: the frontend's or the backend's id.
        member: U32,
        /// A backend's first GPU id; the others follow it.
        first_gpu: U32,
        /// Presented in every later [`Hello`].
        token: U64,
    }
    /// The member has connected to every ModelThread and can serve.
    19 Ready [] 4 {
        /// Zero.
        reserved: U32,
    }
    /// To a backend: its slots get batches. Every ModelThread knows before it takes in what is submitted from now on.
    36 ReadyAck [] 0 {}
    /// To backends: a frontend joined. Its [`SlabDesc`]s come first.
    20 PeerUp [] 40 {
        /// The frontend.
        frontend: U32,
        /// Zero.
        reserved: U32,
        /// What to present in the [`Hello`] to it.
        token: U64,
        /// Where it listens.
        addr: WireAddr,
        /// How many [`SlabDesc`] preceded this message.
        slabs: U16,
        /// Zero.
        reserved2: U16,
    }
    /// To backends: a frontend is gone; reads from it will not complete.
    21 PeerDown [] 4 {
        /// The frontend.
        frontend: U32,
    }
    /// The member stops taking new work and will go.
    22 Leave [] 4 {
        /// Zero.
        reserved: U32,
    }
    /// Nothing of the leaving member's is outstanding any more.
    23 LeaveAck [] 4 {
        /// Zero.
        reserved: U32,
    }
    /// A heartbeat that also measures the clock offset.
    24 Ping [] 8 {
        /// The sender's clock when sent.
        sent_ns: U64,
    }
    /// Answers [`Ping`].
    25 Pong [] 16 {
        /// Copied from the ping.
        sent_ns: U64,
        /// The scheduler's clock when answered.
        scheduler_ns: U64,
    }
    /// How often this member pings from now on, by default [`PING_EVERY`].
    38 Pace [] 8 {
        /// Between two pings; the scheduler takes more than [`PING_EVERY_MAX`] for that.
        every_ns: U64,
    }
    // --- the catalogue changes while members serve, on the control connection ---------------
    /// To backends, behind the [`ModelDesc`] of a model that was added at run time: load it. A backend that has joined
    /// answers with [`ProfileDesc`] or [`ModelFailed`]. Tail: its `[[model]]` table, TOML.
    27 ModelTable [text: str] 4 {
        /// The model.
        model: U32,
    }
    /// The model was removed. Its slabs are gone with it, and its id is not used again.
    28 ModelDown [] 4 {
        /// The model.
        model: U32,
    }
    /// A joined frontend's new slab is known: from a backend, by that backend; to the frontend, by all of them.
    29 SlabKnown [] 8 {
        /// The frontend.
        frontend: U32,
        /// First slot index of the slab.
        first_slot: U32,
    }
    /// From a backend: it could not load the model of a [`ModelTable`]. Tail: why.
    30 ModelFailed [text: str] 4 {
        /// The model.
        model: U32,
    }
    /// From an operator: change the catalogue. Tail: a `[[model]]` table, TOML; of a removal, the model's name.
    31 CatalogChange [text: str] 4 {
        /// A [`ChangeKind`](super::ChangeKind).
        kind: u8,
        /// Zero.
        reserved: [u8; 3],
    }
    /// How the change went. Tail: what was done, or why it was not.
    32 CatalogChanged [text: str] 4 {
        /// 0 done, 1 refused.
        status: u8,
        /// Zero.
        reserved: [u8; 3],
    }
    /// From an operator: say how the cluster fares. One at a time.
    33 StatusAsk [] 8 {
        /// 0 to begin; then the `next` of the part before.
        from: U64,
    }
    /// A part of the answer. Tail: records, JSON, one a line: see [`crate::status`].
    34 StatusPart [text: str] 8 {
        /// What to ask for next; 0 behind the last part.
        next: U64,
    }
    // --- tasks, between members and ModelThreads -------------------------------------------
    /// A task: its id is the address of its input.
    40 Submit [] 32 {
        /// A `TaskId`.
        task: U64,
        /// When the answer must be there, scheduler clock.
        deadline_ns: U64,
        /// The model.
        model: U32,
        /// Bytes of its input, at most the model's `input_bytes`.
        input_bytes: U32,
        /// What the application says of its cost: a `CostHint`, 0 for nothing.
        cost: U32,
        /// How often the answers of the variant that executes it must be right, in 1/100,000. 0: any variant will do.
        accuracy_min: U32,
    }
    /// The application lost interest. The outcome still follows.
    41 Cancel [] 12 {
        /// A `TaskId`.
        task: U64,
        /// The model.
        model: U32,
    }
    /// A task ended without an answer; from the scheduler or a backend to the frontend.
    42 TaskEnd [] 12 {
        /// A `TaskId`.
        task: U64,
        /// 1 dropped, 2 failed.
        kind: u8,
        /// A `DropReason` or `FailReason` code.
        reason: u8,
        /// After this number of ms, the same task might be accepted. 0: nothing is known.
        retry_ms: U16,
    }
    /// A batch that one GPU slot is to execute, and when. Tail: its tasks, head first.
    43 Action [list: [ActionTask]] 36 {
        /// Names the action in [`ActionDone`].
        action: U64,
        /// Planned start, scheduler clock.
        earliest_ns: U64,
        /// Latest useful start: begun later than this, the head misses its deadline.
        latest_ns: U64,
        /// The model.
        model: U32,
        /// The GPU slot.
        gpu: U32,
        /// [`Action::INFER`]: there is no other.
        kind: u8,
        /// The cheapest variant that may execute, if the action starts too late for the one planned.
        floor: u8,
        /// Which variant of the model executes; 0 for a model that has one.
        variant: U16,
    }
    /// How an action went. From now on the tasks of its batch are answered. Tail, for peers of
    /// [`STALE_SINCE`](super::STALE_SINCE): the rows whose inputs were stale, in ascending order. Row 0 is the first task of the
    /// action.
    44 ActionDone [list: [U16]] 44 {
        /// Copied from the action.
        action: U64,
        /// Measured start of the execution, scheduler clock.
        started_ns: U64,
        /// Measured end.
        finished_ns: U64,
        /// The GPU slot.
        gpu: U32,
        /// Rows executed: the batch's, less those whose input could not be read or that the engine did not answer.
        rows: U16,
        /// An [`ActionStatus`](super::ActionStatus).
        status: u8,
        /// The variant that executed.
        variant: u8,
        /// How its inputs came.
        fetch: WireFetch,
    }
    /// Copy a model's weights to a GPU slot, beside its batches. Answered with one [`LoadDone`]. Tail: models that leave the
    /// slot for it, at once.
    45 Load [list: [U32]] 24 {
        /// Names the LOAD in [`LoadDone`].
        load: U64,
        /// It does not begin after, scheduler clock.
        latest_ns: U64,
        /// The model.
        model: U32,
        /// The GPU slot.
        gpu: U32,
    }
    /// How a [`Load`] went.
    46 LoadDone [] 36 {
        /// Copied from the LOAD.
        load: U64,
        /// Measured start of the copy, scheduler clock.
        started_ns: U64,
        /// Measured end.
        finished_ns: U64,
        /// The GPU slot.
        gpu: U32,
        /// Pages of the slot that no model takes.
        pages_free: U32,
        /// A [`LoadStatus`](super::LoadStatus).
        status: u8,
        /// A [`LoadFault`](super::LoadFault), if the status is `Failed`; otherwise 0.
        fault: u8,
        /// Zero.
        reserved: [u8; 2],
    }
    /// Pull one input. Verbs transports READ instead.
    60 Read [] 16 {
        /// A `TaskId`: which slot, which generation.
        task: U64,
        /// The initiator's mark, returned in the reply.
        tag: U32,
        /// Bytes wanted: the task's input, without the trailer.
        len: U32,
    }
    /// The answer to [`Read`]. Payload when `status` is 0: the slot's bytes and its trailer.
    61 ReadReply [] 16 {
        /// Copied from the read.
        task: U64,
        /// Copied from the read.
        tag: U32,
        /// 0 data follows, 1 stale generation, 2 wrong size, 3 no such slot.
        status: u8,
        /// Zero.
        reserved: [u8; 3],
    }
    /// An answer, written into the slot's output. Payload: the output row.
    62 TaskResult [] 32 {
        /// A `TaskId`.
        task: U64,
        /// Execution start of its batch, scheduler clock.
        started_ns: U64,
        /// Execution end.
        finished_ns: U64,
        /// Rows in its batch.
        batch_size: U16,
        /// The variant of the model that answered; with the top bit, the task was cold.
        variant: U16,
        /// The GPU slot that executed it.
        gpu: U32,
    }
    // --- how inputs and messages get across without TCP -----------------------------------------------------------
    elsewhere
    70 FabricOffer [text: str],
    71 FabricAnswer [text: str],
    72 FabricSlab [],
    73 ControlOffer [text: str],
    74 ControlAnswer [text: str],
    75 ControlStart [],
    76 MemoryOffer [],
}
