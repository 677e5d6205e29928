//! Scenarios with a rate of their own: what is drawn, and how `baton` does on some small ones.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

use baton_sim::Scenario;
use baton_sim::fuzz::served::{Family, ServedContest, ServedRow, ServedSummary, draw_at_rate};
use baton_sim::fuzz::{DrawnScenario, Limits};

const SMALL: Limits = Limits { seconds: 1.5, tasks: 4_000.0, rarest: 0.0, seeds: 1 };

fn contest(policies: &[&str]) -> ServedContest {
    let mut policies = policies.iter().map(|name| name.parse().unwrap());
    let policy = policies.next().unwrap();
    ServedContest { policy, others: policies.collect(), seeds: SMALL.seeds }
}

fn row(contest: &ServedContest, drawn: &DrawnScenario) -> ServedRow {
    let scenario = Scenario::parse(&drawn.text).unwrap();
    contest.row(&scenario, drawn.rate_rps.unwrap(), drawn.index, &drawn.description).unwrap()
}

#[test]
fn what_is_drawn_can_be_read_and_is_the_same_again() {
    for family in [Family::Caches, Family::Supernets] {
        let draw = |seed, index| draw_at_rate(family, seed, index, &Limits::default());
        for index in 0..150 {
            let drawn = draw(7, index);
            let scenario = Scenario::parse(&drawn.text).unwrap();
            assert!(drawn.rate_rps.is_some_and(|rate| rate > 0.0), "{}", drawn.text);
            assert_eq!(scenario.memory.is_some(), family == Family::Caches);
            assert_eq!(
                scenario.models.iter().any(|model| model.variants.len() > 1),
                family == Family::Supernets
            );
        }
        assert_eq!(draw(7, 3), draw(7, 3));
        assert_ne!(draw(7, 3).text, draw(8, 3).text);
    }
}

/// Of both families ten scenarios, for seconds: a task more or less moves a ratio by a part of a per cent.
#[test]
fn baton_serves_about_as_much_as_the_best_of_the_others() {
    let families = [
        (Family::Caches, &["baton", "clockwork", "symphony", "eager"][..], (0.9, 0.97)),
        (Family::Supernets, &["baton", "slackfit", "maxacc", "maxbatch"], (0.85, 0.97)),
    ];
    for (family, policies, (least, median)) in families {
        let contest = contest(policies);
        let drawn = (0..).map(|index| draw_at_rate(family, 3, index, &SMALL));
        let small = drawn.filter(|drawn| drawn.rate_rps.is_some_and(|rate| rate < 3_000.0));
        let rows: Vec<ServedRow> = small.take(10).map(|drawn| row(&contest, &drawn)).collect();
        let summary = ServedSummary::new(&rows, |index| format!("{index}"));
        assert_eq!(summary.scenarios, rows.len());
        assert!(summary.ratio.min >= least && summary.ratio.p50 >= median, "{summary:#?}");
        let of_supernets = if family == Family::Supernets { rows.len() } else { 0 };
        assert_eq!(summary.over_cheapest.count, of_supernets);
    }
}

/// Tasks of a model without variants count as they are, a supernet's by its accuracy: of one task each in 10 ms half the
/// points come from either.
#[test]
fn a_score_counts_tasks_by_their_accuracy() {
    let text = "gpus = 2\nduration_s = 2\narrival = { process = 'constant' }\n\
                [[model]]\nname = 'plain'\nalpha_ms = 1\nbeta_ms = 1\nslo_ms = 20\n\
                [[model]]\nname = 'super'\nslo_ms = 20\n\
                [[model.variant]]\nname = 'a'\naccuracy = 50\nalpha_ms = 1\nbeta_ms = 1\n\
                [[model.variant]]\nname = 'b'\naccuracy = 80\nalpha_ms = 2\nbeta_ms = 1\n";
    let scenario = Scenario::parse(text).unwrap();
    let row = contest(&["maxacc", "nexus"]).row(&scenario, 200.0, 4, "small").unwrap();
    let names: Vec<&str> = row.policies.iter().map(|policy| policy.policy.as_str()).collect();
    assert_eq!(names, ["maxacc", "nexus:1", "cheapest"]);
    let near = |value: f64, expected: f64| (value - expected).abs() < 1.5;
    assert!(near(row.policies[0].goodput_rps, 200.0) && near(row.score_rps, 180.0), "{row:?}");
    assert!(near(row.policies[2].score_rps, 150.0), "{row:?}");
    assert_eq!(row.ratio, Some(row.score_rps / row.best_rps));
    assert!(row.over_cheapest.is_some_and(|over| (over - 1.0).abs() < 0.01), "{row:?}");
}
