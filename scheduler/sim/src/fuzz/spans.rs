//! How long a drawn scenario has to run for its bad rates to mean something.

use super::draw::{Kind, Limits, Process, Sketch};
use super::text;
use crate::bound::analytic_bound_rps;
use crate::scenario::Scenario;

/// Shortest and longest measured span, s.
const SHORTEST_S: f64 = 1.0;
const LONGEST_S: f64 = 3_600.0;
/// The warm-up is this part of the measured span, and at most [`WARMUP_MAX_S`]: the estimate of the
/// arrival rate looks back over five seconds.
const WARMUP_PART: f64 = 0.2;
const WARMUP_MAX_S: f64 = 6.0;
/// Expected goodput is at least this part of the bound.
const LIKELY_MIN: f64 = 0.01;

/// See the module documentation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Spans {
    pub(super) warmup_s: f64,
    pub(super) duration_s: f64,
    pub(super) bound_rps: f64,
    /// Within the limits.
    pub(super) fits: bool,
    /// There are too many tasks for even the shortest span.
    pub(super) crowded: bool,
}

pub(super) fn spans(sketch: &Sketch, limits: &Limits) -> Spans {
    let any = Spans { warmup_s: 0.0, duration_s: 9.0, bound_rps: 0.0, fits: false, crowded: false };
    let scenario = Scenario::parse(&text::scenario(sketch, &any, ""))
        .expect("what is drawn is a scenario; the tests read hundreds");
    let bound_rps = analytic_bound_rps(&scenario);
    let least = scenario.models.iter().map(|model| model.share).fold(1.0, f64::min);
    let rarest_rps = bound_rps * likely(sketch) * least * f64::from(limits.seeds);
    let needed_s = limits.rarest / rarest_rps;
    let affordable_s = limits.tasks / bound_rps / (1.0 + WARMUP_PART);
    let most_s = affordable_s.clamp(SHORTEST_S, LONGEST_S);
    let shortest_s = SHORTEST_S.min(limits.seconds);
    let duration_s = limits.seconds.max(needed_s).min(most_s.max(shortest_s));
    let duration_s = (duration_s * 10.0).ceil() / 10.0;
    let crowded = affordable_s < shortest_s;
    Spans {
        warmup_s: ((duration_s * WARMUP_PART).min(WARMUP_MAX_S) * 10.0).ceil() / 10.0,
        duration_s,
        bound_rps,
        fits: !crowded && needed_s <= duration_s,
        crowded,
    }
}

/// Goodput over the bound, to a factor of three or so, never mind who schedules: the load under
/// which one task in a hundred would wait longer than the tightest objective lets it, if all were
/// executed alone (M/D/K, with Erlang's C), less for bursts and for a load with a peak.
pub(super) fn likely(sketch: &Sketch) -> f64 {
    let kinds = &sketch.kinds;
    let copies = f64::from(sketch.models());
    let alone_ms = |kind: &Kind| f64::from(kind.copies) * kind.alone_ms();
    let mean_ms = kinds.iter().map(alone_ms).sum::<f64>() / copies;
    let slack_ms =
        kinds.iter().map(|kind| kind.slo_ms - kind.alone_ms()).fold(f64::INFINITY, f64::min);
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..30 {
        let load = f64::midpoint(low, high);
        let late = waits_longer(sketch.gpus, load, slack_ms / mean_ms);
        if late < 0.01 { low = load } else { high = load }
    }
    let bursts = match sketch.process {
        Process::Gamma { shape } => shape.sqrt(),
        Process::Poisson | Process::Constant => 1.0,
    };
    let peak = sketch.extras.course.map_or(1.0, |course| course.peak());
    (low * bursts / peak).max(LIKELY_MIN)
}

/// Part of the tasks that wait longer than `slack` executions, at this load of `gpus` GPUs.
fn waits_longer(gpus: u32, load: f64, slack: f64) -> f64 {
    let servers = f64::from(gpus);
    let offered = servers * load;
    // Erlang's B by its recursion, and C from it.
    let blocked = (1..=gpus).fold(1.0, |b, n| offered * b / (f64::from(n) + offered * b));
    let waits = blocked / (1.0 - load * (1.0 - blocked));
    waits * (-2.0 * servers * (1.0 - load) * slack).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waiting_is_that_of_a_queue() {
        // One server: ρ·exp(−2·(1 − ρ)·t).
        for (load, slack) in [(0.5_f64, 0.3_f64), (0.9, 2.0)] {
            let expected = load * (-2.0 * (1.0 - load) * slack).exp();
            assert!((waits_longer(1, load, slack) - expected).abs() < 1e-12);
        }
        // Erlang C of 5 servers offered 4: 0.554.
        assert!((waits_longer(5, 0.8, 0.0) - 0.554).abs() < 0.001);
    }
}
