//! The fuzz in short: what is drawn, and how `baton` does on a couple of dozen small scenarios.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

use baton_sim::fuzz::{Contest, DrawnScenario, Limits, Row, Summary, draw_scenario};
use baton_sim::{Arrival, Scenario, analytic_bound_rps};

/// Goodput over that of the best of the others: the least and the median of the scenarios below.
/// They are short, and one task more or less moves a cell by several per cent.
const RATIO_MIN: f64 = 0.85;
const RATIO_MEDIAN: f64 = 0.985;
/// Mean latency over `eager`'s at a tenth of the goodput, at most.
const MEAN_LATENCY_MAX: f64 = 1.5;
/// The bad rate at a tenth of the goodput less that of the best policy there, at most.
const LOW_LOAD_BAD_MAX: f64 = 0.002;

const SCENARIOS: usize = 24;
const SMALL: Limits = Limits { seconds: 2.0, tasks: 4_000.0, rarest: 600.0, seeds: 2 };
const OTHERS: [&str; 4] = ["clockwork:0", "eager", "timeout:0.2", "symphony"];

#[test]
fn baton_keeps_up_with_the_best_of_the_others() {
    let policy = |name: &str| name.parse().unwrap();
    let others = OTHERS.map(policy).to_vec();
    let seeds = SMALL.seeds;
    let contest = Contest { policy: policy("baton"), others, seeds, again_tasks: 0, all: false };
    let small = (0..).map(|index| draw_scenario(1, index, &SMALL)).filter_map(|drawn| {
        let scenario = Scenario::parse(&drawn.text).unwrap();
        (tasks(&scenario) < 1.2 * SMALL.tasks).then_some((drawn, scenario))
    });
    let row = |(DrawnScenario { index, description, .. }, scenario): (_, Scenario)| {
        contest.row(&scenario, index, &description).unwrap()
    };
    let rows: Vec<Row> = small.take(SCENARIOS).map(row).collect();
    let summary = Summary::new(&rows, |index| format!("draw_scenario(1, {index}, &SMALL)"));
    assert!(summary.ratio.count >= SCENARIOS / 2, "{summary:#?}");
    assert!(summary.ratio.min >= RATIO_MIN, "{:#?}", summary.worst);
    assert!(summary.ratio.p50 >= RATIO_MEDIAN, "{:#?}", summary.worst);
    assert!(summary.latency[0].mean.max <= MEAN_LATENCY_MAX, "{:#?}", summary.slowest);
    assert!(summary.low_load.max <= LOW_LOAD_BAD_MAX, "{:#?}", summary.worst_low_load);
}

/// Of a run at the analytic bound.
fn tasks(scenario: &Scenario) -> f64 {
    analytic_bound_rps(scenario) * scenario.end().as_millis_f64() / 1e3
}

#[test]
fn a_row_names_every_policy_and_what_could_not_be_simulated_is_left_out() {
    let text = "gpus = 2\nduration_s = 1\nnetwork = { ctrl_us = 500 }\n\
                [[model]]\nname = 'm'\nalpha_ms = 1\nbeta_ms = 2\nslo_ms = 20";
    let contest = Contest {
        policy: "symphony".parse().unwrap(),
        others: ["eager", "nexus", "frontrun"].map(|name| name.parse().unwrap()).to_vec(),
        seeds: 2,
        again_tasks: 0,
        all: true,
    };
    let row = contest.row(&Scenario::parse(text).unwrap(), 7, "small").unwrap();
    let names: Vec<&str> = row.policies.iter().map(|policy| policy.policy.as_str()).collect();
    assert_eq!(names, ["symphony", "eager", "frontrun"], "nexus knows no network");
    assert_eq!(row.policies[0].goodput_rps, Some(row.goodput_rps));
    let others = row.policies[1..].iter().map(|policy| policy.goodput_rps.unwrap());
    assert_eq!(others.fold(0.0, f64::max), row.best_rps);
    assert_eq!(row.ratio, Some(row.goodput_rps / row.best_rps));
    assert!(row.goodput_rps > 0.3 * row.analytic_bound_rps, "{row:?}");
    assert_eq!(row.latency.iter().map(|at| at.load).collect::<Vec<_>>(), [0.1, 0.3, 0.5]);
    // A tenth of the goodput: little more than delivery and an execution alone.
    let low = &row.latency[0];
    assert!(low.eager_mean_ms > 3.5 && low.eager_mean_ms < 4.5, "{low:?}");
    assert_eq!((row.index, row.description.as_str()), (7, "small"));
    let submitted = 2.0 * row.goodput_rps.max(row.best_rps);
    assert!((row.rarest_tasks as f64 / submitted - 1.0).abs() < 0.1, "{row:?}");
}

