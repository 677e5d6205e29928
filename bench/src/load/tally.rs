//! Counting outcomes, one model at a time.
//!
//! Invariant, once nothing is outstanding: submitted = completed + dropped + failed.

use std::collections::BTreeMap;
use std::time::Duration;

use baton_client::{ModelVariant, Timing};
use baton_core::{DropReason, FailReason, Nanos};
use serde::{Deserialize, Serialize};

use super::inputs::Verdict;
use super::latency::Latency;
use super::timeline::{End, Timeline};

/// A task that its generator deals with this much after it was due was submitted late: this part of the objective, or a
/// millisecond where that is more.
const LATE_PART: f64 = 0.05;

/// Reasons and how often each was given.
pub type Reasons = BTreeMap<String, u64>;

/// One model's outcomes at one load generator, or summed over several.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Tally {
    /// The model's name.
    pub name: String,
    /// The latency objective of its tasks; zero where it is not known, or not the same for all.
    #[serde(default)]
    pub slo_ms: f64,
    /// That of the latest task.
    #[serde(default)]
    pub(crate) objective_ms: f64,
    /// Tasks that arrived; each one counts, submitted in earnest or refused on the spot.
    pub submitted: u64,
    /// Tasks answered, in time or late.
    pub completed: u64,
    /// Of these, after the deadline.
    pub late: u64,
    /// Tasks answered that had waited for a LOAD.
    #[serde(default)]
    pub cold: u64,
    /// The sum of their latencies, ms.
    #[serde(default)]
    pub cold_total_ms: f64,
    /// Tasks dropped, by reason.
    pub dropped: Reasons,
    /// Tasks failed, by reason; among them those refused on the spot.
    pub failed: Reasons,
    /// Answers that are not what the input demands.
    pub wrong_answers: u64,
    /// Answers nothing is known about.
    pub unchecked: u64,
    /// Right answers whose label is known.
    pub labelled: u64,
    /// Of these, with the right label.
    pub label_hits: u64,
    /// Tasks that each variant has answered, by place; empty for a model without any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variants: Vec<VariantTally>,
    /// Batches, as far as this generator's tasks made them up: Σ 1 / batch size.
    pub batches: f64,
    /// From the moment a task was due to arrive until its answer landed.
    pub latency: Latency,
    /// From submit to answer, less the execution of the task's batch.
    pub overhead: Latency,
    /// How late the generator itself was, task by task.
    pub lag: Latency,
    /// Tasks for which it was so late that their latencies are its own as much as the cluster's.
    #[serde(default)]
    pub sent_late: u64,
    /// The same counts by when tasks were due, if the generator keeps them.
    #[serde(skip)]
    pub timeline: Option<Timeline>,
}

/// What a variant has answered.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct VariantTally {
    /// Its name.
    pub name: String,
    /// How many of its answers are right, in per cent, as the cluster file says.
    pub accuracy: f64,
    /// Tasks that it has answered.
    pub tasks: u64,
}

impl Tally {
    /// Counts nothing yet.
    pub fn new(name: &str, slo: Duration) -> Self {
        let slo_ms = slo.as_secs_f64() * 1e3;
        Self { name: name.to_owned(), slo_ms, objective_ms: slo_ms, ..Self::default() }
    }

    /// How long the next task may take, by the scenario or the replay.
    pub(crate) fn asks_for(&mut self, within: Nanos) {
        self.objective_ms = within.as_millis_f64();
        if self.submitted == 0 {
            self.slo_ms = self.objective_ms;
        } else if self.slo_ms != self.objective_ms {
            self.slo_ms = 0.0;
        }
    }

    /// Counts an arrival that was due at `due` and dealt with at `now`.
    pub(crate) fn arrival(&mut self, due: Nanos, now: Nanos) {
        self.submitted += 1;
        self.lag.record(now - due);
        let late_ms = (LATE_PART * self.objective_ms).max(1.0);
        self.sent_late += u64::from((now - due).as_millis_f64() > late_ms);
        if let Some(timeline) = &mut self.timeline {
            timeline.submitted(due);
        }
    }

    /// Keeps the counts by when tasks were due, too.
    pub(crate) fn with_timeline(mut self, start: Nanos, seconds: f64) -> Self {
        self.timeline = Some(Timeline::new(start, seconds));
        self
    }

    /// Marks the end of a task that was due at `due` in the timeline, if there is one.
    fn mark(&mut self, due: Nanos, end: End) {
        if let Some(timeline) = &mut self.timeline {
            timeline.ended(due, end);
        }
    }

    /// Counts a task that was due at `due` and that the scheduler gave up.
    pub(crate) fn drop_for(&mut self, due: Nanos, reason: DropReason) {
        self.shed_for(due, reason.as_str());
    }

