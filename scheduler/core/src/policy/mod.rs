//! Scheduling policies: what varies between them.
//!
//! `ModelState` and `RankState` have one code path. A policy is data to them: a [`Rules`] in a file of its own, and
//! one line of [`Rules::of`]. Its name is in `types/src/policy.rs`. `alternatives.rs` has the rules that `baton` may
//! take instead of its own where it loses tasks.

mod alternatives;
mod baton;
mod eager;
pub(crate) mod patience;
mod symphony;

use baton_types::Policy;

pub use alternatives::Alternative;

/// A policy's answers to the questions that are asked of each.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Rules {
    /// For which batch size are heads given up?
    pub floor: Floor,
    /// Does a larger batch of those behind the head go first if it must start first? The head then waits on.
    pub passes_over: bool,
    /// Until when does a candidate wait?
    pub deferral: Deferral,
    /// Do batches start early while slots are to spare, and leave slots to models with shorter objectives?
    pub yields: bool,
    /// Which of several due candidates does a slot take?
    pub order: Order,
    /// Is no batch larger than makes its tasks clearly cheaper (see [`WORTH_WAITING`])? Other models have their turn sooner.
    pub splits: bool,
}

/// The batch size that heads are given up for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Floor {
    /// The smallest that costs hardly more per task than the target: see [`WORTH_DROPPING`].
    Efficient,
    /// The target itself.
    Target,
    /// The same without the head's own gap, (b − 1)/λ + ℓ(b) ≤ SLO: the largest that a head can wait for.
    Gathered,
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
    /// Until frontrun.
    Frontrun,
    /// Until the head has waited for this many tenths of the objective, at most until frontrun.
    Tenths(u8),
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

impl Rules {
    /// Those of a policy.
    pub const fn of(policy: Policy) -> Self {
        match policy {
            Policy::Baton => baton::RULES,
            Policy::Symphony => symphony::RULES,
            Policy::Eager => eager::RULES,
        }
    }
}
