//! Measuring ℓ(b) of a model thoroughly, for a profile file: `baton profile`.
//!
//! A backend measures a few sizes in a moment, because its cluster waits ([`measure`](crate::execute::measure)). Here each size
//! is executed many times, so that the tail is seen as well. The engines are the same, and so is what they measure.

mod extents;
mod report;
mod runs;
mod variants;

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use baton_cuda::{Library, OpenError};
use baton_topo::{Clock, Device, EngineSpec, ModelSpec};
use baton_types::Nanos;

use crate::execute::{
    Blocking, Cuda, Engine, EngineError, Engines, HostStore, OpenLibrary, Trial, ladder,
};

pub use extents::answer_shapes;
pub use report::ProfileReport;
pub use runs::Runs;
pub use variants::{MeasuredVariant, SupernetReport, Switching, profile_variants};

/// Executions of a size that do not count: the first ones allocate, and choose kernels.
const WARM_UPS: u32 = 5;
/// Executions of a size, however long they take.
const RUNS_MIN: u32 = 5;

/// How thoroughly to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunLimits {
    /// Executions of each size, if the time is enough.
    pub runs: u32,
    /// The time for a size. At least five executions are made however long they take.
    pub per_size: Nanos,
}

impl RunLimits {
    /// Whether `runs` executions, which lasted `lasted` together, are enough.
    fn are_reached(&self, runs: usize, lasted: Nanos) -> bool {
        runs >= self.runs as usize || (runs >= RUNS_MIN as usize && lasted >= self.per_size)
    }
}

/// How far it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// The size that was measured last.
    pub batch: u32,
    /// Its median.
    pub median: Nanos,
    /// Sizes that are done.
    pub done: usize,
    /// All of them.
    pub sizes: usize,
}

impl fmt::Display for Progress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { batch, median, done, sizes } = self;
        write!(f, "{done} of {sizes} sizes: ℓ({batch}) = {:.3} ms", median.as_millis_f64())
    }
}

/// Why there is no profile.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ProfileError {
    /// The model cannot be loaded or executed.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// The model's engine has no such device.
    #[error("model `{model}` has engine = \"{engine}\", which does not execute on {device}; {fix}")]
    Device {
        /// The model.
        model: String,
        /// Its engine.
        engine: &'static str,
        /// The device asked for.
        device: Device,
        /// What to do.
        fix: &'static str,
    },
    /// A profile file has one ℓ(b).
    #[error(
        "model `{model}` has variants, and a profile file is of one ℓ(b); measure them with `baton supernet profile`"
    )]
    Variants {
        /// The model.
        model: String,
    },
    /// It has one ℓ(b), and `baton profile` measures that.
    #[error("model `{model}` has no variants; measure it with `baton profile`")]
    NoVariants {
        /// The model.
        model: String,
    },
    /// The caller wanted no more.
    #[error("stopped after {done} of {sizes} sizes; nothing was written")]
    Stopped {
        /// Sizes that were measured.
        done: usize,
        /// All of them.
        sizes: usize,
    },
}

/// The device that a model executes on when none is asked for.
pub fn usual_device(model: &ModelSpec) -> Device {
    match model.engine {
        EngineSpec::Cuda => Device::Cuda(0),
        EngineSpec::Emulated { .. } => Device::Cpu,
        EngineSpec::Onnx { place, .. } => place.device,
    }
}

/// Measures ℓ(b) of `model` on `device`, which only this process should use meanwhile. `open` finds the CUDA driver, usually
/// [`open_driver`]. `on_size` hears of each size; `stop` ends it all within one execution.
///
/// # Errors
/// See [`ProfileError`].
pub fn profile(
    model: &ModelSpec,
    device: Device,
    limits: RunLimits,
    open: OpenLibrary,
    stop: &AtomicBool,
    on_size: impl FnMut(Progress),
) -> Result<ProfileReport, ProfileError> {
    if !model.variants.is_empty() {
        return Err(ProfileError::Variants { model: model.name.clone() });
    }
    let clock = Clock::start();
    let model = &placed(model, device);
    let mut engine = loaded(model, device, open, clock)?;
    let mut bench = Bench { trial: Trial::new(&mut *engine, model)?, limits, clock, stop };
    let [measured] = bench.all(1, model, on_size)?.try_into().expect("it has one variant");
    let (device, is_fake) = described(device, open);
    Ok(ProfileReport::new(model, device, is_fake, &measured))
}

/// A model that is executed again and again, and how often.
struct Bench<'a> {
    trial: Trial<'a>,
    limits: RunLimits,
    clock: Clock,
    stop: &'a AtomicBool,
}

impl Bench<'_> {
    /// Each size of the first `variants` variants.
    fn all(
        &mut self,
        variants: u16,
        model: &ModelSpec,
        mut on_size: impl FnMut(Progress),
    ) -> Result<Vec<Vec<Runs>>, ProfileError> {
        let ladder = ladder(model.profile.batch_max());
        let sizes = ladder.len() * usize::from(variants);
        let (mut all, mut done) = (Vec::new(), 0);
        for variant in 0..variants {
            let mut measured: Vec<Runs> = Vec::new();
            for &batch in &ladder {
                let stopped = ProfileError::Stopped { done, sizes };
                let runs = self.runs_of(variant, batch)?.ok_or(stopped)?;
                done += 1;
                on_size(Progress { batch, median: runs.median(), done, sizes });
                measured.push(runs);
            }
            all.push(measured);
        }
        Ok(all)
    }

    /// `None`: `stop` was set.
    fn runs_of(&mut self, variant: u16, batch: u32) -> Result<Option<Runs>, EngineError> {
        for _ in 0..WARM_UPS {
            self.trial.run(variant, batch)?;
        }
        let began = self.clock.now();
        let mut times = Vec::with_capacity(self.limits.runs as usize);
        while !self.limits.are_reached(times.len(), self.clock.now() - began) {
            if self.stop.load(Ordering::Relaxed) {
                return Ok(None);
            }
            times.push(self.trial.run(variant, batch)?);
        }
        Ok(Some(Runs::new(batch, times)))
    }
}

