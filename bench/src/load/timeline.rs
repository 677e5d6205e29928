//! What became of the tasks that were due in each part of a run, for the curves of a report and to say how sure its
//! figures are.

use baton_core::Nanos;
use hdrhistogram::Histogram;

/// Parts of a run: enough for a spread, few enough for memory.
const PARTS: std::ops::RangeInclusive<f64> = 10.0..=120.0;

/// How a task ended, for its generator.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    /// Answered in time, this long after it was due.
    Good(Nanos),
    /// Answered too late.
    Late(Nanos),
    /// Not answered.
    Lost,
}

/// The tasks that were due in one part.
#[derive(Clone, PartialEq, Default, Debug)]
pub(crate) struct Part {
    pub(crate) submitted: u64,
    pub(crate) good: u64,
    pub(crate) late: u64,
    pub(crate) lost: u64,
    /// Answers of variants, and the sum of these variants' accuracies, per cent.
    accuracies: (u64, f64),
    /// Microseconds, two digits; none before the first answer.
    latency: Option<Histogram<u32>>,
}

impl Part {
    fn record(&mut self, latency: Nanos) {
        let new = || Histogram::new_with_max(3_600_000_000, 2).expect("the bounds are fixed");
        self.latency.get_or_insert_with(new).saturating_record(latency.0 / 1_000);
    }

    /// See [`super::latency::Latency::quantile_ms`].
    pub(crate) fn quantile_ms(&self, q: f64) -> Option<f64> {
        self.latency.as_ref().map(|latency| latency.value_at_quantile(q) as f64 / 1e3)
    }

    /// Of the variants that answered, per cent.
    pub(crate) fn mean_accuracy(&self) -> Option<f64> {
        let (answers, sum) = self.accuracies;
        (answers > 0).then(|| sum / answers as f64)
    }

    /// Share of the tasks that were not answered in time.
    fn bad(&self) -> f64 {
        1.0 - self.good as f64 / self.submitted as f64
    }

    fn merge(&mut self, other: &Self) {
        self.submitted += other.submitted;
        self.good += other.good;
        self.late += other.late;
        self.lost += other.lost;
        self.accuracies.0 += other.accuracies.0;
        self.accuracies.1 += other.accuracies.1;
        match (&mut self.latency, &other.latency) {
            (Some(own), Some(other)) => own.add(other).expect("both have the same bounds"),
            (own @ None, other) => own.clone_from(other),
            (Some(_), None) => {}
        }
    }
}

/// The parts of a run, by when tasks were due.
#[derive(Clone, PartialEq, Debug)]
pub struct Timeline {
    start: Nanos,
    /// Of each part.
    width: Nanos,
    parts: Vec<Part>,
}

impl Timeline {
    /// Of a run that begins at `start` and lasts for `seconds`.
    pub(crate) fn new(start: Nanos, seconds: f64) -> Self {
        let count = seconds.round().clamp(*PARTS.start(), *PARTS.end());
        let width = Nanos::from_millis_f64(seconds * 1e3 / count).max(Nanos(1));
        Self { start, width, parts: vec![Part::default(); count as usize] }
    }

    /// A task was due.
    pub(crate) fn submitted(&mut self, due: Nanos) {
        self.part(due).submitted += 1;
    }

    /// It has ended.
    pub(crate) fn ended(&mut self, due: Nanos, end: End) {
        let part = self.part(due);
        match end {
            End::Good(latency) => {
                part.good += 1;
                part.record(latency);
            }
            End::Late(latency) => {
                part.late += 1;
                part.record(latency);
            }
            End::Lost => part.lost += 1,
        }
    }

    /// A variant of this accuracy, per cent, has answered it.
    pub(crate) fn answered(&mut self, due: Nanos, accuracy: f64) {
        let part = self.part(due);
        part.accuracies.0 += 1;
        part.accuracies.1 += accuracy;
    }

    /// Middle of each part, seconds from the start, and the part.
    pub(crate) fn parts(&self) -> impl Iterator<Item = (f64, &Part)> {
        let middle = |at: usize| (at as f64 + 0.5) * self.seconds();
        self.parts.iter().enumerate().map(move |(at, part)| (middle(at), part))
    }

    /// Of each part.
    pub(crate) fn seconds(&self) -> f64 {
        self.width.as_millis_f64() / 1e3
    }

