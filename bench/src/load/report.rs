//! What a run of load amounts to: for scripts as JSON, for people as a table.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::caches::ColdFigures;
use super::message::Finished;
use super::table;
use super::tally::{Reasons, Tally, VariantTally};
use super::timeline::Timeline;

/// Share of the tasks that a generator may submit late and still keep its schedule.
const SENT_LATE_MAX: f64 = 0.01;

/// A finished run. The JSON keys are a contract (design: "Contracts that stay stable").
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Report {
    /// All models together: `submitted` is `completed + dropped + failed` if the run is
    /// [conserved](Self::conserved).
    #[serde(flatten)]
    pub totals: Totals,
    /// Answers nothing is known about.
    pub unchecked_answers: u64,
    /// Median of the time from submit to answer without the execution of the task's batch: queueing, deferral,
    /// messages and transfers. Without the load generator's lateness.
    pub overhead_p50_ms: Option<f64>,
    /// 99 % of the tasks had no more of it.
    pub overhead_p99_ms: Option<f64>,
    /// How late the load generator was itself, for 99 % of the tasks; counted into the latencies.
    pub lag_p99_ms: Option<f64>,
    /// Tasks that the load generator submitted too late for their latencies to be the cluster's.
    #[serde(default)]
    pub sent_late: u64,
    /// It submitted at most one task in a hundred late. Otherwise the figures are not to be used.
    #[serde(default)]
    pub schedule_kept: bool,
    /// Standard error of `bad_rate`, by how it differs between parts of the run; `null` where the generator kept no parts.
    #[serde(default)]
    pub bad_rate_error: Option<f64>,
    /// What no tally knows.
    #[serde(flatten)]
    pub circumstances: Circumstances,
    /// Every task has had exactly one outcome.
    pub conserved: bool,
    /// The same, per model.
    pub models: Vec<ModelReport>,
}

/// What became of one model's tasks, or of every model's.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Totals {
    /// Tasks that arrived.
    pub submitted: u64,
    /// Tasks answered, in time or late.
    pub completed: u64,
    /// Of these, late.
    pub late: u64,
    /// Tasks given up by the scheduler.
    pub dropped: u64,
    /// Tasks that broke.
    pub failed: u64,
    /// Answers that are not what their input demands.
    pub wrong_answers: u64,
    /// Answers in time per second of load.
    pub goodput_rps: f64,
    /// Share of the tasks that were not answered in time.
    pub bad_rate: f64,
    /// Mean latency, from when a task was due until its answer; `null` without an answer.
    #[serde(default)]
    pub mean_ms: Option<f64>,
    /// Median latency; `null` without an answer.
    pub p50_ms: Option<f64>,
    /// 90 % of the answers took no longer.
    #[serde(default)]
    pub p90_ms: Option<f64>,
    /// 95 % of the answers took no longer.
    #[serde(default)]
    pub p95_ms: Option<f64>,
    /// 99 % of the answers took no longer.
    pub p99_ms: Option<f64>,
    /// 99.9 % of the answers took no longer.
    #[serde(default)]
    pub p999_ms: Option<f64>,
    /// Answers whose tasks had waited for a LOAD.
    #[serde(default)]
    pub cold: u64,
    /// Their mean latency; `null` without any.
    #[serde(default)]
    pub cold_mean_ms: Option<f64>,
    /// Share of right labels among the labelled answers; `null` without labels.
    pub accuracy: Option<f64>,
}

/// One model's part of a [`Report`].
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct ModelReport {
    /// Its name.
    pub name: String,
    /// Its latency objective; `null` where it is not known.
    pub slo_ms: Option<f64>,
    /// What became of its tasks.
    #[serde(flatten)]
    pub totals: Totals,
    /// Dropped, by reason.
    pub dropped_by_reason: Reasons,
    /// Failed, by reason.
    pub failed_by_reason: Reasons,
    /// Tasks per batch, over batches; `null` without an answer.
    pub mean_batch: Option<f64>,
    /// Of a model with variants: the mean over its answers of the accuracy of the variant that answered, per cent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_accuracy: Option<f64>,
    /// Its variants, the cheapest first; left out without any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub variants: Vec<VariantTally>,
}