#[test]
fn a_ratio_that_is_not_about_1_is_measured_again_with_more_seeds() {
    let text =
        "gpus = 1\nduration_s = 2\n[[model]]\nname = 'm'\nalpha_ms = 1\nbeta_ms = 9\nslo_ms = 40";
    let scenario = Scenario::parse(text).unwrap();
    let row = |policy: &str, other: &str| {
        let others = vec![other.parse().unwrap()];
        let policy = policy.parse().unwrap();
        let contest = Contest { policy, others, seeds: 2, again_tasks: 50_000, all: false };
        contest.row(&scenario, 0, "small").unwrap()
    };
    let behind = row("timeout:0.9", "symphony");
    assert!(behind.ratio.unwrap() < 0.95, "{behind:?}");
    let again = behind.again.as_ref().unwrap();
    assert!(again.seeds > 2 && (5_000..7_500).contains(&again.rarest_tasks), "{again:?}");
    assert!(again.ratio < 0.98 && again.error.is_some_and(|error| error < 0.2), "{again:?}");
    assert_eq!((behind.ratio_error, behind.best_estimate()), (again.error, Some(again.ratio)));
    assert_eq!(row("symphony", "symphony").again, None);
}

#[test]
fn a_scenario_is_the_same_whatever_else_is_drawn() {
    let limits = Limits::default();
    let draws = |seed| (0..50).map(|i| draw_scenario(seed, i, &limits).text).collect::<Vec<_>>();
    assert_eq!(draws(3), draws(3));
    assert_eq!(draws(3)[7], draw_scenario(3, 7, &limits).text);
    assert!(draws(3).iter().zip(draws(4)).all(|(a, b)| *a != b));
}

/// A part of many draws for which something holds.
fn part(drawn: &[Scenario], holds: impl Fn(&Scenario) -> bool) -> f64 {
    drawn.iter().filter(|scenario| holds(scenario)).count() as f64 / drawn.len() as f64
}

fn drawn(limits: &Limits) -> Vec<Scenario> {
    let parsed = |i| Scenario::parse(&draw_scenario(11, i, limits).text).unwrap();
    (0..300).map(parsed).collect()
}

#[test]
fn what_is_drawn_spans_what_the_documentation_says() {
    let drawn = drawn(&Limits::default());
    let some = |least: f64, most: f64, holds: &dyn Fn(&Scenario) -> bool| {
        let part = part(&drawn, holds);
        assert!((least..=most).contains(&part), "{part} is not within {least} and {most}");
    };
    some(1.0, 1.0, &|s| (1..=64).contains(&s.gpus) && (1..=60).contains(&s.models.len()));
    some(0.05, 0.4, &|s| s.gpus <= 2);
    some(0.05, 0.4, &|s| s.gpus > 32);
    some(0.02, 0.3, &|s| s.models.len() == 1);
    some(0.05, 0.4, &|s| s.models.len() > 30);
    let each = |model: &baton_sim::SimModel| {
        let objective = model.slo_ms / (model.alpha_ms + model.beta_ms);
        (0.0099..5.01).contains(&model.alpha_ms)
            && (0.0199..30.1).contains(&(model.beta_ms / model.alpha_ms))
            && (1.299..25.1).contains(&objective)
    };
    some(1.0, 1.0, &|s| s.models.iter().all(each));
    let tight = |model: &baton_sim::SimModel| model.slo_ms < 2.0 * (model.alpha_ms + model.beta_ms);
    some(0.2, 0.7, &|s| s.models.iter().any(tight));
    some(0.6, 0.8, &|s| s.arrival == Arrival::Poisson);
    some(0.15, 0.35, &|s| matches!(s.arrival, Arrival::Gamma { shape } if shape <= 0.5));
    some(0.02, 0.15, &|s| s.arrival == Arrival::Constant);
    for feature in [
        (|s| s.load.is_some()) as fn(&Scenario) -> bool,
        |s| s.network != baton_core::NetworkDelay::default(),
        |s| s.message_lag > baton_core::Nanos::ZERO,
        |s| s.overrun > baton_core::Nanos::ZERO,
        |s| s.stragglers.is_some(),
        |s| s.profile_spread > 0.0,
    ] {
        some(0.05, 0.2, &feature);
    }
    some(0.01, 0.1, &|s| !s.gpu_events.is_empty());
}

#[test]
fn a_drawn_scenario_keeps_its_limits() {
    for limits in [Limits::default(), SMALL] {
        for scenario in drawn(&limits) {
            let (tasks, duration_s) = (tasks(&scenario), scenario.duration.as_millis_f64() / 1e3);
            // At least a second, however small the limit, and rounded up to tenths.
            let least = scenario.gpus == 1 && duration_s == 1.0;
            assert!(tasks < limits.tasks * 1.2 || least, "{tasks}: {scenario:?}");
            assert!((1.0..=3_600.0).contains(&duration_s), "{scenario:?}");
        }
    }
}
