//! The stages of the conversation with the scheduler.

/// Where the conversation with the scheduler stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Stage {
    Start,
    Connecting,
    Catalogue,
    Admission,
    /// Connecting to the ModelThreads and measuring the clock.
    Linking,
    Open,
    /// The scheduler is lost; a pause before the next attempt.
    Away,
    /// Leave is sent, its confirmation awaited.
    Leaving,
    Ended,
}

impl Stage {
    /// What a join that hangs here waits for.
    pub(super) fn waiting_for(self) -> &'static str {
        match self {
            Self::Start | Self::Connecting => "the connection to the scheduler",
            Self::Catalogue => "the scheduler's catalogue",
            Self::Admission => "the scheduler to admit this client",
            Self::Linking => "the connections to its ModelThreads and the clock measurement",
            Self::Open | Self::Away | Self::Leaving | Self::Ended => "nothing",
        }
    }

    /// The scheduler says what there is, and whether we are in.
    pub(super) fn announcing(self) -> bool {
        matches!(self, Self::Catalogue | Self::Admission)
    }

    pub(super) fn joining(self) -> bool {
        !matches!(self, Self::Open | Self::Away | Self::Leaving | Self::Ended)
    }
}
