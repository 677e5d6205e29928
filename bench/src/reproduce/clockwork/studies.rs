//! What is run for each of Clockwork's figures: scenarios along an axis, and what is read off each run.

use baton_sim::{ModelReport, Report};

use super::super::precision::Precision;
use super::scenario::{Entry, PAGES, Scenario};

/// One panel of a figure of the paper, or a few that share their runs.
pub(super) struct Study {
    /// In the data file.
    pub(super) name: &'static str,
    /// Studies in a row that have the same are drawn side by side.
    pub(super) row: &'static str,
    pub(super) title: &'static str,
    /// What changes from point to point.
    pub(super) axis: &'static str,
    /// The first one's line lies on top.
    pub(super) policies: &'static [&'static str],
    pub(super) points: fn(Precision) -> Vec<Point>,
    pub(super) measures: &'static [Measure],
}

/// One scenario and its rate.
pub(super) struct Point {
    /// On the axis.
    pub(super) at: String,
    pub(super) scenario: String,
    pub(super) rate_rps: f64,
}

/// A value of a run.
#[derive(Clone, Copy)]
pub(super) struct Measure {
    pub(super) label: &'static str,
    /// Digits after the point.
    pub(super) digits: usize,
    pub(super) of: fn(&Report) -> Option<f64>,
}

const ALL: &[&str] = &["baton", "clockwork:5", "naive", "pinned"];
const SCALED: &[&str] = &["baton", "clockwork:5"];
const DEFERRED: &[&str] = &["baton", "clockwork:5", "symphony"];

const IN_TIME: Measure = measure("in time per second", 0, |run| Some(run.goodput_rps));
const SATISFIED: Measure = measure("satisfied", 3, |run| Some(run.satisfied));
const COLD: Measure = measure("of cold tasks", 2, |run| run.cold_satisfied);
const LOADS: Measure = measure("LOADs per second", 0, |run| run.loads_per_s);

const LATENCY_AND_BATCH: &[Measure] = &[
    measure("latency clients, satisfied", 3, |run| satisfied(run, "latency")),
    measure("batch clients, in time per second", 0, |run| in_time(run, "batch")),
];

const fn measure(label: &'static str, digits: usize, of: fn(&Report) -> Option<f64>) -> Measure {
    Measure { label, digits, of }
}

pub(super) const STUDIES: &[Study] = &[
    Study {
        name: "fig5",
        row: "fig5",
        title: "Fig. 5: 15 models, closed loop",
        axis: "objective, ms",
        policies: DEFERRED,
        points: fig5,
        measures: &[IN_TIME, measure("p99, ms", 1, |run| run.p99_ms)],
    },
    Study {
        name: "fig6",
        row: "fig6",
        title: "Fig. 6",
        axis: "active models",
        policies: ALL,
        points: fig6,
        measures: &[
            measure("major, in time per second", 0, |run| in_time(run, "major")),
            measure("minor, in time per second", 0, |run| in_time(run, "minor")),
            measure("loader use", 2, |run| run.loader_utilization),
        ],
    },
    fig7("fig7-12-600", "fig7-12", "Fig. 7: 12 models, 600 tasks/s", |p| fig7_at(p, 12, 600.0)),
    fig7("fig7-12-1200", "fig7-12", "12 models, 1,200 tasks/s", |p| fig7_at(p, 12, 1_200.0)),
    fig7("fig7-12-2400", "fig7-12", "12 models, 2,400 tasks/s", |p| fig7_at(p, 12, 2_400.0)),
    fig7("fig7-48-600", "fig7-48", "Fig. 7: 48 models, 600 tasks/s", |p| fig7_at(p, 48, 600.0)),
    fig7("fig7-48-1200", "fig7-48", "48 models, 1,200 tasks/s", |p| fig7_at(p, 48, 1_200.0)),
    fig7("fig7-48-2400", "fig7-48", "48 models, 2,400 tasks/s", |p| fig7_at(p, 48, 2_400.0)),
    fig8("fig8-12", "Fig. 8: beside 12 × 16 clients", |p| fig8_at(p, 12, 16)),
    fig8("fig8-48", "beside 48 × 4 clients", |p| fig8_at(p, 48, 4)),
    Study {
        name: "fig9-12",
        row: "fig9",
        title: "Fig. 9: 12 GPUs",
        axis: "thousand tasks/s",
        policies: ALL,
        points: |precision| fig9_at(precision, 12, &[3.5, 3.95, 5.1, 6.1], &[3.5, 5.1]),
        measures: &[SATISFIED, COLD, LOADS],
    },
    Study {
        name: "fig9-24",
        row: "fig9",
        title: "Fig. 9: 24 GPUs",
        axis: "thousand tasks/s",
        policies: ALL,
        points: |precision| fig9_at(precision, 24, &[8.0, 9.638, 11.0], &[8.0, 9.638]),
        measures: &[SATISFIED],
    },
    Study {
        name: "fig11-40",
        row: "fig11",
        title: "Fig. 11: 40 GPUs",
        axis: "thousand tasks/s",
        policies: SCALED,
        points: fig11_rising,
        measures: &[IN_TIME, measure("GPU use", 3, |run| Some(run.gpu_utilization))],
    },
    Study {
        name: "fig11",
        row: "fig11",
        title: "Fig. 11: a fifth more than the GPUs carry",
        axis: "GPUs",
        policies: SCALED,
        points: fig11_scaled,
        measures: &[IN_TIME],
    },
];

