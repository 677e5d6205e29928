//! The result of one run, as `baton sim run --json` prints it.

use baton_core::Nanos;
use hdrhistogram::Histogram;
use serde::Serialize;

use crate::faults;
use crate::loaders::Loaders;
use crate::scenario::{Scenario, SimModel};
use crate::tally::{ModelTally, Tally, VariantTally};
use crate::variants::SimVariant;

/// Tasks that arrived after the warm-up, and what became of them.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Report {
    /// The policy, as on the command line.
    pub policy: String,
    /// Tasks per second that were offered.
    pub offered_rps: f64,
    /// Tasks per second that completed in time.
    pub goodput_rps: f64,
    /// Late and dropped over submitted tasks, of all models.
    pub bad_rate: f64,
    /// The same of the model for which it is largest.
    pub worst_model_bad_rate: f64,
    /// Tasks in time over tasks offered, of all models.
    pub satisfied: f64,
    /// The same as `satisfied`, if there is a supernet (SuperServe §6.1); this and the next one are left out if there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub slo_attainment: Option<f64>,
    /// Mean accuracy, per cent, of the variants that executed supernets' tasks that completed in time; also left out if
    /// there is no such task.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mean_accuracy: Option<f64>,
    /// Tasks per second that came when no slot held their model; this and the next two are `None` if every slot holds every
    /// model.
    pub cold_rps: Option<f64>,
    /// Of these, the part that completed in time.
    pub cold_satisfied: Option<f64>,
    /// LOADs per second that ended well, on all slots.
    pub loads_per_s: Option<f64>,
    /// Part of the measured span that the slots' loaders copied.
    pub loader_utilization: Option<f64>,
    /// Part of the measured span that the GPU slots that were there executed.
    pub gpu_utilization: f64,
    /// GPUs that the traffic of the last five seconds needs ([`baton_core::gpus_needed`], with the tasks
    /// lost since the run began); `None` under the policies of the papers.
    pub gpus_needed: Option<u32>,
    /// Tasks per batch.
    pub mean_batch: f64,
    /// Mean of arrival to end of execution, ms, over the executed tasks of all models, late ones
    /// included; `None` if no task was executed.
    pub mean_ms: Option<f64>,
    /// Median of the same; as of all percentiles, what is above four objectives counts as that.
    pub p50_ms: Option<f64>,
    /// 99th percentile of the same.
    pub p99_ms: Option<f64>,
    /// In the order of the scenario.
    pub models: Vec<ModelReport>,
}

/// One model's part. submitted = completed + dropped.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ModelReport {
    /// From the scenario.
    pub name: String,
    /// Tasks that arrived.
    pub submitted: u64,
    /// Tasks that were executed, late ones included.
    pub completed: u64,
    /// Tasks that were executed and ended after their deadline.
    pub late: u64,
    /// Tasks given up.
    pub dropped: u64,
    /// Tasks per batch; 0 without a batch.
    pub mean_batch: f64,
    /// Mean of arrival to end of execution, ms; `None` if no task was executed.
    pub mean_ms: Option<f64>,
    /// Median of the same.
    pub p50_ms: Option<f64>,
    /// 99th percentile of the same.
    pub p99_ms: Option<f64>,
    /// Of a supernet, the cheapest first; left out of others.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub variants: Vec<VariantReport>,
}

/// One variant's part of a supernet's tasks.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct VariantReport {
    /// From the scenario.
    pub name: String,
    /// From the scenario, per cent.
    pub accuracy: f64,
    /// Tasks that it executed, late ones included.
    pub tasks: u64,
    /// Tasks per batch; 0 without a batch.
    pub mean_batch: f64,
}

impl ModelReport {
    /// A latency of these models, the mean weighted by executed tasks; `None` without any.
    pub fn mean_of(models: &[Self], of: fn(&Self) -> Option<f64>) -> Option<f64> {
        let executed: u64 = models.iter().map(|model| model.completed).sum();
        let sum = |model: &Self| of(model).map_or(0.0, |ms| ms * model.completed as f64);
        (executed > 0).then(|| models.iter().map(sum).sum::<f64>() / executed as f64)
    }
}

impl Report {
    pub(crate) fn new(scenario: &Scenario, policy: String, tally: &Tally) -> Self {
        let duration_s = scenario.duration.as_millis_f64() / 1e3;
        let sum = |of: fn(&ModelTally) -> u64| tally.models.iter().map(of).sum::<u64>();
        let (submitted, lost) = (sum(|m| m.submitted), sum(ModelTally::bad));
        let is_super = scenario.models.iter().any(|model| !model.variants.is_empty());
        let latency_us = tally.latency_us();
        let latency_ns = tally.models.iter().map(|m| m.latency_ns as f64).sum();
        let bad_rates = tally.models.iter().map(|m| ratio(m.bad(), m.submitted));
        Self {
            policy,
            offered_rps: submitted as f64 / duration_s,
            goodput_rps: (submitted - lost) as f64 / duration_s,
            bad_rate: ratio(lost, submitted),
            worst_model_bad_rate: bad_rates.fold(0.0, f64::max),
            satisfied: ratio(submitted - lost, submitted),
            slo_attainment: is_super.then(|| ratio(submitted - lost, submitted)),
            mean_accuracy: mean_accuracy(scenario, tally),
            cold_rps: None,
            cold_satisfied: None,
            loads_per_s: None,
            loader_utilization: None,
            gpu_utilization: used(tally.busy, scenario),
            gpus_needed: None,
            mean_batch: ratio(sum(|m| m.batched), sum(|m| m.batches)),
            mean_ms: mean_ms(latency_ns, sum(|m| m.completed)),
            p50_ms: quantile_ms(&latency_us, 0.5),
            p99_ms: quantile_ms(&latency_us, 0.99),
            models: scenario.models.iter().zip(&tally.models).map(model_report).collect(),
        }
    }
}

