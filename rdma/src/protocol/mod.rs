//! What the two sides of a connection say to each other, whatever carries it: the messages and their framing, the
//! handshake, signs of life, and how much may be under way.

mod backoff;
pub mod clock_sync;
pub(crate) mod credit;
pub mod frame;
pub(crate) mod handshake;
mod heartbeat;
pub mod status;
pub mod wire;

pub use backoff::Backoff;
pub use clock_sync::ClockSync;
pub use credit::{CreditWindow, RoundRobin};
pub use heartbeat::Heartbeat;
