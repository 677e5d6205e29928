//! The stages of the conversation with the scheduler:
//!
//! ```text
//!   ┌──────────────────── an attempt fails, the scheduler is lost ───────────────────┐
//!   ↓                                                                                │
//! Away → Connecting → Catalogue → Joining → Linking → Ready → Leaving → Left         │
//!           └───────────┴───────────┴──────────┴────────┴────────────────────────────┘
//! ```

/// Where the conversation stands.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Stage {
    /// A pause before the next attempt.
    Away,
    /// The connection to the ControlThread is not up yet.
    Connecting,
    /// The catalogue is arriving.
    Catalogue,
    /// The member has asked to join.
    Joining,
    /// The member is admitted. It connects to the ModelThreads and measures the clock offset.
    Linking,
    /// Requests and actions may travel.
    Ready,
    /// The member has asked to leave. Actions and outcomes sent before may still arrive.
    Leaving,
    /// The conversation is over.
    Left,
}

impl Stage {
    /// What a member that hangs here waits for.
    pub(crate) fn waits_for(self) -> &'static str {
        match self {
            Self::Away | Self::Connecting => "the connection to the scheduler",
            Self::Catalogue => "the scheduler's catalogue",
            Self::Joining => "the scheduler to admit it",
            Self::Linking => "the connections to the ModelThreads and the clock measurement",
            Self::Leaving => "the scheduler to confirm the leave",
            Self::Ready | Self::Left => "nothing",
        }
    }

    /// An attempt to join is under way.
    pub fn is_joining(self) -> bool {
        (Self::Connecting..=Self::Linking).contains(&self)
    }

    /// The scheduler has admitted this member, and speaks of other members.
    pub fn is_admitted(self) -> bool {
        (Self::Linking..=Self::Leaving).contains(&self)
    }
}