/// The circumstances of a run that no tally knows.
#[derive(Clone, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct Circumstances {
    /// How long load was offered.
    pub seconds: f64,
    /// What carried inputs and answers.
    pub transport: String,
    /// Kinds of engine that answered.
    pub engines: Vec<String>,
    /// `fake` where a driver without a GPU executed, `real` where NVIDIA's did; `null` where no model needs one.
    #[serde(default)]
    pub gpu: Option<String>,
    /// Share of the CPU time that went to other machines' work; `null` where unknown.
    pub steal_fraction: Option<f64>,
    /// Processes that died during the run.
    pub lost: Vec<String>,
    /// Frontends among them: what became of their tasks died with them and is not counted here.
    pub frontends_unreported: usize,
    /// How caches of weights fared; left out where there are none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheFigures>,
    /// The same of `baton load`; left out where there are none.
    #[serde(default, flatten, skip_serializing_if = "Option::is_none")]
    pub cold: Option<ColdFigures>,
}

/// How caches of weights fared in a run, by their scheduler.
#[derive(Clone, Copy, PartialEq, Default, Debug, Serialize, Deserialize)]
pub struct CacheFigures {
    /// Models that are served.
    pub models: u64,
    /// How many of them all slots together have room for.
    pub room: u64,
    /// Slots that hold a model, summed over the models at the end.
    pub copies: u64,
    /// Tasks that came while no slot held their model.
    pub cold: u64,
    /// Of these, those whose batch ended in time.
    pub cold_in_time: u64,
    /// LOADs that ended well.
    pub loads: u64,
    /// The share of the last seconds in which weights were copied to a slot, mean of the slots.
    pub loader_busy: f64,
}

impl Report {
    /// Adds the tallies up.
    pub fn new(tallies: &[Tally], circumstances: Circumstances) -> Self {
        let mut all = Tally::default();
        tallies.iter().for_each(|tally| all.merge(tally));
        let of_model = |tally| ModelReport::new(tally, circumstances.seconds);
        Self {
            totals: Totals::new(&all, circumstances.seconds),
            unchecked_answers: all.unchecked,
            overhead_p50_ms: all.overhead.quantile_ms(0.5),
            overhead_p99_ms: all.overhead.quantile_ms(0.99),
            lag_p99_ms: all.lag.quantile_ms(0.99),
            sent_late: all.sent_late,
            schedule_kept: all.sent_late as f64 <= SENT_LATE_MAX * all.submitted as f64,
            bad_rate_error: all.timeline.as_ref().and_then(Timeline::bad_error),
            conserved: tallies.iter().all(|tally| tally.submitted == tally.ended()),
            models: tallies.iter().map(of_model).collect(),
            circumstances,
        }
    }

    /// Sums generators up; fills in what they know of the circumstances.
    pub fn of_generators(finished: &[Finished], mut circumstances: Circumstances) -> Self {
        let mut tallies: Vec<Tally> = Vec::new();
        for generator in finished {
            circumstances.seconds = circumstances.seconds.max(generator.seconds);
            circumstances.transport.clone_from(&generator.transport);
            circumstances.engines.extend(generator.engines.iter().cloned());
            for tally in &generator.tallies {
                match tallies.iter_mut().find(|known| known.name == tally.name) {
                    Some(known) => known.merge(tally),
                    None => tallies.push(tally.clone()),
                }
            }
        }
        circumstances.engines.sort();
        circumstances.engines.dedup();
        Self::new(&tallies, circumstances)
    }

    /// True if every task is known to have had its outcome, and no answer was wrong.
    pub fn is_good(&self) -> bool {
        let Self { totals, circumstances, .. } = self;
        self.conserved && totals.wrong_answers == 0 && circumstances.frontends_unreported == 0
    }
}

