//! Fig. 1: what several frontends cost a scheduler that is distributed over them.

use super::ReproduceError;
use super::experiment::{Claim, Experiment, Findings};
use super::fig6::zoo;
use super::grid::{Case, Grid};
use super::markdown::change;
use super::policies::{OURS, Policy, named, policy};
use super::runner::Runner;
use super::table4;
use super::workload::{Profile, Workload};
use crate::plot::{
    Axis, BLACK, BLUE, Colour, Content, Figure, GREEN, Key, Line, Look, Mark, ORANGE, PURPLE,
    Panel, Row, SKY_BLUE, Style, VERMILLION,
};

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "fig1",
    title: "Fig. 1: distributed scheduling hurts goodput",
    setup: "Nexus' rules with 1 to 32 frontends, each of which spreads its tasks over the GPUs on \
            its own (§3.3). The paper varies GPUs from 8 to 64, models from 1 to 37 and objectives \
            from 20 to 100 ms and only plots the result; which workloads and frontends it took is \
            not given. The seven here span that range. `baton` and `symphony`, which are central, \
            are listed beside them.",
    remark: REMARK,
    seeds: 3,
    run,
};

const REMARK: &str = "The loss depends on how many GPUs share a model and how large the planned \
    batches are. With batches of a few tasks and many GPUs per model it reaches the paper's \
    range and exceeds it; with large batches, or with a GPU or two per model, frontends have \
    next to nothing to disagree about.";

/// Nexus with these many frontends; only the first is in the list of policies.
static FRONTENDS: [(f64, Policy); 6] = [
    (1.0, policy("nexus:1", PURPLE, Mark::Square)),
    (2.0, policy("nexus:2", PURPLE, Mark::Square)),
    (4.0, policy("nexus:4", PURPLE, Mark::Square)),
    (8.0, policy("nexus:8", PURPLE, Mark::Square)),
    (16.0, policy("nexus:16", PURPLE, Mark::Square)),
    (32.0, policy("nexus:32", PURPLE, Mark::Square)),
];

/// Name of a workload and how its line looks.
const LOOKS: [(&str, Colour, Mark); 7] = [
    ("ResNet50, 8 GPUs, 25 ms", BLUE, Mark::Circle),
    ("InceptionResNetV2, 8 GPUs, 70 ms", SKY_BLUE, Mark::Square),
    ("10 × ResNet50, 24 GPUs, 100 ms", GREEN, Mark::Triangle),
    ("4 × ResNet50, 32 GPUs, 20 ms", ORANGE, Mark::Diamond),
    ("20 × ResNet50, 32 GPUs, 50 ms", VERMILLION, Mark::Wedge),
    ("1080Ti gt2, 23 models, 64 GPUs", PURPLE, Mark::Circle),
    ("A100 zoo, 37 models, 64 GPUs", BLACK, Mark::Square),
];

fn workloads() -> [Workload; 7] {
    let resnet50 = Profile::gtx_1080ti("ResNet50");
    let copies = |gpus, slo_ms, copies| Workload::copies(gpus, &resnet50, slo_ms, copies);
    let [one, other] = table4::MODELS.map(|model| model.workload());
    let (gt2, all) = (zoo("1080ti", "gt2"), zoo("a100", "all"));
    [one, other, copies(24, 100.0, 10), copies(32, 20.0, 4), copies(32, 50.0, 20), gt2, all]
}

const PANEL: &str = "fig1";

fn run(runner: &mut Runner) -> Result<Findings, ReproduceError> {
    const ALL: [usize; 7] = [0, 1, 2, 3, 4, 5, 6];
    let workloads = workloads();
    let case = |&i: &usize| Case {
        panel: PANEL.to_owned(),
        label: LOOKS[i].0.to_owned(),
        x: i as f64,
        workload: workloads[i].clone(),
    };
    let cases = runner.precision.points(&ALL, &ALL).iter().map(case).collect();
    let frontends = runner.precision.points(&FRONTENDS, &FRONTENDS);
    let policies =
        OURS.into_iter().filter_map(named).chain(frontends.iter().map(|(_, policy)| policy));
    let grid = Grid::measure(runner, policies.collect(), cases)?;
    Ok(Findings {
        points: grid.json(),
        figure: figure(&grid, frontends),
        claims: vec![Claim {
            paper: "several frontends cost Nexus 5 % to 40 % of its goodput",
            place: "§3.3",
            here: worst(&grid, frontends),
        }],
        tables: grid.table(PANEL, "goodput", &[]),
        rankings: Vec::new(),
    })
}

/// Goodput over that with one frontend, against the number of frontends.
fn kept(grid: &Grid, case: usize, frontends: &[(f64, Policy)]) -> Vec<(f64, f64)> {
    let at = |name| grid.results(PANEL, name)[case].1.goodput_rps;
    let one = at(frontends[0].1.name).max(1e-9);
    frontends.iter().map(|(n, policy)| (n.log2(), at(policy.name) / one)).collect()
}

/// With the most frontends: the workload that loses least, and the one that loses most.
fn worst(grid: &Grid, frontends: &[(f64, Policy)]) -> String {
    let last = |case| kept(grid, case, frontends).last().map_or(1.0, |&(_, kept)| kept);
    let mut kept: Vec<f64> = (0..grid.cases.len()).map(last).collect();
    kept.sort_by(f64::total_cmp);
    let most = frontends.last().map_or(1.0, |(n, _)| *n);
    let ends = kept.last().zip(kept.first());
    ends.map_or_else(String::new, |(least, worst)| {
        format!("{} to {} with {most} frontends", change(*least), change(*worst))
    })
}

fn figure(grid: &Grid, frontends: &[(f64, Policy)]) -> Figure {
    let style = |i: usize| Style { colour: LOOKS[i].1, mark: LOOKS[i].2, light: false };
    let used = || (0..grid.cases.len()).map(|case| grid.cases[case].x as usize).enumerate();
    let line =
        |(case, i)| Line { style: style(i), points: kept(grid, case, frontends), mark_every: 1 };
    let numbers: Vec<f64> = frontends.iter().map(|(n, _)| *n).collect();
    let panel = Panel {
        title: String::new(),
        x: Axis::log2("frontends that schedule on their own", &numbers),
        y: Axis::linear("goodput, of that with one frontend", 0.0, 1.1, 0.2, 1),
        content: Content::Lines { lines: used().map(line).collect(), references: Vec::new() },
    };
    let key =
        |(_, i): (usize, usize)| Key { label: LOOKS[i].0.to_owned(), look: Look::Series(style(i)) };
    Figure {
        title: "Fig. 1: goodput of Nexus' rules with several frontends".to_owned(),
        caption: String::new(),
        legend: used().map(key).collect(),
        rows: vec![Row { height: 600, panels: vec![panel] }],
    }
}
