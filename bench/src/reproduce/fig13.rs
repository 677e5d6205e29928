//! Fig. 13: what network latency costs.

use baton_sim::Goodput;

use super::ReproduceError;
use super::experiment::{Claim, Experiment, Findings};
use super::grid::{Case, Grid};
use super::markdown::change;
use super::policies::{OURS, those};
use super::runner::Runner;
use super::workload::{Profile, Workload};
use crate::plot::{Axis, Content, Figure, Panel, Reference, Row};

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "fig13",
    title: "Fig. 13: network latency",
    setup: "20 equally popular models of similar profile on 32 GPUs, Poisson, four objectives \
            (§5.5). Here the profile is Table 5's ResNet50, and the latency is the time from a \
            plan to the moment its inputs are there, the same for every batch, which the scheduler \
            knows (the paper's takes a high percentile). The paper plots goodput against latency; \
            neither its values nor its latencies are given as numbers. 33 µs is its 99.99th \
            percentile with RDMA. Each point is the goodput, over the bound of the objective \
            without latency; in the tables the bound has the latency taken off. Only policies that \
            may be best somewhere are compared.",
    remark: REMARK,
    seeds: 3,
    run,
};

const REMARK: &str = "As in the paper: tens of microseconds cost next to nothing, milliseconds \
    cost the more the tighter the objective. Fetching overlaps with the batch before it, so \
    latency costs batch size and not GPU time. `clockwork:0` loses more: it has no batch in hand \
    while one executes, so that its GPUs wait for inputs. `baton` is up to 6 % behind \
    `frontrun` with objectives of 20 and 25 ms, at any latency: see Fig. 7.";

const GPUS: u32 = 32;
const MODELS: u32 = 20;
const SLOS_MS: [f64; 4] = [20.0, 25.0, 50.0, 100.0];
/// Title, the unit in µs, its name, latencies in it, and those of a quick run.
const RANGES: [Range; 2] = [
    Range {
        title: "RDMA",
        unit: "µs",
        us: 1.0,
        full: &[0.0, 10.0, 20.0, 33.0, 50.0],
        quick: &[0.0, 33.0],
    },
    Range {
        title: "TCP",
        unit: "ms",
        us: 1_000.0,
        full: &[0.0, 1.0, 2.0, 4.0, 6.0, 8.0],
        quick: &[0.0, 4.0],
    },
];

struct Range {
    title: &'static str,
    unit: &'static str,
    us: f64,
    full: &'static [f64],
    quick: &'static [f64],
}

fn panel_name(range: &Range, slo_ms: f64) -> String {
    format!("{} range, objective {slo_ms} ms", range.title)
}

fn run(runner: &mut Runner) -> Result<Findings, ReproduceError> {
    let profile = Profile::gtx_1080ti("ResNet50");
    let mut cases = Vec::new();
    let slos = runner.precision.points(&SLOS_MS, &SLOS_MS);
    for range in &RANGES {
        for &slo_ms in slos {
            for &latency in runner.precision.points(range.full, range.quick) {
                let copies = Workload::copies(GPUS, &profile, slo_ms, MODELS);
                cases.push(Case {
                    panel: panel_name(range, slo_ms),
                    label: format!("{latency} {}", range.unit),
                    x: latency,
                    workload: Workload { ctrl_us: latency * range.us, ..copies },
                });
            }
        }
    }
    let grid = Grid::measure(runner, those(|policy| policy.contender), cases)?;
    let table = |panel: &&str| format!("**{panel}**\n\n{}", grid.table(panel, "goodput", &[]));
    let tables: Vec<String> = grid.panels().iter().map(table).collect();
    Ok(Findings {
        points: grid.json(),
        figure: figure(&grid, slos),
        claims: claims(&grid, slos),
        tables: tables.join("\n"),
        rankings: grid.rankings(),
    })
}

/// The bound without latency of a panel.
fn whole(grid: &Grid, panel: &str) -> f64 {
    grid.panel(panel).next().map_or(1.0, |(_, results)| results[0].analytic_bound_rps)
}

fn claims(grid: &Grid, slos: &[f64]) -> Vec<Claim> {
    let lost = |range: &Range| {
        let one = |policy: &str, slo_ms: f64| {
            let results = grid.results(&panel_name(range, slo_ms), policy);
            let (none, most) = results.first().zip(results.last())?;
            let kept = most.1.goodput_rps / none.1.goodput_rps.max(1e-9);
            Some(format!("{} at {slo_ms} ms", change(kept)))
        };
        let each = |policy: &str| {
            let all: Vec<String> = slos.iter().filter_map(|&slo_ms| one(policy, slo_ms)).collect();
            format!("`{policy}` {}", all.join(", "))
        };
        let most = grid.panel(&panel_name(range, slos[0])).last();
        let most = most.map_or("", |(case, _)| case.label.as_str());
        format!("with {most}: {}", OURS.map(each).join("; "))
    };
    let claim = |paper, range| Claim { paper, place: "§5.5", here: lost(range) };
    vec![
        claim("within RDMA's range latency reduces goodput only marginally", &RANGES[0]),
        claim(
            "within TCP's tail it hurts significantly, the more the tighter the objective",
            &RANGES[1],
        ),
    ]
}

fn figure(grid: &Grid, slos: &[f64]) -> Figure {
    let ratio = |name: &str| {
        let whole = whole(grid, name);
        move |goodput: &Goodput| goodput.goodput_rps / whole
    };
    let least = |range: &Range| {
        let of_panel = |slo_ms: &f64| {
            let name = panel_name(range, *slo_ms);
            let lines = grid.lines(&name, ratio(&name)).into_iter();
            lines.flat_map(|line| line.points).map(|point| point.1).fold(1.0, f64::min)
        };
        slos.iter().map(of_panel).fold(1.0, f64::min)
    };
    let panel = |range: &Range, slo_ms: f64| {
        let name = panel_name(range, slo_ms);
        let whole = whole(grid, &name);
        let bounds: Vec<(f64, f64)> = grid
            .panel(&name)
            .map(|(case, results)| (case.x, results[0].analytic_bound_rps / whole))
            .collect();
        let most = bounds.iter().map(|bound| bound.0).fold(0.0, f64::max);
        Panel {
            title: format!("objective {slo_ms} ms"),
            x: Axis::up_to(&format!("{} latency, {}", range.title, range.unit), most),
            y: Axis::up_to_one("goodput, of the bound", least(range)),
            content: Content::Lines {
                lines: grid.lines(&name, ratio(&name)),
                references: vec![Reference::Through(bounds)],
            },
        }
    };
    let row = |range: &Range| Row {
        height: 600,
        panels: slos.iter().map(|&slo_ms| panel(range, slo_ms)).collect(),
    };
    Figure {
        title: "Fig. 13: goodput by network latency, 20 models on 32 GPUs".to_owned(),
        caption: String::new(),
        legend: grid.legend("bound with the latency"),
        rows: RANGES.iter().map(row).collect(),
    }
}
