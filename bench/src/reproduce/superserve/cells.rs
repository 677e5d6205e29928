//! What is run, and what an independent simulation of the same rules, with the same profile, came to.

use super::scenario::Setup;

/// Who decides, with which variants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Column {
    Ours,
    SlackFit,
    MaxBatch,
    MaxAccuracy,
    /// Clipper+ and, with the cheapest, INFaaS: one variant alone, which gives up heads that cannot make it.
    Alone(usize),
}

pub(super) const COLUMNS: [Column; 9] = [
    Column::Ours,
    Column::SlackFit,
    Column::MaxBatch,
    Column::MaxAccuracy,
    Column::Alone(0),
    Column::Alone(2),
    Column::Alone(3),
    Column::Alone(4),
    Column::Alone(5),
];

/// A set-up and what is expected there.
pub(super) struct Cell {
    /// The paper's figure, or what the set-up is for.
    pub(super) figure: &'static str,
    pub(super) at: &'static str,
    pub(super) setup: Setup,
    /// R1 and R2 of SlackFit with buckets of 2 ms; below 0: not simulated independently.
    pub(super) slackfit: [f64; 2],
    /// R1 of `MaxAcc`, and of 78.25, 79.44 and 80.16 alone.
    pub(super) others: [f64; 4],
    /// The least R1 and R2 that our rule has to reach.
    pub(super) ours: [f64; 2],
}

/// Not simulated.
const NONE: f64 = -1.0;

const fn cell(
    figure: &'static str,
    at: &'static str,
    setup: Setup,
    slackfit: [f64; 2],
    others: [f64; 4],
    ours: [f64; 2],
) -> Cell {
    Cell { figure, at, setup, slackfit, others, ours }
}

/// Only our rule has a target.
const fn ours(at: &'static str, setup: Setup, r1: f64, r2: f64) -> Cell {
    cell(STRESS, at, setup, [NONE; 2], [NONE; 4], [r1, r2])
}

pub(super) const STRESS: &str = "stress";