    /// Counts a task given up by a server, for a reason in its words.
    pub(crate) fn shed_for(&mut self, due: Nanos, reason: &str) {
        count(&mut self.dropped, reason);
        self.mark(due, End::Lost);
    }

    /// Counts a task that broke.
    pub(crate) fn fail_for(&mut self, due: Nanos, reason: FailReason) {
        self.refuse_for(due, reason.as_str());
    }

    /// Counts a task that failed at the generator, for a reason of its own.
    pub(crate) fn refuse_for(&mut self, due: Nanos, reason: &str) {
        count(&mut self.failed, reason);
        self.mark(due, End::Lost);
    }

    /// Counts an answer to a task that was due at `due`.
    pub(crate) fn answer(&mut self, due: Nanos, timing: &Timing, verdict: Verdict) {
        self.answer_at(due, timing.landed, timing.deadline, verdict);
        self.batches += 1.0 / f64::from(timing.batch_size.max(1));
        if timing.cold {
            self.cold += 1;
            self.cold_total_ms += (timing.landed - due).as_millis_f64();
        }
        self.overhead
            .record((timing.landed - timing.submitted) - (timing.finished - timing.started));
    }

    /// Counts an answer of which no more is known than when it came and by when it should have.
    pub(crate) fn answer_at(
        &mut self,
        due: Nanos,
        landed: Nanos,
        deadline: Nanos,
        verdict: Verdict,
    ) {
        let (is_late, latency) = (landed > deadline, landed - due);
        self.completed += 1;
        self.late += u64::from(is_late);
        self.latency.record(latency);
        self.mark(due, if is_late { End::Late(latency) } else { End::Good(latency) });
        match verdict {
            Verdict::Right => {}
            Verdict::Wrong => self.wrong_answers += 1,
            Verdict::Unchecked => self.unchecked += 1,
            Verdict::Classified { label_hit } => {
                self.labelled += 1;
                self.label_hits += u64::from(label_hit);
            }
        }
    }

    /// The variants that the model has.
    pub(crate) fn set_variants(&mut self, variants: &[ModelVariant]) {
        let none = |variant: &ModelVariant| VariantTally {
            name: variant.name().to_owned(),
            accuracy: variant.accuracy(),
            tasks: 0,
        };
        self.variants = variants.iter().map(none).collect();
    }

    /// Counts an answer of a variant to a task that was due at `due`.
    pub(crate) fn answered_by(&mut self, due: Nanos, variant: &ModelVariant) {
        if let Some(tally) = self.variants.get_mut(usize::from(variant.index())) {
            tally.tasks += 1;
        }
        if let Some(timeline) = &mut self.timeline {
            timeline.answered(due, variant.accuracy());
        }
    }

    /// Answers of variants, and the sum of these variants' accuracies, per cent.
    pub fn accuracies(&self) -> (u64, f64) {
        let add = |(tasks, sum): (u64, f64), of: &VariantTally| {
            (tasks + of.tasks, sum + of.accuracy * of.tasks as f64)
        };
        self.variants.iter().fold((0, 0.0), add)
    }

    /// Tasks dropped, for whatever reason.
    pub fn dropped_total(&self) -> u64 {
        self.dropped.values().sum()
    }

    /// Tasks failed, for whatever reason.
    pub fn failed_total(&self) -> u64 {
        self.failed.values().sum()
    }

    /// Tasks that have had their outcome.
    pub fn ended(&self) -> u64 {
        self.completed + self.dropped_total() + self.failed_total()
    }

    /// Adds another generator's counts, or another model's.
    pub fn merge(&mut self, other: &Self) {
        self.submitted += other.submitted;
        self.completed += other.completed;
        self.cold += other.cold;
        self.cold_total_ms += other.cold_total_ms;
        self.late += other.late;
        merge_reasons(&mut self.dropped, &other.dropped);
        merge_reasons(&mut self.failed, &other.failed);
        self.wrong_answers += other.wrong_answers;
        self.unchecked += other.unchecked;
        self.labelled += other.labelled;
        self.label_hits += other.label_hits;
        self.batches += other.batches;
        self.merge_variants(&other.variants);
        self.latency.merge(&other.latency);
        self.overhead.merge(&other.overhead);
        self.lag.merge(&other.lag);
        self.sent_late += other.sent_late;
        match (&mut self.timeline, &other.timeline) {
            (Some(own), Some(other)) => own.merge(other),
            (own @ None, other) => own.clone_from(other),
            (Some(_), None) => {}
        }
    }
}

impl Tally {
    fn merge_variants(&mut self, others: &[VariantTally]) {
        for other in others {
            match self.variants.iter_mut().find(|own| own.name == other.name) {
                Some(own) => own.tasks += other.tasks,
                None => self.variants.push(other.clone()),
            }
        }
    }
}

