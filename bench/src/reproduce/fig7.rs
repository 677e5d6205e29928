//! Fig. 7: objectives, popularity and burstiness.

use super::ReproduceError;
use super::experiment::{Claim, Experiment, Findings};
use super::grid::{Case, Grid};
use super::policies::{OURS, those};
use super::runner::Runner;
use super::workload::{Profile, Workload};
use crate::plot::{Axis, Content, Figure, Panel, Reference, Row};

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "fig7",
    title: "Fig. 7: objective, popularity and burstiness",
    setup: "20 models like ResNet50 on 32 GPUs, all with the same objective from 15 to 100 ms; \
            popularity equal or Zipf 0.9; gaps exponential or Gamma with shape 0.05 (§5.2.1). Here \
            all 20 have the profile of Table 5's ResNet50. The paper plots goodput and gives no \
            number.",
    remark: REMARK,
    seeds: 3,
    run,
};

const REMARK: &str = "The bound assumes evenly spaced tasks: under Gamma 0.05 twenty tasks may \
    come at once and a tight objective has no room for them, so every policy is far below it \
    there. Symphony's lead under tight objectives appears against Clockwork with its 5 ms of \
    outstanding work, which are a quarter of such an objective; with none its rules keep up at \
    every objective. Eight seconds of Gamma 0.05 are some hundred bursts: single cells are off by \
    10 % there. With objectives of 20 and 25 ms `frontrun` serves up to 5 % more than `baton` \
    under Poisson arrivals.";

const GPUS: u32 = 32;
const MODELS: u32 = 20;
/// Title, Zipf's exponent, Gamma's shape.
const SETTINGS: [(&str, Option<f64>, Option<f64>); 4] = [
    ("equal popularity, Poisson", None, None),
    ("equal popularity, Gamma 0.05", None, Some(0.05)),
    ("Zipf 0.9, Poisson", Some(0.9), None),
    ("Zipf 0.9, Gamma 0.05", Some(0.9), Some(0.05)),
];
const SLOS_MS: [f64; 8] = [15.0, 20.0, 25.0, 30.0, 40.0, 50.0, 75.0, 100.0];
const QUICK_SLOS_MS: [f64; 3] = [20.0, 50.0, 100.0];

fn run(runner: &mut Runner) -> Result<Findings, ReproduceError> {
    let profile = Profile::gtx_1080ti("ResNet50");
    let mut cases = Vec::new();
    for &(panel, zipf, shape) in runner.precision.points(&SETTINGS, &SETTINGS) {
        for &slo_ms in runner.precision.points(&SLOS_MS, &QUICK_SLOS_MS) {
            let workload =
                Workload { zipf, shape, ..Workload::copies(GPUS, &profile, slo_ms, MODELS) };
            let label = format!("{slo_ms} ms");
            cases.push(Case { panel: panel.to_owned(), label, x: slo_ms, workload });
        }
    }
    let grid = Grid::measure(runner, those(|_| true), cases)?;
    let table = |panel: &&str| format!("**{panel}**\n\n{}", grid.table(panel, "goodput", &[]));
    let tables: Vec<String> = grid.panels().iter().map(table).collect();
    Ok(Findings {
        points: grid.json(),
        figure: figure(&grid),
        claims: claims(&grid),
        tables: tables.join("\n"),
        rankings: grid.rankings(),
    })
}

fn claims(grid: &Grid) -> Vec<Claim> {
    let (tight, loose) = (over(grid, "clockwork:5", true), over(grid, "clockwork:5", false));
    let nexus = over(grid, "nexus:1", true);
    let claim = |paper, here| Claim { paper, place: "§5.2.1", here };
    vec![
        claim("Symphony gains clearly under tight objectives, in all four settings", tight),
        claim("with loose objectives Clockwork is about as good", loose),
        claim("Nexus does not work well under bursts", nexus),
    ]
}

/// Ours over another policy in each setting, at the tightest or the loosest objective.
fn over(grid: &Grid, policy: &str, tight: bool) -> String {
    let pick = |panel: &str, name: &str| {
        let results = grid.results(panel, name);
        let end = if tight { results.first() } else { results.last() };
        end.map_or(0.0, |(_, goodput)| goodput.goodput_rps)
    };
    let factor = |panel: &str, ours: &str| {
        let other = pick(panel, policy);
        if other > 0.0 { format!("{:.2}", pick(panel, ours) / other) } else { "∞".to_owned() }
    };
    let factors = |ours: &str| {
        let all: Vec<String> = grid.panels().iter().map(|panel| factor(panel, ours)).collect();
        format!("`{ours}` {}", all.join(", "))
    };
    let end = if tight { grid.cases.first() } else { grid.cases.last() };
    let end = end.map_or("", |case| case.label.as_str());
    format!("at {end}, times `{policy}`: {}", OURS.map(factors).join("; "))
}

fn figure(grid: &Grid) -> Figure {
    let most = grid.cases.iter().map(|case| case.x).fold(0.0, f64::max);
    let panel = |panel: &&str| Panel {
        title: (*panel).to_owned(),
        x: Axis::up_to("objective, ms", most),
        y: Axis::linear("goodput, of the bound", 0.0, 1.05, 0.2, 1),
        content: Content::Lines {
            lines: grid.lines(panel, |goodput| goodput.ratio),
            references: vec![Reference::Through(vec![(0.0, 1.0), (most, 1.0)])],
        },
    };
    let panels = grid.panels();
    let row = |panels: &[&str]| Row { height: 540, panels: panels.iter().map(panel).collect() };
    Figure {
        title: "Fig. 7: 20 models like ResNet50 on 32 GPUs".to_owned(),
        caption: String::new(),
        legend: grid.legend("bound for even arrivals"),
        rows: panels.chunks(2).map(row).collect(),
    }
}
