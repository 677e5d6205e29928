//! What the two sides of a connection say to each other, whatever carries it: the messages and their framing, the
//! handshake, and how much may be under way.

pub(crate) mod credit;
pub mod frame;
pub(crate) mod handshake;
#[cfg(feature = "status")]
pub mod status;
pub mod wire;

pub use credit::{CreditWindow, RoundRobin};
