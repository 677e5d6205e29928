//! What ModelState and RankState tell each other.

use crate::ids::GpuId;
use crate::time::Nanos;

/// The best batch a model could run next, and its schedulable window
/// [`exec_at`, `invalid_after`] (Symphony App. C). A later candidate supersedes it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Candidate {
    /// Tasks in the batch.
    pub batch: u32,
    /// The execution may start from here on.
    pub exec_at: Nanos,
    /// Started later, the head would miss its deadline.
    pub invalid_after: Nanos,
    /// Among candidates that compete for a slot the earliest wins: the latest start, or when the
    /// batch stops growing (Symphony §4.3, `sched_at` = dl − ℓ(bs + 1)).
    pub urgency: Nanos,
    /// Of the tasks of the last seconds those given up, in 1/65536: such a model goes first. Zero
    /// under policies that do not look at it.
    pub bad_rate: u32,
    /// From the grant to the earliest start: plan delivery and fetching (App. C, `delay(bs)`).
    pub delay: Nanos,
}

/// A GPU slot in one of its lives: a slot number that is handed out again after its backend has
/// gone gets the next `life`, so that late messages about the earlier one are recognised.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Gpu {
    /// The slot.
    pub id: GpuId,
    /// Which of its lives.
    pub life: u32,
}

/// A GPU slot given to a model for one batch. The model answers with a plan or gives it back.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Grant {
    /// The slot.
    pub gpu: Gpu,
    /// When its current batch is expected to end; in the past if it is idle.
    pub free_at: Nanos,
    /// How often a slot of its sub-cluster becomes free under full load.
    pub turn: Nanos,
}

/// What became of a granted slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum GpuUpdate {
    /// A batch was sealed for it: it starts at `start` and takes `latency`.
    Planned {
        /// The slot.
        gpu: Gpu,
        /// Planned start.
        start: Nanos,
        /// Planned ℓ(b).
        latency: Nanos,
    },
    /// The grant found no batch worth running.
    Returned {
        /// The slot.
        gpu: Gpu,
    },
    /// The backend reported the end of a batch.
    Finished {
        /// The slot.
        gpu: Gpu,
        /// Measured end, scheduler clock.
        at: Nanos,
    },
}
