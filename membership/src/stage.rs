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

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Stage; 8] = [
        Stage::Away,
        Stage::Connecting,
        Stage::Catalogue,
        Stage::Joining,
        Stage::Linking,
        Stage::Ready,
        Stage::Leaving,
        Stage::Left,
    ];

    #[test]
    fn each_stage_has_its_place_in_the_conversation() {
        let of = |is: fn(Stage) -> bool| ALL.map(is).map(u8::from);
        assert_eq!(of(Stage::is_joining), [0, 1, 1, 1, 1, 0, 0, 0]);
        assert_eq!(of(Stage::is_admitted), [0, 0, 0, 0, 1, 1, 1, 0]);
    }

    #[test]
    fn who_hangs_says_what_is_missing() {
        let missing = [
            "connection to the scheduler",
            "connection to the scheduler",
            "catalogue",
            "admit",
            "clock measurement",
            "nothing",
            "confirm the leave",
            "nothing",
        ];
        for (stage, words) in ALL.into_iter().zip(missing) {
            assert!(stage.waits_for().contains(words), "{stage:?}: {}", stage.waits_for());
        }
    }
}
