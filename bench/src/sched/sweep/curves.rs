//! The sweep's curves: costs over models and over GPUs, and rates over ModelThreads.

use super::{Point, Points, SweepReport};
use crate::plot::{
    self, Axis, BLUE, Content, Figure, Key, Line, Look, Mark, Panel, PlotError, Reference, Row,
    Style, VERMILLION,
};

const REQUESTS: Style = Style { colour: BLUE, mark: Mark::Circle, light: false };
const BATCHES: Style = Style { colour: VERMILLION, mark: Mark::Square, light: false };
/// What a request and a batch may cost, ns.
const BUDGETS: [f64; 2] = [100.0, 300.0];
const HEIGHT: i32 = 440;

/// The SVG document.
pub(super) fn svg(report: &SweepReport, points: &Points) -> Result<String, PlotError> {
    let mut rows = vec![
        costs("models", "with 64 GPUs", &report.models),
        costs("GPUs", "with 32 models", &report.gpus),
    ];
    if report.model_threads.len() > 1 {
        rows.push(scaling(report));
    }
    plot::svg(&Figure {
        title: "What the scheduler costs as the cluster grows".to_owned(),
        caption: caption(report, points),
        legend: vec![
            Key { label: "ModelThread, ns per request".to_owned(), look: Look::Series(REQUESTS) },
            Key { label: "RankThread, ns per batch".to_owned(), look: Look::Series(BATCHES) },
            Key { label: "budget; perfect scaling".to_owned(), look: Look::Reference },
        ],
        rows,
    })
}

fn caption(report: &SweepReport, points: &Points) -> String {
    let run = if points.smoke { "SMOKE RUN, figures mean nothing: " } else { "" };
    let left_out = if report.model_threads_left_out.is_empty() {
        String::new()
    } else {
        format!("; more ModelThreads than {} left out", report.cores.saturating_sub(1))
    };
    format!("{run}policy {}, stepped, {} cores{left_out}", report.policy, report.cores)
}

fn costs(what: &str, with: &str, points: &[Point]) -> Row {
    let [requests, batches] = BUDGETS;
    let request = |point: &Point| point.cost.ns_per_request;
    let batch = |point: &Point| point.cost.rank_ns_per_batch;
    Row {
        height: HEIGHT,
        panels: vec![
            panel(what, with, "ns per request", points, REQUESTS, requests, request),
            panel(what, with, "ns per batch", points, BATCHES, batches, batch),
        ],
    }
}

fn panel(
    what: &str,
    with: &str,
    label: &str,
    points: &[Point],
    style: Style,
    budget: f64,
    cost: impl Fn(&Point) -> f64,
) -> Panel {
    let ats: Vec<f64> = points.iter().map(|point| point.at.into()).collect();
    let curve: Vec<(f64, f64)> =
        points.iter().map(|point| (f64::from(point.at).log2(), cost(point))).collect();
    let most = curve.iter().map(|point| point.1).fold(budget, f64::max);
    let x = Axis::log2(what, &ats);
    let budget = Reference::Through(vec![(x.from, budget), (x.to, budget)]);
    Panel {
        title: with.to_owned(),
        y: Axis::up_to(label, 1.05 * most),
        x,
        content: Content::Lines {
            lines: vec![Line { style, points: curve, mark_every: 1 }],
            references: vec![budget],
        },
    }
}

fn scaling(report: &SweepReport) -> Row {
    let points: Vec<(f64, f64)> = report
        .model_threads
        .iter()
        .map(|point| (f64::from(point.model_threads), point.report.run.requests_per_s / 1e6))
        .collect();
    let ats: Vec<f64> = points.iter().map(|point| point.0).collect();
    let one = points.first().map_or(0.0, |(n, rate)| rate / n);
    let perfect = Reference::Through(ats.iter().map(|n| (n.log2(), n * one)).collect());
    let most = ats.iter().map(|n| n * one).chain(points.iter().map(|p| p.1)).fold(0.0, f64::max);
    let curve = points.iter().map(|(n, rate)| (n.log2(), *rate)).collect();
    let panel = Panel {
        title: "live, 32 models and 64 GPUs for each".to_owned(),
        x: Axis::log2("ModelThreads", &ats),
        y: Axis::up_to("M requests/s", most),
        content: Content::Lines {
            lines: vec![Line { style: REQUESTS, points: curve, mark_every: 1 }],
            references: vec![perfect],
        },
    };
    Row { height: HEIGHT, panels: vec![panel] }
}
