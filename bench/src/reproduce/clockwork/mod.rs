//! Clockwork's Table 1 and Figs. 5 to 11: more models than a GPU holds.

mod claims;
mod predictions;
mod scenario;
mod studies;

use baton_sim::{Report, Scenario, analytic_bound_rps};
use baton_topo::zoo::clockwork_measured;
use serde_json::{Value, json};

use super::ReproduceError;
use super::experiment::{Experiment, Findings};
use super::grid::rounded;
use super::markdown::{rate, table};
use super::policies::{Policy, policy};
use super::runner::{RunAt, Runner};
use crate::plot::{
    Axis, BLACK, BLUE, Content, Figure, GREEN, Line, Mark, ORANGE, Panel, Row, VERMILLION, highest,
};
use predictions::Fig10;
use studies::{Measure, Point, STUDIES, Study};

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "clockwork",
    title: "Clockwork: Table 1 and Figs. 5 to 11",
    setup: "More models than a GPU's memory holds (Clockwork, OSDI '20, §6). All latencies, sizes and \
            transfer times are those of its Table 1, with straight lines between the batch sizes; a GPU has \
            1,376 pages of 16 MiB, plans take 0.3 ms. In Figs. 5, 6 and 9 to 11 caches are empty at first; in Figs. 7 \
            and 8 every model is on every GPU. `docs/cache.md` says what each policy loads. \
            Satisfied is the part of the offered tasks that ended in time. The load of Figs. 9 to 11 is generated, with \
            the published statistics of Microsoft's trace: it is not the trace. In Fig. 8 batch clients have an \
            objective of one second instead of none. In Fig. 10 executions take longer than ℓ(b) by 15 µs and LOADs \
            longer than Table 1 says by 70 µs on average, exponentially distributed: so much that the largest of \
            the last ten, which is Clockwork's prediction (§5.3), errs about as the paper says. The same times are predicted \
            as `baton` plans. Fig. 11's runs take as long as those of the other papers' figures.",
    remark: REMARK,
    seeds: 1,
    run,
};

const REMARK: &str = "Where memory and link decide, the rules do as the paper says: Fig. 6. 800 r/s in Fig. 5 \
    are 16 tasks in 20 ms; with Table 1's 15.67 ms a GPU reaches 1,021 r/s, and does under every policy with \
    objectives of 250 ms and more. Under tighter ones an independent simulation of Clockwork's rules had 907 to 1,022 r/s. \
    Fig. 7 needs shorter objectives than the paper's cluster: here is no network, and ℓ(1) is exact. In Fig. 9's \
    overload `baton` makes a third to a quarter of Clockwork's LOADs and serves more of the cold tasks. In Fig. 10 `baton` keeps \
    a wider margin than Clockwork's rule and is exceeded less often by executions and LOADs. Few LOADs concern one model, and \
    all models of about its length learn from them.";

/// Who is compared. `naive` and `pinned` are `baton` that loads on a miss, or never.
const POLICIES: [Policy; 5] = [
    policy("baton", BLACK, Mark::Circle),
    policy("clockwork:5", VERMILLION, Mark::Wedge),
    policy("symphony", BLUE, Mark::Square),
    policy("naive", ORANGE, Mark::Diamond),
    policy("pinned", GREEN, Mark::Triangle),
];

/// A point of a study, with a run of each of its policies.
struct Measured {
    study: &'static Study,
    point: Point,
    runs: Vec<(&'static Policy, Report)>,
}

fn run(runner: &mut Runner) -> Result<Findings, ReproduceError> {
    runner.spans_s = runner.precision.cache_spans_s();
    let measured = measure(runner)?;
    let fig10 = Fig10::measure(runner.precision)?;
    Ok(Findings {
        points: measured.iter().map(json_of).chain([fig10.json()]).collect::<Result<_, _>>()?,
        figure: figure(&measured, &fig10),
        claims: claims::claims(&measured).into_iter().chain(fig10.claims()).collect(),
        tables: tables(&measured, &fig10),
        rankings: Vec::new(),
    })
}

/// Everything, in the order of the studies.
fn measure(runner: &Runner) -> Result<Vec<Measured>, ReproduceError> {
    let with_points = |study: &'static Study| {
        (study.points)(runner.precision).into_iter().map(move |point| (study, point))
    };
    let points: Vec<(&Study, Point)> = STUDIES.iter().flat_map(with_points).collect();
    let jobs_of = |(study, point): &(&'static Study, Point)| {
        let Point { scenario, rate_rps, .. } = point;
        let (scenario, rate_rps) = (scenario.clone(), *rate_rps);
        let job = move |policy| RunAt { scenario: scenario.clone(), policy, rate_rps };
        those(study).into_iter().map(job).collect::<Vec<_>>()
    };
    let jobs: Vec<RunAt> = points.iter().flat_map(jobs_of).collect();
    let mut reports = runner.runs(&jobs)?.into_iter().map(|(report, _)| report);
    let with_runs = |(study, point)| {
        let runs = those(study).into_iter().zip(reports.by_ref()).collect();
        Measured { study, point, runs }
    };
    Ok(points.into_iter().map(with_runs).collect())
}

