//! How the costs grow with models, GPUs and ModelThreads: `baton bench sched --sweep`.
//!
//! Models and GPUs are varied in stepped runs, which a busy machine disturbs least, in rounds over all
//! points; the least disturbed run of each point counts. ModelThreads are varied live, each on a core
//! of its own, as far as there are cores: more threads than cores would measure the kernel's
//! scheduling.

mod curves;

use std::fmt;

use serde::Serialize;

use super::{SchedError, SchedReport, Shape, Stepped, run, step};
use crate::machine::{StealMeter, percent};

/// What is measured.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Points {
    /// Models, with [`Points::FIXED_GPUS`] GPUs.
    pub models: &'static [u32],
    /// GPU slots, with [`Points::FIXED_MODELS`] models.
    pub gpus: &'static [u32],
    /// ModelThreads, with as many models and GPUs for each.
    pub model_threads: &'static [u32],
    /// Stepped runs of each point.
    pub rounds: u32,
    /// Length of each live run.
    pub live_seconds: f64,
    /// Figures mean nothing; the plot says so.
    pub smoke: bool,
}

impl Points {
    /// GPUs while models vary, and for each ModelThread.
    pub const FIXED_GPUS: u32 = 64;
    /// Models while GPUs vary, and for each ModelThread.
    pub const FIXED_MODELS: u32 = 32;

    /// All of them: two minutes on two cores.
    pub const FULL: Self = Self {
        models: &[10, 32, 100, 320, 1_000],
        gpus: &[10, 32, 100, 320, 1_000, 3_200, 10_000],
        model_threads: &[1, 2, 3, 4, 6, 8, 10, 12],
        rounds: 7,
        live_seconds: 2.0,
        smoke: false,
    };

    /// The ends, once: for tests.
    pub const SMOKE: Self = Self {
        models: &[10, 40],
        gpus: &[10, 40],
        model_threads: &[1, 64],
        rounds: 1,
        live_seconds: 0.05,
        smoke: true,
    };
}

/// A finished sweep.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SweepReport {
    /// How the scheduler batched.
    pub policy: &'static str,
    /// Of this machine.
    pub cores: u32,
    /// By models.
    pub models: Vec<Point>,
    /// By GPUs.
    pub gpus: Vec<Point>,
    /// Over models.
    pub models_growth: Growth,
    /// Over GPUs.
    pub gpus_growth: Growth,
    /// By ModelThreads.
    pub model_threads: Vec<ThreadPoint>,
    /// Numbers of ModelThreads that were not measured: with the RankThread they outnumber the cores.
    pub model_threads_left_out: Vec<u32>,
    /// Share of the CPU time that went to other machines' work; `null` where unknown.
    pub steal_fraction: Option<f64>,
}

/// A stepped measurement.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Point {
    /// Models or GPUs.
    pub at: u32,
    /// The least disturbed run's, separately for both threads.
    #[serde(flatten)]
    pub cost: Stepped,
}

/// The dearest point's costs over the cheapest one's.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Growth {
    /// Of a request in the ModelThread.
    pub per_request: f64,
    /// Of a batch in the RankThread.
    pub per_batch: f64,
}

/// A live measurement.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ThreadPoint {
    /// How many.
    pub model_threads: u32,
    /// Requests per second, over those of one ModelThread and their number.
    pub efficiency: f64,
    /// The run.
    pub report: SchedReport,
}

/// Measures all points; of `shape` only policy and seed are used.
///
/// # Errors
/// See [`SchedError`].
pub fn sweep(shape: Shape, points: Points) -> Result<SweepReport, SchedError> {
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get() as u32);
    let steal = StealMeter::start();
    let fixed = Shape {
        model_threads: 1,
        models: Points::FIXED_MODELS,
        gpus: Points::FIXED_GPUS,
        rate: None,
        seconds: points.live_seconds,
        ..shape
    };
    let models = measure(points.models, points.rounds, |models| Shape { models, ..fixed })?;
    let gpus = measure(points.gpus, points.rounds, |gpus| Shape { gpus, ..fixed })?;
    let (measured, left_out) = points.model_threads.iter().partition(|&&n| n < cores);
    let steal_fraction = steal.fraction();
    Ok(SweepReport {
        policy: shape.policy.name(),
        cores,
        models_growth: Growth::over(&models),
        gpus_growth: Growth::over(&gpus),
        models,
        gpus,
        model_threads: scale(fixed, measured)?,
        model_threads_left_out: left_out,
        steal_fraction,
    })
}

fn measure(
    points: &[u32],
    rounds: u32,
    shape: impl Fn(u32) -> Shape,
) -> Result<Vec<Point>, SchedError> {
    let mut best: Vec<Option<Stepped>> = vec![None; points.len()];
    for _ in 0..rounds.max(1) {
        for (best, point) in best.iter_mut().zip(points) {
            let cost = step(shape(*point))?;
            *best = Some(best.map_or(cost, |best| best.less_disturbed(cost)));
        }
    }
    let costs = best.into_iter().flatten();
    Ok(points.iter().zip(costs).map(|(&at, cost)| Point { at, cost }).collect())
}

