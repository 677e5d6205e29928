//! Fig. 11 (right): goodput against the number of GPUs.

use super::ReproduceError;
use super::experiment::{Claim, Experiment, Findings};
use super::grid::{Case, Grid};
use super::policies::{OURS, those};
use super::runner::Runner;
use super::workload::{Profile, Workload};
use crate::plot::{Axis, Content, Figure, Panel, Reference, Row};

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "fig11",
    title: "Fig. 11 (right): goodput by number of GPUs",
    setup: "20 equally popular models like ResNet50 with an objective of 100 ms, Poisson, on more \
            and more GPUs (§5.4). Here all 20 have the profile of Table 5's ResNet50. The paper \
            plots goodput and gives no number. The left half of the figure, the scheduler's own \
            speed, is a matter of real time: `docs/performance.md`.",
    remark: REMARK,
    seeds: 3,
    run,
};

const REMARK: &str = "In virtual time a decision takes none, so what limits Clockwork in the \
    paper, locks on its critical path, does not show here. With few GPUs for 20 models every \
    policy that lets models share them loses a few per cent; a static partition loses much more, \
    until each model has whole GPUs of its own.";

const MODELS: u32 = 20;
const SLO_MS: f64 = 100.0;
const GPUS: [u32; 6] = [8, 16, 32, 64, 128, 256];
const QUICK_GPUS: [u32; 3] = [8, 16, 64];
const PANEL: &str = "fig11";

fn run(runner: &mut Runner) -> Result<Findings, ReproduceError> {
    let profile = Profile::gtx_1080ti("ResNet50");
    let case = |&gpus: &u32| Case {
        panel: PANEL.to_owned(),
        label: format!("{gpus} GPUs"),
        x: f64::from(gpus),
        workload: Workload::copies(gpus, &profile, SLO_MS, MODELS),
    };
    let cases = runner.precision.points(&GPUS, &QUICK_GPUS).iter().map(case).collect();
    let grid = Grid::measure(runner, those(|_| true), cases)?;
    Ok(Findings {
        points: grid.json(),
        figure: figure(&grid),
        claims: vec![Claim {
            paper: "Symphony's goodput grows linearly with the number of GPUs",
            place: "§5.4",
            here: OURS.map(|policy| growth(&grid, policy)).join("; "),
        }],
        tables: grid.table(PANEL, "goodput", &[]),
        rankings: grid.rankings(),
    })
}

/// Goodput per GPU with the most GPUs, over that with the fewest.
fn growth(grid: &Grid, policy: &str) -> String {
    let results = grid.results(PANEL, policy);
    let each = |end: Option<&(f64, &baton_sim::Goodput)>| {
        end.map_or((0.0, 0.0), |(gpus, goodput)| (*gpus, goodput.goodput_rps / gpus))
    };
    let (few, many) = (each(results.first()), each(results.last()));
    format!(
        "`{policy}` {:.0} tasks/s per GPU with {} GPUs, {:.0} with {}",
        few.1, few.0, many.1, many.0
    )
}

fn figure(grid: &Grid) -> Figure {
    let gpus: Vec<f64> = grid.cases.iter().map(|case| case.x).collect();
    let most = gpus.iter().copied().fold(0.0, f64::max);
    let bounds: Vec<(f64, f64)> = grid
        .panel(PANEL)
        .map(|(case, results)| (case.x, results[0].analytic_bound_rps / 1e3))
        .collect();
    let highest = bounds.iter().map(|(_, bound)| *bound).fold(0.0, f64::max);
    let rates = Panel {
        title: "goodput".to_owned(),
        x: Axis::up_to("GPUs", most),
        y: Axis::up_to("thousand tasks/s", highest),
        content: Content::Lines {
            lines: grid.lines(PANEL, |goodput| goodput.goodput_rps / 1e3),
            references: vec![Reference::Through(bounds)],
        },
    };
    let mut ratios = grid.lines(PANEL, |goodput| goodput.ratio);
    for point in ratios.iter_mut().flat_map(|line| &mut line.points) {
        point.0 = point.0.log2();
    }
    let x = Axis::log2("GPUs", &gpus);
    let ratios = Panel {
        title: "of the bound".to_owned(),
        y: Axis::linear("goodput, of the bound", 0.0, 1.05, 0.2, 1),
        content: Content::Lines {
            lines: ratios,
            references: vec![Reference::Through(vec![(x.from, 1.0), (x.to, 1.0)])],
        },
        x,
    };
    Figure {
        title: "Fig. 11 (right): 20 models like ResNet50, objective 100 ms".to_owned(),
        caption: String::new(),
        legend: grid.legend("bound"),
        rows: vec![Row { height: 600, panels: vec![rates, ratios] }],
    }
}
