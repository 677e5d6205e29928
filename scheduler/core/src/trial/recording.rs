//! Arrivals for a trial.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use baton_types::{ModelId, Nanos};

/// Arrivals are recorded for no longer than this.
const LONGEST: Nanos = Nanos::from_millis(10_000);
/// Of the latest tasks, this number is known before a recording begins.
const LATEST: usize = 512;

/// How many tasks a recording should have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Enough {
    /// These are enough, if the recording has lasted …
    pub tasks: usize,
    /// … for so long.
    pub lasts: Nanos,
    /// There are never more.
    pub most: usize,
    /// What came from this moment on counts, as far as it is known: see [`Recent`].
    pub since: Nanos,
}

impl Enough {
    /// The part of each of several threads that record.
    pub fn split(self, threads: usize) -> Self {
        let part = |tasks: usize| tasks.div_ceil(threads);
        Self { tasks: part(self.tasks), most: part(self.most).max(LATEST), ..self }
    }
}

/// A task that came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recorded {
    /// When.
    pub at: Nanos,
    /// For which model.
    pub model: ModelId,
    /// Its deadline less that.
    pub budget: Nanos,
}

/// The latest tasks that came, so that a trial need not wait for others where tasks are rare. Allocates once.
#[derive(Clone, Debug)]
pub struct Recent {
    tasks: VecDeque<Recorded>,
}

impl Recent {
    /// A task came.
    #[inline]
    pub fn arrived(&mut self, task: Recorded) {
        if self.tasks.len() == LATEST {
            self.tasks.pop_front();
        }
        self.tasks.push_back(task);
    }

    /// What came from this moment on is known.
    fn known_from(&self) -> Nanos {
        let oldest = self.tasks.front().filter(|_| self.tasks.len() == LATEST);
        oldest.map_or(Nanos::ZERO, |task| task.at + Nanos(1))
    }
}

/// Nothing has come.
impl Default for Recent {
    fn default() -> Self {
        Self { tasks: VecDeque::with_capacity(LATEST) }
    }
}

/// The tasks that come from some moment on, until there are enough. Allocates once.
#[derive(Clone, Debug)]
pub struct Recording {
    arrivals: Vec<Recorded>,
    enough: Enough,
    from: Nanos,
}

/// A recording that is over: all that came in a span.
#[derive(Clone, Debug)]
pub struct Record {
    /// In order of time.
    pub arrivals: Vec<Recorded>,
    /// The span's first moment.
    pub from: Nanos,
    /// The first one after it.
    pub until: Nanos,
}

impl Recording {
    /// Records what comes from now on for these models, and what is known of before. It lasts for ten seconds at most, or is over
    /// at once if more are known.
    pub fn new(
        now: Nanos,
        enough: Enough,
        recent: &Recent,
        is_of: impl Fn(ModelId) -> bool,
    ) -> Self {
        let from = enough.since.max(recent.known_from()).min(now);
        let mut arrivals = Vec::with_capacity(enough.most);
        let counts = |task: &&Recorded| task.at >= from && is_of(task.model);
        arrivals.extend(recent.tasks.iter().filter(counts));
        Self { arrivals, enough, from }
    }

    /// A task came. False if it is not recorded: the recording is over, and must end at this moment.
    pub fn arrived(&mut self, task: Recorded) -> bool {
        let is_recorded = !self.is_over(task.at);
        if is_recorded {
            self.arrivals.push(task);
        }
        is_recorded
    }

    /// There are enough.
    pub fn is_over(&self, now: Nanos) -> bool {
        let (came, lasts) = (self.arrivals.len(), now - self.from);
        came >= self.enough.most
            || lasts >= LONGEST
            || (came >= self.enough.tasks && lasts >= self.enough.lasts)
    }

    /// What came until now.
    pub fn end(self, now: Nanos) -> Record {
        Record { arrivals: self.arrivals, from: self.from, until: now }
    }
}

