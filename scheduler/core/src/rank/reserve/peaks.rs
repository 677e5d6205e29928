//! How many batches the models of a sub-cluster have at a time at most.

use super::{CLASSES, deviation_above};

/// A model that batches spaces its batches, so it has hardly more than as many as it keeps slots busy on average, rounded up;
/// one that does not has a standard deviation more. As of its last plan.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Peak {
    /// Of the model's slack.
    pub(super) class: usize,
    /// Faded GPU time of its batches …
    pub(super) busy: u64,
    /// … and the variance of their number at a time, in the same unit.
    pub(super) spread: u64,
    pub(super) batches: u64,
}

impl Peak {
    pub(super) fn new(class: usize, busy: u64, spread: u64) -> Self {
        Self { class, busy, spread, batches: deviation_above(busy, spread) }
    }
}

/// The sums.
#[derive(Clone, Debug)]
pub(super) struct Peaks {
    all: u64,
    busy: [u64; CLASSES],
    spread: [u64; CLASSES],
}

impl Peaks {
    pub(super) const fn new() -> Self {
        Self { all: 0, busy: [0; CLASSES], spread: [0; CLASSES] }
    }

    /// A model's peak has changed.
    pub(super) fn replace(&mut self, before: Peak, after: Peak) {
        debug_assert!(self.busy[before.class] >= before.busy, "it was counted here");
        self.busy[before.class] -= before.busy;
        self.spread[before.class] -= before.spread;
        self.busy[after.class] += after.busy;
        self.spread[after.class] += after.spread;
        self.all = self.all - before.batches + after.batches;
    }

    /// Each model's by itself: any of them may have one batch, however rarely.
    pub(super) fn all(&self) -> u64 {
        self.all
    }

    /// Of the models whose tasks can wait longer, taken as one: of many rare ones hardly two have a batch at a time.
    pub(super) fn above(&self, class: usize) -> u64 {
        let sum = |of: &[u64; CLASSES]| of[class + 1..].iter().sum();
        deviation_above(sum(&self.busy), sum(&self.spread))
    }
}
