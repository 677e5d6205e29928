//! What a scheduler shows to Prometheus: its counters as they are, and the state of its cluster, which the ControlThread says
//! when it is asked.

use std::sync::Arc;
use std::time::Duration;

use baton_metrics::{Metric, Value};
use baton_rdma::status::ModelCacheStatus;
use baton_topo::Waker;
use crossbeam_channel::{Receiver, Sender, TrySendError, bounded};

use crate::counters::{ControlThreadCounters, ModelThreadCounters, RankThreadCounters};
use crate::latencies::{CLASSES, begin_of, octaves};
use crate::process::SchedulerCounters;
use crate::task_board::{ModelTotals, PerVariant};

/// How long the ControlThread may take to answer. A scrape goes without its part otherwise.
const ANSWER: Duration = Duration::from_millis(1_000);

/// How the cluster fares, for a scrape.
#[derive(Default, Debug)]
pub(crate) struct ClusterState {
    pub(crate) models: Vec<ModelShown>,
    pub(crate) subclusters: Vec<SubclusterShown>,
    /// By role and state.
    pub(crate) members: Vec<(&'static str, &'static str, u32)>,
    /// By side: how far off LOADs were. `None`: slots have room for every model.
    pub(crate) load_errors: Option<[(&'static str, Value); 2]>,
}

/// A model that is served, since it has been.
#[derive(Debug)]
pub(crate) struct ModelShown {
    pub(crate) name: String,
    pub(crate) subcluster: String,
    /// Its objective, s.
    pub(crate) slo_s: f64,
    /// Tasks that may wait for a batch.
    pub(crate) queue_capacity: u32,
    pub(crate) waiting: u64,
    pub(crate) requests: u64,
    /// Of these, those that its quota refused.
    pub(crate) refused: u64,
    pub(crate) dropped: u64,
    /// Of these, those that found its queue full.
    pub(crate) queue_full: u64,
    pub(crate) totals: ModelTotals,
    /// Names of its variants, and how often their answers are right, 0 to 1; empty without any.
    pub(crate) variants: Vec<(String, f64)>,
    /// Where slots have not room for every model.
    pub(crate) cache: Option<ModelCacheStatus>,
}

#[derive(Debug)]
pub(crate) struct SubclusterShown {
    pub(crate) name: String,
    pub(crate) gpus: u32,
    pub(crate) gpus_needed: u32,
    /// The mean over its slots.
    pub(crate) busy: f64,
    /// The same of what loads; `None`: its slots have room for every model.
    pub(crate) loader_busy: Option<f64>,
}

/// Where the ControlThread takes questions.
pub(crate) type StateAsks = Receiver<Sender<ClusterState>>;

/// Reads what a scheduler shows. Clones read the same one.
#[derive(Clone, Debug)]
pub struct SchedulerMetrics {
    counters: Arc<SchedulerCounters>,
    asks: Sender<Sender<ClusterState>>,
    control: Waker,
}

impl SchedulerMetrics {
    /// One question waits at most.
    pub(crate) fn new(counters: Arc<SchedulerCounters>, control: Waker) -> (Self, StateAsks) {
        let (asks, asked) = bounded(1);
        (Self { counters, asks, control }, asked)
    }

    /// Everything. Blocks for a second at most; if the ControlThread has not answered by then, or the scheduler has ended, what
    /// only it knows is missing.
    pub fn read(&self) -> Vec<Metric> {
        shown(&self.counters, &self.ask().unwrap_or_default())
    }

    /// Everything that [`SchedulerMetrics::read`] may have, as far as it is known without a cluster.
    pub fn described(counters: &SchedulerCounters) -> Vec<Metric> {
        shown(counters, &ClusterState::default())
    }

    fn ask(&self) -> Option<ClusterState> {
        let (answer, answered) = bounded(1);
        match self.asks.try_send(answer) {
            Ok(()) => self.control.wake(),
            // An earlier question, which was given up, waits still: the ControlThread stands.
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => return None,
        }
        answered.recv_timeout(ANSWER).ok()
    }
}

/// The metrics of a scheduler with this state.
fn shown(counters: &SchedulerCounters, state: &ClusterState) -> Vec<Metric> {
    let mut metrics = counted(counters);
    metrics.extend(of_cluster(state));
    metrics.extend(of_catalogue(&state.models));
    metrics.extend(of_models(&state.models));
    metrics.extend(of_variants(&state.models));
    metrics.extend(of_caches(&state.models));
    metrics.extend(of_loaders(state));
    metrics
}

fn counted(counters: &SchedulerCounters) -> Vec<Metric> {
    let help = [ModelThreadCounters::HELP, RankThreadCounters::HELP, ControlThreadCounters::HELP];
    let described = counters.pairs().into_iter().zip(help.concat());
    // That one is no count, and is shown by sub-cluster.
    let counts = described.filter(|((name, _), _)| *name != "gpus_needed");
    counts.map(|((name, count), help)| Metric::counter("scheduler", name, help, count)).collect()
}

fn of_cluster(state: &ClusterState) -> [Metric; 4] {
    let by_subcluster = |name, help, level: fn(&SubclusterShown) -> f64| {
        let series =
            state.subclusters.iter().map(|of| (vec![of.name.clone()], Value::Level(level(of))));
        Metric { series: series.collect(), ..Metric::gauges(name, help, &["subcluster"]) }
    };
    let members = state.members.iter().map(|&(role, of, count)| {
        (vec![role.to_owned(), of.to_owned()], Value::Level(count.into()))
    });
    let help = "Members that are joined; state as in `baton status`";
    [
        Metric {
            series: members.collect(),
            ..Metric::gauges("baton_members", help, &["role", "state"])
        },
        by_subcluster("baton_gpus", "GPU slots that serve now", |of| of.gpus.into()),
        by_subcluster("baton_gpus_needed", "GPUs that the traffic needs", |of| {
            of.gpus_needed.into()
        }),
        by_subcluster(
            "baton_gpu_busy_ratio",
            "Share of the last five to ten seconds in which a GPU slot executed, mean of the slots",
            |of| of.busy,
        ),
    ]
}

/// What was promised, and with how much room.
fn of_catalogue(models: &[ModelShown]) -> [Metric; 2] {
    let slo = models
        .iter()
        .map(|of| (vec![of.name.clone(), of.subcluster.clone()], Value::Level(of.slo_s)));
    let rooms =
        models.iter().map(|of| (vec![of.name.clone()], Value::Level(of.queue_capacity.into())));
    [
        Metric {
            series: slo.collect(),
            ..Metric::gauges(
                "baton_model_slo_seconds",
                "The latency objective of a model, and the sub-cluster that serves it",
                &["model", "subcluster"],
            )
        },
        Metric {
            series: rooms.collect(),
            ..Metric::gauges(
                "baton_queue_capacity_tasks",
                "Tasks of a model that may wait for a batch; one more is dropped",
                &["model"],
            )
        },
    ]
}

fn of_models(models: &[ModelShown]) -> [Metric; 10] {
    const MODEL: &[&str] = &["model"];
    let counts = |name: &str, help, count: fn(&ModelShown) -> u64| {
        let series = models.iter().map(|of| (vec![of.name.clone()], Value::Count(count(of))));
        let name = format!("baton_scheduler_model_{name}");
        Metric { series: series.collect(), ..Metric::counters(name, help, MODEL) }
    };
    let waiting = models.iter().map(|of| (vec![of.name.clone()], Value::Level(of.waiting as f64)));
    let queue = "Tasks that wait for a batch, as of the last second";
    let duration =
        "From a task's arrival at the scheduler to the end of its batch, as the backend reports it";
    let latencies = models.iter().map(|of| (vec![of.name.clone()], sizes(&of.totals)));
    [
        Metric { series: waiting.collect(), ..Metric::gauges("baton_queue_tasks", queue, MODEL) },
        counts("requests", "Requests that arrived, as of the last second", |of| of.requests),
        counts("refused", "Of the requests that arrived, those that a quota refused", |of| {
            of.refused
        }),
        counts(
            "dropped",
            "Tasks dropped, as of the last second, without those that were cancelled or above a quota",
            |of| of.dropped,
        ),
        counts(
            "queue_full",
            "Of the tasks dropped, those that found their model's queue full, as of the last second",
            |of| of.queue_full,
        ),
        counts(
            "executed",
            "Tasks in batches that a backend has executed, or whose engine failed",
            |of| of.totals.tasks,
        ),
        counts("late", "Tasks executed too late for an answer in time", |of| of.totals.late),
        counts("failed", "Tasks in executed batches that the backend could not answer", |of| {
            of.totals.failed
        }),
        counts(
            "stale",
            "Tasks whose inputs were not written yet when a backend pulled them, or not any more; neither executed nor failed",
            |of| of.totals.stale,
        ),
        Metric {
            series: latencies.collect(),
            ..Metric::histograms("baton_scheduler_task_duration_seconds", duration, MODEL)
        },
    ]
}

/// Of supernets.
fn of_variants(models: &[ModelShown]) -> [Metric; 3] {
    const LABELS: &[&str] = &["model", "variant"];
    let counts = |name: &str, help, count: fn(&PerVariant<u64>) -> u64| {
        let of_model = |model: &ModelShown| {
            let counted = model.variants.iter().zip(model.totals.variants.clone());
            let series = counted.map(|((variant, _), counted)| {
                (vec![model.name.clone(), variant.clone()], Value::Count(count(&counted)))
            });
            series.collect::<Vec<_>>()
        };
        let series = models.iter().flat_map(of_model).collect();
        let name = format!("baton_scheduler_variant_{name}");
        Metric { series, ..Metric::counters(name, help, LABELS) }
    };
    let accuracies = models.iter().flat_map(|model| {
        let named = |variant: &String| vec![model.name.clone(), variant.clone()];
        model.variants.iter().map(move |(of, accuracy)| (named(of), Value::Level(*accuracy)))
    });
    let help = "How often a variant's answers are right, as the cluster file says";
    [
        Metric {
            series: accuracies.collect(),
            ..Metric::gauges("baton_variant_accuracy_ratio", help, LABELS)
        },
        counts("tasks", "Tasks in batches that a variant of a model has executed", |of| of.tasks),
        counts("batches", "Batches that a variant of a model has executed", |of| of.batches),
    ]
}

/// Of sub-clusters with caches of weights.
fn of_caches(models: &[ModelShown]) -> [Metric; 4] {
    const MODEL: &[&str] = &["model"];
    let series = |value: fn(&ModelCacheStatus) -> Value| {
        let of =
            |model: &ModelShown| Some((vec![model.name.clone()], value(model.cache.as_ref()?)));
        models.iter().filter_map(of).collect()
    };
    let (copies, cold, in_time) =
        ("baton_model_copies", "baton_scheduler_model_cold", "baton_scheduler_model_cold_in_time");
    let came =
        "Tasks that came while no slot held their model, where slots have not room for every model";
    [
        Metric {
            series: series(|cache| Value::Level(cache.copies.into())),
            ..Metric::gauges(
                copies,
                "Slots that hold a model, where they have not room for every model",
                MODEL,
            )
        },
        Metric {
            series: series(|cache| Value::Count(cache.cold)),
            ..Metric::counters(cold, came, MODEL)
        },
        Metric {
            series: series(|cache| Value::Count(cache.cold_in_time)),
            ..Metric::counters(
                in_time,
                "Of the tasks that came while no slot held their model, those whose batch ended in time",
                MODEL,
            )
        },
        Metric {
            series: series(|cache| Value::Count(cache.failed)),
            ..Metric::counters(
                "baton_scheduler_model_loads_failed",
                "LOADs of a model that failed, where slots have not room for every model",
                MODEL,
            )
        },
    ]
}

fn of_loaders(state: &ClusterState) -> [Metric; 2] {
    let busy = |of: &SubclusterShown| Some((vec![of.name.clone()], Value::Level(of.loader_busy?)));
    let help = "Share of the last five to ten seconds in which weights were copied to a GPU slot, mean of the slots";
    let errors = state.load_errors.iter().flatten();
    let errors = errors.map(|(side, sizes)| (vec![(*side).to_owned()], sizes.clone()));
    let off = "How much sooner (`early`) or later (`late`) than planned a LOAD that succeeded had ended, as the scheduler knows it";
    [
        Metric {
            series: state.subclusters.iter().filter_map(busy).collect(),
            ..Metric::gauges("baton_loader_busy_ratio", help, &["subcluster"])
        },
        Metric {
            series: errors.collect(),
            ..Metric::histograms("baton_scheduler_load_end_error_seconds", off, &["side"])
        },
    ]
}

/// Latencies by powers of two of nanoseconds: the finer classes are for quantiles.
fn sizes(totals: &ModelTotals) -> Value {
    let buckets = octaves().map(|classes| {
        let count = totals.latencies[classes.clone()].iter().sum();
        let end =
            if classes.end == CLASSES { f64::INFINITY } else { begin_of(classes.end) as f64 / 1e9 };
        (end, count)
    });
    Value::Sizes { buckets: buckets.collect(), sum: totals.latency_ns as f64 / 1e9 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::latencies::class_of;

    #[test]
    fn every_counter_is_shown_and_has_words() {
        let counters = SchedulerCounters::new(2);
        counters.model_threads[0].submitted.add(2);
        counters.model_threads[1].submitted.add(3);
        let metrics = shown(&counters, &ClusterState::default());
        let names = metrics.iter().map(|metric| metric.full_name());
        assert!(names.clone().any(|name| name == "baton_scheduler_grants_total"));
        assert!(metrics.iter().all(|metric| metric.help.len() > 3), "{metrics:?}");
        let submitted = metrics.iter().find(|m| m.name == "baton_scheduler_submitted");
        assert_eq!(submitted.expect("shown").series[0].1, Value::Count(5), "of all threads");
        let shown = names.filter(|name| name.starts_with("baton_scheduler_")).count();
        assert_eq!(
            shown,
            counters.pairs().len() - 1 + 9 + 2 + 4,
            "without gpus_needed, with nine by model, two by variant and four of caches"
        );
    }

    fn model(variants: Vec<(String, f64)>, totals: ModelTotals) -> ModelShown {
        ModelShown {
            name: "m".to_owned(),
            subcluster: "default".to_owned(),
            slo_s: 0.05,
            queue_capacity: 1,
            waiting: 0,
            requests: 9,
            refused: 2,
            dropped: 3,
            queue_full: 1,
            totals,
            variants,
            cache: None,
        }
    }

    /// So that bad tasks of a model are a share of those that ended, also where no batch succeeds and no latency is known.
    #[test]
    fn tasks_of_failed_batches_count_as_executed() {
        let totals = ModelTotals { tasks: 6, failed: 5, late: 1, ..ModelTotals::default() };
        let metrics = of_models(&[model(Vec::new(), totals)]);
        let count = |name: &str| {
            let metric = metrics.iter().find(|metric| metric.name == name).expect(name);
            metric.series[0].1.clone()
        };
        for (name, wanted) in [
            ("requests", 9),
            ("refused", 2),
            ("dropped", 3),
            ("queue_full", 1),
            ("executed", 6),
            ("late", 1),
            ("failed", 5),
        ] {
            let counted = count(&format!("baton_scheduler_model_{name}"));
            assert_eq!(counted, Value::Count(wanted), "{name}");
        }
    }

    #[test]
    fn accuracies_are_shares_of_what_is_counted_under_the_same_labels() {
        let variants = vec![("small".to_owned(), 0.7382), ("large".to_owned(), 0.8016)];
        let [accuracy, tasks, _] = of_variants(&[model(variants, ModelTotals::default())]);
        assert_eq!(accuracy.full_name(), "baton_variant_accuracy_ratio");
        assert_eq!(accuracy.labels, tasks.labels);
        assert_eq!(
            accuracy.series,
            [
                (vec!["m".to_owned(), "small".to_owned()], Value::Level(0.7382)),
                (vec!["m".to_owned(), "large".to_owned()], Value::Level(0.8016))
            ]
        );
    }

    #[test]
    fn latencies_are_counted_by_powers_of_two() {
        let mut totals = ModelTotals { latency_ns: 3_000_000, ..ModelTotals::default() };
        for ns in [1, (1 << 20) - 1, 1 << 20, 1 << 40] {
            totals.latencies[class_of(ns)] += 1;
        }
        let Value::Sizes { buckets, sum } = sizes(&totals) else { panic!("a histogram") };
        assert_eq!(sum, 0.003);
        let filled: Vec<(f64, u64)> = buckets.iter().copied().filter(|b| b.1 > 0).collect();
        let power = |n: u32| (1u64 << n) as f64 / 1e9;
        assert_eq!(filled, [(power(16), 1), (power(20), 1), (power(21), 1), (f64::INFINITY, 1)]);
        assert!(buckets.is_sorted_by(|a, b| a.0 < b.0));
    }

    #[test]
    fn a_scheduler_that_does_not_answer_shows_its_counters() {
        let control = Waker::new(|| ());
        let counters = Arc::new(SchedulerCounters::new(1));
        let (metrics, asks) = SchedulerMetrics::new(counters, control);
        drop(asks);
        assert!(metrics.read().iter().any(|m| m.name == "baton_scheduler_grants"));
    }
}
