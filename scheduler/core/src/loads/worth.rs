//! How much demand each model has: its tasks, of which older ones count less, and all of them once none has come for long.

use alloc::boxed::Box;
use alloc::vec;

use baton_types::{ModelId, Nanos};

/// Tasks count e times less after this long: 4 s. With minutes instead, models that were popular would keep their places
/// from those that are; on steady traffic it makes no difference.
const TICKS: u64 = 32;
const TICK: Nanos = Nanos::from_millis(125);
/// The time in which as many tasks come as a model's count says.
pub(super) const SPAN: Nanos = Nanos(TICKS * TICK.0);
/// A model without a task for a while has no rate at which more than this many were to come in that while. By Poisson, one model
/// in twenty would be wronged.
const MISSED: u64 = 3;
/// What the first task counts.
const ONE: u64 = 1 << 20;
/// When a task counts this much, all counts are scaled down.
const MOST: u64 = 1 << 36;

/// Sums to which new tasks add ever more, instead of old ones ever less: between two tasks of a model nothing is to be done.
#[derive(Clone, Debug)]
pub(super) struct Worth {
    sums: Box<[u64]>,
    /// When the latest task of each model came, and of all.
    last: Box<[Nanos]>,
    now: Nanos,
    /// What a task counts now.
    each: u64,
    /// When that rises.
    next: Nanos,
}

impl Worth {
    pub(super) fn new(models: usize) -> Self {
        Self {
            sums: vec![0; models].into_boxed_slice(),
            last: vec![Nanos::ZERO; models].into_boxed_slice(),
            now: Nanos::ZERO,
            each: ONE,
            next: TICK,
        }
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
        self.now = now;
        self.last[model.0 as usize] = now;
        let sum = &mut self.sums[model.0 as usize];
        *sum = sum.saturating_add(self.each.saturating_mul(tasks.into()));
    }

    fn scale_down(&mut self) {
        self.each /= MOST / ONE;
        self.sums.iter_mut().for_each(|sum| *sum /= MOST / ONE);
    }

    /// What comes in [`SPAN`], if it goes on like this. Comparable between models at one moment.
    pub(super) fn of(&self, model: ModelId) -> u64 {
        let gap = self.now - self.last[model.0 as usize];
        // 65 µs are near enough, and keep the product in range.
        let most = self.each * MISSED * (SPAN.0 >> 16) / (gap.0 >> 16).max(1);
        self.sum(model).min(most)
    }

    /// The same, whenever the latest task came.
    pub(super) fn sum(&self, model: ModelId) -> u64 {
        self.sums[model.0 as usize]
    }

    /// That many tasks, as they count now.
    pub(super) fn tasks(&self, tasks: u64) -> u64 {
        self.each.saturating_mul(tasks)
    }

    /// How many tasks that come now count as much as the sum.
    pub(super) fn sum_in_tasks(&self, model: ModelId) -> u64 {
        self.sum(model) / self.each
    }

    /// The model's number is another's now.
    pub(super) fn forget(&mut self, model: ModelId) {
        self.sums[model.0 as usize] = 0;
        self.last[model.0 as usize] = Nanos::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Nanos = Nanos::from_millis(1_000);

    #[test]
    fn a_model_is_worth_nothing_for_what_came_to_the_one_before() {
        let mut worth = Worth::new(2);
        [0, 1].into_iter().for_each(|model| worth.add(S, ModelId(model), 100));
        worth.forget(ModelId(0));
        assert_eq!([0, 1].map(|model| worth.sum_in_tasks(ModelId(model))), [0, 100]);
        worth.add(S, ModelId(0), 7);
        assert_eq!(worth.sum_in_tasks(ModelId(0)), 7);
    }

    #[test]
    fn a_task_counts_e_times_less_after_four_seconds() {
        let mut worth = Worth::new(2);
        worth.add(S, ModelId(0), 100);
        worth.add(S.times(5), ModelId(1), 100);
        let ratio = worth.sum(ModelId(1)) as f64 / worth.sum(ModelId(0)) as f64;
        assert!((2.5..2.9).contains(&ratio), "{ratio}");
    }

    /// Eight tasks a second for four seconds, and then none for two: one and a half a second at most.
    #[test]
    fn a_model_whose_tasks_stop_is_worth_what_its_silence_allows() {
        let mut worth = Worth::new(2);
        let eighth = Nanos::from_millis(125);
        (0..32).for_each(|at| worth.add(eighth.times(at), ModelId(0), 1));
        let before = worth.of(ModelId(0));
        assert_eq!(before, worth.sum(ModelId(0)), "no task is missed yet");
        worth.add(eighth.times(31) + S.times(2), ModelId(1), 1);
        assert!(worth.of(ModelId(0)).abs_diff(worth.tasks(6)) < worth.tasks(1) / 100);
        assert!(worth.sum(ModelId(0)) > worth.tasks(10));
        worth.add(eighth.times(32) + S.times(2), ModelId(0), 1);
        assert_eq!(worth.of(ModelId(0)), worth.sum(ModelId(0)), "it is back");
    }

    /// The counts are scaled down every 45 s.
    #[test]
    fn steady_traffic_stays_worth_the_same_for_minutes() {
        let mut worth = Worth::new(1);
        for tenth in 0..3_000 {
            worth.add(Nanos::from_millis(100).times(tenth), ModelId(0), 10);
            let tasks = worth.sum_in_tasks(ModelId(0));
            assert!(tenth < 300 || (395..=420).contains(&tasks), "{tasks} after {tenth}");
        }
    }

    #[test]
    fn hours_do_not_make_the_sums_overflow() {
        let mut worth = Worth::new(2);
        for second in 0..20_000 {
            worth.add(S.times(second), ModelId(0), 1_000_000);
            worth.add(S.times(second), ModelId(1), 500_000);
        }
        let ratio = worth.sum(ModelId(0)) as f64 / worth.sum(ModelId(1)) as f64;
        assert!((1.99..2.01).contains(&ratio), "{ratio}");
    }
}
