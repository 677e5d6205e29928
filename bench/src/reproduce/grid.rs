//! Goodput of policies in cases: what most experiments consist of.

use baton_sim::Goodput;
use serde_json::{Value, json};

use super::ReproduceError;
use super::markdown::{rate, ratio, table};
use super::policies::Policy;
use super::runner::Runner;
use super::workload::Workload;
use crate::plot::{Bar, Key, Line, Look};

/// One point.
pub(crate) struct Case {
    /// The table and the part of the figure that it belongs to.
    pub(crate) panel: String,
    /// Its column in the table.
    pub(crate) label: String,
    /// Its place on the x axis.
    pub(crate) x: f64,
    pub(crate) workload: Workload,
}

/// See the module documentation.
pub(crate) struct Grid {
    pub(crate) policies: Vec<&'static Policy>,
    pub(crate) cases: Vec<Case>,
    scenarios: Vec<String>,
    /// `[case][policy]`
    results: Vec<Vec<Goodput>>,
}

/// What the paper gives as numbers, in a row of a table: one for each column.
pub(crate) struct PaperRow {
    pub(crate) who: &'static str,
    pub(crate) rps: Vec<Option<f64>>,
}

/// How a policy did in an experiment.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Ranking {
    pub(crate) policy: &'static str,
    /// Smallest goodput over that of the best policy in the same case.
    pub(crate) worst_of_best: f64,
    /// Mean goodput over the bound.
    pub(crate) mean_ratio: f64,
    /// Part of the cases in which no policy is better by more than 1 %.
    pub(crate) best_in: f64,
}

impl Grid {
    pub(crate) fn measure(
        runner: &mut Runner,
        policies: Vec<&'static Policy>,
        cases: Vec<Case>,
    ) -> Result<Self, ReproduceError> {
        let scenarios: Vec<String> =
            cases.iter().map(|case| case.workload.scenario(runner.precision)).collect();
        let results = runner.goodputs(&scenarios, &policies)?;
        Ok(Self { policies, cases, scenarios, results })
    }

    /// The panels, in order.
    pub(crate) fn panels(&self) -> Vec<&str> {
        let mut panels: Vec<&str> = self.cases.iter().map(|case| case.panel.as_str()).collect();
        panels.dedup();
        panels
    }

    /// The cases of a panel, each with its results by policy.
    pub(crate) fn panel(&self, panel: &str) -> impl Iterator<Item = (&Case, &[Goodput])> {
        let all = self.cases.iter().zip(self.results.iter().map(Vec::as_slice));
        all.filter(move |(case, _)| case.panel == panel)
    }

    /// A policy's results over a panel.
    pub(crate) fn results(&self, panel: &str, policy: &str) -> Vec<(f64, &Goodput)> {
        let Some(p) = self.policies.iter().position(|known| known.name == policy) else {
            return Vec::new();
        };
        self.panel(panel).map(|(case, results)| (case.x, &results[p])).collect()
    }

    /// The line of each policy over a panel.
    pub(crate) fn lines(&self, panel: &str, y: impl Fn(&Goodput) -> f64) -> Vec<Line> {
        let line = |policy: &&Policy| {
            let results = self.results(panel, policy.name);
            let points = results.into_iter().map(|(x, goodput)| (x, y(goodput))).collect();
            Line { style: policy.style(), points, mark_every: 1 }
        };
        self.policies.iter().map(line).collect()
    }

    /// The legend of a figure with these lines.
    pub(crate) fn legend(&self, reference: &str) -> Vec<Key> {
        let reference = Key { label: reference.to_owned(), look: Look::Reference };
        self.policies.iter().map(|policy| policy.key()).chain([reference]).collect()
    }

    /// For the JSON file.
    pub(crate) fn json(&self) -> Value {
        let case = |i: usize| {
            let Case { panel, label, x, .. } = &self.cases[i];
            let bound_rps = self.results[i].first().map_or(0.0, |g| g.analytic_bound_rps);
            json!({
                "panel": panel,
                "case": label,
                "x": x,
                "analytic_bound_rps": rounded(bound_rps, 1),
                "results": self.results[i].iter().map(cell).collect::<Vec<_>>(),
                "scenario": self.scenarios[i],
            })
        };
        (0..self.cases.len()).map(case).collect()
    }

    /// Bound, paper and policies against the cases of a panel; the best policy in bold.
    pub(crate) fn table(&self, panel: &str, corner: &str, paper: &[PaperRow]) -> String {
        let cases: Vec<(&Case, &[Goodput])> = self.panel(panel).collect();
        let bounds: Vec<f64> = cases.iter().map(|(_, r)| r[0].analytic_bound_rps).collect();
        let mut headings = vec![corner.to_owned()];
        headings.extend(cases.iter().map(|(case, _)| case.label.clone()));
        let mut rows = vec![row("*bound, tasks/s*", bounds.iter().map(|&b| rate(b)))];
        for PaperRow { who, rps } in paper {
            let cells = rps.iter().zip(&bounds).map(|(rps, &bound)| match rps {
                Some(rps) => format!("{} · {}", rate(*rps), ratio(rps / bound)),
                None => "not given".to_owned(),
            });
            rows.push(row(&format!("*paper:* {who}"), cells));
        }
        for (p, policy) in self.policies.iter().enumerate() {
            let cells = cases.iter().map(|(_, results)| {
                let text =
                    format!("{} · {}", rate(results[p].goodput_rps), ratio(results[p].ratio));
                if results[p].goodput_rps >= best(results) { format!("**{text}**") } else { text }
            });
            rows.push(row(&format!("`{}`", policy.name), cells));
        }
        table(&headings, &rows)
    }

