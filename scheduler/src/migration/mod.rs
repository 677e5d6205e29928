//! Models that move from one ModelThread to another: which go where, and how they get there.
//!
//! [`placement`] decides from the [`load_board`]; the ControlThread makes a [`channel`] for each move
//! (`control/balance.rs`); both ModelThreads use it (`model_thread/migration.rs`).

pub(crate) mod channel;
pub(crate) mod load_board;
pub(crate) mod placement;