fn scale(fixed: Shape, numbers: Vec<u32>) -> Result<Vec<ThreadPoint>, SchedError> {
    let mut one = None;
    let mut points = Vec::new();
    for model_threads in numbers {
        let [models, gpus] = [fixed.models, fixed.gpus].map(|each| each * model_threads);
        let report = run(Shape { model_threads, models, gpus, ..fixed })?;
        let each = report.run.requests_per_s / f64::from(model_threads);
        let efficiency = each / *one.get_or_insert(each);
        points.push(ThreadPoint { model_threads, efficiency, report });
    }
    Ok(points)
}

impl Growth {
    fn over(points: &[Point]) -> Self {
        let of = |cost: fn(&Stepped) -> f64| {
            let costs = || points.iter().map(|point| cost(&point.cost));
            costs().fold(0.0, f64::max) / costs().fold(f64::INFINITY, f64::min)
        };
        Self {
            per_request: of(|cost| cost.ns_per_request),
            per_batch: of(|cost| cost.rank_ns_per_batch),
        }
    }
}

impl SweepReport {
    /// The curves.
    ///
    /// # Errors
    /// The plot cannot be drawn.
    pub fn svg(&self, points: &Points) -> Result<String, SchedError> {
        Ok(curves::svg(self, points)?)
    }
}

impl fmt::Display for SweepReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}, {} cores; stepped:", self.policy, self.cores)?;
        writeln!(f, "  {:>8} {:>14} {:>14} {:>8}", "models", "ns/request", "ns/batch", "batch")?;
        self.models.iter().try_for_each(|point| writeln!(f, "  {point}"))?;
        writeln!(f, "  growth   {}", self.models_growth)?;
        writeln!(f, "  {:>8} {:>14} {:>14} {:>8}", "GPUs", "ns/request", "ns/batch", "batch")?;
        self.gpus.iter().try_for_each(|point| writeln!(f, "  {point}"))?;
        writeln!(f, "  growth   {}", self.gpus_growth)?;
        writeln!(f, "live, by ModelThreads:")?;
        for point in &self.model_threads {
            writeln!(
                f,
                "  {:>8} {:>10.2} M requests/s, efficiency {:.2}, {:.1} ns per request, dispatch p99 \
                 {:.1} µs",
                point.model_threads,
                point.report.run.requests_per_s / 1e6,
                point.efficiency,
                point.report.ns_per_request,
                point.report.run.dispatch_delay_us.p99,
            )?;
        }
        if !self.model_threads_left_out.is_empty() {
            let list: Vec<String> =
                self.model_threads_left_out.iter().map(u32::to_string).collect();
            let list = list.join(", ");
            writeln!(f, "  left out for lack of cores (there are {}): {list}", self.cores)?;
        }
        let steal = percent(self.steal_fraction, "-");
        writeln!(f, "steal {steal}")
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Stepped { ns_per_request, rank_ns_per_batch, mean_batch, .. } = self.cost;
        write!(
            f,
            "{:>8} {ns_per_request:>14.1} {rank_ns_per_batch:>14.1} {mean_batch:>8.1}",
            self.at
        )
    }
}

impl fmt::Display for Growth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>13.2}x {:>13.2}x", self.per_request, self.per_batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_core::Policy;

    const SHAPE: Shape = Shape {
        policy: Policy::Baton,
        model_threads: 1,
        models: 1,
        gpus: 1,
        variants: 1,
        seconds: 0.1,
        rate: None,
        seed: 1,
    };

    #[test]
    fn every_point_is_measured_or_said_to_be_left_out() {
        let report = sweep(SHAPE, Points::SMOKE).unwrap();
        let ats = |points: &[Point]| points.iter().map(|point| point.at).collect::<Vec<_>>();
        assert_eq!((ats(&report.models), ats(&report.gpus)), (vec![10, 40], vec![10, 40]));
        for point in report.models.iter().chain(&report.gpus) {
            assert!(point.cost.ns_per_request > 1.0, "{point:?}");
            assert!(point.cost.rank_ns_per_batch > 1.0, "{point:?}");
        }
        let costs = report.models.iter().map(|point| point.cost.ns_per_request);
        let [one, other]: [f64; 2] = costs.collect::<Vec<_>>().try_into().unwrap();
        assert_eq!(report.models_growth.per_request, (one / other).max(other / one));
        let live = report.model_threads.iter().map(|point| point.model_threads);
        let all: Vec<u32> = live.chain(report.model_threads_left_out.iter().copied()).collect();
        assert_eq!(all, Points::SMOKE.model_threads);
        assert!(report.model_threads.iter().all(|point| point.model_threads < report.cores));
        assert!(report.model_threads.iter().all(|point| point.report.run.pinned));
        let text = report.to_string();
        assert_eq!(text.contains("left out"), !report.model_threads_left_out.is_empty(), "{text}");
    }

    #[test]
    fn the_plot_is_well_formed_and_marked_as_what_it_is() {
        let report = sweep(SHAPE, Points::SMOKE).unwrap();
        let svg = report.svg(&Points::SMOKE).unwrap();
        let document = roxmltree::Document::parse(&svg).unwrap();
        let texts = document.descendants().filter(|node| node.has_tag_name("text"));
        let words: Vec<&str> = texts.filter_map(|node| node.text()).collect();
        for part in ["SMOKE RUN", "ns per request", "ns per batch", "models", "GPUs"] {
            assert!(words.iter().any(|text| text.contains(part)), "{part} in {words:?}");
        }
        let lines = document.descendants().filter(|node| node.has_tag_name("polyline")).count();
        assert!(lines > 20, "{lines}");
    }
}