/// The study's policies.
fn those(study: &Study) -> Vec<&'static Policy> {
    POLICIES.iter().filter(|policy| study.policies.contains(&policy.name)).collect()
}

impl Measured {
    fn run(&self, policy: &str) -> Option<&Report> {
        self.runs.iter().find(|(ran, _)| ran.name == policy).map(|(_, report)| report)
    }

    fn value(&self, measure: &Measure, policy: &str) -> Option<f64> {
        (measure.of)(self.run(policy)?)
    }
}

fn json_of(measured: &Measured) -> Result<Value, ReproduceError> {
    let Measured { study, point, runs } = measured;
    let some = |value: Option<f64>, digits| value.map(|value| rounded(value, digits));
    let run = |(policy, report): &(&Policy, Report)| {
        let values = study
            .measures
            .iter()
            .map(|measure| (measure.label.to_owned(), json!(some((measure.of)(report), 4))));
        json!({
            "policy": policy.name,
            "offered_rps": rounded(report.offered_rps, 1),
            "goodput_rps": rounded(report.goodput_rps, 1),
            "satisfied": rounded(report.satisfied, 5),
            "cold_rps": some(report.cold_rps, 2),
            "cold_satisfied": some(report.cold_satisfied, 4),
            "loads_per_s": some(report.loads_per_s, 1),
            "loader_utilization": some(report.loader_utilization, 4),
            "gpu_utilization": rounded(report.gpu_utilization, 4),
            "p99_ms": some(report.p99_ms, 2),
            "measures": values.collect::<serde_json::Map<_, _>>(),
        })
    };
    Ok(json!({
        "study": study.name,
        "axis": study.axis,
        "at": point.at,
        "rate_rps": point.rate_rps,
        "analytic_bound_rps": rounded(analytic_bound_rps(&Scenario::parse(&point.scenario)?), 1),
        "runs": runs.iter().map(run).collect::<Vec<_>>(),
        "scenario": point.scenario,
    }))
}

fn tables(measured: &[Measured], fig10: &Fig10) -> String {
    let studies = STUDIES.iter().map(|study| study_table(study, measured));
    std::iter::once(table1()).chain(studies).chain([fig10.table()]).collect::<Vec<_>>().join("\n")
}

/// Table 1, with what follows from it.
fn table1() -> String {
    let headings = [
        "model",
        "MB",
        "pages",
        "transfer, ms",
        "of 12.3 GB/s",
        "ℓ(1), ms",
        "ℓ(16), ms",
        "tasks/s",
    ];
    let row = |model: &baton_topo::zoo::MeasuredModel| {
        let [alone, .., sixteen] = model.latency_ms;
        vec![
            model.name.clone(),
            format!("{:.1}", model.weights_mb),
            format!("{:.0}", scenario::pages(model)),
            format!("{:.2}", model.load_ms),
            format!("{:.3}", model.weights_mb / 12.3 / model.load_ms),
            format!("{alone:.2}"),
            format!("{sixteen:.2}"),
            rate(16e3 / sixteen),
        ]
    };
    let rows: Vec<_> = clockwork_measured().iter().map(row).collect();
    format!(
        "**Table 1.** `pages` are of 16 MiB; `of 12.3 GB/s` is what that bandwidth would take over the printed transfer \
         time; `tasks/s` is one GPU's rate in batches of 16.\n\n{}",
        table(&headings.map(str::to_owned), &rows)
    )
}