    /// How each policy did over all cases.
    pub(crate) fn rankings(&self) -> Vec<Ranking> {
        let cases = self.results.len().max(1) as f64;
        let ranking = |(p, policy): (usize, &&'static Policy)| {
            let of_best = |results: &Vec<Goodput>| results[p].goodput_rps / best(results).max(1e-9);
            let of_bests: Vec<f64> = self.results.iter().map(of_best).collect();
            Ranking {
                policy: policy.name,
                worst_of_best: of_bests.iter().copied().fold(f64::INFINITY, f64::min),
                mean_ratio: self.results.iter().map(|r| r[p].ratio).sum::<f64>() / cases,
                best_in: of_bests.iter().filter(|&&part| part >= 0.99).count() as f64 / cases,
            }
        };
        self.policies.iter().enumerate().map(ranking).collect()
    }
}

fn best(results: &[Goodput]) -> f64 {
    results.iter().map(|goodput| goodput.goodput_rps).fold(0.0, f64::max)
}

fn row(name: &str, cells: impl Iterator<Item = String>) -> Vec<String> {
    std::iter::once(name.to_owned()).chain(cells).collect()
}

fn cell(goodput: &Goodput) -> Value {
    json!({
        "policy": goodput.policy,
        "goodput_rps": rounded(goodput.goodput_rps, 1),
        "ratio": rounded(goodput.ratio, 4),
        "mean_batch": rounded(goodput.mean_batch, 2),
        "gpu_utilization": rounded(goodput.gpu_utilization, 4),
        "seeds_rps": goodput.seeds.iter().map(|s| rounded(s.goodput_rps, 1)).collect::<Vec<_>>(),
    })
}

/// One bar per policy over a case's bound, for figures of bars.
pub(crate) fn bars(grid: &Grid, case: usize, paper: &[(&str, f64)]) -> Vec<Bar> {
    let results = &grid.results[case];
    let bar = |(policy, goodput): (&&Policy, &Goodput)| {
        let paper = paper.iter().find(|(name, _)| *name == policy.name);
        Bar {
            colour: policy.colour,
            light: policy.variant,
            value: goodput.ratio,
            note: format!("{} · {}", rate(goodput.goodput_rps), ratio(goodput.ratio)),
            paper: paper.map(|(_, rps)| rps / goodput.analytic_bound_rps),
        }
    };
    grid.policies.iter().zip(results).map(bar).collect()
}

/// Digits that mean something, for small files.
pub(crate) fn rounded(value: f64, digits: i32) -> f64 {
    let factor = 10_f64.powi(digits);
    (value * factor).round() / factor
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reproduce::policies::POLICIES;
    use crate::reproduce::workload::Profile;

    fn goodput(goodput_rps: f64, bound: f64) -> Goodput {
        Goodput {
            policy: String::new(),
            goodput_rps,
            analytic_bound_rps: bound,
            ratio: goodput_rps / bound,
            mean_batch: 1.0,
            gpu_utilization: 0.5,
            seeds: Vec::new(),
        }
    }

    /// Two cases in two panels, two policies: 900 and 1,000 of 2,000, then 400 and 100 of 500.
    fn grid() -> Grid {
        let profile = Profile { name: "m".to_owned(), alpha_ms: 1.0, beta_ms: 1.0 };
        let case = |label: &str, x| Case {
            panel: format!("panel {x}"),
            label: label.to_owned(),
            x,
            workload: Workload::copies(1, &profile, 10.0, 1),
        };
        Grid {
            policies: POLICIES.iter().take(2).collect(),
            cases: vec![case("one", 1.0), case("two", 2.0)],
            scenarios: vec![String::new(), String::new()],
            results: vec![
                vec![goodput(900.0, 2_000.0), goodput(1_000.0, 2_000.0)],
                vec![goodput(400.0, 500.0), goodput(100.0, 500.0)],
            ],
        }
    }

    #[test]
    fn a_table_has_the_bound_the_paper_and_every_policy_with_the_best_in_bold() {
        let [first, second] = [POLICIES[0].name, POLICIES[1].name];
        let paper = PaperRow { who: "Symphony", rps: vec![Some(1_500.0)] };
        let expected = format!(
            "| goodput | one |\n|---|---:|\n| *bound, tasks/s* | 2,000 |\n\
             | *paper:* Symphony | 1,500 · 0.750 |\n| `{first}` | 900 · 0.450 |\n\
             | `{second}` | **1,000 · 0.500** |\n"
        );
        assert_eq!(grid().table("panel 1", "goodput", &[paper]), expected);
    }

    #[test]
    fn a_ranking_is_the_worst_case_against_the_best_policy_in_it() {
        let expected = |policy: usize, worst_of_best, mean_ratio| Ranking {
            policy: POLICIES[policy].name,
            worst_of_best,
            mean_ratio,
            best_in: 0.5,
        };
        assert_eq!(grid().rankings(), [expected(0, 0.9, 0.625), expected(1, 0.25, 0.35)]);
    }

    #[test]
    fn a_line_belongs_to_its_panel_and_its_policy() {
        let grid = grid();
        assert_eq!(grid.panels(), ["panel 1", "panel 2"]);
        let lines = grid.lines("panel 2", |goodput| goodput.ratio);
        assert_eq!(
            lines.iter().map(|l| l.points.clone()).collect::<Vec<_>>(),
            [[(2.0, 0.8)], [(2.0, 0.2)]]
        );
        assert!(grid.results("panel 2", "absent").is_empty());
    }
}
