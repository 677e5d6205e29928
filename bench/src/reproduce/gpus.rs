//! How many GPUs a load needs: `gpus_needed` and the GPUs' busy time beside the least that suffice.

use baton_sim::Report;
use serde_json::{Value, json};

use super::ReproduceError;
use super::experiment::{Experiment, Findings};
use super::grid::rounded;
use super::markdown::{rate, table};
use super::policies::{Policy, named};
use super::runner::{RunAt, Runner};
use super::table4;
use super::workload::{Models, Profile, Workload};
use crate::plot::{
    Axis, BLACK, BLUE, Colour, Content, Figure, GREEN, GREY, Key, Line, Look, Mark, Panel, Row,
    Style, VERMILLION, highest,
};

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "gpus",
    title: "GPUs that a load needs",
    setup: "Not in the paper as a figure: its autoscaler (§4.4) takes away the part of the GPUs that is \
            idle, and adds some when tasks are lost. Here are the GPUs that are busy (their number × \
            their use) under `symphony` and under `baton` with either preference, `gpus_needed` as the \
            scheduler reckons it from rates and profiles under either preference, and the *least*: the \
            fewest GPUs on which `baton` keeps every model's bad rate at 1 % or below, found by \
            bisection. Loads are parts of `baton`'s goodput on all GPUs.",
    remark: REMARK,
    seeds: 1,
    run,
};

const REMARK: &str = "Busy GPUs tell what a load needs only where batches wait until load \
    gathers on few of them: under `symphony`, and under `baton` with its default preference, they \
    do not. `gpus_needed` is the same with either preference. It is the least or one more for \
    copies of a model, in bursts too. With the 1080Ti table, many of whose models have batches of \
    one or two tasks, it is up to three GPUs short at little load and at most one from 0.3 of the \
    goodput on; once more than 1 % of the tasks are lost it is more than there are.";

/// Offered load over the goodput on all GPUs.
const LOADS: [f64; 10] = [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0];
const QUICK_LOADS: [f64; 5] = [0.1, 0.3, 0.5, 0.8, 1.0];
/// Bad rate of a model that its users accept: that of goodput.
const ACCEPTED: f64 = 0.01;
/// First line of a scenario file in which load gathers on few GPUs.
const FEWEST_GPUS: &str = "prefer = \"fewest_gpus\"\n";

/// What the figure shows of the runs at a load.
struct Signal {
    label: &'static str,
    style: Style,
    of: fn(&Point) -> f64,
}

const SIGNALS: [Signal; 6] = [
    signal("least", GREY, Mark::Square, |p| p.least.into()),
    signal("gpus_needed", BLACK, Mark::Circle, |p| needed(&p.latency)),
    signal("gpus_needed, fewest_gpus", VERMILLION, Mark::Wedge, |p| needed(&p.fewest)).light(),
    signal("busy, latency", BLUE, Mark::Triangle, |p| p.busy(&p.latency)),
    signal("busy, fewest_gpus", BLUE, Mark::Triangle, |p| p.busy(&p.fewest)).light(),
    signal("busy, symphony", GREEN, Mark::Diamond, |p| p.busy(&p.symphony)),
];

const fn signal(label: &'static str, colour: Colour, mark: Mark, of: fn(&Point) -> f64) -> Signal {
    Signal { label, style: Style { colour, mark, light: false }, of }
}

impl Signal {
    /// Drawn thinner: the other preference.
    const fn light(self) -> Self {
        Self { style: Style { light: true, ..self.style }, ..self }
    }
}

/// A scenario and its loads.
struct Case {
    title: &'static str,
    workload: Workload,
    goodput_rps: f64,
    bound_rps: f64,
    points: Vec<Point>,
}

/// A load: how the policies came out on all GPUs, and how few suffice.
struct Point {
    load: f64,
    gpus: u32,
    latency: Report,
    fewest: Report,
    symphony: Report,
    least: u32,
}

fn workloads() -> [(&'static str, Workload); 4] {
    let resnet50 = Profile::gtx_1080ti("ResNet50");
    let bursts = Workload { shape: Some(0.2), ..Workload::copies(24, &resnet50, 100.0, 10) };
    [
        ("ResNet50, 8 GPUs", table4::MODELS[0].workload()),
        ("10 ResNet50, 24 GPUs", Workload::copies(24, &resnet50, 100.0, 10)),
        ("the same in bursts (Gamma 0.2)", bursts),
        ("1080Ti table, 64 GPUs", Workload::new(64, Models::Zoo { zoo: "1080ti", filter: "all" })),
    ]
}

fn run(runner: &mut Runner) -> Result<Findings, ReproduceError> {
    let baton = policy("baton");
    let named = workloads();
    let scenarios: Vec<String> =
        named.iter().map(|(_, workload)| workload.scenario(runner.precision)).collect();
    let goodputs = runner.goodputs(&scenarios, &[baton])?;
    let mut cases = Vec::new();
    for ((title, workload), goodputs) in named.into_iter().zip(goodputs) {
        // In the smallest precision no rate may be good at all.
        let goodput_rps = goodputs[0].goodput_rps.max(1.0);
        let points = points(runner, &workload, goodput_rps)?;
        let bound_rps = goodputs[0].analytic_bound_rps;
        cases.push(Case { title, workload, goodput_rps, bound_rps, points });
    }
    Ok(Findings {
        points: cases.iter().map(|case| json(case, runner)).collect(),
        figure: figure(&cases),
        claims: Vec::new(),
        tables: cases.iter().map(tables).collect::<Vec<_>>().join("\n"),
        rankings: Vec::new(),
    })
}

fn policy(name: &str) -> &'static Policy {
    named(name).expect("the list has baton and symphony")
}

