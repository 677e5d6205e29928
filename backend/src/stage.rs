//! The stages of the conversation with the scheduler:
//!
//! ```text
//! Connecting → Catalogue → Joining → Threads → Ready → Leaving → Left
//! ```

/// Where the conversation is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// The control connection is not up.
    Connecting,
    /// The catalogue is arriving.
    Catalogue,
    /// Asked to join.
    Joining,
    /// Joined; connecting to the ModelThreads, measuring the clock offset.
    Threads,
    /// Actions may arrive.
    Ready,
    /// Asked to leave; actions sent before may still arrive.
    Leaving,
    /// The scheduler has let us go.
    Left,
}

impl Stage {
    /// What the backend waits for, in words.
    pub(crate) fn waits_for(self) -> &'static str {
        match self {
            Self::Connecting => "the control connection",
            Self::Catalogue => "the catalogue",
            Self::Joining => "the answer to the join",
            Self::Threads => "the ModelThreads and the clock",
            Self::Ready | Self::Leaving | Self::Left => "nothing",
        }
    }
}
