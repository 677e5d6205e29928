//! The choices that vary between scheduling policies. An enum over small pure pieces: a policy is
//! data to `ModelState`, which has one code path.

/// How tasks are batched and when a batch may start.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum Policy {
    /// Ours: a batch waits while the tasks still to come are worth the wait, and gives heads up
    /// only for a batch that is worth them. See `docs/scheduling.md`.
    #[default]
    Baton,
    /// Deferred, non-work-conserving batching (Symphony §4.3): window formation, schedulable once
    /// βλ tasks wait or the frontrun moment has come.
    Symphony,
    /// Work-conserving: whatever can run together with the head is schedulable at once.
    Eager,
}

/// What a policy that waits does with GPUs that are idle.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
pub enum Prefer {
    /// Batches start at once while there are slots to spare.
    #[default]
    Latency,
    /// Batches wait for as long as waiting makes them larger, so that load gathers on few slots
    /// (Symphony §4.4).
    FewestGpus,
}

/// The batch size that heads are given up for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Floor {
    /// The smallest that costs hardly more per task than the target: see [`WORTH_DROPPING`].
    Efficient,
    /// The target itself.
    Target,
    /// None: the head always runs, with as many after it as its deadline allows.
    One,
}

/// Until when a candidate waits although a slot is idle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Deferral {
    /// While more tasks are expected before frontrun than the batch's patience.
    Expectation,
    /// Until βλ tasks wait, at most until frontrun.
    Fill,
    /// Not at all.
    None,
}

/// What competing candidates are ordered by.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// The latest start, advanced by the model's bad rate.
    LatestStart,
    /// The frontrun moment, dl − ℓ(b + 1).
    Frontrun,
}

/// Heads are not given up for a batch unless the smaller one's tasks cost 1/12 more GPU time each.
pub const WORTH_DROPPING: u64 = 12;

/// A batch does not wait for tasks unless without them each costs 1/16 more GPU time.
pub const WORTH_WAITING: u64 = 16;

impl Policy {
    /// For which batch size heads are given up.
    pub const fn floor(self) -> Floor {
        match self {
            Self::Baton => Floor::Efficient,
            Self::Symphony => Floor::Target,
            Self::Eager => Floor::One,
        }
    }

    /// Until when a candidate waits.
    pub const fn deferral(self) -> Deferral {
        match self {
            Self::Baton => Deferral::Expectation,
            Self::Symphony => Deferral::Fill,
            Self::Eager => Deferral::None,
        }
    }

    /// Whether batches leave slots to models with shorter objectives.
    pub const fn yields(self) -> bool {
        matches!(self, Self::Baton)
    }

    /// Which of several candidates a slot takes.
    pub const fn order(self) -> Order {
        match self {
            Self::Baton => Order::LatestStart,
            Self::Symphony | Self::Eager => Order::Frontrun,
        }
    }
}
