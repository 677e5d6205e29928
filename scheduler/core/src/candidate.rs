//! What ModelState and RankState tell each other.

use crate::execution::slowdown::{Pace, Slowdown};
use crate::rank::{PARTS_OF_SLOT, SlotPart};
use baton_types::{GpuId, Nanos};

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
    /// Of the tasks of the last seconds those given up, in 1/65536: such a model goes first. While a slot
    /// has the weights, without those lost for want of them. Zero under policies that do not look at it.
    pub bad_rate: u32,
    /// From the grant to the earliest start: plan delivery and fetching (App. C, `delay(bs)`).
    pub delay: Nanos,
    /// Until then the batch waits for what may be worth more than its start: frontrun, less jitter and
    /// [`Grant::slot_wait`]. Given up then, the claim of others leaves it time to find a slot.
    pub latest: Nanos,
    /// ℓ(batch): for how long the batch would have its slot.
    pub latency: Nanos,
    /// ℓ(1).
    pub alone: Nanos,
    /// How long a lone task of the model may wait for a slot. Zero under policies that keep no slots
    /// for other models and never yield.
    pub slack: Nanos,
    /// How much more the model's demand varies than that of Poisson arrivals, in 1/16: the index of
    /// dispersion of its arrivals. At least 16.
    pub dispersion: u16,
    /// How much more GPU time each task takes than in a batch of the target size, in 1/96 of the
    /// latter, at most [`Candidate::EXCESS_MAX`]; [`Candidate::NOT_EARLY`] if the batch must not start
    /// before `exec_at`.
    pub excess: u16,
    /// Tasks that may follow at once, as far as is known, at most [`Candidate::RUN_MAX`]. Zero if none
    /// is waited for.
    pub run: u16,
}

impl Candidate {
    /// See [`Candidate::excess`].
    pub const NOT_EARLY: u16 = 2047;

    /// [`Candidate::excess`] of tasks that take twice the time.
    pub const EXCESS_ONE: u64 = 96;

    /// [`Candidate::excess`] of a model with variants: while its head can wait, it takes no more slots than the others
    /// leave it ([`Grant::spare`]).
    pub const WITHIN_SPARE: u16 = Self::NOT_EARLY - 1;

    /// [`Candidate::excess`] of a batch to which no task is expected to be added while it waits: it becomes no cheaper.
    pub const COMPLETE: u16 = Self::WITHIN_SPARE - 1;

    /// The largest [`Candidate::excess`].
    pub const EXCESS_MAX: u16 = Self::COMPLETE - 1;

    /// The largest [`Candidate::run`]; longer runs count as this long.
    pub const RUN_MAX: u16 = 1023;

    /// From when on a slot may be granted although waiting longer could enlarge the batch.
    pub fn due(&self) -> Nanos {
        self.exec_at - self.delay
    }

    /// Whether its head would be in time on a slot that is free by `free_at` and executes for so long.
    pub(crate) fn is_in_time(&self, now: Nanos, free_at: Nanos, takes: Nanos) -> bool {
        (now + self.delay).max(free_at) + takes <= self.invalid_after + self.latency
    }

    /// Until when it may be kept from slots that shorter objectives need.
    pub(crate) fn yields_until(&self) -> Nanos {
        self.latest - self.delay
    }
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
    /// For how long its backend's port still fetches what was planned before; zero if it has none.
    pub port_wait: Nanos,
    /// How much longer than usual it takes.
    pub slowdown: Slowdown,
    /// For how long the model's next batches may find no slot because of other models': a batch that
    /// waits is due so long before the last moment.
    pub slot_wait: Nanos,
    /// No batch of the model that is longer leaves time for shorter objectives, which share the only
    /// slot; [`Nanos::MAX`] if it need not. A multiple of 1,024 ns.
    pub longest: Nanos,
    /// How many slots of the sub-cluster the model may have for longer than its tasks need, the granted one included;
    /// 0 if other models may need this one.
    pub spare: u32,
    /// Where that is 0: the part of a slot that they do not need.
    pub part: SlotPart,
    /// Other models leave this one fewer slots than its own tasks need. Its batches then wait as if it had no variants.
    pub is_short_of_slots: bool,
    /// Other models lose tasks, and one of them waits for a slot while none is idle.
    pub others_lose: bool,
}

impl Grant {
    /// What the model may have for longer than its tasks need, in 1/32 slots.
    pub(crate) fn spare_parts(&self) -> u32 {
        if self.spare > 0 { self.spare.saturating_mul(PARTS_OF_SLOT) } else { self.part.in_32nds() }
    }
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
        /// What its tasks would take of a slot in an efficient batch.
        work: Nanos,
        /// When its inputs should be there, not after `start`; `None` while that is not known.
        fetched_at: Option<Nanos>,
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
        /// Its execution beside the prediction; `None` if it was not measured.
        pace: Option<Pace>,
        /// When its inputs were there, scheduler clock; `None` if that was not measured.
        fetched_at: Option<Nanos>,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_inputs_way_counts_before_both_ends_of_a_wait() {
        let candidate = Candidate {
            batch: 1,
            exec_at: Nanos(50),
            invalid_after: Nanos(100),
            urgency: Nanos(100),
            bad_rate: 0,
            delay: Nanos(7),
            latest: Nanos(90),
            latency: Nanos(9),
            alone: Nanos(9),
            slack: Nanos(0),
            dispersion: 16,
            excess: 0,
            run: 0,
        };
        assert_eq!((candidate.due(), candidate.yields_until()), (Nanos(43), Nanos(83)));
    }
}
