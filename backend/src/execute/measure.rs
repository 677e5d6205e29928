//! Measuring ℓ(b) of a loaded model, for engines whose profile the cluster file can only guess.

use std::sync::Arc;

use baton_rdma::BatchBuffer;
use baton_topo::ModelSpec;
use baton_types::{ModelId, Nanos, Profile};

use super::ladder::{interpolate, ladder, staircase};
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

/// ℓ(1) ..= ℓ(`batch_max`) of each variant of `spec`, the cheapest first, on zeros of the longest rows, as the engine reports
/// it, never falling: measured at powers of two and at the largest batch, in between on straight lines. Of CUDA graphs each is
/// measured, and smaller batches last as long as the graph that executes them. Call while the engine has no batch.
///
/// # Errors
/// The model does not execute, or there is no memory for its largest batch.
pub fn measure(engine: &mut dyn Engine, spec: &ModelSpec) -> Result<Profiles, EngineError> {
    let mut trial = Trial::new(engine, spec)?;
    let variants = 0..spec.variant_count();
    variants.map(|variant| measure_one(&mut trial, variant, spec.profile.batch_max())).collect()
}

fn measure_one(trial: &mut Trial<'_>, variant: u16, most: u32) -> Result<Profile, EngineError> {
    let is_captured = trial.spec.is_captured();
    let sizes = if is_captured { ladder(most) } else { powers(most).collect() };
    let mut points = Vec::new();
    for batch in sizes {
        points.push((batch, median_latency(trial, variant, batch)?));
    }
    let table = if is_captured { staircase(&points) } else { interpolate(&points) };
    Ok(Profile::from_table(&table).expect("both make tables that never fall"))
}

fn powers(batch_max: u32) -> impl Iterator<Item = u32> {
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

    /// The answer to the first row of the batch that was executed last; `None`: there is none.
    pub(crate) fn answer(&self) -> Option<&[u8]> {
        self.outputs.row(0).ok()
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

#[cfg(test)]
mod tests {
    use baton_topo::Clock;

    use super::*;
    use crate::execute::{BatchBack, Blocking, Emulated, LooseModel};
    use crate::test_models::{captured, emulated, uncaptured};

    /// Executes each batch in as many nanoseconds as the square of its rows, and notes how many these are.
    #[derive(Default)]
    struct Squares {
        prepared: Option<BatchJob>,
        is_submitted: bool,
        sizes: Vec<u32>,
    }

    impl Engine for Squares {
        fn model_bytes(&mut self, _: &ModelSpec) -> u64 {
            0
        }
        fn load(&mut self, _: &ModelSpec) -> Result<(), EngineError> {
            Ok(())
        }
        fn unload(&mut self, _: ModelId) {}
        fn take(&mut self, _: ModelId) -> Option<LooseModel> {
            None
        }
        fn put(&mut self, _: ModelId, _: LooseModel) {}
        fn prepare(&mut self, batch: BatchJob) {
            self.prepared = Some(batch);
        }
        fn submit(&mut self, _: usize) {
            self.is_submitted = true;
        }
        fn withdraw(&mut self, _: usize) {}
        fn poll(&mut self) -> Option<BatchBack> {
            let job = self.prepared.take_if(|_| std::mem::take(&mut self.is_submitted))?;
            let (variant, rows) = (job.start_by.planned(), job.lens.len() as u32);
            self.sizes.push(rows);
            let (started, finished) = (Nanos(1), Nanos(1 + u64::from(rows * rows)));
            Some(job.end(BatchEnd::Executed { variant, started, finished, result: Ok(()) }))
        }
        fn is_busy(&self) -> bool {
            self.is_submitted
        }
    }

    /// The sizes that are executed, and ℓ(b) in nanoseconds.
    fn measured(spec: ModelSpec) -> (Vec<u32>, Vec<u64>) {
        let flat = Profile::linear(Nanos::ZERO, Nanos(1), 22).unwrap();
        let (mut engine, spec) = (Squares::default(), ModelSpec { profile: flat, ..spec });
        let [profile] = measure(&mut engine, &spec).unwrap().try_into().unwrap();
        let mut sizes = engine.sizes;
        sizes.dedup();
        (sizes, profile.table().iter().map(|latency| latency.0).collect())
    }

    #[test]
    fn of_graphs_each_is_measured_and_batches_between_last_as_long_as_the_next_larger_one() {
        let (sizes, table) = measured(captured(0));
        assert_eq!(sizes, ladder(22));
        assert_eq!(table[14..], [225, 256, 400, 400, 400, 400, 484, 484]);
    }

    #[test]
    fn without_graphs_powers_of_two_are_measured_and_straight_lines_are_between_them() {
        let (sizes, table) = measured(uncaptured(0));
        assert_eq!(sizes, [1, 2, 4, 8, 16, 22]);
        assert_eq!(table[14..], [232, 256, 294, 332, 370, 408, 446, 484]);
    }

    #[test]
    fn the_powers_end_at_the_largest_batch() {
        assert_eq!(powers(1).collect::<Vec<_>>(), [1]);
        assert_eq!(powers(8).collect::<Vec<_>>(), [1, 2, 4, 8]);
        assert_eq!(powers(11).collect::<Vec<_>>(), [1, 2, 4, 8, 11]);
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