impl Report {
    /// With what became of cold tasks and LOADs.
    pub(crate) fn with_loads(self, scenario: &Scenario, tally: &Tally, loaders: &Loaders) -> Self {
        let duration_s = scenario.duration.as_millis_f64() / 1e3;
        let (cold, in_time) = (tally.cold.submitted, tally.cold.in_time);
        Self {
            cold_rps: Some(cold as f64 / duration_s),
            cold_satisfied: (cold > 0).then(|| ratio(in_time, cold)),
            loads_per_s: Some(loaders.loads as f64 / duration_s),
            loader_utilization: Some(used(loaders.busy, scenario)),
            ..self
        }
    }
}

/// Part of the time that slots were there.
fn used(busy: Nanos, scenario: &Scenario) -> f64 {
    let Scenario { gpu_events, gpus, warmup, .. } = scenario;
    let there_ms = faults::gpu_time_ms(gpu_events, *gpus, *warmup, scenario.end());
    if there_ms > 0.0 { busy.as_millis_f64() / there_ms } else { 0.0 }
}

fn mean_accuracy(scenario: &Scenario, tally: &Tally) -> Option<f64> {
    let models = scenario.models.iter().zip(&tally.models);
    let variants = models.flat_map(|(model, tally)| model.variants.iter().zip(&tally.variants));
    let sum = variants.fold((0, 0.0), |(tasks, sum), (variant, tally)| {
        (tasks + tally.in_time, sum + variant.accuracy * tally.in_time as f64)
    });
    (sum.0 > 0).then(|| sum.1 / sum.0 as f64)
}

fn variant_report((variant, tally): (&SimVariant, &VariantTally)) -> VariantReport {
    VariantReport {
        name: variant.name.clone(),
        accuracy: variant.accuracy,
        tasks: tally.completed,
        mean_batch: ratio(tally.batched, tally.batches),
    }
}

fn model_report((model, tally): (&SimModel, &ModelTally)) -> ModelReport {
    ModelReport {
        name: model.name.clone(),
        submitted: tally.submitted,
        completed: tally.completed,
        late: tally.late,
        dropped: tally.dropped,
        mean_batch: ratio(tally.batched, tally.batches),
        mean_ms: mean_ms(tally.latency_ns as f64, tally.completed),
        p50_ms: quantile_ms(&tally.latency_us, 0.5),
        p99_ms: quantile_ms(&tally.latency_us, 0.99),
        variants: model.variants.iter().zip(&tally.variants).map(variant_report).collect(),
    }
}

fn mean_ms(sum_ns: f64, tasks: u64) -> Option<f64> {
    (tasks > 0).then(|| sum_ns / tasks as f64 / 1e6)
}

fn quantile_ms(latency_us: &Histogram<u32>, part: f64) -> Option<f64> {
    (!latency_us.is_empty()).then(|| latency_us.value_at_quantile(part) as f64 / 1e3)
}

/// 0 for 0 of 0.
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

#[cfg(test)]
mod tests {
    use baton_core::{Request, TaskId};

    use super::*;

    /// What came too late is of no use, however accurate it is.
    #[test]
    fn accuracy_is_that_of_the_answers_in_time() {
        let variant = |name: &str, accuracy: f64, alpha_ms: f64| {
            format!(
                "[[model.variant]]\nname = '{name}'\naccuracy = {accuracy}\nalpha_ms = {alpha_ms}\nbeta_ms = 1\n"
            )
        };
        let head = "gpus = 1\nduration_s = 1\n[[model]]\nname = 'm'\nslo_ms = 36\n";
        let text = [head, &variant("a", 70.0, 1.0), &variant("b", 80.0, 2.0)].concat();
        let scenario = Scenario::parse(&text).unwrap();
        let slo = Nanos::from_millis(36);
        let mut tally = Tally::new(&[slo], Nanos::ZERO, Nanos::MAX).with_variants([2].into_iter());
        for (variant, at) in [(0, slo), (1, slo + Nanos(1))] {
            tally.completed((0, variant), Request::new(TaskId(0), slo), at);
        }
        assert_eq!(mean_accuracy(&scenario, &tally), Some(70.0));
    }
}