/// Tasks of the models of this name that ended in time, and all that were offered.
fn tasks(run: &Report, name: &str) -> (u64, u64) {
    let of = |model: &&ModelReport| model.name.starts_with(name);
    run.models.iter().filter(of).fold((0, 0), |(in_time, submitted), model| {
        (in_time + model.completed - model.late, submitted + model.submitted)
    })
}

/// Per second.
pub(super) fn in_time(run: &Report, name: &str) -> Option<f64> {
    let (all, _) = tasks(run, "");
    (all > 0).then(|| run.goodput_rps * tasks(run, name).0 as f64 / all as f64)
}

pub(super) fn satisfied(run: &Report, name: &str) -> Option<f64> {
    let (in_time, submitted) = tasks(run, name);
    (submitted > 0).then(|| in_time as f64 / submitted as f64)
}

fn pages() -> String {
    format!("pages = {PAGES}\n")
}

/// Tasks come when others have ended: there is no rate. The smallest that a run takes.
const NO_RATE: f64 = 0.001;

fn fig5(precision: Precision) -> Vec<Point> {
    const SLOS_MS: [f64; 6] = [10.0, 25.0, 50.0, 100.0, 250.0, 500.0];
    let point = |&slo_ms: &f64| Point {
        at: slo_ms.to_string(),
        scenario: Scenario::new(1, precision.cache_spans_s(), &pages())
            .resnet50(&Entry::new("model", slo_ms, 15).with(clients(16)))
            .text(),
        rate_rps: NO_RATE,
    };
    precision.points(&SLOS_MS, &[25.0, 100.0, 500.0]).iter().map(point).collect()
}

fn clients(clients: u32) -> String {
    format!("closed_loop = {{ clients = {clients} }}\n")
}

fn fig6(precision: Precision) -> Vec<Point> {
    const ACTIVE: [u32; 8] = [1, 10, 100, 190, 300, 1_000, 2_000, 3_600];
    let point = |&active: &u32| Point {
        at: active.to_string(),
        scenario: Scenario::new(1, precision.cache_spans_s(), &pages())
            .resnet50(&Entry::new("major", 100.0, active).with("weight = 5\n".to_owned()))
            .resnet50(&Entry::new("minor", 100.0, 1).with("weight = 1\n".to_owned()))
            .text(),
        rate_rps: 1_200.0,
    };
    precision.points(&ACTIVE, &[100, 300, 3_600]).iter().map(point).collect()
}

