//! How many batches the models of a sub-cluster have at a time at most.

use super::CLASSES;

/// A model that batches spaces its batches, so it has hardly more than as many as it keeps slots busy on average, rounded up;
/// one that does not has a standard deviation more. As of its last plan.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Peak {
    /// Of the model's slack.
    pub(super) class: usize,
    pub(super) batches: u64,
}

/// The sums.
#[derive(Clone, Debug)]
pub(super) struct Peaks {
    all: u64,
    of_class: [u64; CLASSES],
}

impl Peaks {
    pub(super) const fn new() -> Self {
        Self { all: 0, of_class: [0; CLASSES] }
    }

    /// A model's peak has changed.
    pub(super) fn replace(&mut self, before: Peak, after: Peak) {
        debug_assert!(self.of_class[before.class] >= before.batches, "it was counted here");
        self.of_class[before.class] -= before.batches;
        self.of_class[after.class] += after.batches;
        self.all = self.all - before.batches + after.batches;
    }

    pub(super) fn all(&self) -> u64 {
        self.all
    }

    /// Those of the models whose tasks can wait longer.
    pub(super) fn above(&self, class: usize) -> u64 {
        self.of_class[class + 1..].iter().sum()
    }
}
