//! What both families have in common: a rate, spans that follow from it, and a file's text.

use super::super::draw::{Dice, DrawnScenario, Limits, short};
use super::{Family, caches, supernets};
use crate::bound::analytic_bound_rps;
use crate::random::{Concern, Stream};
use crate::scenario::Scenario;

/// A scenario before its rate is known.
pub(super) trait Sketch {
    /// The offered load, as a part of the analytic bound of a cluster that holds every model, or of
    /// the cheapest variants.
    fn load(&self) -> f64;
    /// The file's text but for its title and span.
    fn text(&self, span: Span) -> String;
    /// One line.
    fn description(&self) -> String;
}

/// The measured span and what comes before it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Span {
    pub(super) warmup_s: f64,
    pub(super) duration_s: f64,
}

impl Span {
    /// The moment at this part of the measured span.
    pub(super) fn at(self, part: f64) -> f64 {
        self.warmup_s + part * self.duration_s
    }

    /// Both together.
    pub(super) fn end_s(self) -> f64 {
        self.at(1.0)
    }

    fn new(rate_rps: f64, limits: &Limits) -> Self {
        let affordable_s = limits.tasks / rate_rps / (1.0 + WARMUP_PART);
        let duration_s = affordable_s.clamp(SHORTEST_S.min(limits.seconds), limits.seconds);
        let tenths = |seconds: f64| (seconds * 10.0).ceil() / 10.0;
        let warmup_s = tenths((duration_s * WARMUP_PART).min(WARMUP_MAX_S));
        Self { warmup_s, duration_s: tenths(duration_s) }
    }
}

/// Caches are empty at first, and the estimate of rates looks back over five seconds.
const WARMUP_PART: f64 = 0.35;
const WARMUP_MAX_S: f64 = 8.0;
/// Unless even fewer seconds are asked for.
const SHORTEST_S: f64 = 2.0;

/// The scenario `index` of a seed, with its rate. The same one again, whatever else is drawn.
pub fn draw_at_rate(family: Family, seed: u64, index: u32, limits: &Limits) -> DrawnScenario {
    let mut dice = Dice::new(Stream::new(seed, Concern::Scenario(index)));
    let sketch: Box<dyn Sketch> = match family {
        Family::Caches => Box::new(caches::Caches::draw(&mut dice)),
        Family::Supernets => Box::new(supernets::Supernets::draw(&mut dice)),
    };
    let any = Span { warmup_s: 1.0, duration_s: 9.0 };
    let scenario = Scenario::parse(&with_span(&*sketch, any))
        .expect("what is drawn is a scenario; the tests read hundreds");
    let rate_rps = short(analytic_bound_rps(&scenario) * sketch.load());
    let span = Span::new(rate_rps, limits);
    let title = format!("# {} {index} of seed {seed}, for --rate {rate_rps}", family.name());
    let Span { duration_s, .. } = span;
    DrawnScenario {
        index,
        text: format!("{title}\n{}", with_span(&*sketch, span)),
        description: format!("{}; {rate_rps} tasks/s, {duration_s} s", sketch.description()),
        rate_rps: Some(rate_rps),
    }
}

fn with_span(sketch: &dyn Sketch, span: Span) -> String {
    let Span { warmup_s, duration_s } = span;
    format!("duration_s = {duration_s}\nwarmup_s = {warmup_s}\n{}", sketch.text(span))
}

/// Gaps between tasks, as a key of the file; empty for Poisson arrivals.
pub(super) fn arrival(dice: &mut Dice, part_bursty: f64) -> String {
    if !dice.chance(part_bursty) {
        return String::new();
    }
    let shape = short(dice.log_between(1.0 / 64.0, 0.5));
    format!("arrival = {{ process = \"gamma\", shape = {shape} }}\n")
}
