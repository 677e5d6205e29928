//! Fig. 10: overload, and what load does to the GPUs.

use baton_sim::{Report, Scenario, analytic_bound_rps};
use serde_json::{Value, json};

use super::ReproduceError;
use super::curve::{Curve, curves};
use super::experiment::{Claim, Experiment, Findings};
use super::grid::rounded;
use super::markdown::{rate, ratio, table};
use super::runner::Runner;
use super::workload::{Profile, Workload};
use crate::plot::{Axis, Content, Figure, Key, Line, Look, Panel, Reference, Row};

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "fig10",
    title: "Fig. 10: overload and GPU use",
    setup: "10 equally popular ResNet models with an objective of 100 ms on 24 GPUs, Poisson, from \
            a tenth of the bound to twice the bound (§5.3); one seed for each load. Here all ten \
            have the profile of Table 5's ResNet50. Goodput is what completes in time, whatever \
            the bad rate. The paper plots goodput and GPU use and gives no number.",
    remark: REMARK,
    seeds: 1,
    run,
};

const REMARK: &str = "Overloaded, Clockwork's rules keep their goodput: a strategy whose moment \
    has passed is dropped, and what is served is served in time. The collapse that the paper \
    shows is that of prefix formation here (`eager`, `symphony-text`), which spends the GPUs on \
    small batches for the oldest tasks. GPU use follows the load where policies wait: \
    `frontrun` does all the way down. `baton` starts batches early while GPUs are to spare; where \
    it prefers the fewest GPUs its use follows the load too (see *GPUs that a load needs*). \
    `symphony` is busier, since with ten models βλ is a few tasks and batches start before they \
    are worth it; the work-conserving policies are busy at any load.";

const GPUS: u32 = 24;
const MODELS: u32 = 10;
const SLO_MS: f64 = 100.0;
/// Offered load over the bound. The claims look at 0.3, 0.5 and 2.
const LOADS: [f64; 16] =
    [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.4, 1.6, 1.8, 2.0];
const QUICK_LOADS: [f64; 7] = [0.3, 0.5, 0.8, 0.9, 1.0, 1.4, 2.0];

fn run(runner: &mut Runner) -> Result<Findings, ReproduceError> {
    let profile = Profile::gtx_1080ti("ResNet50");
    let scenario = Workload::copies(GPUS, &profile, SLO_MS, MODELS).scenario(runner.precision);
    let bound = analytic_bound_rps(&Scenario::parse(&scenario)?);
    let loads = runner.precision.points(&LOADS, &QUICK_LOADS);
    let curves = curves(runner, &scenario, loads, bound)?;
    Ok(Findings {
        points: points(&curves, bound, &scenario),
        figure: figure(&curves, bound),
        claims: claims(&curves),
        tables: tables(&curves, bound),
        rankings: Vec::new(),
    })
}

/// Most tasks/s in time at any of the loads.
fn peak(curve: &Curve) -> f64 {
    curve.runs.iter().map(|(_, report)| report.goodput_rps).fold(0.0, f64::max)
}

fn points(curves: &[Curve], bound: f64, scenario: &str) -> Value {
    let one = |curve: &Curve| {
        let runs = curve.runs.iter().map(|(load, report)| {
            json!({
                "load": load,
                "offered_rps": rounded(report.offered_rps, 1),
                "goodput_rps": rounded(report.goodput_rps, 1),
                "bad_rate": rounded(report.bad_rate, 5),
                "gpu_utilization": rounded(report.gpu_utilization, 4),
                "mean_batch": rounded(report.mean_batch, 2),
            })
        });
        json!({
            "policy": curve.policy.name,
            "analytic_bound_rps": rounded(bound, 1),
            "runs": runs.collect::<Vec<_>>(),
            "scenario": scenario,
        })
    };
    curves.iter().map(one).collect()
}

fn claims(curves: &[Curve]) -> Vec<Claim> {
    let each = |what: fn(&Curve) -> Option<f64>| {
        let one = |curve: &Curve| {
            what(curve).map(|value| format!("`{}` {}", curve.policy.name, ratio(value)))
        };
        curves.iter().filter_map(one).collect::<Vec<_>>().join(", ")
    };
    let kept = |curve: &Curve| Some(curve.at(2.0)?.goodput_rps / peak(curve));
    let busy = |curve: &Curve| curve.at(0.5).map(|report| report.gpu_utilization);
    let claim = |paper, here| Claim { paper, place: "§5.3", here };
    vec![
        claim(
            "overloaded, Symphony and Nexus keep their peak goodput and Clockwork does not",
            format!("goodput at twice the bound over the policy's peak: {}", each(kept)),
        ),
        claim(
            "Clockwork and Nexus keep all GPUs busy before their peak; Symphony's GPU use grows with the load",
            format!("GPU use at half of the bound: {}", each(busy)),
        ),
    ]
}

fn tables(curves: &[Curve], bound: f64) -> String {
    let headings = [
        "policy",
        "peak, tasks/s · of the bound",
        "at twice the bound, of the peak",
        "GPU use at 0.3 of the bound",
        "at 0.5",
        "at 0.9",
    ];
    let row = |curve: &Curve| {
        let peak = peak(curve);
        let busy = |load| {
            curve.at(load).map_or_else(|| "–".to_owned(), |report| ratio(report.gpu_utilization))
        };
        let kept =
            curve.at(2.0).map_or_else(|| "–".to_owned(), |report| ratio(report.goodput_rps / peak));
        vec![
            format!("`{}`", curve.policy.name),
            format!("{} · {}", rate(peak), ratio(peak / bound)),
            kept,
            busy(0.3),
            busy(0.5),
            busy(0.9),
        ]
    };
    let rows: Vec<Vec<String>> = curves.iter().map(row).collect();
    format!(
        "The bound is {} tasks/s.\n\n{}",
        rate(bound),
        table(&headings.map(str::to_owned), &rows)
    )
}

fn figure(curves: &[Curve], bound: f64) -> Figure {
    let most =
        curves.iter().flat_map(|curve| &curve.runs).map(|(load, _)| *load).fold(0.0, f64::max);
    let lines = |y: &dyn Fn(&Report) -> f64| -> Vec<Line> {
        curves.iter().map(|curve| curve.line(|_, report| Some(y(report)))).collect()
    };
    let panel = |title: &str, label, lines, ideal| Panel {
        title: title.to_owned(),
        x: Axis::up_to("offered load, of the bound", most),
        y: Axis::linear(label, 0.0, 1.05, 0.2, 1),
        content: Content::Lines { lines, references: vec![Reference::Through(ideal)] },
    };
    let ideal = || vec![(0.0, 0.0), (1.0, 1.0), (most.max(1.0), 1.0)];
    let stability = lines(&|report| report.goodput_rps / bound);
    let busy = lines(&|report| report.gpu_utilization);
    let reference = Key { label: "ideal".to_owned(), look: Look::Reference };
    Figure {
        title: "Fig. 10: 10 ResNet models on 24 GPUs, objective 100 ms".to_owned(),
        caption: String::new(),
        legend: curves.iter().map(|curve| curve.policy.key()).chain([reference]).collect(),
        rows: vec![Row {
            height: 640,
            panels: vec![
                panel("stability", "tasks in time, of the bound", stability, ideal()),
                panel("GPU use", "part of the GPUs' time", busy, ideal()),
            ],
        }],
    }
}