/// A row for each point, a column for each policy; the measures side by side.
fn study_table(study: &Study, measured: &[Measured]) -> String {
    let policies = those(study);
    let mut headings = vec![study.axis.to_owned()];
    headings.extend(policies.iter().map(|policy| format!("`{}`", policy.name)));
    let text = |measured: &Measured, measure: &Measure, policy| {
        let digits = measure.digits;
        measured.value(measure, policy).map_or_else(
            || "–".to_owned(),
            |value| match digits {
                0 => rate(value),
                _ => format!("{value:.digits$}"),
            },
        )
    };
    let cell = |measured: &Measured, policy: &Policy| {
        let values = study.measures.iter().map(|measure| text(measured, measure, policy.name));
        values.collect::<Vec<_>>().join(" · ")
    };
    let row = |measured: &Measured| {
        let cells = policies.iter().map(|policy| cell(measured, policy));
        std::iter::once(measured.point.at.clone()).chain(cells).collect()
    };
    let rows: Vec<_> = of_study(study, measured).map(row).collect();
    let labels: Vec<_> = study.measures.iter().map(|measure| measure.label).collect();
    format!("**{}**: {}.\n\n{}", study.title, labels.join(" · "), table(&headings, &rows))
}

fn of_study<'a>(
    study: &'a Study,
    measured: &'a [Measured],
) -> impl Iterator<Item = &'a Measured> + 'a {
    measured.iter().filter(|measured| measured.study.name == study.name)
}

fn figure(measured: &[Measured], fig10: &Fig10) -> Figure {
    let row = |studies: &[Study]| Row {
        height: 380,
        panels: studies.iter().flat_map(|study| panels(study, measured)).collect(),
    };
    Figure {
        title: "Clockwork, Figs. 5 to 11: more models than fit".to_owned(),
        caption: String::new(),
        legend: POLICIES.iter().map(Policy::key).chain(Fig10::keys()).collect(),
        rows: STUDIES.chunk_by(|a, b| a.row == b.row).map(row).chain([fig10.row()]).collect(),
    }
}

/// A panel for each measure.
fn panels(study: &Study, measured: &[Measured]) -> Vec<Panel> {
    let ticks: Vec<String> = of_study(study, measured).map(|m| m.point.at.clone()).collect();
    let line = |measure: &Measure, policy: &Policy| {
        let at = |(i, measured): (usize, &Measured)| {
            Some((i as f64, measured.value(measure, policy.name)?))
        };
        let points = of_study(study, measured).enumerate().filter_map(at).collect();
        Line { style: policy.style(), points, mark_every: 1 }
    };
    let panel = |(i, measure): (usize, &Measure)| {
        let lines: Vec<Line> = those(study).into_iter().map(|p| line(measure, p)).collect();
        Panel {
            title: if i == 0 { study.title.to_owned() } else { String::new() },
            x: Axis::categories(study.axis, &ticks),
            y: Axis::up_to(measure.label, highest(&lines)),
            content: Content::Lines { lines, references: Vec::new() },
        }
    };
    study.measures.iter().enumerate().map(panel).collect()
}

#[cfg(test)]
mod tests {
    use super::super::precision::Precision;
    use super::*;
    use baton_sim::PolicyName;

    #[test]
    fn every_scenario_is_one_and_every_policy_is_known() {
        for study in STUDIES {
            for precision in [Precision::Quick, Precision::Full] {
                let points = (study.points)(precision);
                assert!(points.len() >= 2, "{}", study.name);
                for point in points {
                    let scenario = Scenario::parse(&point.scenario)
                        .unwrap_or_else(|error| panic!("{} {}: {error}", study.name, point.at));
                    let is_scaling = study.row == "fig11";
                    let (warmup_s, duration_s) =
                        if is_scaling { precision.spans_s() } else { precision.cache_spans_s() };
                    assert_eq!(scenario.end().as_millis_f64(), (warmup_s + duration_s) * 1e3);
                }
            }
            assert_eq!(those(study).len(), study.policies.len(), "{}", study.name);
        }
        for policy in &POLICIES {
            assert!(policy.name.parse::<PolicyName>().is_ok(), "{}", policy.name);
        }
    }
}
