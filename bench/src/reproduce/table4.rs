//! Table 4: one model on eight GPUs.

use super::ReproduceError;
use super::experiment::{Claim, Experiment, Findings};
use super::grid::{Case, Grid, PaperRow, bars};
use super::markdown::rate;
use super::policies::those;
use super::runner::Runner;
use super::workload::{Profile, Workload};
use crate::plot::{Axis, Content, Figure, Key, Look, Panel, Row};

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "table4",
    title: "Table 4: one model on eight GPUs",
    setup: "One model, 8 GPUs, Poisson arrivals (§5.2.2). The paper prints goodput of three \
            systems beside the analytic rates of uncoordinated and of staggered execution.",
    remark: REMARK,
    seeds: 3,
    run,
};

const REMARK: &str = "`symphony` comes out a few per cent above the paper: here are no network, \
    no jitter and no process, and the window gives heads up only when a batch is sealed. The \
    paper does not say how many frontends its Nexus had; with either number the rules do a \
    little better than printed. Clockwork's rules do far better than its published figure, even \
    with its own 5 ms of outstanding work: that figure is not the rules' doing.";

/// A row of the paper's table.
pub(crate) struct Model {
    pub(crate) name: &'static str,
    alpha_ms: f64,
    beta_ms: f64,
    pub(crate) slo_ms: f64,
    /// Symphony, Clockwork, Nexus; tasks/s.
    goodput_rps: [f64; 3],
}

pub(crate) const GPUS: u32 = 8;

pub(crate) const MODELS: [Model; 2] = [
    Model {
        name: "ResNet50",
        alpha_ms: 1.053,
        beta_ms: 5.072,
        slo_ms: 25.0,
        goodput_rps: [5_169.0, 2_036.0, 3_965.0],
    },
    Model {
        name: "InceptionResNetV2",
        alpha_ms: 5.090,
        beta_ms: 18.368,
        slo_ms: 70.0,
        goodput_rps: [907.0, 482.0, 590.0],
    },
];

impl Model {
    pub(crate) fn workload(&self) -> Workload {
        let Self { name, alpha_ms, beta_ms, slo_ms, .. } = *self;
        let profile = Profile { name: name.to_owned(), alpha_ms, beta_ms };
        Workload::copies(GPUS, &profile, slo_ms, 1)
    }

    /// The largest whole batch that one execution may take this long with, and the rate of 8 GPUs.
    fn analytic(&self, execution_ms: f64) -> (f64, f64) {
        let batch = ((execution_ms - self.beta_ms) / self.alpha_ms).floor();
        (batch, f64::from(GPUS) * batch / (self.alpha_ms * batch + self.beta_ms) * 1e3)
    }

    /// Batch of GPUs that do not coordinate: a task waits for one execution and takes another.
    pub(crate) fn uncoordinated(&self) -> (f64, f64) {
        self.analytic(self.slo_ms / 2.0)
    }

    /// Batch of GPUs that start one after another.
    pub(crate) fn staggered(&self) -> (f64, f64) {
        self.analytic(self.slo_ms / (1.0 + 1.0 / f64::from(GPUS)))
    }

    pub(crate) fn title(&self) -> String {
        format!("{}, SLO {} ms", self.name, self.slo_ms)
    }
}

fn run(runner: &mut Runner) -> Result<Findings, ReproduceError> {
    let case = |model: &Model| Case {
        panel: "table4".to_owned(),
        label: model.title(),
        x: model.slo_ms,
        workload: model.workload(),
    };
    let grid = Grid::measure(runner, those(|_| true), MODELS.iter().map(case).collect())?;
    let paper = |who, i: usize| PaperRow {
        who,
        rps: MODELS.iter().map(|model| Some(model.goodput_rps[i])).collect(),
    };
    let rows = [paper("Symphony", 0), paper("Clockwork", 1), paper("Nexus", 2)];
    Ok(Findings {
        points: grid.json(),
        figure: figure(&grid),
        claims: MODELS.iter().zip(ANALYTIC).flat_map(claims).collect(),
        tables: grid.table("table4", "goodput", &rows),
        rankings: grid.rankings(),
    })
}

/// Table 4's analytic columns, uncoordinated and staggered.
const ANALYTIC: [[&str; 2]; 2] = [
    [
        "ResNet50 without coordination: batches of 7, 4,501 r/s",
        "ResNet50 staggered: batches of 16, 5,839 r/s",
    ],
    [
        "InceptionResNetV2 without coordination: batches of 3, 713 r/s",
        "InceptionResNetV2 staggered: batches of 8, 1,083 r/s",
    ],
];

fn claims((model, paper): (&Model, [&'static str; 2])) -> [Claim; 2] {
    let here = |(batch, rps): (f64, f64)| format!("batches of {batch}, {} r/s", rate(rps));
    let claim =
        |i: usize, analytic| Claim { paper: paper[i], place: "Table 4", here: here(analytic) };
    [claim(0, model.uncoordinated()), claim(1, model.staggered())]
}

fn figure(grid: &Grid) -> Figure {
    let names: Vec<String> = grid.policies.iter().map(|policy| policy.name.to_owned()).collect();
    let panel = |(i, model): (usize, &Model)| {
        let [symphony, clockwork, nexus] = model.goodput_rps;
        let paper = [("symphony", symphony), ("clockwork:5", clockwork), ("nexus:1", nexus)];
        Panel {
            title: model.title(),
            x: Axis::linear("goodput, of the bound", 0.0, 1.4, 0.2, 1),
            y: Axis::downwards("", &names),
            content: Content::Bars(bars(grid, i, &paper)),
        }
    };
    Figure {
        title: "Table 4: one model on eight GPUs".to_owned(),
        caption: String::new(),
        legend: vec![
            Key { label: "the paper's system".to_owned(), look: Look::Paper },
            Key { label: "bound (staggered optimum)".to_owned(), look: Look::Reference },
        ],
        rows: vec![Row { height: 600, panels: MODELS.iter().enumerate().map(panel).collect() }],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_analytic_columns_come_out_as_printed() {
        let columns = MODELS.map(|model| {
            let rounded = |(batch, rps): (f64, f64)| (batch, rps.round());
            (rounded(model.uncoordinated()), rounded(model.staggered()))
        });
        assert_eq!(columns[0], ((7.0, 4_501.0), (16.0, 5_839.0)));
        assert_eq!(columns[1], ((3.0, 713.0), (8.0, 1_083.0)));
    }
}
