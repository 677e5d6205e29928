//! The accuracy that no rule exceeds: GPU time is spent at best, as if arrivals were a fluid.

use super::scenario::{BATCH_MAX, P0, Setup};

/// Steps of a second in which rate and GPUs are taken to be constant.
const STEPS_PER_S: f64 = 100.0;

/// R2 of the clairvoyant rule, in per cent: each task has its share of the GPUs' time at its moment, which mixtures of two variants in the
/// largest batches within the objective spend (SuperServe §4.1, without integers).
pub(super) fn accuracy(setup: &Setup) -> f64 {
    let variants = cost_and_accuracy(setup);
    let (mut tasks, mut sum) = (0.0, 0.0);
    // The first second is not counted.
    for step in STEPS_PER_S as u32..(setup.seconds() * STEPS_PER_S) as u32 {
        let at_s = f64::from(step) / STEPS_PER_S;
        let rate_rps = setup.rate_at(at_s);
        tasks += rate_rps;
        sum += rate_rps * best(&variants, f64::from(setup.gpus_at(at_s)) * 1e3 / rate_rps);
    }
    sum / tasks
}

/// Milliseconds of a GPU for a task, and the accuracy that they buy; ascending.
fn cost_and_accuracy(setup: &Setup) -> Vec<(f64, f64)> {
    let of = |(accuracy, alpha_ms, beta_ms): (f64, f64, f64)| {
        let ms = |batch: u32| setup.slower * (alpha_ms * f64::from(batch) + beta_ms);
        let largest = (1..=BATCH_MAX).rev().find(|&batch| ms(batch) <= setup.slo_ms)?;
        Some((ms(largest) / f64::from(largest), accuracy))
    };
    P0.into_iter().filter_map(of).collect()
}

/// The most accurate mixture of two variants that costs this much.
fn best(variants: &[(f64, f64)], cost_ms: f64) -> f64 {
    let mut best = variants[0].1;
    for (at, &(less_ms, less)) in variants.iter().enumerate() {
        if less_ms <= cost_ms {
            best = best.max(less);
        }
        for &(more_ms, more) in &variants[at + 1..] {
            if (less_ms..more_ms).contains(&cost_ms) {
                best = best.max(less + (more - less) * (cost_ms - less_ms) / (more_ms - less_ms));
            }
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_what_was_computed_elsewhere_for_the_same_loads() {
        for (more_rps, wanted) in [(2_950.0, 79.97), (4_900.0, 78.81), (5_550.0, 78.48)] {
            let found = accuracy(&Setup::bursty(1_500.0, more_rps, 2.0));
            assert!((found - wanted).abs() < 0.01, "{found} {wanted}");
        }
        let found = accuracy(&Setup::steady(4_000.0, 1.0).on(6).within(30.0));
        assert!((found - 79.49).abs() < 0.01, "{found}");
        assert!((accuracy(&Setup::bursty(0.0, 20_000.0, 1.0)) - P0[0].0).abs() < 1e-9);
    }

    #[test]
    fn lost_gpus_and_a_rising_load_lower_it() {
        let steady = accuracy(&Setup::steady(3_500.0, 2.0));
        assert!(accuracy(&Setup::steady(3_500.0, 2.0).with_faults()) < steady);
        let [slow, fast] = [250.0, 5_000.0].map(|tau| accuracy(&Setup::ramp(6_800.0, tau)));
        assert!(fast < slow && slow < accuracy(&Setup::steady(2_500.0, 1.0)));
    }
}
