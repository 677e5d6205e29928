//! Latency over load: what waiting for larger batches costs while there is room.

use baton_sim::{ModelReport, Report};
use serde_json::{Value, json};

use super::ReproduceError;
use super::curve::{Curve, curves};
use super::experiment::{Experiment, Findings};
use super::grid::rounded;
use super::markdown::{percent, rate, table};
use super::policies::{Policy, those};
use super::runner::Runner;
use super::table4;
use super::workload::{Models, Profile, Workload};
use crate::plot::{Axis, Content, Figure, Key, Line, Look, Panel, Reference, Row, highest};

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "latency",
    title: "Latency over load",
    setup: "Not in the paper: the time from a task's arrival to the end of its execution, of executed \
            tasks, from a twentieth of the best policy's goodput up to it. Table 4's two models; \
            every model of the 1080Ti table on 64 GPUs; twenty ResNet50 with an objective of 100 ms \
            on 2 GPUs. p99 is each model's, their mean weighted by executed tasks. `eager` starts \
            whatever waits as soon as a GPU is idle: the others' latencies are set beside its.",
    remark: REMARK,
    seeds: 3,
    run,
};

const REMARK: &str = "Latencies count executed tasks only, so a policy that gives tasks up looks \
    faster than it is where its bad rate is high; compare them where all bad rates are small.";

/// Offered load over the best goodput. The tables show some of them.
const LOADS: [f64; 11] = [0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0];
const QUICK_LOADS: [f64; 6] = [0.05, 0.1, 0.3, 0.5, 0.8, 1.0];
const SHOWN: [f64; 5] = [0.1, 0.3, 0.5, 0.8, 1.0];
/// Whose latencies the others' are compared with.
const REFERENCE: &str = "eager";

/// A scenario and everything that was run in it.
struct Case {
    title: &'static str,
    scenario: String,
    /// The best policy's, tasks/s.
    goodput_rps: f64,
    bound_rps: f64,
    curves: Vec<Curve>,
}

/// A value of a run, and what it is called.
struct Measure {
    label: &'static str,
    of: fn(&Report) -> Option<f64>,
    /// Over the reference policy's at the same load.
    relative: bool,
    /// Higher values are drawn here.
    top: f64,
}

const MEASURES: [Measure; 6] = [
    Measure { label: "mean, ms", of: |report| report.mean_ms, relative: false, top: f64::INFINITY },
    Measure {
        label: "mean over eager's",
        of: |report| report.mean_ms,
        relative: true,
        top: f64::INFINITY,
    },
    Measure { label: "p99, ms", of: p99_ms, relative: false, top: f64::INFINITY },
    Measure { label: "p99 over eager's", of: p99_ms, relative: true, top: f64::INFINITY },
    Measure {
        label: "bad rate, %, up to 5",
        of: |report| Some(report.bad_rate * 100.0),
        relative: false,
        top: 5.0,
    },
    Measure {
        label: "GPU use",
        of: |report| Some(report.gpu_utilization),
        relative: false,
        top: f64::INFINITY,
    },
];

