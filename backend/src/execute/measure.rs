//! Measuring ℓ(b) of a loaded model, for engines whose profile the cluster file can only guess.

use std::sync::Arc;

use baton_rdma::BatchBuffer;
use baton_topo::ModelSpec;
use baton_types::{ModelId, Nanos, Profile};

use super::{BatchEnd, BatchJob, Engine, EngineError, Outputs, StartBy};

/// ℓ(b) of each variant of a model, the cheapest first; of a model without variants its own. Never empty.
pub type Profiles = Vec<Profile>;

/// The profiles of a model's description.
pub(super) fn profiles_of(spec: &ModelSpec) -> Profiles {
    (0..spec.variant_count()).map(|variant| spec.profile_of(variant).clone()).collect()
}

/// The measured profiles, by the ids of this process's cluster file.
pub type Measured = Vec<(ModelId, Profiles)>;

/// Executions before measuring: the first ones allocate and pick kernels.
const WARM_UPS: usize = 2;
/// Executions per batch size; the median counts.
const RUNS: usize = 5;

/// ℓ(1) ..= ℓ(`batch_max`) of each variant of `spec`, the cheapest first, on zeros of the longest rows, as the engine reports it: measured at powers of two and
/// at the largest batch, in between on straight lines, never falling. Call while the engine has no batch.
///
/// # Errors
/// The model does not execute, or there is no memory for its largest batch.
pub fn measure(engine: &mut dyn Engine, spec: &ModelSpec) -> Result<Profiles, EngineError> {
    let mut trial = Trial::new(engine, spec)?;
    let variants = 0..spec.variant_count();
    variants.map(|variant| measure_one(&mut trial, variant, spec.profile.batch_max())).collect()
}

fn measure_one(trial: &mut Trial<'_>, variant: u16, most: u32) -> Result<Profile, EngineError> {
    let mut points = Vec::new();
    for batch in ladder(most) {
        points.push((batch, median_latency(trial, variant, batch)?));
    }
    Ok(Profile::from_table(&interpolate(&points)).expect("interpolate() makes monotone tables"))
}

fn ladder(batch_max: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(1), |&b| Some(b * 2))
        .take_while(move |&b| b < batch_max)
        .chain([batch_max])
}

fn median_latency(trial: &mut Trial<'_>, variant: u16, batch: u32) -> Result<Nanos, EngineError> {
    let mut runs = [Nanos::ZERO; RUNS];
    for _ in 0..WARM_UPS {
        trial.run(variant, batch)?;
    }
    for run in &mut runs {
        *run = trial.run(variant, batch)?;
    }
    runs.sort_unstable();
    Ok(runs[RUNS / 2])
}

/// Executes batches of zeros of a model's longest rows on an engine that has nothing else to do.
pub struct Trial<'a> {
    engine: &'a mut dyn Engine,
    spec: &'a ModelSpec,
    stride: u32,
    inputs: Arc<BatchBuffer>,
    outputs: Outputs,
}

impl<'a> Trial<'a> {
    /// Of a model that `engine` has loaded.
    ///
    /// # Errors
    /// There is no memory for its largest batch.
    pub fn new(engine: &'a mut dyn Engine, spec: &'a ModelSpec) -> Result<Self, EngineError> {
        let (batch, input) = (spec.profile.batch_max(), spec.signature().input);
        let stride = input.bytes_max();
        let room = |rows: u32, bytes: u32| rows as usize * bytes as usize;
        let failed = |problem: String| EngineError::Execute { model: spec.id, batch, problem };
        let memory = engine.memory();
        let inputs = memory.inputs(room(batch, stride));
        let outputs = memory.outputs(batch, room(batch, spec.output_bytes));
        let inputs = inputs.map_err(|error| failed(error.to_string()))?;
        let outputs = outputs.map_err(|error| failed(error.to_string()))?;
        let zeros = input.zeros();
        for row in 0..batch {
            inputs.lend(row, stride).expect("no row is lent").copy_from_slice(&zeros);
        }
        Ok(Self { engine, spec, stride, inputs, outputs })
    }

    /// Executes a batch of `batch` rows, 1 ..= the model's largest, with this variant. Returns how long that took, by the engine.
    ///
    /// # Errors
    /// The engine's.
    pub fn run(&mut self, variant: u16, batch: u32) -> Result<Nanos, EngineError> {
        let mut outputs = std::mem::take(&mut self.outputs);
        outputs.reset(batch, self.spec.output_bytes);
        self.engine.prepare(BatchJob {
            slot: 0,
            model: self.spec.id,
            rows: self.inputs.rows(batch, self.stride).expect("the run before gave them back"),
            stride: self.stride,
            lens: vec![self.stride; batch as usize],
            outputs,
            start_by: StartBy::any_time(variant),
        });
        self.engine.submit(0);
        let back = loop {
            if let Some(back) = self.engine.poll() {
                break back;
            }
        };
        self.outputs = back.outputs;
        match back.end {
            BatchEnd::Executed { started, finished, result, .. } => {
                result.map(|()| finished - started)
            }
            BatchEnd::Expired | BatchEnd::Withdrawn => unreachable!("it may start at any time"),
        }
    }
}

/// The table through `points` (batch sizes ascending, from 1), raised where it would fall or be 0.
pub(crate) fn interpolate(points: &[(u32, Nanos)]) -> Vec<Nanos> {
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
    use baton_topo::Clock;

    use super::*;
    use crate::execute::{Blocking, Emulated};
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
    fn an_emulated_model_measures_no_faster_than_its_profile_and_no_slower_than_it_took() {
        let clock = Clock::start();
        let spec = emulated("toy", 0, 4, 3);
        let mut engine = Blocking::new(Emulated::new(clock, 1), clock);
        engine.load(&spec).unwrap();
        let [measured] = measure(&mut engine, &spec).unwrap().try_into().unwrap();
        assert_eq!(measured.batch_max(), spec.profile.batch_max());
        for batch in 1..=measured.batch_max() {
            assert!(measured.latency(batch) >= spec.profile.latency(batch));
        }
        let all_runs = clock.now();
        assert!(measured.latency(measured.batch_max()) <= all_runs, "{measured:?} in {all_runs:?}");
    }
}
