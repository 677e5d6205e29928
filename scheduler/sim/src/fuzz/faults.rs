//! What may go wrong in a drawn scenario, and how its load may change. Each is left out of most.

use super::draw::{Dice, Kind, short};

/// Part of the scenarios that are not plain in which each of these is.
const EACH: f64 = 0.2;

/// See the module documentation. `None` and zero: left out.
#[derive(Clone, PartialEq, Default, Debug)]
pub(super) struct Extras {
    pub(super) course: Option<Course>,
    /// Plan delivery and fetching one input, µs.
    pub(super) network_us: Option<(f64, f64)>,
    pub(super) message_lag_us: f64,
    pub(super) overrun_ms: f64,
    pub(super) stragglers: Option<Straggling>,
    pub(super) profile_spread: f64,
    /// Slots that are lost after a third of the measured span and back after two.
    pub(super) lost_gpus: u32,
}

/// How the load changes over the measured span.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Course {
    /// `factor` times the load in the second third.
    Step { factor: f64 },
    /// From the load to `factor` times the load over the whole span.
    Ramp { factor: f64 },
    /// A sine of this number of periods.
    Sine { periods: f64, amplitude: f64 },
}

/// Executions that take `factor` times as long: a part of all, or every one of slot 0.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Straggling {
    Anywhere { factor: f64, fraction: f64 },
    OneSlot { factor: f64 },
}

impl Course {
    /// Highest load over the mean.
    pub(super) fn peak(self) -> f64 {
        match self {
            Self::Step { factor } => 3.0 * factor.max(1.0) / (2.0 + factor),
            Self::Ramp { factor } => 2.0 * factor.max(1.0) / (1.0 + factor),
            Self::Sine { amplitude, .. } => 1.0 + amplitude,
        }
    }
}

impl Extras {
    /// After GPUs were taken away.
    pub(super) fn keep_within(&mut self, gpus: u32) {
        self.lost_gpus = self.lost_gpus.min(gpus / 2);
    }
}

/// Messages between two threads take no longer. A policy of the papers decides in one place and pays
/// none of it: much more of it would compare threads, not policies.
const LAG_MAX_US: f64 = 5.0;

/// Times are drawn in proportion to the shortest of the scenario, so that objectives can be met.
pub(super) fn draw(dice: &mut Dice, gpus: u32, kinds: &[Kind]) -> Extras {
    let least = |of: fn(&Kind) -> f64| kinds.iter().map(of).fold(f64::INFINITY, f64::min);
    let slo_us = least(|kind| kind.slo_ms) * 1e3;
    let alone_ms = least(Kind::alone_ms);
    let alpha_us = least(|kind| kind.alpha_ms) * 1e3;
    let mut extras = Extras::default();
    if dice.chance(EACH) {
        extras.course = Some(course(dice));
    }
    if dice.chance(EACH) {
        let ctrl_us = short(slo_us * dice.log_between(0.005, 0.1));
        extras.network_us = Some((ctrl_us, short(alpha_us * dice.log_between(0.003, 0.1))));
    }
    if dice.chance(EACH) {
        extras.message_lag_us = short((slo_us * dice.log_between(0.001, 0.02)).min(LAG_MAX_US));
    }
    if dice.chance(EACH) {
        extras.overrun_ms = short(alone_ms * dice.log_between(0.003, 0.05));
    }
    if dice.chance(EACH) {
        extras.stragglers = Some(straggling(dice, gpus));
    }
    if dice.chance(EACH) {
        extras.profile_spread = short(dice.log_between(0.01, 0.15));
    }
    if dice.chance(EACH / 2.0) {
        extras.lost_gpus = (f64::from(gpus) * dice.between(0.0, 0.5)).ceil() as u32;
        extras.keep_within(gpus);
    }
    extras
}

fn course(dice: &mut Dice) -> Course {
    match dice.unit() {
        part if part < 0.33 => Course::Step { factor: short(dice.log_between(0.25, 4.0)) },
        part if part < 0.66 => Course::Ramp { factor: short(dice.log_between(0.25, 4.0)) },
        _ => Course::Sine {
            periods: dice.log_between(1.0, 10.0).round(),
            amplitude: short(dice.between(0.2, 0.9)),
        },
    }
}

fn straggling(dice: &mut Dice, gpus: u32) -> Straggling {
    if gpus > 1 && dice.chance(0.3) {
        return Straggling::OneSlot { factor: short(dice.between(1.1, 1.5)) };
    }
    let fraction = short(dice.log_between(0.0005, 0.004));
    Straggling::Anywhere { factor: short(dice.between(1.5, 3.0)), fraction }
}