fn loaded(
    model: &ModelSpec,
    device: Device,
    open: OpenLibrary,
    clock: Clock,
) -> Result<Box<dyn Engine>, ProfileError> {
    let mut engine = engine_on(model, device, open, clock)?;
    engine.load(model)?;
    Ok(engine)
}

/// The model, to be executed on another device than it names.
fn placed(model: &ModelSpec, on: Device) -> ModelSpec {
    let mut model = model.clone();
    if let EngineSpec::Onnx { place, .. } = &mut model.engine {
        place.device = on;
    }
    model
}

fn engine_on(
    model: &ModelSpec,
    device: Device,
    open: OpenLibrary,
    clock: Clock,
) -> Result<Box<dyn Engine>, ProfileError> {
    let refused = |fix| ProfileError::Device {
        model: model.name.clone(),
        engine: model.engine.name(),
        device,
        fix,
    };
    match (&model.engine, device) {
        (EngineSpec::Cuda, Device::Cpu) => Err(refused("name a GPU: --device cuda:0")),
        (EngineSpec::Emulated { .. }, Device::Cuda(_)) => {
            Err(refused("leave --device out: an emulated model lasts what its profile says"))
        }
        (engine, Device::Cuda(number)) if *engine == EngineSpec::Cuda || model.is_captured() => {
            let engine = Cuda::new(open, clock, (0, number), HostStore::default());
            Ok(Box::new(engine.spinning(true)))
        }
        _ => Ok(Box::new(Blocking::new(Engines::new(clock, 0, 1, HostStore::default()), clock))),
    }
}

/// What a device is called, and whether it is Baton's fake.
fn described(device: Device, open: OpenLibrary) -> (String, bool) {
    let Device::Cuda(number) = device else {
        return (format!("cpu: {}", processor()), false);
    };
    let library = open().ok();
    let is_fake = library.as_ref().is_some_and(|library| library.is_fake());
    let devices = library.and_then(|library| library.devices().ok()).unwrap_or_default();
    let name = devices.into_iter().nth(number as usize).map_or_else(|| "?".into(), |it| it.name);
    (format!("{device}: {name}"), is_fake)
}

/// As the kernel names it.
fn processor() -> String {
    let text = std::fs::read_to_string(Path::new("/proc/cpuinfo")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("model name"));
    line.map_or("unknown", |name| name.trim_start_matches([' ', '\t', ':'])).to_owned()
}

/// The driver of this host, for [`profile`].
///
/// # Errors
/// There is none, or it is too old.
pub fn open_driver() -> Result<Arc<Library>, OpenError> {
    Library::open()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_models::{emulated, supernet};

    static GO_ON: AtomicBool = AtomicBool::new(false);
    const QUICK: RunLimits = RunLimits { runs: 5, per_size: Nanos::from_millis(1) };

    #[test]
    fn an_emulated_model_measures_no_faster_than_it_lasts() {
        let model = emulated("toy", 0, 4, 3);
        let mut heard = Vec::new();
        let report =
            profile(&model, Device::Cpu, QUICK, open_driver, &GO_ON, |size| heard.push(size));
        let file = report.unwrap().file;
        assert_eq!(heard.iter().map(|progress| progress.batch).collect::<Vec<_>>(), [1, 2, 3]);
        assert!(heard[2].to_string().starts_with("3 of 3 sizes: ℓ(3) = "));
        for (batch, latency) in (1..).zip(file.table()) {
            assert!(latency >= model.profile.latency(batch), "{file:?}");
        }
        assert_eq!((file.engine.as_str(), file.model_bytes, file.is_fake), ("emulated", 0, false));
    }

    #[test]
    fn who_waits_for_variants_hears_how_many_sizes_are_left_of_all_of_them() {
        let (model, mut heard) = (supernet("toy", 0, 4, 2), Vec::new());
        let on_size = |size: Progress| heard.push((size.done, size.sizes));
        profile_variants(&model, Device::Cpu, QUICK, open_driver, &GO_ON, on_size).unwrap();
        assert_eq!(heard, [(1, 4), (2, 4), (3, 4), (4, 4)]);
    }

    #[test]
    fn each_size_is_executed_as_often_as_asked_and_five_times_if_there_is_no_time() {
        let model = emulated("toy", 0, 4, 2);
        let executed = |runs, per_size| {
            let limits = RunLimits { runs, per_size };
            let report = profile(&model, Device::Cpu, limits, open_driver, &GO_ON, |_| {});
            report.unwrap().file.measured.iter().map(|size| size.runs).collect::<Vec<_>>()
        };
        assert_eq!(executed(7, Nanos::from_millis(600_000)), [7, 7]);
        assert_eq!(executed(7, Nanos::ZERO), [RUNS_MIN; 2]);
    }

    #[test]
    fn what_the_engine_cannot_do_is_refused_and_a_stop_is_heard() {
        let model = emulated("toy", 0, 4, 3);
        let on = |device, stop: bool| {
            profile(&model, device, QUICK, open_driver, &AtomicBool::new(stop), |_| {}).unwrap_err()
        };
        let refused = on(Device::Cuda(0), false).to_string();
        assert!(refused.contains("`toy`") && refused.contains("cuda:0"), "{refused}");
        assert_eq!(on(Device::Cpu, true), ProfileError::Stopped { done: 0, sizes: 3 });
    }
}
