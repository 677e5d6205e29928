//! Rules that `baton` may take for a while instead of its own: see [`Trial`](crate::Trial).

use super::{Deferral, Floor, Rules, baton, symphony};

const AT_ONCE: Rules = Rules { deferral: Deferral::None, yields: false, ..baton::RULES };
const GATHERED: Rules = Rules { floor: Floor::Gathered, ..symphony::RULES };

/// Rules with a name. The first of [`Alternative::ALL`] are the policy's own; of those that lose as little the first is
/// taken, so that what defers for longest comes last.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Alternative {
    /// Those of `baton`.
    #[default]
    Own,
    /// The same, but batches start early although tasks are being lost that cannot wait for their end.
    Early,
    /// As its own, but no head is given up for a larger batch.
    KeepHeads,
    /// Batches that are large enough start at once, and leave no slot to others.
    AtOnce,
    /// The same, but no head is given up: it waits on while a larger batch of those behind it goes first, if that must
    /// start first, as Clockwork's strategies do (§5.3).
    PassOver,
    /// Those of `symphony`.
    Fill,
    /// Each batch waits for a tenth of the objective.
    Tenth,
    /// Each batch waits for two fifths of the objective.
    Part,
    /// Each batch waits until one more task would not fit.
    Frontrun,
}

impl Alternative {
    /// All of them.
    pub const ALL: [Self; 9] = [
        Self::Own,
        Self::Early,
        Self::KeepHeads,
        Self::AtOnce,
        Self::PassOver,
        Self::Fill,
        Self::Tenth,
        Self::Part,
        Self::Frontrun,
    ];

    /// What they answer.
    pub const fn rules(self) -> Rules {
        match self {
            Self::Own => baton::RULES,
            Self::Early => Rules { spares_losing: false, ..baton::RULES },
            Self::KeepHeads => Rules { floor: Floor::One, ..baton::RULES },
            Self::AtOnce => AT_ONCE,
            Self::PassOver => Rules { floor: Floor::One, passes_over: true, ..AT_ONCE },
            Self::Fill => symphony::RULES,
            Self::Tenth => Rules { deferral: Deferral::Tenths(1), ..GATHERED },
            Self::Part => Rules { deferral: Deferral::Tenths(4), ..GATHERED },
            Self::Frontrun => Rules { deferral: Deferral::Frontrun, ..GATHERED },
        }
    }

    /// As `status` and `explain` write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Early => "early",
            Self::KeepHeads => "keep_heads",
            Self::AtOnce => "at_once",
            Self::PassOver => "pass_over",
            Self::Fill => "fill",
            Self::Tenth => "tenth",
            Self::Part => "part",
            Self::Frontrun => "frontrun",
        }
    }
}
