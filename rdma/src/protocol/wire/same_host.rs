//! How a frontend gives a backend of the same host its slabs to map.
//!
//! The backend offers to read them by [`MemoryOffer`]. The frontend sends them to the socket that this names: datagrams of a
//! [`SharedSlabs`] and as many [`SharedSlab`]s, with the slabs' files as ancillary data (`SCM_RIGHTS`). A frontend on another host
//! finds no such socket.

use zerocopy::little_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout::wire_struct;

wire_struct! {
    /// Where a backend takes slabs, for peers of [`SAME_HOST_SINCE`](super::SAME_HOST_SINCE).
    MemoryOffer: 24 {
        /// Names this connection in [`SharedSlabs`]. Hard to guess.
        cookie: U64,
        /// The socket's abstract name is `baton-` and these bytes in hexadecimal digits. Hard to guess, too.
        socket: [u8; 16],
    }
}

wire_struct! {
    /// What a datagram begins with.
    SharedSlabs: 16 {
        /// Copied from the offer.
        cookie: U64,
        /// How many [`SharedSlab`]s follow.
        slabs: U32,
        /// Zero.
        reserved: U32,
    }
}

wire_struct! {
    /// One of the frontend's slabs. Its file comes with the datagram, in this order; a slab that is withdrawn has none.
    SharedSlab: 16 {
        /// First slot index of the slab.
        first_slot: U32,
        /// Slots in the slab.
        slots: U32,
        /// Distance between slots, bytes. The first one begins where the file does.
        stride: U32,
        /// Bytes of the input in a slot; the trailer follows it. 0 withdraws these slots.
        input_bytes: U32,
    }
}
