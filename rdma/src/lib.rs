//! Wire messages, registered memory and transports of the pull protocol.
//!
//! In dataflow order: a frontend keeps its inputs in a [`SlabSet`]; a backend pulls them with
//! [`Transport::post_reads`] into rows of a [`BatchBuffer`]; the answers land in the slabs' output
//! slots. [`wire`] is what travels, [`frame`] how it is cut out of a byte stream, and the transports
//! are [`TcpTransport`] and [`InprocTransport`].
//!
//! Unsafe code is confined to `memory` and `verbs`: memory that one side writes while
//! another part of the process holds a handle to it.
#![deny(unsafe_code)]

mod events;
mod inproc;
mod log_limit;
mod memory;
mod protocol;
mod same_host;
mod shared;
mod table;
mod tcp;
mod tls;
mod transport;
mod verbs;

pub use baton_topo::{TlsSpec, TransportChoice, VerbsConfig};
pub use events::{CloseReason, Event, Events, Peer};
pub use inproc::{InprocNetwork, InprocTransport};
pub use log_limit::LogLimit;
pub use memory::{
    Backing, BatchBuffer, HostPin, InputAhead, InputMut, InputState, NoMemory, OutputMut,
    OutputRef, ReadLease, ReadRefusal, RowMut, RowsRef, SlabError, SlabSet, SlabSpec, Stay,
};
#[cfg(feature = "status")]
pub use protocol::status;
pub use protocol::{CreditWindow, RoundRobin, frame, wire};
pub use tcp::{Edge, Net, NetStream, OsNet, OsStream, TcpConfig, TcpTransport};
pub use tls::{Credentials, CredentialsError};
pub use transport::{
    ConnId, Identity, READ_DEPTH, Read, ReadDone, ReadStatus, SendError, Transport,
    TransportCounters,
};
pub use verbs::{MixedError, MixedTransport, VerbsError, probe, probe_device_memory};
