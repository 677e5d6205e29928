//! Measuring ℓ(b) of a loaded model, for engines whose profile the cluster file can only guess.

use baton_core::{Nanos, Profile};
use baton_topo::{Clock, ModelSpec};

use super::rows::Zeros;
use super::{Engine, EngineError, Outputs};

/// Executions before measuring: the first ones allocate and pick kernels.
const WARM_UPS: usize = 2;
/// Executions per batch size; the median counts.
const RUNS: usize = 5;

/// ℓ(1) ..= ℓ(`batch_max`) of `spec` on zeros of the longest rows: measured at powers of two and at the largest
/// batch, in between on straight lines, never falling.
///
/// # Errors
/// The model does not execute.
pub fn measure(
    engine: &mut dyn Engine,
    spec: &ModelSpec,
    clock: Clock,
) -> Result<Profile, EngineError> {
    let batch_max = spec.profile.batch_max();
    let mut points = Vec::new();
    for batch in ladder(batch_max) {
        points.push((batch, median_latency(engine, spec, batch, clock)?));
    }
    Ok(Profile::from_table(&interpolate(&points)).expect("interpolate() makes monotone tables"))
}

fn ladder(batch_max: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(1), |&b| Some(b * 2))
        .take_while(move |&b| b < batch_max)
        .chain([batch_max])
}

fn median_latency(
    engine: &mut dyn Engine,
    spec: &ModelSpec,
    batch: u32,
    clock: Clock,
) -> Result<Nanos, EngineError> {
    let rows = Zeros::new(&spec.signature(), batch);
    let mut outputs = Outputs::default();
    let mut runs = [Nanos::ZERO; RUNS];
    for _ in 0..WARM_UPS {
        outputs.reset(batch, spec.output_bytes);
        engine.execute(spec.id, rows.inputs(), &mut outputs)?;
    }
    for run in &mut runs {
        outputs.reset(batch, spec.output_bytes);
        let started = clock.now();
        engine.execute(spec.id, rows.inputs(), &mut outputs)?;
        *run = clock.now() - started;
    }
    runs.sort_unstable();
    Ok(runs[RUNS / 2])
}

/// The table through `points` (batch sizes ascending, from 1), raised where it would fall or be 0.
fn interpolate(points: &[(u32, Nanos)]) -> Vec<Nanos> {
    let mut table: Vec<Nanos> = Vec::new();
    for &(batch, latency) in points {
        let floor = table.last().copied().unwrap_or(Nanos(1));
        let latency = latency.max(floor);
        let from = table.len() as u64;
        let steps = u64::from(batch) - from;
        let rise = if from == 0 { Nanos::ZERO } else { latency - floor };
        let start = if from == 0 { latency } else { floor };
        table.extend((1..=steps).map(|i| start + Nanos(rise.0 * i / steps)));
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::execute::Emulated;
    use crate::test_models::emulated;

    #[test]
    fn the_ladder_ends_at_the_largest_batch() {
        assert_eq!(ladder(1).collect::<Vec<_>>(), [1]);
        assert_eq!(ladder(8).collect::<Vec<_>>(), [1, 2, 4, 8]);
        assert_eq!(ladder(11).collect::<Vec<_>>(), [1, 2, 4, 8, 11]);
    }

    #[test]
    fn tables_run_straight_between_measurements_and_never_fall() {
        let points = [(1, Nanos(10)), (2, Nanos(8)), (4, Nanos(30)), (5, Nanos(29))];
        let table: Vec<u64> = interpolate(&points).iter().map(|latency| latency.0).collect();
        assert_eq!(table, [10, 10, 20, 30, 30]);
        assert!(Profile::from_table(&interpolate(&[(1, Nanos::ZERO)])).is_ok());
    }

    #[test]
    fn an_emulated_model_measures_no_faster_than_its_profile() {
        let clock = Clock::start();
        let spec = emulated("toy", 0, 4, 3);
        let mut engine = Emulated::new(clock, 1);
        engine.load(&spec).unwrap();
        let measured = measure(&mut engine, &spec, clock).unwrap();
        assert_eq!(measured.batch_max(), spec.profile.batch_max());
        for batch in 1..=measured.batch_max() {
            assert!(measured.latency(batch) >= spec.profile.latency(batch));
        }
    }
}