fn workloads() -> [(&'static str, Workload); 4] {
    let zoo = Models::Zoo { zoo: "1080ti", filter: "all" };
    let many = Workload::copies(2, &Profile::gtx_1080ti("ResNet50"), 100.0, 20);
    [
        ("ResNet50, 8 GPUs", table4::MODELS[0].workload()),
        ("InceptionResNetV2, 8 GPUs", table4::MODELS[1].workload()),
        ("1080Ti table, 64 GPUs", Workload::new(64, zoo)),
        ("20 ResNet50, 2 GPUs", many),
    ]
}

fn run(runner: &mut Runner) -> Result<Findings, ReproduceError> {
    let named = workloads();
    let scenarios: Vec<String> =
        named.iter().map(|(_, workload)| workload.scenario(runner.precision)).collect();
    let goodputs = runner.goodputs(&scenarios, &those(|policy| policy.contender))?;
    let loads = runner.precision.points(&LOADS, &QUICK_LOADS);
    let mut cases = Vec::new();
    for (((title, _), scenario), goodputs) in named.iter().zip(scenarios).zip(goodputs) {
        let goodput_rps = goodputs.iter().map(|goodput| goodput.goodput_rps).fold(0.0, f64::max);
        let bound_rps =
            goodputs.iter().map(|goodput| goodput.analytic_bound_rps).fold(0.0, f64::max);
        // In the smallest precision no rate may be good at all.
        let curves = curves(runner, &scenario, loads, goodput_rps.max(1.0))?;
        cases.push(Case { title, scenario, goodput_rps, bound_rps, curves });
    }
    Ok(Findings {
        points: cases.iter().flat_map(points).collect(),
        figure: figure(&cases),
        claims: Vec::new(),
        tables: cases.iter().map(tables).collect::<Vec<_>>().join("\n"),
        rankings: Vec::new(),
    })
}

/// Each model's, their mean weighted by executed tasks; `None` without any.
fn p99_ms(report: &Report) -> Option<f64> {
    ModelReport::mean_of(&report.models, |model| model.p99_ms)
}

impl Case {
    /// A value at a load.
    fn value(&self, curve: &Curve, measure: &Measure, load: f64) -> Option<f64> {
        let value = (measure.of)(curve.at(load)?)?;
        if !measure.relative {
            return Some(value);
        }
        let reference = self.curves.iter().find(|curve| curve.policy.name == REFERENCE)?;
        Some(value / (measure.of)(reference.at(load)?)?)
    }
}

fn points(case: &Case) -> Vec<Value> {
    let one = |curve: &Curve| {
        let runs = curve.runs.iter().map(|(load, report)| {
            let some = |ms: Option<f64>| ms.map(|ms| rounded(ms, 3));
            json!({
                "load": load,
                "offered_rps": rounded(report.offered_rps, 1),
                "mean_ms": some(report.mean_ms),
                "p50_ms": some(report.p50_ms),
                "p99_ms": some(p99_ms(report)),
                "bad_rate": rounded(report.bad_rate, 5),
                "worst_model_bad_rate": rounded(report.worst_model_bad_rate, 5),
                "gpu_utilization": rounded(report.gpu_utilization, 4),
                "mean_batch": rounded(report.mean_batch, 2),
            })
        });
        json!({
            "case": case.title,
            "policy": curve.policy.name,
            "analytic_bound_rps": rounded(case.bound_rps, 1),
            "best_goodput_rps": rounded(case.goodput_rps, 1),
            "runs": runs.collect::<Vec<_>>(),
            "scenario": case.scenario,
        })
    };
    case.curves.iter().map(one).collect()
}

/// Latencies, and what they are bought with.
fn tables(case: &Case) -> String {
    let [mean, mean_ratio, p99, p99_ratio, bad, busy] = &MEASURES;
    let latency = |curve: &Curve, load| {
        let [mean, over, p99, p99_over] =
            [mean, mean_ratio, p99, p99_ratio].map(|measure| case.value(curve, measure, load));
        Some(format!("{:.2} · {:.2}, {:.2} · {:.2}", mean?, over?, p99?, p99_over?))
    };
    let use_of = |curve: &Curve, load| {
        let (bad, busy) = (case.value(curve, bad, load)?, case.value(curve, busy, load)?);
        Some(format!("{bad:.2} % · {}", percent(busy)))
    };
    format!(
        "**{}**; the best goodput is {} tasks/s. Mean, ms · over `eager`'s, p99, ms · over `eager`'s:\n\n{}\n\
         Bad rate · GPU use:\n\n{}",
        case.title,
        rate(case.goodput_rps),
        by_load(case, latency),
        by_load(case, use_of)
    )
}

fn by_load(case: &Case, cell: impl Fn(&Curve, f64) -> Option<String>) -> String {
    let mut headings = vec!["load".to_owned()];
    headings.extend(SHOWN.map(|load| load.to_string()));
    let row = |curve: &Curve| {
        let cells = SHOWN.map(|load| cell(curve, load).unwrap_or_else(|| "–".to_owned()));
        std::iter::once(format!("`{}`", curve.policy.name)).chain(cells).collect()
    };
    table(&headings, &case.curves.iter().map(row).collect::<Vec<_>>())
}

/// A row for each measure, a panel for each case; only the policies that may be best somewhere.
fn figure(cases: &[Case]) -> Figure {
    let drawn = || those(|policy| policy.contender);
    let reference = Key { label: "as eager".to_owned(), look: Look::Reference };
    let row = |measure: &Measure| Row {
        height: 340,
        panels: cases.iter().map(|case| panel(case, measure)).collect(),
    };
    Figure {
        title: "Latency over load, of the best policy's goodput".to_owned(),
        caption: String::new(),
        legend: drawn().into_iter().map(Policy::key).chain([reference]).collect(),
        rows: MEASURES.iter().map(row).collect(),
    }
}

fn panel(case: &Case, measure: &Measure) -> Panel {
    let line = |curve: &Curve| {
        curve.line(|load, _| Some(case.value(curve, measure, load)?.min(measure.top)))
    };
    let drawn = case.curves.iter().filter(|curve| curve.policy.contender);
    let lines: Vec<Line> = drawn.map(line).collect();
    let most = highest(&lines);
    let references = if measure.relative {
        vec![Reference::Through(vec![(0.0, 1.0), (1.0, 1.0)])]
    } else {
        Vec::new()
    };
    Panel {
        title: case.title.to_owned(),
        x: Axis::up_to("offered load, of the best goodput", 1.0),
        y: Axis::up_to(measure.label, most),
        content: Content::Lines { lines, references },
    }
}
