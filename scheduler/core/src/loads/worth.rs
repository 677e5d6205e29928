//! How much demand each model has: its tasks, of which older ones count less.

use alloc::boxed::Box;
use alloc::vec;

use baton_types::{ModelId, Nanos};

/// Tasks count e times less after this long: 4 s. With minutes instead, models that were popular would keep their places
/// from those that are; on steady traffic it makes no difference.
const TICKS: u64 = 32;
const TICK: Nanos = Nanos::from_millis(125);
/// What the first task counts.
const ONE: u64 = 1 << 20;
/// When a task counts this much, all counts are scaled down.
const MOST: u64 = 1 << 36;

/// Sums to which new tasks add ever more, instead of old ones ever less: between two tasks of a model nothing is to be done.
#[derive(Clone, Debug)]
pub(super) struct Worth {
    sums: Box<[u64]>,
    /// What a task counts now.
    each: u64,
    /// When that rises.
    next: Nanos,
}

impl Worth {
    pub(super) fn new(models: usize) -> Self {
        Self { sums: vec![0; models].into_boxed_slice(), each: ONE, next: TICK }
    }

    /// Tasks of the model have come.
    pub(super) fn add(&mut self, now: Nanos, model: ModelId, tasks: u32) {
        while self.next <= now {
            self.next = self.next + TICK;
            self.each += self.each / TICKS;
            if self.each > MOST {
                self.scale_down();
            }
        }
        let sum = &mut self.sums[model.0 as usize];
        *sum = sum.saturating_add(self.each.saturating_mul(tasks.into()));
    }

    fn scale_down(&mut self) {
        self.each /= MOST / ONE;
        self.sums.iter_mut().for_each(|sum| *sum /= MOST / ONE);
    }

    /// Comparable between models at one moment.
    pub(super) fn of(&self, model: ModelId) -> u64 {
        self.sums[model.0 as usize]
    }

    /// The model's number is another's now.
    pub(super) fn forget(&mut self, model: ModelId) {
        self.sums[model.0 as usize] = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Nanos = Nanos::from_millis(1_000);

    #[test]
    fn a_task_counts_e_times_less_after_four_seconds() {
        let mut worth = Worth::new(2);
        worth.add(S, ModelId(0), 100);
        worth.add(S.times(5), ModelId(1), 100);
        let ratio = worth.of(ModelId(1)) as f64 / worth.of(ModelId(0)) as f64;
        assert!((2.5..2.9).contains(&ratio), "{ratio}");
    }

    #[test]
    fn hours_do_not_make_the_sums_overflow() {
        let mut worth = Worth::new(2);
        for second in 0..20_000 {
            worth.add(S.times(second), ModelId(0), 1_000_000);
            worth.add(S.times(second), ModelId(1), 500_000);
        }
        let ratio = worth.of(ModelId(0)) as f64 / worth.of(ModelId(1)) as f64;
        assert!((1.99..2.01).contains(&ratio), "{ratio}");
    }
}
