//! The CUDA graphs of an ONNX model, through the pipeline and bare. The bare loop launches the same graph of the same session,
//! with its inputs on the device: what ONNX Runtime does with graphs and bound tensors, and nothing else.

use std::sync::atomic::AtomicBool;

use baton_core::{Nanos, Profile};
use baton_cuda::{Graph, Program};

use super::subject::Subject;
use super::{GpuBench, GpuBenchError, GpuReport, LibraryRig, ROWS, Rig, Turns};
use super::{bare, goals, one_row, prediction};

/// The least share of the bare loop's rate.
const FULL_LOAD: f64 = 0.97;
/// Batches of each size whose median is ℓ(b).
const PER_SIZE: u32 = 50;

/// A model that was loaded onto the rig's device.
pub struct GpuModel<'a> {
    /// Bytes of a row.
    pub row_bytes: u32,
    /// Bytes of an answer.
    pub answer_bytes: u32,
    /// The largest batch.
    pub batch_max: u32,
    /// What executes a batch of that many rows.
    pub program: &'a dyn Fn(u32) -> &'a Program<Graph>,
}

/// Measures every goal for a model.
///
/// # Errors
/// See [`GpuBenchError`].
pub fn run_model(
    rig: &mut LibraryRig,
    model: &GpuModel<'_>,
    bench: GpuBench,
    stop: &AtomicBool,
    mut note: impl FnMut(&str),
) -> Result<GpuReport, GpuBenchError> {
    let rows = model.batch_max.min(ROWS);
    let mut subject = Subject {
        row_bytes: model.row_bytes,
        answer_bytes: model.answer_bytes as usize,
        rows,
        programs: Some(model.program),
        right: None,
    };
    note("each size alone");
    let profile = staircase(rig, rows, &subject)?;
    let mut report = GpuReport::new(rig.device(), rig.figures(), "onnx");
    let latency_ms = profile.latency(rows).as_millis_f64();
    note(&format!("full load, batches of {rows} that last {latency_ms:.3} ms"));
    let turns = Turns::take(rig, bench, (rows, profile.latency(rows)), &mut subject, stop)?;
    report.goals.push(goals::full_load(&turns, latency_ms, FULL_LOAD));
    report.goals.extend(goals::of_the_device(&turns, latency_ms, rig.figures()));
    note("one row on an idle device");
    report.goals.push(one_row(rig, profile.latency(1), &mut subject)?);
    note("batches of all sizes, beside what is predicted");
    report.goals.push(prediction(rig, bench, &profile, &mut subject)?);
    Ok(report)
}

/// The bare loop's medians.
fn staircase(
    rig: &mut LibraryRig,
    most: u32,
    subject: &Subject<'_, Graph>,
) -> Result<Profile, GpuBenchError> {
    let mut table: Vec<Nanos> = Vec::new();
    for rows in 1..=most {
        let bare = bare::run(rig, PER_SIZE, (rows, Nanos::ZERO), subject)?;
        let median_us = goals::median(bare.executions.into_iter().map(goals::micros).collect());
        let floor = table.last().copied().unwrap_or(Nanos(1));
        table.push(Nanos::from_millis_f64(median_us / 1e3).max(floor));
    }
    Ok(Profile::from_table(&table).expect("it never falls"))
}
