//! How far predictions are off, of executions and LOADs that vary (Clockwork, Fig. 10).

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

use baton_sim::{Predictions, Run, Scenario, SimError, run_predictions};

fn predictions(keys: &str, policy: &str) -> Result<Predictions, SimError> {
    let model = "[[model]]\nname = 'm'\nlatency_ms = [2.6, 3.8, 4.7, 5.6]\nslo_ms = 100.0\ncopies = 30\n\
                 weights_mb = 102.3\nload_ms = 8.33\n";
    let scenario = format!(
        "gpus = 2\nwarmup_s = 5\nduration_s = 60\npages = 70\nnetwork = {{ ctrl_us = 300 }}\n{keys}\n{model}"
    );
    let policy = policy.parse().unwrap();
    run_predictions(&Scenario::parse(&scenario).unwrap(), Run { policy, rate_rps: 300.0, seed: 1 })
}

#[test]
fn what_takes_as_long_as_planned_is_predicted_to_the_nanosecond() {
    let seen = predictions("", "baton").unwrap();
    for errors in [&seen.infer, &seen.infer_end, &seen.load, &seen.infer_of_ten] {
        let (count, under) = errors.underpredicted();
        assert!(count > 1_000 && under == 0.0, "{count} {under}");
        assert_eq!(errors.over_us(1.0), Some(0.0));
    }
}

/// Ours of LOADs is exceeded by one in a hundred, as it is meant, and of INFERs by the part that is worth it: one in five, of
/// which most have one task. The largest of ten is exceeded by one in eleven.
#[test]
fn few_executions_and_loads_take_longer_than_predicted() {
    let seen = predictions("overrun_ms = 0.1\nload_overrun_ms = 0.5", "baton").unwrap();
    for (ours, of_ten, meant) in
        [(&seen.infer, &seen.infer_of_ten, 0.1..0.25), (&seen.load, &seen.load_of_ten, 0.002..0.03)]
    {
        let (count, under) = ours.underpredicted();
        assert!(count > 1_000 && meant.contains(&under), "{count} {under}");
        let (count, under) = of_ten.underpredicted();
        assert!(count > 500 && (0.07..0.11).contains(&under), "{count} {under}");
    }
    let (overrun, load) = (seen.infer.under_us(0.5).unwrap(), seen.load.under_us(0.5).unwrap());
    assert!(
        (30.0..200.0).contains(&overrun) && (150.0..1_000.0).contains(&load),
        "{overrun} {load}"
    );
}

/// What one slot's link takes longer is neither planned for the other slot nor left out for this one.
#[test]
fn a_slow_link_is_predicted_as_well_as_a_fast_one() {
    let seen = predictions("slow_link = { gpu = 1, factor = 3.0 }", "baton").unwrap();
    let (count, under) = seen.load.underpredicted();
    assert!(count > 1_000 && under < 0.03, "{count} {under}");
    // 8.33 and 24.99 ms.
    assert!(seen.load.over_us(0.9) < Some(500.0), "{:?} us", seen.load.over_us(0.9));
}

#[test]
fn baselines_and_slots_that_go_are_refused() {
    let event = "[[gpu_event]]\nat_s = 1\ngpus = [0]\nkind = 'loss'";
    assert!(matches!(predictions(event, "baton"), Err(SimError::Unsupported { .. })));
    assert!(matches!(predictions("", "clockwork:5"), Err(SimError::NotObserved { .. })));
}
