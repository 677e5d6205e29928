//! The GPU pipeline beside a bare loop: the goals of `docs/performance.md`, *GPUs*, one line each.
//!
//! The bare loop uses the same process, library, device and kernel, and nothing else of Baton (`bare.rs`). Both take turns, so
//! that a device that grows warm or slow does so for both. What Baton does is what a GPU slot's executor does at full load
//! (`loaded.rs`). A rig is where that happens: a device, Baton's fake one, or the simulated one in virtual time (`rig.rs`).

mod bare;
mod goals;
mod loaded;
mod model;
mod report;
mod rig;
mod subject;

use std::sync::atomic::{AtomicBool, Ordering};

use baton_core::{BatchShape, ExecutionModel, Nanos, Profile};
use baton_cuda::{CudaError, Driver, OpenError};

use bare::Bare;
use loaded::Loaded;
pub use model::{GpuModel, run_model};
pub use report::{Figures, Goal, GpuReport};
pub use rig::{LibraryRig, Rig, SimRig};
use subject::{Plan, Subject};

/// Bytes of a row: 224 × 224 RGB.
const ROW_BYTES: u32 = 150_528;
/// Rows of a batch at full load.
const ROWS: u32 = 16;
/// How long batches last at full load, ms, with the least share of the bare loop's rate that is promised.
const FULL_LOAD: [(f64, f64); 2] = [(2.0, 0.98), (0.5, 0.95)];
/// Turns of the bare loop and of Baton.
const TURNS: u32 = 4;
/// α and β of the model whose times are predicted, ms.
const STAIRCASE_MS: (f64, f64) = (0.05, 0.2);

/// What to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GpuBench {
    /// Batches of each kind at full load, in all turns together.
    pub batches: u32,
}

/// Why there is no report.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum GpuBenchError {
    /// There is no driver or no device.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The driver refused a call.
    #[error("{0}; `baton doctor` says what is there")]
    Driver(#[from] CudaError),
    /// A batch did not come back as it should.
    #[error("a batch of {rows} rows: {problem}")]
    Batch {
        /// Its rows.
        rows: u32,
        /// What became of it.
        problem: String,
    },
    /// The caller wanted no more.
    #[error("stopped")]
    Stopped,
}

/// Measures every goal that this rig can show. It calls `note` with what is done.
///
/// # Errors
/// See [`GpuBenchError`].
pub fn run<R: Rig>(
    rig: &mut R,
    bench: GpuBench,
    stop: &AtomicBool,
    mut note: impl FnMut(&str),
) -> Result<GpuReport, GpuBenchError> {
    let mut report = GpuReport::new(rig.device(), rig.figures(), "cuda");
    let mut kernel = Subject::kernel(rig.answer());
    for (at, (latency_ms, bound)) in FULL_LOAD.into_iter().enumerate() {
        note(&format!("full load, batches of {ROWS} that last {latency_ms} ms"));
        let plan = (ROWS, Nanos::from_millis_f64(latency_ms));
        let turns = Turns::take(rig, bench, plan, &mut kernel, stop)?;
        report.goals.push(goals::full_load(&turns, latency_ms, bound));
        if at == 0 {
            report.goals.extend(goals::of_the_device(&turns, latency_ms, rig.figures()));
        }
    }
    note("one row on an idle device");
    let alone = Nanos::from_millis_f64(0.5);
    report.goals.push(one_row(rig, alone, &mut kernel)?);
    if rig.figures() != Figures::Virtual {
        note("batches of all sizes, beside what is predicted");
        let (alpha, beta) = STAIRCASE_MS;
        let [alpha, beta] = [alpha, beta].map(Nanos::from_millis_f64);
        let profile = Profile::linear(alpha, beta, ROWS).expect("α and β rise with the batch");
        report.goals.push(prediction(rig, bench, &profile, &mut kernel)?);
    }
    Ok(report)
}

/// Turns of the bare loop and of Baton at full load.
struct Turns {
    rows: u32,
    row_bytes: u32,
    bare: Vec<Bare>,
    loaded: Vec<Loaded>,
}