fn points(runner: &Runner, workload: &Workload, rps: f64) -> Result<Vec<Point>, ReproduceError> {
    let loads = runner.precision.points(&LOADS, &QUICK_LOADS);
    let rates: Vec<f64> = loads.iter().map(|load| load * rps).collect();
    let scenario = workload.scenario(runner.precision);
    let gathered = format!("{FEWEST_GPUS}{scenario}");
    let setups = [(&scenario, "baton"), (&gathered, "baton"), (&scenario, "symphony")];
    let job = |&(scenario, name): &(&String, &str), rate_rps: f64| RunAt {
        scenario: scenario.clone(),
        policy: policy(name),
        rate_rps,
    };
    let jobs: Vec<RunAt> =
        rates.iter().flat_map(|&rate| setups.iter().map(move |setup| job(setup, rate))).collect();
    let mut reports = runner.runs(&jobs)?.into_iter().map(|(report, _)| report);
    let least = least(runner, workload, &rates)?;
    let mut next = || reports.next().expect("every job has its report");
    let point = |(&load, least)| Point {
        load,
        gpus: workload.gpus,
        latency: next(),
        fewest: next(),
        symphony: next(),
        least,
    };
    Ok(loads.iter().zip(least).map(point).collect())
}

/// The fewest GPUs on which no model loses more than is accepted, for each rate; all of them if
/// fewer do not suffice. All rates are bisected at once.
fn least(runner: &Runner, workload: &Workload, rates: &[f64]) -> Result<Vec<u32>, ReproduceError> {
    // The most that are known not to suffice, and the fewest that do.
    let mut ends: Vec<(u32, u32)> = rates.iter().map(|_| (0, workload.gpus)).collect();
    loop {
        let middle = |(i, &(few, enough)): (usize, &(u32, u32))| {
            (few + 1 < enough).then(|| (i, few.midpoint(enough)))
        };
        let open: Vec<(usize, u32)> = ends.iter().enumerate().filter_map(middle).collect();
        if open.is_empty() {
            return Ok(ends.into_iter().map(|(_, enough)| enough).collect());
        }
        let job = |&(i, gpus): &(usize, u32)| RunAt {
            scenario: Workload { gpus, ..workload.clone() }.scenario(runner.precision),
            policy: policy("baton"),
            rate_rps: rates[i],
        };
        let reports = runner.runs(&open.iter().map(job).collect::<Vec<_>>())?;
        for (&(i, gpus), (report, _)) in open.iter().zip(&reports) {
            let suffices = report.worst_model_bad_rate <= ACCEPTED;
            *(if suffices { &mut ends[i].1 } else { &mut ends[i].0 }) = gpus;
        }
    }
}

fn needed(report: &Report) -> f64 {
    report.gpus_needed.map_or(0.0, f64::from)
}

impl Point {
    /// GPUs that executed, on average.
    fn busy(&self, report: &Report) -> f64 {
        report.gpu_utilization * f64::from(self.gpus)
    }
}

fn json(case: &Case, runner: &Runner) -> Value {
    let run = |point: &Point| {
        json!({
            "load": point.load,
            "offered_rps": rounded(point.latency.offered_rps, 1),
            "least": point.least,
            "gpus_needed": point.latency.gpus_needed,
            "gpus_needed_fewest_gpus": point.fewest.gpus_needed,
            "busy_latency": rounded(point.busy(&point.latency), 2),
            "busy_fewest_gpus": rounded(point.busy(&point.fewest), 2),
            "busy_symphony": rounded(point.busy(&point.symphony), 2),
        })
    };
    json!({
        "case": case.title,
        "analytic_bound_rps": rounded(case.bound_rps, 1),
        "goodput_rps": rounded(case.goodput_rps, 1),
        "runs": case.points.iter().map(run).collect::<Vec<_>>(),
        "scenario": case.workload.scenario(runner.precision),
    })
}

fn tables(case: &Case) -> String {
    let mut headings = vec!["load".to_owned()];
    headings.extend(SIGNALS.map(|signal| signal.label.to_owned()));
    let row = |point: &Point| {
        let cell = |signal: &Signal| {
            let value = (signal.of)(point);
            if value.fract() == 0.0 { format!("{value}") } else { format!("{value:.1}") }
        };
        std::iter::once(point.load.to_string()).chain(SIGNALS.iter().map(cell)).collect()
    };
    let rows: Vec<Vec<String>> = case.points.iter().map(row).collect();
    let goodput = rate(case.goodput_rps);
    format!("**{}**; goodput {goodput} tasks/s:\n\n{}", case.title, table(&headings, &rows))
}

fn figure(cases: &[Case]) -> Figure {
    let key =
        |signal: &Signal| Key { label: signal.label.to_owned(), look: Look::Series(signal.style) };
    Figure {
        title: "GPUs that a load needs, by what tells it".to_owned(),
        caption: String::new(),
        legend: SIGNALS.iter().map(key).collect(),
        rows: vec![Row { height: 560, panels: cases.iter().map(panel).collect() }],
    }
}

fn panel(case: &Case) -> Panel {
    let line = |signal: &Signal| Line {
        style: signal.style,
        points: case.points.iter().map(|point| (point.load, (signal.of)(point))).collect(),
        mark_every: 1,
    };
    let lines: Vec<Line> = SIGNALS.iter().map(line).collect();
    Panel {
        title: case.title.to_owned(),
        x: Axis::up_to("offered load, of the goodput", 1.0),
        y: Axis::up_to("GPUs", highest(&lines)),
        content: Content::Lines { lines, references: Vec::new() },
    }
}
