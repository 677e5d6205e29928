//! Every message Baton's processes exchange: fixed layouts, little endian, no padding.
//!
//! A frame is `header · body · payload`. The body is one of the structs below, followed for some
//! kinds by a tail (task ids, latencies, a name). Only [`ReadReply`] and [`TaskResult`] carry a
//! payload; on verbs those bytes do not travel in a message at all. Times are nanoseconds on the
//! *scheduler's* clock; peers convert (see [`crate::clock_sync`]).
//!
//! Nothing here trusts its input: [`decode`] checks kind, lengths and text, and never panics.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// First four bytes of every [`Hello`].
pub const MAGIC: u32 = u32::from_le_bytes(*b"BATN");
/// Oldest protocol version this build speaks.
pub const VERSION_MIN: u16 = 1;
/// Newest protocol version this build speaks.
pub const VERSION_MAX: u16 = 1;
/// Longest body (fixed part and tail) of a frame, bytes.
pub const BODY_MAX: usize = 32 * 1024;
/// Longest payload of a frame, bytes: bounds one input row and one output row.
pub const PAYLOAD_MAX: usize = 64 * 1024 * 1024;

/// Bytes of the trailer behind every input: the task id, little endian.
pub const TRAILER_LEN: usize = 8;

/// Derives what every wire struct needs.
macro_rules! wire_struct {
    ($(#[$meta:meta])* $name:ident : $size:literal { $($(#[$fmeta:meta])* $field:ident : $ty:ty,)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
        #[repr(C)]
        pub struct $name { $($(#[$fmeta])* pub $field: $ty,)* }
        const _: () = assert!(size_of::<$name>() == $size);
    };
}

wire_struct! {
    /// Precedes every body. Eight bytes.
    FrameHeader: 8 {
        /// A [`Kind`].
        kind: u8,
        /// Zero; a receiver refuses anything else, so that a later version may use it.
        reserved: u8,
        /// Bytes of the body, at most [`BODY_MAX`].
        body_len: U16,
        /// Bytes of the payload behind the body, at most [`PAYLOAD_MAX`].
        payload_len: U32,
    }
}

wire_struct! {
    /// An IPv6 (or mapped IPv4) address and port. An unspecified address means "the address this
    /// connection comes from".
    WireAddr: 20 {
        /// Network order, IPv4 mapped.
        ip: [u8; 16],
        /// TCP port.
        port: U16,
        /// Zero.
        reserved: U16,
    }
}

impl WireAddr {
    /// Encodes `addr`.
    pub fn new(addr: SocketAddr) -> Self {
        let ip = match addr.ip() {
            IpAddr::V4(v4) => v4.to_ipv6_mapped(),
            IpAddr::V6(v6) => v6,
        };
        Self { ip: ip.octets(), port: addr.port().into(), reserved: 0.into() }
    }

    /// The address, with an unspecified IP replaced by `observed`'s.
    pub fn resolve(&self, observed: IpAddr) -> SocketAddr {
        let ip = Ipv6Addr::from(self.ip).to_canonical();
        let ip = if ip.is_unspecified() { observed } else { ip };
        SocketAddr::new(ip, self.port.get())
    }
}

/// Who speaks. Stands in [`Hello`] and [`Welcome`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Role {
    /// An application's client library.
    Frontend = 1,
    /// A backend process.
    Backend = 2,
    /// The scheduler's ControlThread.
    Control = 3,
    /// One of the scheduler's ModelThreads.
    ModelThread = 4,
}

impl Role {
    /// The role with this code.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            1 => Some(Self::Frontend),
            2 => Some(Self::Backend),
            3 => Some(Self::Control),
            4 => Some(Self::ModelThread),
            _ => None,
        }
    }
}

/// Why a peer was refused or a connection closed by the other side. Travels in [`Refuse`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u16)]
pub enum RefuseCode {
    /// Bytes that are no frame of this protocol.
    Malformed = 1,
    /// No common protocol version.
    Version = 2,
    /// The token does not belong to a joined member.
    Unauthorised = 3,
    /// The member has joined already.
    DuplicateJoin = 4,
    /// A bound of the receiver is reached (members, GPUs, connections, send queue).
    Limit = 5,
    /// The message does not fit the state of the conversation.
    UnexpectedMessage = 6,
    /// The request names something unknown or impossible (model, sub-cluster, size).
    BadRequest = 7,
    /// The receiver is shutting down.
    Shutdown = 8,
}

impl RefuseCode {
    /// The code's number as it travels, or `None` for one a newer peer invented.
    pub const fn from_code(code: u16) -> Option<Self> {
        match code {
            1 => Some(Self::Malformed),
            2 => Some(Self::Version),
            3 => Some(Self::Unauthorised),
            4 => Some(Self::DuplicateJoin),
            5 => Some(Self::Limit),
            6 => Some(Self::UnexpectedMessage),
            7 => Some(Self::BadRequest),
            8 => Some(Self::Shutdown),
            _ => None,
        }
    }
}

/// How the kinds' tails read.
mod tail {
    use super::{DecodeError, U64};
    use zerocopy::FromBytes;

    pub(super) fn none(tail: &[u8]) -> Result<(), DecodeError> {
        if tail.is_empty() { Ok(()) } else { Err(DecodeError::BodyLength) }
    }

    pub(super) fn u64s(tail: &[u8]) -> Result<&[U64], DecodeError> {
        <[U64]>::ref_from_bytes(tail).map_err(|_| DecodeError::BodyLength)
    }

    pub(super) fn text(tail: &[u8]) -> Result<&str, DecodeError> {
        std::str::from_utf8(tail).map_err(|_| DecodeError::Text)
    }
}

/// Declares the message kinds: code, struct, the type of the tail and how it is read.
macro_rules! messages {
    ($($(#[$meta:meta])* $code:literal $name:ident [$($tail:ident: $tail_ty:ty)?] $size:literal
       { $($(#[$fmeta:meta])* $field:ident : $ty:ty,)* })*) => {
        $(wire_struct! { $(#[$meta])* $name: $size { $($(#[$fmeta])* $field: $ty,)* } })*

        /// The kind byte of a frame.
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        #[repr(u8)]
        pub enum Kind { $(#[doc = concat!("[`", stringify!($name), "`]")] $name = $code,)* }

        impl Kind {
            /// Every kind.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// The kind with this code.
            pub const fn from_code(code: u8) -> Option<Self> {
                match code { $($code => Some(Self::$name),)* _ => None }
            }
        }

        $(impl Body for $name { const KIND: Kind = Kind::$name; })*

        /// A decoded message, borrowed from the receive buffer: the fixed part and the tail.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        pub enum Message<'a> {
            $(#[doc = concat!("[`", stringify!($name), "`]")] $name(&'a $name $(, &'a $tail_ty)?),)*
        }

        impl Message<'_> {
            /// Which kind it is.
            pub const fn kind(&self) -> Kind {
                match self { $(Self::$name(..) => Kind::$name,)* }
            }
        }

        /// Reads a body of the given kind.
        ///
        /// # Errors
        /// The length does not fit the kind, or a text is not UTF-8.
        pub fn decode(kind: Kind, body: &[u8]) -> Result<Message<'_>, DecodeError> {
            match kind {
                $(Kind::$name => {
                    let (head, tail) =
                        $name::ref_from_prefix(body).map_err(|_| DecodeError::BodyLength)?;
                    messages!(@build $name head tail $($tail)?)
                })*
            }
        }
    };
    (@build $name:ident $head:ident $rest:ident) => {{
        tail::none($rest)?;
        Ok(Message::$name($head))
    }};
    (@build $name:ident $head:ident $rest:ident $tail:ident) => {
        Ok(Message::$name($head, tail::$tail($rest)?))
    };
}

/// The fixed part of a message.
pub trait Body: IntoBytes + Immutable {
    /// The kind byte its frames carry.
    const KIND: Kind;
}

/// Why bytes are not a frame.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum DecodeError {
    /// The kind byte is unknown.
    #[error("unknown message kind {0}")]
    Kind(u8),
    /// The reserved header byte is not zero.
    #[error("the frame header's reserved byte is not zero")]
    Reserved,
    /// The body's length does not fit its kind, or exceeds [`BODY_MAX`].
    #[error("the body's length does not fit its kind")]
    BodyLength,
    /// A payload where none belongs, or one longer than [`PAYLOAD_MAX`].
    #[error("the payload's length is not acceptable")]
    PayloadLength,
    /// A name or reason is not UTF-8.
    #[error("a text is not UTF-8")]
    Text,
    /// A hello or welcome with the wrong magic number, an unknown role, or reserved bytes set.
    #[error("the hello is not one of this protocol")]
    Hello,
}

messages! {
    // --- opening a connection -------------------------------------------------------------
    /// First frame of whoever connected.
    1 Hello [] 24 {
        /// [`MAGIC`].
        magic: U32,
        /// Oldest version spoken.
        version_min: U16,
        /// Newest version spoken.
        version_max: U16,
        /// A [`Role`].
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
        /// A [`Role`]: the acceptor's.
        role: u8,
        /// Zero.
        reserved: u8,
        /// The acceptor's number (which ModelThread, which frontend); 0 for the ControlThread.
        member: U32,
    }
    /// Last frame before the sender closes the connection. Tail: what is wrong and what to do.
    3 Refuse [text: str] 2 {
        /// A [`RefuseCode`].
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
    /// The backend's measured ℓ(b) of a model it has loaded. Tail: ℓ(1), ℓ(2), … ns; empty when it
    /// has loaded the model and trusts the cluster file's profile.
    17 ProfileDesc [u64s: [U64]] 4 {
        /// The model.
        model: U32,
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

    // --- tasks, between members and ModelThreads -------------------------------------------
    /// A task: its id is the address of its input.
    40 Submit [] 20 {
        /// A `TaskId`.
        task: U64,
        /// When the answer must be there, scheduler clock.
        deadline_ns: U64,
        /// The model.
        model: U32,
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
        /// Zero.
        reserved: U16,
    }
    /// A sealed batch for one GPU slot. Tail: its task ids, head first.
    43 Plan [u64s: [U64]] 32 {
        /// Names the batch in [`BatchDone`].
        batch: U64,
        /// Planned start of the execution, scheduler clock.
        exec_at_ns: U64,
        /// Started later than this, the head misses its deadline.
        invalid_after_ns: U64,
        /// The model.
        model: U32,
        /// The GPU slot.
        gpu: U32,
    }
    /// How a batch went. From now on its tasks are answered.
    44 BatchDone [] 32 {
        /// Copied from the plan.
        batch: U64,
        /// Measured start of the execution, scheduler clock.
        started_ns: U64,
        /// Measured end.
        finished_ns: U64,
        /// The GPU slot.
        gpu: U32,
        /// Rows executed: the plan's, less those whose input could not be read.
        rows: U16,
        /// A [`BatchStatus`].
        status: u8,
        /// Zero.
        reserved: u8,
    }

    // --- inputs and answers, between backends and frontends --------------------------------
    /// Pull one input. Verbs transports READ instead.
    60 Read [] 16 {
        /// A `TaskId`: which slot, which generation.
        task: U64,
        /// The initiator's mark, returned in the reply.
        tag: U32,
        /// Bytes wanted: the model's input, without the trailer.
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
        batch_size: U32,
        /// The GPU slot that executed it.
        gpu: U32,
    }
}

/// What became of a batch, in [`BatchDone`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum BatchStatus {
    /// Executed; every task has been answered by the backend.
    Executed = 0,
    /// Not executed because it could no longer meet its deadlines; the scheduler has the tasks back.
    Expired = 1,
    /// The engine failed; the backend has told every frontend.
    EngineError = 2,
    /// Refused: the backend is draining or does not know the model or GPU; the tasks go back.
    Refused = 3,
}

impl BatchStatus {
    /// The status with this code.
    pub const fn from_code(code: u8) -> Option<Self> {
        match code {
            0 => Some(Self::Executed),
            1 => Some(Self::Expired),
            2 => Some(Self::EngineError),
            3 => Some(Self::Refused),
            _ => None,
        }
    }
}

impl FrameHeader {
    /// The header of a frame. The caller keeps within [`BODY_MAX`] and [`PAYLOAD_MAX`].
    pub fn new(kind: Kind, body_len: usize, payload_len: usize) -> Self {
        debug_assert!(body_len <= BODY_MAX && payload_len <= PAYLOAD_MAX);
        Self {
            kind: kind as u8,
            reserved: 0,
            body_len: (body_len as u16).into(),
            payload_len: (payload_len as u32).into(),
        }
    }

    /// Checks everything about the header that does not need the body.
    ///
    /// # Errors
    /// Unknown kind, reserved byte set, or a length beyond its bound.
    pub fn check(&self) -> Result<Kind, DecodeError> {
        let kind = Kind::from_code(self.kind).ok_or(DecodeError::Kind(self.kind))?;
        if self.reserved != 0 {
            return Err(DecodeError::Reserved);
        }
        if usize::from(self.body_len.get()) > BODY_MAX {
            return Err(DecodeError::BodyLength);
        }
        let payload_len = self.payload_len.get() as usize;
        let may_carry = matches!(kind, Kind::ReadReply | Kind::TaskResult);
        if payload_len > if may_carry { PAYLOAD_MAX } else { 0 } {
            return Err(DecodeError::PayloadLength);
        }
        Ok(kind)
    }
}

impl Hello {
    /// The first frame of a connection this build opens.
    pub fn new(role: Role, member: u32, token: u64) -> Self {
        Self {
            magic: MAGIC.into(),
            version_min: VERSION_MIN.into(),
            version_max: VERSION_MAX.into(),
            role: role as u8,
            reserved: [0; 3],
            member: member.into(),
            token: token.into(),
        }
    }

    /// The newest version both sides speak, if there is one.
    pub fn common_version(&self) -> Option<u16> {
        let version = self.version_max.get().min(VERSION_MAX);
        (version >= self.version_min.get().max(VERSION_MIN)).then_some(version)
    }
}
