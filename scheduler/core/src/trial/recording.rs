//! Arrivals for a trial.

use alloc::vec::Vec;

use baton_types::{ModelId, Nanos};

/// Arrivals are recorded for no longer than this …
const LONGEST: Nanos = Nanos::from_millis(10_000);
/// … or than this while there are few.
const LONGEST_OF_FEW: Nanos = Nanos::from_millis(60_000);
/// A recording with less than this part of what is never exceeded has few: 512 where that is 16,384.
const FEW: usize = 32;

/// How many tasks a recording should have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Enough {
    /// These are enough, if the recording has lasted …
    pub tasks: usize,
    /// … for so long.
    pub lasts: Nanos,
    /// There are never more.
    pub most: usize,
}

impl Enough {
    /// The part of each of several threads that record.
    pub fn split(self, threads: usize) -> Self {
        let part = |tasks: usize| tasks.div_ceil(threads);
        Self { tasks: part(self.tasks), most: part(self.most), ..self }
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
    /// Records what comes from now on, for ten seconds at most, or a minute while little comes.
    pub fn new(now: Nanos, enough: Enough) -> Self {
        Self { arrivals: Vec::with_capacity(enough.most), enough, from: now }
    }

    /// A task came. False if it is not recorded: the recording is over, and must end at this moment.
    pub fn arrived(&mut self, now: Nanos, model: ModelId, deadline: Nanos) -> bool {
        let is_recorded = !self.is_over(now);
        if is_recorded {
            self.arrivals.push(Recorded { at: now, model, budget: deadline - now });
        }
        is_recorded
    }

    /// There are enough.
    pub fn is_over(&self, now: Nanos) -> bool {
        let (came, lasts) = (self.arrivals.len(), now - self.from);
        let has_few = came < self.enough.most / FEW;
        came >= self.enough.most
            || lasts >= if has_few { LONGEST_OF_FEW } else { LONGEST }
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

    const ENOUGH: Enough = Enough { tasks: 2_000, lasts: Nanos::from_millis(1_000), most: 16_000 };

    /// When the recording is over, of tasks that come this often.
    fn is_over_at(every: Nanos) -> Nanos {
        let mut recording = Recording::new(MS, ENOUGH);
        let times = (0..).map(|i| MS + every.times(i));
        let mut refused = times.filter(|&at| !recording.arrived(at, ModelId(0), at + MS));
        refused.next().expect("no recording goes on for ever")
    }

    #[test]
    fn enough_tasks_in_a_second_or_very_many_or_what_came_in_ten_or_in_a_minute() {
        assert_eq!(is_over_at(MS), MS.times(2_001), "2,000 take longer than a second");
        assert_eq!(is_over_at(Nanos(100_000)), MS.times(1_001), "2,000 in 0.2 s are not enough");
        assert_eq!(is_over_at(Nanos(10_000)), MS.times(161), "16,000 are");
        assert_eq!(is_over_at(MS.times(10)), MS.times(10_001), "1,000 are all that came");
        assert_eq!(is_over_at(MS.times(50)), MS.times(25_001), "500 are no longer few");
        assert_eq!(is_over_at(MS.times(500)), MS.times(60_001), "120 are all that came");
    }

    #[test]
    fn threads_share_what_is_enough() {
        assert_eq!(ENOUGH.split(3), Enough { tasks: 667, most: 5_334, ..ENOUGH });
    }

    #[test]
    fn a_task_is_recorded_with_the_time_that_it_has() {
        let mut recording = Recording::new(MS, ENOUGH);
        assert!(recording.arrived(MS.times(7), ModelId(3), MS.times(16)));
        let task = Recorded { at: MS.times(7), model: ModelId(3), budget: MS.times(9) };
        assert_eq!(recording.end(MS.times(9)).arrivals, [task]);
    }
}