impl Turns {
    fn take<R: Rig>(
        rig: &mut R,
        bench: GpuBench,
        plan: Plan,
        subject: &mut Subject<'_, <R::Driver as Driver>::Graph>,
        stop: &AtomicBool,
    ) -> Result<Self, GpuBenchError> {
        let batches = (bench.batches / TURNS).max(2);
        let (mut bare, mut loaded) = (Vec::new(), Vec::new());
        for _ in 0..TURNS {
            if stop.load(Ordering::Relaxed) {
                return Err(GpuBenchError::Stopped);
            }
            bare.push(bare::run(rig, batches, plan, subject)?);
            let plan = std::iter::repeat_n(plan, batches as usize);
            loaded.push(loaded::run(rig, loaded::SLOTS, plan, subject)?);
        }
        Ok(Self { rows: plan.0, row_bytes: subject.row_bytes, bare, loaded })
    }
}

/// Batches of one row, each when the one before is back: the median from the copy's beginning to the answer.
fn one_row<R: Rig>(
    rig: &mut R,
    time: Nanos,
    subject: &mut Subject<'_, <R::Driver as Driver>::Graph>,
) -> Result<Goal, GpuBenchError> {
    let alone = loaded::run(rig, 1, std::iter::repeat_n((1, time), 200), subject)?;
    Ok(goals::one_row(alone.latencies, time))
}

/// Mixed sizes: the first half teaches the scheduler's execution model, the second is compared with it.
fn prediction<R: Rig>(
    rig: &mut R,
    bench: GpuBench,
    profile: &Profile,
    subject: &mut Subject<'_, <R::Driver as Driver>::Graph>,
) -> Result<Goal, GpuBenchError> {
    let most = subject.rows;
    let sizes = (0..bench.batches).map(|batch| 1 + batch * 7 % most);
    let plan = sizes.map(|rows| (rows, profile.latency(rows)));
    let loaded = loaded::run(rig, loaded::SLOTS, plan, subject)?;
    let mut model = ExecutionModel::new(profile.clone(), Nanos::from_millis(50));
    let errors = loaded.times.iter().map(|(rows, times)| {
        let planned = model.observe(BatchShape::of(*rows), times.execution);
        times.execution.0.abs_diff(planned.0) as f64 / planned.0 as f64
    });
    Ok(goals::prediction(errors.skip(loaded.times.len() / 2).collect()))
}

#[cfg(test)]
mod tests {
    use super::*;

    static GO_ON: AtomicBool = AtomicBool::new(false);

    fn report(batches: u32) -> GpuReport {
        run(&mut SimRig::default(), GpuBench { batches }, &GO_ON, |_| {}).unwrap()
    }

    fn value(report: &GpuReport, name: &str, latency_ms: f64) -> f64 {
        let of = |goal: &&Goal| goal.goal == name && goal.latency_ms == latency_ms;
        report.goals.iter().find(of).unwrap_or_else(|| panic!("{name}: {report:?}")).value
    }

    #[test]
    fn in_virtual_time_the_goals_are_met_exactly() {
        let report = report(100);
        assert!(report.is_good() && report.figures == Figures::Virtual, "{report}");
        // The bare loop has one execution behind the other; so has Baton, but for the first copy and the last answers.
        assert!(value(&report, "full_load", 2.0) > 0.997, "{report}");
        assert!(value(&report, "full_load", 0.5) > 0.99, "{report}");
        assert_eq!(value(&report, "gap_p50_us", 2.0), 0.0);
        assert_eq!(value(&report, "gap_p99_us", 2.0), 0.0);
        assert_eq!(value(&report, "allocations_after_load", 2.0), 0.0);
        assert_eq!(value(&report, "device_memory_taken", 2.0), 0.0);
        // Two copies of 7 µs, the rows at 25 GB/s, the launch, the answer's copy, and what the host sees late.
        let added_us = value(&report, "one_row_added_us", 0.5);
        assert!((28.0..34.0).contains(&added_us), "{added_us}");
    }

    #[test]
    fn each_goal_is_a_line_of_json_and_says_where_it_was_measured() {
        let report = report(8);
        let lines = report.lines().unwrap();
        assert_eq!(lines.len(), report.goals.len());
        for line in lines {
            let line: serde_json::Value = serde_json::from_str(&line).unwrap();
            assert_eq!(line["figures"], "virtual");
            for key in ["goal", "engine", "device", "latency_ms", "rows", "value", "bound", "met"] {
                assert!(!line[key].is_null(), "{key}: {line}");
            }
        }
    }

    #[test]
    fn a_stop_is_heard() {
        let stopped =
            run(&mut SimRig::default(), GpuBench { batches: 8 }, &AtomicBool::new(true), |_| {});
        assert_eq!(stopped, Err(GpuBenchError::Stopped));
    }
}