pub(super) const CELLS: [Cell; 34] = [
    cell(
        "Fig. 8",
        "4450, CV² 2",
        Setup::bursty(1500.0, 2950.0, 2.0),
        [1.0, 79.83],
        [0.911, 1.0, 1.0, 0.391],
        [0.9999, 79.83],
    ),
    cell(
        "Fig. 8",
        "4450, CV² 4",
        Setup::bursty(1500.0, 2950.0, 4.0),
        [1.0, 79.81],
        [0.847, 1.0, 1.0, 0.399],
        [0.9999, 79.80],
    ),
    cell(
        "Fig. 8",
        "4450, CV² 8",
        Setup::bursty(1500.0, 2950.0, 8.0),
        [1.0, 79.76],
        [0.766, 1.0, 1.0, 0.440],
        [0.9999, 79.74],
    ),
    cell(
        "Fig. 8",
        "6400, CV² 2",
        Setup::bursty(1500.0, 4900.0, 2.0),
        [1.0, 78.80],
        [0.775, 1.0, 0.349, 0.272],
        [0.9999, 78.75],
    ),
    cell(
        "Fig. 8",
        "6400, CV² 4",
        Setup::bursty(1500.0, 4900.0, 4.0),
        [1.0, 78.79],
        [0.710, 1.0, 0.360, 0.272],
        [0.9999, 78.74],
    ),
    cell(
        "Fig. 8",
        "6400, CV² 8",
        Setup::bursty(1500.0, 4900.0, 8.0),
        [1.0, 78.77],
        [0.635, 1.0, 0.400, 0.277],
        [0.9999, 78.70],
    ),
    cell(
        "Figs. 8, 11c",
        "7050, CV² 2",
        Setup::bursty(1500.0, 5550.0, 2.0),
        [1.0, 78.46],
        [0.730, 1.0, 0.316, 0.247],
        [0.9999, 78.41],
    ),
    cell(
        "Figs. 8, 11c",
        "7050, CV² 4",
        Setup::bursty(1500.0, 5550.0, 4.0),
        [1.0, 78.47],
        [0.671, 1.0, 0.322, 0.247],
        [0.9999, 78.41],
    ),
    cell(
        "Figs. 8, 11c",
        "7050, CV² 8",
        Setup::bursty(1500.0, 5550.0, 8.0),
        [1.0, 78.44],
        [0.600, 0.979, 0.346, 0.249],
        [0.9999, 78.38],
    ),
    cell(
        "Fig. 9",
        "to 4800, τ 250",
        Setup::ramp(4800.0, 250.0),
        [1.0, 79.73],
        [0.789, 1.0, 0.990, 0.693],
        [0.9999, 79.69],
    ),
    cell(
        "Fig. 9",
        "to 4800, τ 500",
        Setup::ramp(4800.0, 500.0),
        [1.0, 79.70],
        [0.770, 1.0, 0.988, 0.661],
        [0.9999, 79.66],
    ),
    cell(
        "Fig. 9",
        "to 4800, τ 5000",
        Setup::ramp(4800.0, 5000.0),
        [1.0, 79.66],
        [0.755, 1.0, 0.986, 0.626],
        [0.9999, 79.62],
    ),
    cell(
        "Fig. 9",
        "to 6800, τ 250",
        Setup::ramp(6800.0, 250.0),
        [1.0, 79.12],
        [0.679, 0.997, 0.696, NONE],
        [0.9999, 79.09],
    ),
    cell(
        "Fig. 9",
        "to 6800, τ 500",
        Setup::ramp(6800.0, 500.0),
        [1.0, 78.95],
        [0.654, 0.997, 0.607, NONE],
        [0.9999, 78.91],
    ),
    cell(
        "Fig. 9",
        "to 6800, τ 5000",
        Setup::ramp(6800.0, 5000.0),
        [1.0, 78.80],
        [0.633, 0.996, 0.534, NONE],
        [0.9999, 78.77],
    ),
    cell(
        "Fig. 9",
        "to 7800, τ 250",
        Setup::ramp(7800.0, 250.0),
        [0.9999, 78.86],
        [0.649, 0.878, 0.657, NONE],
        [0.9999, 78.86],
    ),
    cell(
        "Fig. 9",
        "to 7800, τ 500",
        Setup::ramp(7800.0, 500.0),
        [1.0, 78.58],
        [0.615, 0.822, 0.536, NONE],
        [0.9999, 78.59],
    ),
    cell(
        "Fig. 9",
        "to 7800, τ 5000",
        Setup::ramp(7800.0, 5000.0),
        [0.9997, 78.36],
        [0.589, 0.769, 0.445, NONE],
        [0.9999, 78.38],
    ),
    cell(
        "Fig. 10",
        "spikes",
        Setup::spikes(),
        [1.0, 78.83],
        [0.807, 0.738, 0.351, NONE],
        [0.9999, 78.78],
    ),
    cell(
        "Fig. 11a",
        "3500, 8 → 4 GPUs",
        Setup::steady(3500.0, 2.0).with_faults(),
        [1.0, 79.49],
        [0.864, 1.0, 0.742, NONE],
        [0.9999, 79.45],
    ),
    cell(
        "App. B",
        "4000, 6 GPUs, 30 ms",
        Setup::steady(4000.0, 1.0).on(6).within(30.0),
        [1.0, 79.28],
        [0.854, 1.0, 0.429, NONE],
        [NONE; 2],
    ),
    ours("12000, CV² 8", Setup::bursty(1500.0, 10_500.0, 8.0), 0.9995, 76.20),
    ours("15500, CV² 8", Setup::bursty(1500.0, 14_000.0, 8.0), 0.9990, 74.40),
    ours("20000, CV² 8", Setup::bursty(1500.0, 18_500.0, 8.0), 0.820, 73.82),
    ours("7050, CV² 64", Setup::bursty(1500.0, 5550.0, 64.0), 0.9990, 77.85),
    ours("one GPU, 880, CV² 8", Setup::bursty(190.0, 690.0, 8.0).on(1), 0.9985, 77.60),
    ours("two GPUs, 1762, CV² 8", Setup::bursty(375.0, 1387.0, 8.0).on(2), 0.9995, 78.12),
    ours("20 ms, 7050, CV² 8", Setup::bursty(1500.0, 5550.0, 8.0).within(20.0), 0.9995, 78.05),
    ours("7050, CV² 2, 8 → 4 GPUs", Setup::steady(7050.0, 2.0).with_faults(), 0.9990, 77.10),
    ours("2·P0, 2500, CV² 8", Setup::bursty(1500.0, 1000.0, 8.0).slower(2.0), 0.9995, 78.75),
    ours("2·P0, 4450, CV² 8", Setup::bursty(1500.0, 2950.0, 8.0).slower(2.0), 0.9995, 77.35),
    ours("2·P0, 6400, CV² 4", Setup::bursty(1500.0, 4900.0, 4.0).slower(2.0), 0.9995, 75.65),
    ours("2·P0, 7050, CV² 8", Setup::bursty(1500.0, 5550.0, 8.0).slower(2.0), 0.998, 74.90),
    ours("2·P0, 7050, CV² 2", Setup::bursty(1500.0, 5550.0, 2.0).slower(2.0), NONE, NONE),
];