impl Totals {
    fn new(tally: &Tally, seconds: f64) -> Self {
        let in_time = tally.completed - tally.late;
        let (dropped, failed) = (tally.dropped_total(), tally.failed_total());
        Self {
            submitted: tally.submitted,
            completed: tally.completed,
            late: tally.late,
            dropped,
            failed,
            wrong_answers: tally.wrong_answers,
            goodput_rps: ratio(in_time as f64, seconds).unwrap_or(0.0),
            bad_rate: ratio((tally.late + dropped + failed) as f64, tally.submitted as f64)
                .unwrap_or(0.0),
            mean_ms: tally.latency.mean_ms(),
            p50_ms: tally.latency.quantile_ms(0.5),
            p90_ms: tally.latency.quantile_ms(0.9),
            p95_ms: tally.latency.quantile_ms(0.95),
            p99_ms: tally.latency.quantile_ms(0.99),
            p999_ms: tally.latency.quantile_ms(0.999),
            cold: tally.cold,
            cold_mean_ms: ratio(tally.cold_total_ms, tally.cold as f64),
            accuracy: ratio(tally.label_hits as f64, tally.labelled as f64),
        }
    }
}

impl ModelReport {
    fn new(tally: &Tally, seconds: f64) -> Self {
        Self {
            name: tally.name.clone(),
            slo_ms: (tally.slo_ms > 0.0).then_some(tally.slo_ms),
            totals: Totals::new(tally, seconds),
            dropped_by_reason: tally.dropped.clone(),
            failed_by_reason: tally.failed.clone(),
            mean_batch: ratio(tally.completed as f64, tally.batches),
            mean_accuracy: mean_accuracy(tally.accuracies()),
            variants: tally.variants.clone(),
        }
    }
}

fn mean_accuracy((answers, sum): (u64, f64)) -> Option<f64> {
    ratio(sum, answers as f64)
}

