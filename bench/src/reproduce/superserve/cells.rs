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

/// Our rule, and those that it is compared with where it alone has a target.
pub(super) const STRESS_COLUMNS: [Column; 4] =
    [Column::Ours, Column::SlackFit, Column::MaxBatch, Column::Alone(0)];

/// A set-up and what is expected there.
pub(super) struct Cell {
    /// The paper's figure, or what the set-up is for.
    pub(super) figure: &'static str,
    pub(super) at: String,
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
/// What our rule answers in time, at the paper's loads.
const OURS_R1: f64 = 0.9999;

pub(super) const STRESS: &str = "stress";

/// Above a base of 1,500 tasks/s: tasks/s, CV²; SlackFit's R2; R1 of the others; our R2. SlackFit answers all in time.
const BURSTY: [[f64; 8]; 9] = [
    [2950.0, 2.0, 79.83, 0.911, 1.0, 1.0, 0.391, 79.83],
    [2950.0, 4.0, 79.81, 0.847, 1.0, 1.0, 0.399, 79.80],
    [2950.0, 8.0, 79.76, 0.766, 1.0, 1.0, 0.440, 79.74],
    [4900.0, 2.0, 78.80, 0.775, 1.0, 0.349, 0.272, 78.75],
    [4900.0, 4.0, 78.79, 0.710, 1.0, 0.360, 0.272, 78.74],
    [4900.0, 8.0, 78.77, 0.635, 1.0, 0.400, 0.277, 78.70],
    [5550.0, 2.0, 78.46, 0.730, 1.0, 0.316, 0.247, 78.41],
    [5550.0, 4.0, 78.47, 0.671, 1.0, 0.322, 0.247, 78.41],
    [5550.0, 8.0, 78.44, 0.600, 0.979, 0.346, 0.249, 78.38],
];

/// Tasks/s at the end, and how many more each second brings until then; SlackFit's R1 and R2; R1 of the others; our R2.
const RAMPS: [[f64; 9]; 9] = [
    [4800.0, 250.0, 1.0, 79.73, 0.789, 1.0, 0.990, 0.693, 79.69],
    [4800.0, 500.0, 1.0, 79.70, 0.770, 1.0, 0.988, 0.661, 79.66],
    [4800.0, 5000.0, 1.0, 79.66, 0.755, 1.0, 0.986, 0.626, 79.62],
    [6800.0, 250.0, 1.0, 79.12, 0.679, 0.997, 0.696, NONE, 79.09],
    [6800.0, 500.0, 1.0, 78.95, 0.654, 0.997, 0.607, NONE, 78.91],
    [6800.0, 5000.0, 1.0, 78.80, 0.633, 0.996, 0.534, NONE, 78.77],
    [7800.0, 250.0, 0.9999, 78.86, 0.649, 0.878, 0.657, NONE, 78.86],
    [7800.0, 500.0, 1.0, 78.58, 0.615, 0.822, 0.536, NONE, 78.59],
    [7800.0, 5000.0, 0.9997, 78.36, 0.589, 0.769, 0.445, NONE, 78.38],
];

/// All cells, in the order of the tables.
pub(super) fn cells() -> Vec<Cell> {
    let bursty = BURSTY.map(|[more, cv2, slackfit, a, b, c, d, ours]| Cell {
        figure: if more < 5_000.0 { "Fig. 8" } else { "Figs. 8, 11c" },
        at: format!("{}, CV² {cv2}", 1_500.0 + more),
        setup: Setup::bursty(1_500.0, more, cv2),
        slackfit: [1.0, slackfit],
        others: [a, b, c, d],
        ours: [OURS_R1, ours],
    });
    let ramps = RAMPS.map(|[to, tau, r1, r2, a, b, c, d, ours]| Cell {
        figure: "Fig. 9",
        at: format!("to {to}, τ {tau}"),
        setup: Setup::ramp(to, tau),
        slackfit: [r1, r2],
        others: [a, b, c, d],
        ours: [OURS_R1, ours],
    });
    bursty.into_iter().chain(ramps).chain(others()).chain(stress()).collect()
}

fn others() -> [Cell; 3] {
    [
        Cell {
            figure: "Fig. 10",
            at: "spikes".to_owned(),
            setup: Setup::spikes(),
            slackfit: [1.0, 78.83],
            others: [0.807, 0.738, 0.351, NONE],
            ours: [OURS_R1, 78.78],
        },
        Cell {
            figure: "Fig. 11a",
            at: "3500, 8 → 4 GPUs".to_owned(),
            setup: Setup::steady(3500.0, 2.0).with_faults(),
            slackfit: [1.0, 79.49],
            others: [0.864, 1.0, 0.742, NONE],
            ours: [OURS_R1, 79.45],
        },
        Cell {
            figure: "App. B",
            at: "4000, 6 GPUs, 30 ms".to_owned(),
            setup: Setup::steady(4000.0, 1.0).on(6).within(30.0),
            slackfit: [1.0, 79.28],
            others: [0.854, 1.0, 0.429, NONE],
            ours: [NONE; 2],
        },
    ]
}

/// Loads for which only our rule has a target.
fn stress() -> [Cell; 13] {
    let bursty = |more_rps, cv2| Setup::bursty(1_500.0, more_rps, cv2);
    [
        ("12000, CV² 8", bursty(10_500.0, 8.0), [0.9995, 76.20]),
        ("15500, CV² 8", bursty(14_000.0, 8.0), [0.9990, 74.40]),
        ("20000, CV² 8", bursty(18_500.0, 8.0), [0.820, 73.82]),
        ("7050, CV² 64", bursty(5550.0, 64.0), [0.9990, 77.85]),
        ("one GPU, 880, CV² 8", Setup::bursty(190.0, 690.0, 8.0).on(1), [0.9985, 77.60]),
        ("two GPUs, 1762, CV² 8", Setup::bursty(375.0, 1387.0, 8.0).on(2), [0.9995, 78.12]),
        ("20 ms, 7050, CV² 8", bursty(5550.0, 8.0).within(20.0), [0.9995, 78.05]),
        ("7050, CV² 2, 8 → 4 GPUs", Setup::steady(7050.0, 2.0).with_faults(), [0.9990, 77.10]),
        ("2·P0, 2500, CV² 8", bursty(1000.0, 8.0).slower(2.0), [0.9995, 78.75]),
        ("2·P0, 4450, CV² 8", bursty(2950.0, 8.0).slower(2.0), [0.9995, 77.35]),
        ("2·P0, 6400, CV² 4", bursty(4900.0, 4.0).slower(2.0), [0.9995, 75.65]),
        ("2·P0, 7050, CV² 8", bursty(5550.0, 8.0).slower(2.0), [0.998, 74.90]),
        ("2·P0, 7050, CV² 2", bursty(5550.0, 2.0).slower(2.0), [NONE; 2]),
    ]
    .map(|(at, setup, ours)| Cell {
        figure: STRESS,
        at: at.to_owned(),
        setup,
        slackfit: [NONE; 2],
        others: [NONE; 4],
        ours,
    })
}

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
        if self.figure == STRESS { STRESS_COLUMNS.to_vec() } else { COLUMNS.to_vec() }
    }
}
