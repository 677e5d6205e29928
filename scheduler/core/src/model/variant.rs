//! Which variant of a model executes a batch: the accuracy that the time allows.
//!
//! The batch is formed with the cheapest variant, as if there were no other: nothing else in the scheduler knows of
//! variants. When it is sealed, a [`Choice`] gives it the variant. Ours, *queue-fit*, asks how long the queue is; the
//! others are those of *SuperServe* (§4.2, A.5), which ask how much time the head has left. O(log F · q/B) for F
//! variants and q waiting tasks in batches of B.

use super::ModelState;
use crate::candidate::Grant;
use crate::execution::latency::Latency;
use crate::execution::prediction::{BatchShape, ExecutionModel};
use crate::model::formation::{self, Horizon, Window};
use crate::model::queue::DeadlineQueue;
use crate::model::rate::Rate;
use crate::rank::PARTS_OF_SLOT;
use baton_types::{Nanos, Variants};

/// How the variant of a batch is chosen.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Choice {
    /// The most accurate with which the batch, everything behind it and what comes meanwhile end in time.
    #[default]
    QueueFit,
    /// SuperServe's: of all pairs of a variant and a size 2ⁿ, the largest size among those whose ℓ is in the last
    /// bucket of this width that lies below the head's slack (§4.2).
    SlackFit {
        /// Of a bucket; above zero.
        width: Nanos,
    },
    /// The most accurate with which the head ends in time if it is alone, and as many tasks as that allows (A.5).
    MaxAccuracy,
    /// As many tasks as the cheapest allows, and the most accurate with which these end in time (A.5).
    MaxBatch,
}

impl ModelState {
    /// The same model with several variants, of which ℓ(b) of the cheapest replaces the profile. Its batches do not wait
    /// for more tasks: a slot that is idle is better spent on accuracy.
    pub fn with_variants(mut self, variants: &Variants, choice: Choice) -> Self {
        debug_assert!(self.candidate.is_none(), "nothing is published yet");
        self.sizing.set_variants(variants);
        self.choice = choice;
        self.accuracies = variants.all().iter().map(|variant| variant.accuracy).collect();
        if self.variants() > 1 {
            self.queue.keep_floors();
        }
        self
    }

    /// Variants of the model: 1 if it has none.
    pub fn variants(&self) -> u16 {
        self.sizing.execution.variants()
    }

    /// How many of the window's tasks the batch gets, and the variant that executes it.
    pub(super) fn choose(&self, now: Nanos, grant: &Grant, window: Window) -> (Window, u16) {
        if self.variants() == 1 {
            return (window, 0);
        }
        let horizon = self.horizon(now, Some(grant));
        let offer = Offer {
            queue: &self.queue,
            execution: &self.sizing.execution,
            horizon,
            grant,
            parts: if self.sizing.spending.has_spare() { grant.spare_parts() } else { 0 },
            rate: self.sizing.rate.rate(),
            objective: self.sizing.slo - self.network.response,
            window,
            floor: self.queue.floor(window.head, window.batch as usize),
            deadline: self.queue.deadline(window.head),
        };
        let (batch, variant) = match self.choice {
            Choice::QueueFit => offer.queue_fit(),
            Choice::SlackFit { width } => offer.slack_fit(width),
            Choice::MaxAccuracy => offer.max_accuracy(),
            Choice::MaxBatch => (window.batch, offer.most_accurate(window.batch)),
        };
        debug_assert!((1..=window.batch).contains(&batch), "a part of the window");
        (Window { batch, ..window }, variant)
    }
}

/// A granted slot, and what could run there.
struct Offer<'a> {
    queue: &'a DeadlineQueue,
    execution: &'a ExecutionModel,
    /// With the cheapest variant.
    horizon: Horizon<'a>,
    grant: &'a Grant,
    /// Slots that may be kept for accuracy, the granted one included, in 1/32.
    parts: u32,
    /// At which tasks come, once that is known.
    rate: Option<Rate>,
    /// From a task's arrival to its deadline.
    objective: Nanos,
    window: Window,
    /// The cheapest variant that suits all of the window's tasks.
    floor: u16,
    /// The head's.
    deadline: Nanos,
}

/// Tasks that are expected.
struct Coming {
    /// The first that has no place in a batch behind those that wait.
    first: u64,
    all: u64,
    /// From now on, evenly spaced.
    within: Nanos,
}

/// How often one of these slots becomes free if each is taken for so long.
fn spaced(time: Nanos, parts: u32) -> Nanos {
    Nanos(time.0 * u64::from(PARTS_OF_SLOT) / u64::from(parts))
}

