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
    /// As its own, but no head is given up for a larger batch.
    KeepHeads,
    /// Batches that are large enough start at once, and leave no slot to others.
    AtOnce,
    /// The same, but no head is given up: it waits on while a larger batch of those behind it goes first, if that must
    /// start first, as Clockwork's strategies do (§5.3).
    PassOver,
    /// As its own, but no batch is larger than makes its tasks clearly cheaper, so that others have their turn sooner.
    Split,
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
        Self::KeepHeads,
        Self::AtOnce,
        Self::PassOver,
        Self::Split,
        Self::Fill,
        Self::Tenth,
        Self::Part,
        Self::Frontrun,
    ];

    /// What they answer.
    pub const fn rules(self) -> Rules {
        match self {
            Self::Own => baton::RULES,
            Self::KeepHeads => Rules { floor: Floor::One, ..baton::RULES },
            Self::AtOnce => AT_ONCE,
            Self::PassOver => Rules { floor: Floor::One, passes_over: true, ..AT_ONCE },
            Self::Split => Rules { splits: true, ..baton::RULES },
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
            Self::KeepHeads => "keep_heads",
            Self::AtOnce => "at_once",
            Self::PassOver => "pass_over",
            Self::Split => "split",
            Self::Fill => "fill",
            Self::Tenth => "tenth",
            Self::Part => "part",
            Self::Frontrun => "frontrun",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What each of them is tried for; the rest is as in the rules that it comes from.
    #[test]
    fn each_differs_from_where_it_comes_from_by_what_it_is_tried_for() {
        use Alternative::{AtOnce, Frontrun, KeepHeads, Own, Part, PassOver, Split, Tenth};
        let of = Alternative::rules;
        assert_eq!(of(KeepHeads), Rules { floor: Floor::One, ..of(Own) });
        assert_eq!(of(Split), Rules { splits: true, ..of(Own) });
        assert_eq!((of(AtOnce).deferral, of(AtOnce).yields), (Deferral::None, false));
        let pass_over = (of(PassOver).floor, of(PassOver).passes_over);
        assert_eq!(pass_over, (Floor::One, true));
        let tried = [Tenth, Part, Frontrun].map(|alternative| of(alternative).deferral);
        assert_eq!(tried, [Deferral::Tenths(1), Deferral::Tenths(4), Deferral::Frontrun]);
        for one in Alternative::ALL {
            let same = Alternative::ALL.into_iter().filter(|other| of(*other) == of(one));
            assert_eq!(same.count(), 1, "{one:?}");
        }
    }

    #[test]
    fn each_is_named_like_itself() {
        for one in Alternative::ALL {
            let camel = alloc::format!("{one:?}").to_lowercase();
            assert_eq!(one.name().replace('_', ""), camel);
        }
    }
}
