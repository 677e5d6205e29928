//! What the scheduler knows of a task.

use crate::ids::TaskId;
use crate::time::Nanos;

/// A waiting task.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Request {
    /// Which task.
    pub task: TaskId,
    /// When its execution must have ended: the application's deadline less the way back.
    pub deadline: Nanos,
    /// When it came to the scheduler. For accounts alone: no decision depends on it.
    pub arrived: Nanos,
    /// What the application says of its cost.
    pub cost: CostHint,
    /// Bytes of its input: what the backend reads.
    pub input_bytes: u32,
    /// How often the answers of the variant that executes it must be right, in 1/100,000. 0: any variant will do. Means nothing
    /// for a model without variants.
    pub accuracy_min: u32,
}

impl Request {
    /// A task of which nothing more is known.
    pub const fn new(task: TaskId, deadline: Nanos) -> Self {
        let (arrived, accuracy_min) = (Nanos::ZERO, 0);
        Self { task, deadline, arrived, cost: CostHint::NONE, input_bytes: 0, accuracy_min }
    }
}

/// What an application says of a task's cost before it runs, for models whose execution time depends on the input
/// (ORLOJ §3): nothing, a number of units such as tokens, or a class that its model defines.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub struct CostHint(u32);

/// Set where the rest of the number is a class.
const CLASS: u32 = 1 << 31;

impl CostHint {
    /// Nothing is known.
    pub const NONE: Self = Self(0);

    /// The largest number of units, and the largest class.
    pub const MAX: u32 = CLASS - 1;

    /// Units of work, such as tokens; 0 says nothing. More than [`CostHint::MAX`] counts as that.
    pub const fn of_units(units: u32) -> Self {
        Self(if units < CLASS { units } else { Self::MAX })
    }

    /// A class of the model's. A number above [`CostHint::MAX`] counts as that.
    pub const fn of_class(class: u32) -> Self {
        Self(CLASS | if class < CLASS { class } else { Self::MAX })
    }

    /// As it travels.
    pub const fn from_bits(bits: u32) -> Self {
        Self(bits)
    }

    /// As it travels.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// The units, if it says so.
    pub const fn units(self) -> Option<u32> {
        if self.0 == 0 || self.0 & CLASS != 0 { None } else { Some(self.0) }
    }

    /// The class, if it says so.
    pub const fn class(self) -> Option<u32> {
        if self.0 & CLASS == 0 { None } else { Some(self.0 & Self::MAX) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hint_says_nothing_units_or_a_class() {
        let said = |hint: CostHint| (hint.units(), hint.class());
        assert_eq!(said(CostHint::NONE), (None, None));
        assert_eq!(said(CostHint::of_units(0)), (None, None));
        assert_eq!(said(CostHint::of_units(512)), (Some(512), None));
        for many in [CostHint::MAX, CostHint::MAX + 1, u32::MAX] {
            assert_eq!(said(CostHint::of_units(many)), (Some(CostHint::MAX), None));
            assert_eq!(said(CostHint::of_class(many)), (None, Some(CostHint::MAX)));
        }
        assert_eq!(said(CostHint::of_class(0)), (None, Some(0)));
        let hint = CostHint::of_class(7);
        assert_eq!(CostHint::from_bits(hint.bits()), hint);
    }
}
