//! Scenarios drawn at random, as text. `docs/simulator.md` lists what is drawn, and how often.

use super::faults::{self, Extras};
use super::spans::{Spans, likely, spans};
use super::text;
use crate::random::{Concern, Stream};

/// How long the runs of a drawn scenario are.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Limits {
    /// Seconds of the measured span, unless `tasks` makes it shorter or `rarest` longer.
    pub seconds: f64,
    /// Most tasks that a run at the analytic bound has, warm-up included.
    pub tasks: f64,
    /// Tasks that the model with the fewest should have at the goodput that is expected, those of
    /// all seeds together.
    pub rarest: f64,
    /// How many seeds these are.
    pub seeds: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self { seconds: 60.0, tasks: 1e6, rarest: 1_000.0, seeds: 3 }
    }
}

/// A scenario file that was drawn.
#[derive(Clone, PartialEq, Debug)]
pub struct DrawnScenario {
    /// Of the draws of a seed.
    pub index: u32,
    /// What [`crate::Scenario::parse`] reads.
    pub text: String,
    /// One line.
    pub description: String,
    /// Tasks per second in total, without those of clients in closed loops; `None`: of any rate.
    pub rate_rps: Option<f64>,
}

/// Where the goodput to expect of any policy is below this part of the bound, because hardly any
/// task may ever wait for another …
const HOPELESS: f64 = 0.05;
/// … most draws are replaced: what is left to compare there are a few collisions.
const REDRAWN: f64 = 0.75;

/// The scenario `index` of a seed. The same one again, whatever else is drawn.
pub fn draw_scenario(seed: u64, index: u32, limits: &Limits) -> DrawnScenario {
    let mut dice = Dice::new(Stream::new(seed, Concern::Scenario(index)));
    let mut sketch = Sketch::draw(&mut dice);
    while likely(&sketch) < HOPELESS && dice.chance(REDRAWN) {
        sketch = Sketch::draw(&mut dice);
    }
    let spans = loop {
        let spans = spans(&sketch, limits);
        if spans.fits || !sketch.shrink(&spans) {
            break spans;
        }
    };
    let description = text::description(&sketch, &spans);
    let text = text::scenario(&sketch, &spans, &format!("Scenario {index} of seed {seed}"));
    DrawnScenario { index, text, description, rate_rps: None }
}

/// Everything that a scenario is made of but its spans.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Sketch {
    pub(super) gpus: u32,
    /// At least one; the first are the most popular ones under Zipf.
    pub(super) kinds: Vec<Kind>,
    /// Zipf's exponent.
    pub(super) zipf: Option<f64>,
    pub(super) process: Process,
    pub(super) extras: Extras,
}

/// Copies of one model.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Kind {
    pub(super) copies: u32,
    pub(super) alpha_ms: f64,
    pub(super) beta_ms: f64,
    pub(super) slo_ms: f64,
}

#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Process {
    Poisson,
    Constant,
    Gamma { shape: f64 },
}

impl Kind {
    /// One task alone, ms.
    pub(super) fn alone_ms(&self) -> f64 {
        self.alpha_ms + self.beta_ms
    }

    fn draw(dice: &mut Dice, alpha_ms: (f64, f64)) -> Self {
        let alpha_ms = dice.log_between(alpha_ms.0.max(0.01), alpha_ms.1.min(5.0));
        let beta_ms = alpha_ms * dice.log_between(0.02, 30.0);
        let tight = dice.chance(0.25);
        let objective = dice.log_between(1.3, if tight { 2.0 } else { 25.0 });
        let slo_ms = (alpha_ms + beta_ms) * objective;
        Self {
            copies: 1,
            alpha_ms: short(alpha_ms),
            beta_ms: short(beta_ms),
            slo_ms: short(slo_ms),
        }
    }
}

impl Sketch {
    fn draw(dice: &mut Dice) -> Self {
        let gpus = dice.log_between(1.0, 65.0) as u32;
        let kinds = kinds(dice);
        let zipf = dice.chance(0.35).then(|| short(dice.between(0.5, 1.3)));
        let plain = dice.chance(0.5);
        let process = match dice.unit() {
            _ if plain => Process::Poisson,
            part if part < 0.45 => Process::Gamma { shape: short(dice.log_between(0.05, 0.5)) },
            part if part < 0.6 => Process::Constant,
            _ => Process::Poisson,
        };
        let extras = if plain { Extras::default() } else { faults::draw(dice, gpus, &kinds) };
        Self { gpus, kinds, zipf, process, extras }
    }

    pub(super) fn models(&self) -> u32 {
        self.kinds.iter().map(|kind| kind.copies).sum()
    }

    /// Makes the scenario one that can be measured within its limits: fewer GPUs if its tasks are
    /// too many, fewer models if those of one are too few. False if it is as small as it gets.
    fn shrink(&mut self, spans: &Spans) -> bool {
        if spans.crowded && self.gpus > 1 {
            self.gpus = self.gpus.div_ceil(2);
            self.extras.keep_within(self.gpus);
            return true;
        }
        if self.models() == 1 {
            return false;
        }
        if self.kinds.iter().all(|kind| kind.copies == 1) {
            self.kinds.pop();
        }
        self.kinds.iter_mut().for_each(|kind| kind.copies = kind.copies.div_ceil(2));
        true
    }
}

/// One to four, with 1 to 60 models in total; in half of the mixtures they are of similar size.
fn kinds(dice: &mut Dice) -> Vec<Kind> {
    const ANY: (f64, f64) = (0.01, 5.0);
    let count = match dice.unit() {
        part if part < 0.4 => 1,
        part if part < 0.65 => 2,
        part if part < 0.85 => 3,
        _ => 4,
    };
    let models = (dice.log_between(1.0, 61.0) as u32).max(count);
    let first = Kind::draw(dice, ANY);
    let similar = dice.chance(0.5);
    let range = if similar { (first.alpha_ms / 4.0, first.alpha_ms * 4.0) } else { ANY };
    let mut kinds = vec![first];
    kinds.extend((1..count).map(|_| Kind::draw(dice, range)));
    for _ in count..models {
        let lucky = (dice.unit() * f64::from(count)) as usize;
        kinds[lucky.min(count as usize - 1)].copies += 1;
    }
    kinds
}

/// Four digits are enough, and can be read.
pub(super) fn short(value: f64) -> f64 {
    format!("{value:.3e}").parse().expect("a number is read as it is written")
}

/// Draws from the distributions that are needed here.
#[derive(Debug)]
pub(super) struct Dice(Stream);

impl Dice {
    pub(super) fn new(stream: Stream) -> Self {
        Self(stream)
    }

    /// In (0, 1].
    pub(super) fn unit(&mut self) -> f64 {
        self.0.unit()
    }

    pub(super) fn chance(&mut self, part: f64) -> bool {
        self.unit() <= part
    }

    pub(super) fn between(&mut self, from: f64, to: f64) -> f64 {
        from + (to - from) * self.unit()
    }

    /// Uniform in the logarithm.
    pub(super) fn log_between(&mut self, from: f64, to: f64) -> f64 {
        from * (to / from).powf(1.0 - self.unit())
    }
}
