//! Rules that `baton` may take for a while instead of its own: see [`Trial`](crate::Trial).

use super::{Deferral, Floor, Order, Rules, baton, symphony};

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
    /// Those of `symphony`.
    Fill,
    /// Each batch waits for two fifths of the objective.
    Part,
    /// Each batch waits until one more task would not fit.
    Frontrun,
}

impl Alternative {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::Own,
        Self::Early,
        Self::KeepHeads,
        Self::AtOnce,
        Self::Fill,
        Self::Part,
        Self::Frontrun,
    ];

    /// What they answer.
    pub const fn rules(self) -> Rules {
        match self {
            Self::Own => baton::RULES,
            Self::Early => Rules { spares_losing: false, ..baton::RULES },
            Self::KeepHeads => Rules { floor: Floor::One, ..baton::RULES },
            Self::AtOnce => Rules { deferral: Deferral::None, yields: false, ..baton::RULES },
            Self::Fill => symphony::RULES,
            Self::Part => {
                Rules { deferral: Deferral::Part, order: Order::Frontrun, ..symphony::RULES }
            }
            Self::Frontrun => Rules { deferral: Deferral::Frontrun, ..symphony::RULES },
        }
    }

    /// As `status` and `explain` write it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Own => "own",
            Self::Early => "early",
            Self::KeepHeads => "keep_heads",
            Self::AtOnce => "at_once",
            Self::Fill => "fill",
            Self::Part => "part",
            Self::Frontrun => "frontrun",
        }
    }
}