    /// Standard error of the share of bad tasks, from how it differs between the parts: bursts and pauses make it larger than chance
    /// alone would. `None` where there are fewer than two parts with tasks.
    pub(crate) fn bad_error(&self) -> Option<f64> {
        let used: Vec<&Part> = self.parts.iter().filter(|part| part.submitted > 0).collect();
        let count = used.len() as f64;
        if used.len() < 2 {
            return None;
        }
        let total: u64 = used.iter().map(|part| part.submitted).sum();
        let good: u64 = used.iter().map(|part| part.good).sum();
        let mean = 1.0 - good as f64 / total as f64;
        // Of a ratio: parts count by their tasks.
        let square = |part: &&Part| (part.submitted as f64 * (part.bad() - mean)).powi(2);
        let sum: f64 = used.iter().map(square).sum();
        Some((sum * count / (count - 1.0)).sqrt() / total as f64)
    }

    /// Takes over the counts of another model in the same run.
    pub(crate) fn merge(&mut self, other: &Self) {
        for (own, other) in self.parts.iter_mut().zip(&other.parts) {
            own.merge(other);
        }
    }

    fn part(&mut self, due: Nanos) -> &mut Part {
        let at = ((due - self.start).0 / self.width.0) as usize;
        let last = self.parts.len() - 1;
        &mut self.parts[at.min(last)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Nanos = Nanos::from_millis(500);

    fn due(ms: u64) -> Nanos {
        START + Nanos::from_millis(ms)
    }

    /// Ten parts of a second with a hundred tasks each, of which these numbers are lost.
    fn with_losses(lost: [u64; 10]) -> Timeline {
        let mut timeline = Timeline::new(START, 10.0);
        for (part, lost) in (0..).zip(lost) {
            for task in 0..100 {
                let at = due(1_000 * part + 10 * task);
                timeline.submitted(at);
                let end = if task < lost { End::Lost } else { End::Good(Nanos::from_millis(5)) };
                timeline.ended(at, end);
            }
        }
        timeline
    }

    /// One client may have had no answer where another one has.
    #[test]
    fn what_several_clients_saw_is_seen_in_whatever_order() {
        let answered = with_losses([0; 10]);
        let unanswered = with_losses([100; 10]);
        let [mut one, mut other] = [unanswered.clone(), answered.clone()];
        one.merge(&answered);
        other.merge(&unanswered);
        assert_eq!(one, other);
        let (_, part) = one.parts().next().unwrap();
        assert_eq!((part.submitted, part.good, part.lost), (200, 100, 100));
        assert!(part.quantile_ms(0.5).is_some_and(|ms| (4.9..5.1).contains(&ms)));
    }

    #[test]
    fn tasks_count_in_the_part_in_which_they_were_due() {
        let mut timeline = Timeline::new(START, 20.0);
        for (at, end) in [
            (due(0), End::Good(Nanos::from_millis(5))),
            (due(999), End::Late(Nanos::from_millis(5_000))),
            (due(1_000), End::Lost),
            (due(90_000), End::Good(Nanos::from_millis(7))),
        ] {
            timeline.submitted(at);
            timeline.ended(at, end);
        }
        let counts: Vec<_> = timeline
            .parts()
            .map(|(_, part)| (part.submitted, part.good, part.late, part.lost))
            .collect();
        assert_eq!((counts[0], counts[1]), ((2, 1, 1, 0), (1, 0, 0, 1)));
        assert_eq!((counts.len(), counts[19]), (20, (1, 1, 0, 0)), "what is later is in the last");
        let first = timeline.parts().next().unwrap();
        assert_eq!(first.0, 0.5);
        assert!((4_950.0..5_050.0).contains(&first.1.quantile_ms(1.0).unwrap()));
    }

    #[test]
    fn losses_that_come_together_make_the_share_less_sure() {
        let even = with_losses([5; 10]).bad_error().unwrap();
        let together = with_losses([50, 0, 0, 0, 0, 0, 0, 0, 0, 0]).bad_error().unwrap();
        assert!(even < 1e-9, "{even}");
        assert!((together - 0.05).abs() < 1e-9, "{together}");
        assert_eq!(Timeline::new(START, 10.0).bad_error(), None);
    }

    #[test]
    fn models_of_a_run_add_up() {
        let [mut both, mut other] = [with_losses([5; 10]), with_losses([15; 10])];
        both.answered(due(0), 80.0);
        [70.0, 75.0].into_iter().for_each(|accuracy| other.answered(due(0), accuracy));
        both.merge(&other);
        let (_, part) = both.parts().next().unwrap();
        assert_eq!(part.mean_accuracy(), Some(75.0));
        assert_eq!((part.submitted, part.good, part.lost), (200, 180, 20));
        assert_eq!(part.quantile_ms(0.5).map(f64::round), Some(5.0));
    }
}
