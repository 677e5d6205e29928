//! How the tails of messages read.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::DecodeError;
use super::layout::wire_struct;

wire_struct! {
    /// A task of the batch of an [`Action`](super::Action).
    ActionTask: 16 {
        /// A `TaskId`.
        task: U64,
        /// Bytes of its input: the backend reads that many, and the trailer behind them. With the top bit, it was cold.
        input_bytes: U32,
        /// As in [`Submit`](super::Submit).
        cost: U32,
    }
}

pub(super) fn none(tail: &[u8]) -> Result<(), DecodeError> {
    if tail.is_empty() { Ok(()) } else { Err(DecodeError::BodyLength) }
}

pub(super) fn list<T: FromBytes + Immutable + KnownLayout + Unaligned>(
    tail: &[u8],
) -> Result<&[T], DecodeError> {
    <[T]>::ref_from_bytes(tail).map_err(|_| DecodeError::BodyLength)
}

pub(super) fn text(tail: &[u8]) -> Result<&str, DecodeError> {
    std::str::from_utf8(tail).map_err(|_| DecodeError::Text)
}
