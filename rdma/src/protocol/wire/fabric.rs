//! Messages between two RDMA fabrics: how queue pairs are connected.

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::layout::wire_struct;

wire_struct! {
    /// A backend's queue pair for READs: what the frontend needs to connect one to it. Tail: the backend's device.
    FabricOffer: 40 {
        /// Numbers the offers of a connection: a queue pair that failed is replaced by another.
        epoch: U32,
        /// The queue pair.
        pair: U32,
        /// Sequence number of its first packet.
        first_psn: U32,
        /// The port's LID; 0 on Ethernet.
        lid: U16,
        /// READs it would like to have under way.
        read_depth: u8,
        /// Its largest packet: 1 is 256 bytes, 5 is 4096.
        mtu: u8,
        /// The port's GID.
        gid: [u8; 16],
        /// How long a READ may take, us.
        read_timeout_us: U32,
        /// Zero.
        reserved: U32,
    }
}

wire_struct! {
    /// The frontend's queue pair, or why there is none, after its [`FabricSlab`]s. Tail: its device, or the reason.
    FabricAnswer: 40 {
        /// Copied from the offer.
        epoch: U32,
        /// The queue pair; 0 where there is none.
        pair: U32,
        /// Sequence number of its first packet.
        first_psn: U32,
        /// The port's LID; 0 on Ethernet.
        lid: U16,
        /// READs that may be under way: no more than the offer says.
        read_depth: u8,
        /// The packet size to use: no more than the offer says; 0 where there is no queue pair.
        mtu: u8,
        /// The port's GID.
        gid: [u8; 16],
        /// How long a READ may take, us: no more than the offer says.
        read_timeout_us: U32,
        /// How many [`FabricSlab`] preceded this message.
        slabs: U32,
    }
}

wire_struct! {
    /// One of the frontend's slabs as the fabric knows it.
    FabricSlab: 32 {
        /// First slot index of the slab.
        first_slot: U32,
        /// Slots in the slab.
        slots: U32,
        /// Distance between slots, bytes.
        stride: U32,
        /// Bytes of the input in a slot; the trailer follows it.
        input_bytes: U32,
        /// Where the first slot begins.
        addr: U64,
        /// The key that lets it be read.
        rkey: U32,
        /// Zero.
        reserved: U32,
    }
}

wire_struct! {
    /// A queue pair for messages, from the side that has connected, once READs over it are possible. Tail: the device.
    ControlOffer: 40 {
        /// The queue pair.
        pair: U32,
        /// Sequence number of its first packet.
        first_psn: U32,
        /// The port's LID; 0 on Ethernet.
        lid: U16,
        /// SENDs this side has posted receive buffers for.
        window: U16,
        /// The port's GID.
        gid: [u8; 16],
        /// Bytes of a receive buffer.
        buffer_bytes: U32,
        /// How long a SEND may take, us.
        timeout_us: U32,
        /// Its largest packet: 1 is 256 bytes, 5 is 4096.
        mtu: u8,
        /// Zero.
        reserved: [u8; 3],
    }
}

wire_struct! {
    /// The other side's queue pair, or why there is none. Tail: the device, or the reason.
    ControlAnswer: 40 {
        /// The queue pair; 0 where there is none.
        pair: U32,
        /// Sequence number of its first packet.
        first_psn: U32,
        /// The port's LID; 0 on Ethernet.
        lid: U16,
        /// SENDs this side has posted receive buffers for.
        window: U16,
        /// The port's GID.
        gid: [u8; 16],
        /// Bytes of a receive buffer.
        buffer_bytes: U32,
        /// How long a SEND may take, us: no more than the offer says.
        timeout_us: U32,
        /// The packet size to use: no more than the offer says.
        mtu: u8,
        /// Zero.
        reserved: [u8; 3],
    }
}

wire_struct! {
    /// The last message of its sender on this connection: those that follow travel over the queue pair.
    ControlStart: 0 {}
}