impl Offer<'_> {
    fn latency(&self, variant: u16) -> &Latency {
        self.execution.of_kind(BatchShape { variant, ..BatchShape::of(1) })
    }

    /// ℓ on the granted slot.
    fn takes(&self, variant: u16, batch: u32) -> Nanos {
        self.grant.slowdown.applied(self.latency(variant).of(batch))
    }

    /// Whether a batch with the window's head ends in time.
    fn fits(&self, variant: u16, batch: u32) -> bool {
        self.horizon.start(batch) + self.takes(variant, batch) <= self.deadline
    }

    /// The most accurate variant that does this; if none does, the cheapest that suits the tasks.
    fn best(&self, does: impl Fn(u16) -> bool) -> u16 {
        let top = u32::from(self.execution.variants() - 1);
        formation::largest(self.floor.into(), top, |variant| does(variant as u16)) as u16
    }

    /// The most accurate variant with which a batch of this size ends in time.
    fn most_accurate(&self, batch: u32) -> u16 {
        self.best(|variant| self.fits(variant, batch))
    }

    /// Where other models may need the slot, or the model's own tasks, it is not kept for accuracy. A dear variant gets as many
    /// tasks as end in time with it; the rest of the window waits for the next slot.
    fn queue_fit(&self) -> (u32, u16) {
        let whole = self.window.batch;
        if self.parts == 0 {
            return (whole, self.floor);
        }
        let size = |variant| {
            let fits =
                |&batch: &u32| self.leaves_time(variant, batch) && self.rest_fits(variant, batch);
            self.largest(variant).filter(fits)
        };
        let variant = self.best(|variant| size(variant).is_some());
        (size(variant).unwrap_or(whole), variant)
    }

    /// As many of the window's tasks as end in time with this variant; `None` if not even the head does.
    fn largest(&self, variant: u16) -> Option<u32> {
        let fits = |batch| self.fits(variant, batch);
        fits(1).then(|| formation::largest(1, self.window.batch, fits))
    }

    /// Where the model has its turn on a slot that others need: whether their tasks can wait until the batch ends.
    fn leaves_time(&self, variant: u16, batch: u32) -> bool {
        self.grant.spare > 0 || self.takes(variant, batch) <= self.grant.part.longest()
    }

    /// Whether everything else ends in time if the slots serve it in deadline order with the same variant, or with a dearer
    /// one where tasks ask for it, and become free evenly spaced: what waits behind the window, in full batches, and what is
    /// expected to come until the next slot is free.
    fn rest_fits(&self, variant: u16, batch: u32) -> bool {
        let full = self.latency(variant).batch_max();
        let to_next = spaced(self.takes(variant, batch), self.parts);
        let coming = self.coming_within(to_next);
        let mut joined = 0;
        let mut start = self.horizon.start(batch) + to_next;
        let mut head = self.window.head + batch as usize;
        while head < self.queue.len() {
            let waiting = full.min((self.queue.len() - head) as u32);
            joined = coming.min(u64::from(full - waiting));
            let latency = self.latency(variant.max(self.queue.floor(head, waiting as usize)));
            if start + latency.of(waiting + joined as u32) > self.queue.deadline(head) {
                return false;
            }
            start = start + spaced(latency.of(full), self.parts);
            head += full as usize;
        }
        let arrivals = Coming { first: joined, all: coming, within: to_next };
        arrivals.first == arrivals.all || self.coming_fits(&arrivals, variant, start)
    }

    /// Tasks that are expected to come in this time, to the nearest.
    fn coming_within(&self, time: Nanos) -> u64 {
        self.rate.map_or(0, |rate| rate.arrivals_in(time.times(2)).div_ceil(2))
    }

    /// Whether tasks that come evenly spaced end in time, in batches of a size that the slots can take turns with. Starts and
    /// deadlines are evenly spaced, so the ends of the row decide; the last batch may be a smaller one.
    fn coming_fits(&self, coming: &Coming, variant: u16, start: Nanos) -> bool {
        let latency = self.latency(variant);
        let takes_turns =
            |b: u32| spaced(latency.of(b), self.parts) + latency.of(b) <= self.objective;
        let size = formation::largest(1, latency.batch_max(), takes_turns);
        let turn = spaced(latency.of(size), self.parts);
        let fits = |nth: u64| {
            let before = coming.first + nth * u64::from(size);
            let batch = (coming.all - before).min(u64::from(size)) as u32;
            let arrives = Nanos(coming.within.times(before).0 / coming.all);
            start + turn.times(nth) + latency.of(batch)
                <= self.horizon.now + arrives + self.objective
        };
        let batches = (coming.all - coming.first).div_ceil(u64::from(size));
        [0, batches.saturating_sub(2), batches - 1].into_iter().all(fits)
    }

    fn slack_fit(&self, width: Nanos) -> (u32, u16) {
        let slack = self.deadline - self.horizon.start(1);
        let buckets = slack.0 / width.0.max(1);
        let mut best = None;
        for variant in self.floor..self.execution.variants() {
            for size in self.sizes() {
                let bucket = self.takes(variant, size).0 / width.0.max(1);
                if bucket < buckets {
                    best = best.max(Some((bucket, size, variant)));
                }
            }
        }
        let (size, variant) = best.map_or_else(
            || {
                let fits = |&size: &u32| self.fits(self.floor, size);
                (self.sizes().rev().find(fits).unwrap_or(1), self.floor)
            },
            |(_, size, variant)| (size, variant),
        );
        (size.min(self.window.batch), variant)
    }

    fn max_accuracy(&self) -> (u32, u16) {
        let variant = self.most_accurate(1);
        let batch = formation::largest(1, self.window.batch, |batch| self.fits(variant, batch));
        (batch, variant)
    }

    /// The powers of two up to the largest batch (SuperServe, footnote 4).
    fn sizes(&self) -> impl DoubleEndedIterator<Item = u32> + use<> {
        (0..=self.latency(0).batch_max().ilog2()).map(|log2| 1 << log2)
    }
}