fn count(reasons: &mut Reasons, reason: &str) {
    if let Some(count) = reasons.get_mut(reason) {
        *count += 1;
    } else {
        reasons.insert(reason.to_owned(), 1);
    }
}

/// Adds other reasons' counts.
pub(crate) fn merge_reasons(into: &mut Reasons, from: &Reasons) {
    for (reason, count) in from {
        *into.entry(reason.clone()).or_default() += count;
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use baton_core::GpuId;

    use super::*;

    /// A model's tally with one of everything.
    pub(crate) fn sample(name: &str) -> Tally {
        let mut tally =
            Tally::new(name, Duration::from_millis(40)).with_timeline(Nanos::ZERO, 10.0);
        (0..8).for_each(|ms| tally.arrival(Nanos::from_millis(ms), Nanos::from_millis(ms)));
        for (landed_ms, verdict) in [
            (10, Verdict::Right),
            (20, Verdict::Classified { label_hit: true }),
            (30, Verdict::Classified { label_hit: false }),
            (60, Verdict::Unchecked),
        ] {
            let timing = Timing { cold: landed_ms > 20, ..timing(landed_ms) };
            tally.answer(Nanos::ZERO, &timing, verdict);
        }
        tally.drop_for(Nanos::from_millis(1_100), DropReason::Window);
        tally.shed_for(Nanos::from_millis(1_200), "window");
        tally.fail_for(Nanos::from_millis(1_300), FailReason::BackendLost);
        tally.refuse_for(Nanos::from_millis(1_400), "slab_exhausted");
        tally
    }

    fn timing(landed_ms: u64) -> Timing {
        Timing {
            // Late: what a generator takes is the task's time.
            submitted: Nanos::from_millis(3),
            started: Nanos::from_millis(1),
            finished: Nanos::from_millis(5),
            landed: Nanos::from_millis(landed_ms),
            deadline: Nanos::from_millis(50),
            clock_error: Nanos::ZERO,
            batch_size: 2,
            gpu: GpuId(0),
            variant: 0,
            cold: false,
        }
    }

    #[test]
    fn everything_that_arrived_is_counted_once() {
        let tally = sample("m");
        assert_eq!((tally.submitted, tally.ended()), (8, 8));
        assert_eq!((tally.completed, tally.late), (4, 1));
        assert_eq!((tally.cold, tally.cold_total_ms), (2, 90.0));
        assert_eq!(tally.dropped, Reasons::from([("window".to_owned(), 2)]));
        let failed = [("backend_lost".to_owned(), 1), ("slab_exhausted".to_owned(), 1)];
        assert_eq!(tally.failed, Reasons::from(failed));
        assert_eq!((tally.labelled, tally.label_hits, tally.unchecked), (2, 1, 1));
        assert_eq!(tally.batches, 2.0);
        assert_eq!(tally.wrong_answers, 0);
        let shortest_ms = |of: &Latency| of.quantile_ms(0.25).unwrap().round();
        assert_eq!((shortest_ms(&tally.latency), shortest_ms(&tally.overhead)), (10.0, 3.0));
        let timeline = tally.timeline.as_ref().unwrap();
        let ends = timeline.parts().map(|(_, part)| [part.good, part.late, part.lost]);
        assert_eq!(ends.take(2).collect::<Vec<_>>(), [[3, 1, 0], [0, 0, 4]]);
    }

    /// A scenario or a replay says it for each task.
    #[test]
    fn an_objective_is_that_of_the_tasks_and_none_where_they_differ() {
        let ms = Nanos::from_millis;
        let mut tally = Tally::new("m", Duration::from_millis(40));
        let mut arrive = |within: u64, late: u64| {
            tally.asks_for(ms(within));
            tally.arrival(ms(100), ms(100 + late));
            (tally.slo_ms, tally.sent_late)
        };
        assert_eq!(arrive(200, 9), (200.0, 0), "a twentieth of it");
        assert_eq!(arrive(200, 11), (200.0, 1));
        assert_eq!(arrive(60, 4), (0.0, 2));
        assert_eq!(arrive(200, 9), (0.0, 2));
    }

    #[test]
    fn merging_adds_every_field_up() {
        let mut twice = sample("m");
        twice.merge(&sample("m"));
        let one = sample("m");
        assert_eq!((twice.submitted, twice.ended()), (16, 16));
        assert_eq!(twice.dropped["window"], 2 * one.dropped["window"]);
        assert_eq!(twice.failed_total(), 2 * one.failed_total());
        assert_eq!((twice.labelled, twice.label_hits, twice.unchecked), (4, 2, 2));
        assert_eq!(twice.batches, 4.0);
        let travelled: Tally =
            serde_json::from_str(&serde_json::to_string(&twice).unwrap()).unwrap();
        assert_eq!(travelled, Tally { timeline: None, ..twice }, "curves stay where they are");
    }
}