impl Column {
    pub(super) fn label(self) -> String {
        match self {
            Self::Ours => "`baton`".to_owned(),
            Self::SlackFit => "`slackfit`".to_owned(),
            Self::MaxBatch => "`maxbatch`".to_owned(),
            Self::MaxAccuracy => "`maxacc`".to_owned(),
            Self::Alone(at) => format!("{:.2} alone", super::scenario::P0[at].0),
        }
    }

    pub(super) fn alone(self) -> Option<usize> {
        match self {
            Self::Alone(at) => Some(at),
            _ => None,
        }
    }
}

/// What a value has to be.
#[derive(Clone, Copy, Debug)]
pub(super) enum Wanted {
    /// This, give or take.
    Near(f64, f64),
    /// No less.
    AtLeast(f64),
}

impl Wanted {
    pub(super) fn holds(self, value: f64) -> bool {
        match self {
            Self::Near(wanted, tolerance) => (value - wanted).abs() <= tolerance + 1e-9,
            Self::AtLeast(least) => value >= least - 1e-9,
        }
    }

    pub(super) fn text(self, digits: usize) -> String {
        match self {
            Self::Near(wanted, tolerance) => format!("{wanted:.digits$} ± {tolerance}"),
            Self::AtLeast(least) => format!("≥ {least:.digits$}"),
        }
    }
}

impl Cell {
    /// Of R1 and R2.
    pub(super) fn wanted(&self, column: Column) -> [Option<Wanted>; 2] {
        let near = |value: f64, tolerance| (value >= 0.0).then_some(Wanted::Near(value, tolerance));
        // Below a half a queue stands at its limit, and details decide.
        let loose = |value: f64| near(value, if value > 0.5 { 0.02 } else { 0.05 });
        let least = |value: f64| (value >= 0.0).then_some(Wanted::AtLeast(value));
        match column {
            Column::Ours => self.ours.map(least),
            Column::SlackFit => [near(self.slackfit[0], 0.001), near(self.slackfit[1], 0.10)],
            Column::MaxAccuracy => [loose(self.others[0]), None],
            Column::Alone(0) if self.slackfit[0] >= 0.0 => {
                [Some(Wanted::AtLeast(0.9999)), near(73.82, 1e-6)]
            }
            Column::Alone(at @ 3..=5) => [loose(self.others[at - 2]), None],
            Column::MaxBatch | Column::Alone(_) => [None, None],
        }
    }

    /// Who runs: where only our rule has a target, those that it is compared with.
    pub(super) fn columns(&self) -> Vec<Column> {
        let all = self.figure != STRESS;
        let some = [Column::Ours, Column::SlackFit, Column::MaxBatch, Column::Alone(0)];
        COLUMNS.into_iter().filter(|column| all || some.contains(column)).collect()
    }
}