impl Record {
    /// What several have of the span that all of them cover; of none, nothing.
    pub(super) fn common(records: Vec<Self>) -> Self {
        let from = records.iter().map(|record| record.from).max().unwrap_or_default();
        let until = records.iter().map(|record| record.until).min().unwrap_or_default();
        let arrivals = records.into_iter().flat_map(|record| record.arrivals);
        let mut arrivals: Vec<Recorded> =
            arrivals.filter(|task| from <= task.at && task.at < until).collect();
        arrivals.sort_by_key(|task| task.at);
        Self { arrivals, from, until }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = Nanos::from_millis(1);

    const ENOUGH: Enough =
        Enough { tasks: 2_000, lasts: MS.times(1_000), most: 16_000, since: Nanos::ZERO };

    fn task(at: Nanos) -> Recorded {
        Recorded { at, model: ModelId(0), budget: MS }
    }

    /// These came, one after the other.
    fn after(tasks: u64, every: Nanos) -> Recent {
        let mut recent = Recent::default();
        (1..=tasks).for_each(|i| recent.arrived(task(every.times(i))));
        recent
    }

    /// Of all models.
    fn recording(now: Nanos, enough: Enough, recent: &Recent) -> Recording {
        Recording::new(now, enough, recent, |_| true)
    }

    /// When the recording is over, of tasks that come this often.
    fn is_over_at(every: Nanos) -> Nanos {
        let mut recording = recording(MS, Enough { since: MS, ..ENOUGH }, &Recent::default());
        let times = (0..).map(|i| MS + every.times(i));
        let mut refused = times.filter(|&at| !recording.arrived(task(at)));
        refused.next().expect("no recording goes on for ever")
    }

    #[test]
    fn enough_tasks_in_a_second_or_very_many_or_what_came_in_ten() {
        assert_eq!(is_over_at(MS), MS.times(2_001), "2,000 take longer than a second");
        assert_eq!(is_over_at(Nanos(100_000)), MS.times(1_001), "2,000 in 0.2 s are not enough");
        assert_eq!(is_over_at(Nanos(10_000)), MS.times(161), "16,000 are");
        assert_eq!(is_over_at(MS.times(10)), MS.times(10_001), "1,000 are all that came");
        assert_eq!(is_over_at(MS.times(500)), MS.times(10_001), "20 are all that came");
    }

    #[test]
    fn what_came_before_counts_as_far_as_it_is_asked_for() {
        let (recent, now) = (after(100, MS), MS.times(105));
        let since = |since| {
            let record = recording(now, Enough { since, ..ENOUGH }, &recent).end(now);
            (record.arrivals.first().copied(), record.arrivals.len(), record.from)
        };
        assert_eq!(since(Nanos::ZERO), (Some(task(MS)), 100, Nanos::ZERO));
        assert_eq!(since(MS.times(41)), (Some(task(MS.times(41))), 60, MS.times(41)));
        assert_eq!(since(now), (None, 0, now));
    }

    #[test]
    fn what_came_since_a_task_that_is_forgotten_is_known() {
        let (more, now) = (LATEST as u64 + 9, MS.times(2_000));
        let record = recording(now, ENOUGH, &after(more, MS)).end(now);
        assert_eq!((record.from, record.arrivals.len()), (MS.times(10) + Nanos(1), LATEST - 1));
        assert!(record.arrivals.is_sorted_by_key(|task| task.at));
    }

    #[test]
    fn of_rare_tasks_no_others_are_waited_for() {
        let recent = after(40, MS.times(300));
        let mut recording = recording(MS.times(12_000), ENOUGH, &recent);
        assert!(!recording.arrived(task(MS.times(12_001))));
        assert_eq!(recording.end(MS.times(12_001)).arrivals.len(), 40);
    }

    #[test]
    fn only_these_models_count() {
        let mut recent = after(3, MS);
        recent.arrived(Recorded { model: ModelId(1), ..task(MS.times(4)) });
        let recording = Recording::new(MS.times(5), ENOUGH, &recent, |model| model.0 == 1);
        assert_eq!(recording.arrivals.len(), 1);
    }

    #[test]
    fn threads_share_what_is_enough() {
        assert_eq!(ENOUGH.split(3), Enough { tasks: 667, most: 5_334, ..ENOUGH });
        assert_eq!(ENOUGH.split(64).most, LATEST, "there is room for what is known");
    }

    #[test]
    fn a_task_is_recorded_with_the_time_that_it_has() {
        let mut recording = recording(MS, ENOUGH, &Recent::default());
        let task = Recorded { at: MS.times(7), model: ModelId(3), budget: MS.times(9) };
        assert!(recording.arrived(task));
        assert_eq!(recording.end(MS.times(9)).arrivals, [task]);
    }
}
