//! Wire messages, registered memory and transports of the pull protocol.
//!
//! In dataflow order: a frontend keeps its inputs in a [`SlabSet`]; a backend pulls them with
//! [`Transport::post_reads`] into rows of a [`BatchBuffer`]; the answers land in the slabs' output
//! slots. [`wire`] is what travels, [`frame`] how it is cut out of a byte stream, and the transports
//! are [`TcpTransport`] and [`InprocTransport`].
//!
//! Unsafe code is confined to `region`, `slab` and `landing`: memory that one side writes while
//! another part of the process holds a handle to it.
#![deny(unsafe_code)]

mod backoff;
pub mod clock_sync;
mod credit;
mod events;
pub mod frame;
mod handshake;
mod heartbeat;
mod inproc;
mod landing;
mod log_limit;
mod region;
mod shared;
mod slab;
mod table;
mod tcp;
mod tls;
mod transport;
mod verbs;
pub mod wire;

pub use backoff::Backoff;
pub use baton_topo::{TlsSpec, TransportChoice, VerbsConfig};
pub use clock_sync::ClockSync;
pub use credit::{CreditWindow, RoundRobin};
pub use events::{CloseReason, Event, Events, Peer};
pub use heartbeat::Heartbeat;
pub use inproc::{InprocNetwork, InprocTransport};
pub use landing::{BatchBuffer, RowMut, RowsRef};
pub use log_limit::LogLimit;
pub use slab::{
    InputMut, OutputMut, OutputRef, ReadLease, ReadRefusal, SlabError, SlabSet, SlabSpec,
};
pub use tcp::{Edge, Net, NetStream, OsNet, OsStream, TcpConfig, TcpTransport};
pub use tls::{Credentials, CredentialsError};
pub use transport::{
    ConnId, Identity, READ_DEPTH, Read, ReadDone, ReadStatus, SendError, Transport,
    TransportCounters,
};
pub use verbs::{MixedError, MixedTransport, VerbsError, probe};
