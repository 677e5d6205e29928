//! A test oracle: what one GPU could serve of a handful of tasks, with foresight, by trying
//! everything.

use baton_core::{Nanos, Profile};

use crate::arrivals::Arrivals;
use crate::run::{Run, run};
use crate::scenario::Scenario;

/// More tasks take too long.
const TASKS_MAX: usize = 7;

/// The most tasks that can end in time on one GPU that is free at `free_at`; `left` are those not
/// used yet. A batch of a given set of tasks starts best once the last of them is there.
fn most_in_time(
    arrivals: &[Nanos],
    slo: Nanos,
    profile: &Profile,
    free_at: Nanos,
    left: u32,
) -> u32 {
    let mut best = 0;
    let mut batch = left;
    while batch != 0 {
        let members = || (0..arrivals.len()).filter(|&task| batch & (1 << task) != 0);
        let last = members().map(|task| arrivals[task]).max().unwrap();
        let end = free_at.max(last) + profile.latency(batch.count_ones());
        if members().all(|task| end <= arrivals[task] + slo) {
            let rest = most_in_time(arrivals, slo, profile, end, left & !batch);
            best = best.max(batch.count_ones() + rest);
        }
        batch = (batch - 1) & left;
    }
    best
}

fn arrivals_of(scenario: &Scenario, rate_rps: f64, seed: u64) -> Vec<Nanos> {
    let mut arrivals = Arrivals::new(scenario, rate_rps, seed);
    std::iter::from_fn(|| arrivals.take().map(|arrived| arrived.at)).collect()
}

/// Tasks in time under the policy, and at best, over all seeds whose load is small enough.
fn served(scenario: &Scenario, policy: &str, rate_rps: f64) -> (u32, u32) {
    let model = &scenario.models[0];
    let (mut served, mut possible) = (0, 0);
    for seed in 0..200 {
        let arrivals = arrivals_of(scenario, rate_rps, seed);
        if arrivals.len() > TASKS_MAX {
            continue;
        }
        let left = (1 << arrivals.len()) - 1;
        let best = most_in_time(&arrivals, model.slo(), &model.profile, Nanos::ZERO, left);
        let policy = policy.parse().unwrap();
        let report = run(scenario, Run { policy, rate_rps, seed }).unwrap();
        let in_time = (report.models[0].completed - report.models[0].late) as u32;
        assert!(
            in_time <= best,
            "{policy}, seed {seed}: {in_time} of at most {best}: {arrivals:?}"
        );
        (served, possible) = (served + in_time, possible + best);
    }
    (served, possible)
}

#[test]
fn no_policy_beats_foresight_and_none_is_far_from_it() {
    let text = "gpus = 1\nduration_s = 0.04\n[[model]]\nname = 'm'\nalpha_ms = 1\nbeta_ms = 8\n\
                slo_ms = 16";
    let scenario = Scenario::parse(text).unwrap();
    // What foresight is worth here; a policy that falls below has changed.
    for (policy, at_least) in [
        ("symphony", 0.85),
        ("frontrun", 0.85),
        ("timeout", 0.85),
        ("eager", 0.79),
        ("shepherd", 0.78),
        ("clockwork", 0.72),
        ("nexus", 0.72),
    ] {
        let (served, possible) = served(&scenario, policy, 130.0);
        assert!(possible > 300, "too few tasks to tell: {possible}");
        let ratio = f64::from(served) / f64::from(possible);
        assert!(ratio >= at_least, "{policy}: {served} of {possible}");
    }
}

#[test]
fn trying_everything_finds_what_can_be_seen_by_eye() {
    let ms = Nanos::from_millis;
    let profile = Profile::linear(ms(1), ms(8), 4).unwrap();
    let most = |arrivals: &[Nanos]| {
        most_in_time(arrivals, ms(15), &profile, Nanos::ZERO, (1 << arrivals.len()) - 1)
    };
    assert_eq!(most(&[ms(0), ms(0)]), 2, "one batch");
    assert_eq!(most(&[ms(0), ms(5)]), 2, "the first waits: 5 + 10 = 15");
    assert_eq!(most(&[ms(0), ms(4), ms(4), ms(4)]), 3, "the first or one of the others is lost");
    assert_eq!(most(&[ms(0), ms(9)]), 2, "one after the other");
}
