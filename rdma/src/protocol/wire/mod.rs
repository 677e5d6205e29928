//! Every message Baton's processes exchange: fixed layouts, little endian, no padding.
//!
//! A frame is `header · body · payload`. The body is one of the structs below, followed for some
//! kinds by a tail (task ids, latencies, a name). Only [`ReadReply`] and [`TaskResult`] carry a
//! payload; on verbs those bytes do not travel in a message at all. Times are nanoseconds on the
//! *scheduler's* clock; peers convert (`baton_membership::ClockSync`).
//!
//! Nothing here trusts its input: [`decode`] checks kind, lengths and text, and never panics.

mod codes;
mod cold;
mod fabric;
mod layout;
mod messages;
mod same_host;
mod tail;

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use baton_topo::signature::{ElementType, Extent, RANK_MAX, TensorSpec};
use baton_types::{GpuId, ModelId, Nanos, Request};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

pub use codes::*;
pub use fabric::*;
use layout::wire_struct;
pub use messages::*;
pub use same_host::*;
pub use tail::ActionTask;

/// First four bytes of every [`Hello`].
pub const MAGIC: u32 = u32::from_le_bytes(*b"BATN");
/// Oldest protocol version this build speaks.
pub const VERSION_MIN: u16 = 1;
/// Newest protocol version this build speaks.
pub const VERSION_MAX: u16 = 4;
/// The first version in which actions and answers say which tasks were cold.
pub const COLD_SINCE: u16 = 2;
/// The first version in which backends offer to read the memory of frontends on their host.
pub const SAME_HOST_SINCE: u16 = 3;
/// The first version in which reports of batches say which inputs were stale.
pub const STALE_SINCE: u16 = 4;
/// How often a member pings that has not said otherwise ([`Pace`]).
pub const PING_EVERY: Nanos = Nanos::from_millis(100);
/// The least often that a member may ping.
pub const PING_EVERY_MAX: Nanos = Nanos::from_millis(1_000);

/// The protocol versions that a build speaks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Versions {
    /// The oldest.
    pub min: u16,
    /// The newest.
    pub max: u16,
}

impl Versions {
    /// Those of this build.
    pub const SPOKEN: Self = Self { min: VERSION_MIN, max: VERSION_MAX };
}

/// Longest body (fixed part and tail) of a frame, bytes.
pub const BODY_MAX: usize = 32 * 1024;
/// Longest payload of a frame, bytes: bounds one input row and one output row.
pub const PAYLOAD_MAX: usize = 64 * 1024 * 1024;
const _: () = assert!(baton_topo::signature::INPUT_BYTES_MAX as usize + TRAILER_LEN == PAYLOAD_MAX);

/// Bytes of the trailer behind every input: the task id, little endian.
pub const TRAILER_LEN: usize = 8;

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

wire_struct! {
    /// How the inputs of a batch came. All zero: not measured.
    WireFetch: 12 {
        /// What they added to the time in which the backend fetched any, 4.29 s at most.
        took_ns: U32,
        /// When they were there, scheduler clock.
        at_ns: U64,
    }
}

impl WireFetch {
    /// Nothing was fetched, or not all of it.
    pub const NOT_MEASURED: Self = Self { took_ns: U32::ZERO, at_ns: U64::ZERO };

    /// Longer times than fit count as the longest that does.
    pub fn new(took: Nanos, at: Nanos) -> Self {
        let took_ns = u32::try_from(took.0).unwrap_or(u32::MAX);
        Self { took_ns: took_ns.into(), at_ns: at.0.into() }
    }

    /// How long they took, and when they were there; `None` if that was not measured.
    pub fn measured(&self) -> Option<(Nanos, Nanos)> {
        let (took, at) = (Nanos(self.took_ns.get().into()), Nanos(self.at_ns.get()));
        (took > Nanos::ZERO && at > Nanos::ZERO).then_some((took, at))
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

impl Action {
    /// Its kind: execute a batch. Weights come and go by [`Load`].
    pub const INFER: u8 = 0;

    /// Executes a batch of the model's own variant in the slot, within `[earliest, latest]` on the scheduler's clock.
    pub fn infer(name: u64, window: [Nanos; 2], model: ModelId, gpu: GpuId) -> Self {
        let [earliest, latest] = window.map(|moment| moment.0);
        Self {
            action: name.into(),
            earliest_ns: earliest.into(),
            latest_ns: latest.into(),
            model: model.0.into(),
            gpu: gpu.0.into(),
            kind: Self::INFER,
            floor: 0,
            variant: 0.into(),
        }
    }
}

impl ActionTask {
    /// The scheduler's request, as the backend is asked for it.
    pub fn new(request: &Request) -> Self {
        let Request { task, input_bytes, cost, .. } = *request;
        Self { task: task.0.into(), input_bytes: input_bytes.into(), cost: cost.bits().into() }
    }
}

/// In [`TensorDesc::extents`]: a task may have fewer.
const UP_TO: u32 = 1 << 31;

impl TensorDesc {
    /// Describes a tensor of the input, or of the output.
    ///
    /// # Panics
    /// It has more than [`RANK_MAX`] dimensions.
    pub fn new(model: u32, of_output: bool, spec: &TensorSpec) -> Self {
        let mut extents = [U32::ZERO; RANK_MAX];
        for (place, extent) in extents[..spec.shape.len()].iter_mut().zip(&spec.shape) {
            let flag = if matches!(extent, Extent::UpTo(_)) { UP_TO } else { 0 };
            place.set(extent.max() | flag);
        }
        Self {
            model: model.into(),
            side: of_output.into(),
            element: spec.element as u8,
            rank: spec.shape.len() as u8,
            reserved: 0,
            extents,
        }
    }

    /// The tensor, if it can be one.
    pub fn spec(&self, name: &str) -> Option<TensorSpec> {
        let element = ElementType::from_code(self.element)?;
        let extent = |extent: &U32| match extent.get() {
            said if said & UP_TO != 0 => Extent::UpTo(said & !UP_TO),
            said => Extent::Fixed(said),
        };
        let shape = self.extents.get(..self.rank.into())?.iter().map(extent).collect();
        Some(TensorSpec { name: name.to_owned(), element, shape })
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
        self.common_with(Versions::SPOKEN)
    }

    /// As [`Hello::common_version`], with a build that speaks `ours`.
    pub(crate) fn common_with(&self, ours: Versions) -> Option<u16> {
        let version = self.version_max.get().min(ours.max);
        (version >= self.version_min.get().max(ours.min)).then_some(version)
    }

    /// Says that it speaks `ours`.
    pub(crate) fn claiming(self, ours: Versions) -> Self {
        Self { version_min: ours.min.into(), version_max: ours.max.into(), ..self }
    }
}