const fn fig7(
    name: &'static str,
    row: &'static str,
    title: &'static str,
    points: fn(Precision) -> Vec<Point>,
) -> Study {
    let axis = "objective, ms";
    Study { name, row, title, axis, policies: DEFERRED, points, measures: &[SATISFIED] }
}

/// The models are on all GPUs: those of the paper are loaded before.
fn fig7_at(precision: Precision, models: u32, rate_rps: f64) -> Vec<Point> {
    let point = |&k: &i32| {
        let slo_ms = 2.9 * 1.5_f64.powi(k);
        let digits = usize::from(slo_ms < 10.0);
        Point {
            at: format!("{slo_ms:.digits$}"),
            scenario: Scenario::new(6, precision.cache_spans_s(), "")
                .resnet50(&Entry::new("model", slo_ms, models))
                .text(),
            rate_rps,
        }
    };
    precision.points(&[0, 1, 2, 3, 4, 5, 6, 7, 8], &[1, 3, 5]).iter().map(point).collect()
}

const fn fig8(
    name: &'static str,
    title: &'static str,
    points: fn(Precision) -> Vec<Point>,
) -> Study {
    Study {
        name,
        row: "fig8",
        title,
        axis: "objective of the latency clients, ms",
        policies: DEFERRED,
        points,
        measures: LATENCY_AND_BATCH,
    }
}

/// What stands for no objective, ms.
const BATCH_SLO_MS: f64 = 1_000.0;

fn fig8_at(precision: Precision, models: u32, batch_clients: u32) -> Vec<Point> {
    let point = |&slo_ms: &f64| Point {
        at: slo_ms.to_string(),
        scenario: Scenario::new(6, precision.cache_spans_s(), "")
            .resnet50(&Entry::new("latency", slo_ms, 6))
            .resnet50(&Entry::new("batch", BATCH_SLO_MS, models).with(clients(batch_clients)))
            .text(),
        rate_rps: 1_200.0,
    };
    let points = precision.points(&[5.0, 10.0, 15.0, 25.0, 50.0, 100.0], &[10.0, 25.0, 100.0]);
    points.iter().map(point).collect()
}

fn fig9_at(
    precision: Precision,
    gpus: u32,
    full: &'static [f64],
    quick: &'static [f64],
) -> Vec<Point> {
    let point = |&thousands: &f64| Point {
        at: thousands.to_string(),
        scenario: azure(gpus, precision.cache_spans_s(), ""),
        rate_rps: thousands * 1e3,
    };
    precision.points(full, quick).iter().map(point).collect()
}

/// 4,026 models of Table 1 under the load of §6.5. `keys` are further lines for the whole scenario.
pub(super) fn azure(gpus: u32, spans_s: (f64, f64), keys: &str) -> String {
    let azure = "popularity = { kind = \"azure\", functions = 46000 }\n";
    Scenario::new(gpus, spans_s, &(pages() + azure + keys)).table1(100.0, 671).text()
}

/// What a GPU carries of that load, about.
const PER_GPU_RPS: f64 = 440.0;

fn fig11_rising(precision: Precision) -> Vec<Point> {
    const PARTS: [f64; 7] = [0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.3];
    let point = |&part: &f64| {
        let rate_rps = 40.0 * PER_GPU_RPS * part;
        fig11_at(precision, 40, format!("{:.1}", rate_rps / 1e3), rate_rps)
    };
    precision.points(&PARTS, &[0.5, 0.9, 1.3]).iter().map(point).collect()
}

fn fig11_scaled(precision: Precision) -> Vec<Point> {
    let point = |&gpus: &u32| {
        fig11_at(precision, gpus, gpus.to_string(), f64::from(gpus) * PER_GPU_RPS * 1.2)
    };
    precision.points(&[10, 20, 40, 80, 110, 150], &[10, 40]).iter().map(point).collect()
}

/// Every model is loaded within a second: a short warm-up does.
fn fig11_at(precision: Precision, gpus: u32, at: String, rate_rps: f64) -> Point {
    Point { at, scenario: azure(gpus, precision.spans_s(), ""), rate_rps }
}