fn ratio(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        table::write(f, self)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use baton_core::Nanos;

    use super::*;
    use crate::load::tally::tests::sample;

    fn circumstances() -> Circumstances {
        Circumstances {
            seconds: 2.0,
            transport: "tcp".to_owned(),
            engines: vec!["emulated".to_owned(), "onnx".to_owned()],
            steal_fraction: Some(0.025),
            ..Circumstances::default()
        }
    }

    #[test]
    fn totals_and_rates_follow_from_the_tallies() {
        let report = Report::new(&[sample("a"), sample("b")], circumstances());
        assert!(report.conserved && report.is_good());
        let Totals { submitted, completed, late, dropped, failed, .. } = report.totals;
        assert_eq!(submitted, completed + dropped + failed);
        assert_eq!((submitted, completed, late), (16, 8, 2));
        assert_eq!((report.totals.goodput_rps, report.totals.bad_rate), (3.0, 10.0 / 16.0));
        let second = &report.models[1];
        assert_eq!((second.totals.goodput_rps, second.mean_batch), (1.5, Some(2.0)));
        assert_eq!(report.totals.accuracy, Some(0.5));
    }

    #[test]
    fn a_missing_outcome_or_a_wrong_answer_is_not_good() {
        let mut missing = sample("a");
        missing.submitted += 1;
        let report = Report::new(&[missing, sample("b")], circumstances());
        assert!(!report.conserved && !report.is_good());
        let mut wrong = sample("a");
        wrong.wrong_answers = 1;
        let report = Report::new(&[wrong], circumstances());
        assert!(report.conserved && !report.is_good());
        let unreported = Circumstances { frontends_unreported: 1, ..circumstances() };
        let report = Report::new(&[sample("a")], unreported);
        assert!(report.conserved && !report.is_good());
    }

    #[test]
    fn a_generator_that_was_late_says_that_its_figures_are_not_to_be_used() {
        let at = Nanos::from_millis;
        let mut tally = Tally::new("a", Duration::from_millis(100));
        (0..100).for_each(|ms| tally.arrival(at(ms), at(ms + 5)));
        let judge = |tally: &Tally| Report::new(std::slice::from_ref(tally), circumstances());
        assert!(judge(&tally).schedule_kept, "5 ms are a twentieth of the objective");
        tally.arrival(at(200), at(206));
        assert!(judge(&tally).schedule_kept, "one of 101");
        tally.arrival(at(300), at(306));
        let report = judge(&tally);
        assert_eq!((report.sent_late, report.schedule_kept), (2, false));
        let text = report.to_string();
        assert!(text.contains("SCHEDULE NOT KEPT: 2.0 % of the tasks"), "{text}");
    }

    #[test]
    fn generators_are_summed_up_model_by_model() {
        let generator = |seconds, engine: &str, models: [&str; 2]| Finished {
            seconds,
            transport: "tcp".to_owned(),
            engines: vec![engine.to_owned()],
            tallies: models.map(sample).to_vec(),
        };
        let both = [generator(2.0, "onnx", ["a", "b"]), generator(1.5, "emulated", ["b", "a"])];
        let report = Report::of_generators(
            &both,
            Circumstances { lost: vec!["backend".to_owned()], ..Circumstances::default() },
        );
        assert_eq!(report.totals.submitted, 32);
        assert_eq!(report.models.iter().map(|m| m.totals.submitted).collect::<Vec<_>>(), [16, 16]);
        let Circumstances { seconds, transport, engines, lost, .. } = report.circumstances;
        assert_eq!((seconds, transport.as_str()), (2.0, "tcp"));
        assert_eq!(
            (engines, lost),
            (vec!["emulated".into(), "onnx".into()], vec!["backend".into()])
        );
    }

    /// One model too many and one too few must not hide each other.
    #[test]
    fn conservation_is_judged_per_model() {
        let (mut over, mut under) = (sample("a"), sample("b"));
        over.submitted += 1;
        under.submitted -= 1;
        assert!(!Report::new(&[over, under], circumstances()).conserved);
    }

    #[test]
    fn the_keys_scripts_depend_on_are_there() {
        let report = Report::new(&[sample("a")], circumstances());
        let json: serde_json::Value = serde_json::to_value(&report).unwrap();
        for key in "submitted completed dropped failed wrong_answers goodput_rps p50_ms p99_ms \
                    transport engines bad_rate late cold cold_mean_ms steal_fraction accuracy models"
            .split_whitespace()
        {
            assert!(json.get(key).is_some(), "{key}");
        }
        assert!(json["submitted"].is_u64() && json["dropped"].is_u64() && json["failed"].is_u64());
        assert_eq!(json["engines"], serde_json::json!(["emulated", "onnx"]));
        assert_eq!((&json["cold"], &json["cold_mean_ms"]), (&2.into(), &45.0.into()));
    }

    #[test]
    fn nothing_at_all_is_a_report_too() {
        let report = Report::new(&[], Circumstances::default());
        let Totals { p50_ms, accuracy, bad_rate, .. } = report.totals;
        assert_eq!((p50_ms, accuracy, bad_rate), (None, None, 0.0));
        let text = report.to_string();
        assert!(text.contains("conserved: 0 submitted = 0 completed"), "{text}");
        assert!(text.contains("no engine has answered; bad rate"), "{text}");
    }

    #[test]
    fn people_get_a_table_the_reasons_and_the_balance() {
        let text = Report::new(&[sample("resnet50")], circumstances()).to_string();
        let expected = "\
model     tasks  late  lost  good/s  p50 ms  p99 ms  SLO ms  /SLO  batch
resnet50      8     1     4     1.5   20.02   60.03    40.0  1.50   2.00
all           8     1     4     1.5   20.02   60.03                     \n\
late: answered after its deadline; lost: dropped or failed, without an answer
good/s: answers in time per second; /SLO: p99 over it; batch: its mean size

resnet50: dropped: window 2
resnet50: failed: backend_lost 1, slab_exhausted 1
resnet50: 50.0 % of the answers name the right class
1 answers could not be checked: no reference
2 answers came to tasks that had waited for a LOAD, 45.00 ms in the mean
engines emulated and onnx over tcp; bad rate 62.50 %; CPU stolen 2.5 %
conserved: 8 submitted = 4 completed + 2 dropped + 2 failed; 0 wrong
";
        assert_eq!(text, expected);
    }
}
