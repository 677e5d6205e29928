//! What the turns come to.

use baton_core::Nanos;

use super::Turns;
use super::report::{Bound, Figures, Goal};

/// Gaps between executions while the queue is not empty, µs.
const GAP_P50_US: f64 = 10.0;
const GAP_P99_US: f64 = 30.0;
/// Rows to the device: the least share of the bare copies' rate.
const COPY_RATE: f64 = 0.9;
/// p99.99 over p50 of executions, and that over the bare loop's own.
const TAIL: f64 = 1.02;
const TAIL_OVER_BARE: f64 = 1.005;
/// What predictions may be off, at the 99th percentile.
const PREDICTION: f64 = 0.02;
/// What a row on an idle device may take beside its execution, µs.
const ONE_ROW_US: f64 = 150.0;
/// CPU time for a batch, and for each of its rows, µs.
const CPU_US: (f64, f64) = (15.0, 1.0);

/// Batches per second over those of the bare loop, turn by turn; the median.
pub(super) fn full_load(turns: &Turns, latency_ms: f64, bound: f64) -> Goal {
    let rate = |batches: u32, took: Nanos| f64::from(batches) / took.as_millis_f64() * 1e3;
    let pairs = turns.loaded.iter().zip(&turns.bare);
    let rates: Vec<(f64, f64)> = pairs
        .map(|(loaded, bare)| (rate(loaded.batches, loaded.took), rate(bare.batches, bare.took)))
        .collect();
    let ratios = rates.iter().map(|(ours, bare)| ours / bare).collect();
    let mean = |of: fn(&(f64, f64)) -> f64| rates.iter().map(of).sum::<f64>() / rates.len() as f64;
    goal("full_load", (turns.rows, latency_ms), median(ratios), Bound::AtLeast(bound))
        .with("batches_per_s", mean(|rates| rates.0))
        .with("bare_batches_per_s", mean(|rates| rates.1))
}

/// What the device's clock and the driver say of the same turns.
pub(super) fn of_the_device(turns: &Turns, latency_ms: f64, figures: Figures) -> Vec<Goal> {
    let times = || turns.loaded.iter().flat_map(|loaded| &loaded.times).map(|(_, times)| times);
    // A turn's first batches find an empty device.
    let gaps: Vec<f64> = turns
        .loaded
        .iter()
        .flat_map(|loaded| loaded.times.iter().skip(1))
        .filter_map(|(_, times)| times.gap.map(micros))
        .collect();
    let copies = median(times().map(|times| micros(times.copy_in)).collect());
    let bare_copies =
        median(turns.bare.iter().flat_map(|bare| &bare.copies).map(|&time| micros(time)).collect());
    let gb_per_s = |us: f64| f64::from(turns.rows * turns.row_bytes) / us / 1e3;
    let most =
        |of: fn(&super::Loaded) -> u64| turns.loaded.iter().map(of).max().unwrap_or(0) as f64;
    let goal = |name, value, bound| goal(name, (turns.rows, latency_ms), value, bound);
    let mut goals = vec![
        goal("gap_p50_us", quantile(gaps.clone(), 0.5), Bound::AtMost(GAP_P50_US)),
        goal("gap_p99_us", quantile(gaps, 0.99), Bound::AtMost(GAP_P99_US)),
        goal("copy_rate_over_bare", bare_copies / copies, Bound::AtLeast(COPY_RATE))
            .with("gb_per_s", gb_per_s(copies))
            .with("bare_gb_per_s", gb_per_s(bare_copies)),
        goal("allocations_after_load", most(|loaded| loaded.allocations), Bound::AtMost(0.0)),
        goal("device_memory_taken", most(|loaded| loaded.memory_taken), Bound::AtMost(0.0)),
    ];
    if figures != Figures::Virtual {
        goals.extend(of_a_clock(turns, latency_ms));
    }
    goals
}

/// What virtual time cannot show.
fn of_a_clock(turns: &Turns, latency_ms: f64) -> Vec<Goal> {
    let tail = |executions: Vec<f64>| {
        quantile(executions.clone(), 0.9999) / quantile(executions, 0.5).max(f64::MIN_POSITIVE)
    };
    let ours = turns.loaded.iter().flat_map(|loaded| &loaded.times);
    let ours = tail(ours.map(|(_, times)| micros(times.execution)).collect());
    let bare = turns.bare.iter().flat_map(|bare| &bare.executions);
    let bare = tail(bare.map(|&time| micros(time)).collect());
    let total = |of: fn(&super::Loaded) -> f64| turns.loaded.iter().map(of).sum::<f64>();
    let batches = total(|loaded| f64::from(loaded.batches));
    let cpu_us = total(|loaded| micros(loaded.cpu)) / batches;
    let cpu_bound = CPU_US.0 + CPU_US.1 * f64::from(turns.rows);
    let goal = |name, value, bound| goal(name, (turns.rows, latency_ms), value, bound);
    vec![
        goal("execution_p9999_over_p50", ours, Bound::AtMost(TAIL)).with("batches", batches),
        goal("execution_tail_over_bare", ours / bare, Bound::AtMost(TAIL_OVER_BARE))
            .with("bare_p9999_over_p50", bare),
        goal("cpu_us_per_batch", cpu_us, Bound::AtMost(cpu_bound)),
    ]
}

pub(super) fn one_row(took: Vec<Nanos>, time: Nanos) -> Goal {
    let added = median(took.into_iter().map(|took| micros(took) - micros(time)).collect());
    goal("one_row_added_us", (1, time.as_millis_f64()), added, Bound::AtMost(ONE_ROW_US))
}

pub(super) fn prediction(errors: Vec<f64>) -> Goal {
    let batches = errors.len() as f64;
    let value = quantile(errors, 0.99);
    goal("prediction_error_p99", (0, 0.0), value, Bound::AtMost(PREDICTION))
        .with("batches", batches)
}

fn goal(goal: &'static str, (rows, latency_ms): (u32, f64), value: f64, bound: Bound) -> Goal {
    Goal { goal, latency_ms, rows, value, bound, beside: Vec::new() }
}

pub(super) fn micros(time: Nanos) -> f64 {
    time.0 as f64 / 1e3
}

pub(super) fn median(values: Vec<f64>) -> f64 {
    quantile(values, 0.5)
}

/// The smallest value that is not below `share` of all; 0 of none.
fn quantile(mut values: Vec<f64>, share: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let rank = (share * values.len() as f64).ceil() as usize;
    values.get(rank.max(1) - 1).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_measured() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!(quantile(values.clone(), 0.5), 100.0);
        assert_eq!(quantile(values.clone(), 0.99), 198.0);
        assert_eq!(quantile(values, 1.0), 200.0);
        assert_eq!(quantile(Vec::new(), 0.5), 0.0);
    }
}
