//! What a run consists of.

use std::fmt;

use baton_core::Policy;
use serde::Serialize;

use super::SchedError;

/// What to run.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Shape {
    /// How the scheduler batches.
    pub policy: Policy,
    /// ModelThreads, at least 1.
    pub model_threads: u32,
    /// Models, at least one for each ModelThread.
    pub models: u32,
    /// GPU slots.
    pub gpus: u32,
    /// Variants of each model; 1: none is a supernet.
    pub variants: u32,
    /// Length of the measurement.
    pub seconds: f64,
    /// Requests per second in total, Poisson; `None`: as many as the ModelThreads take.
    pub rate: Option<f64>,
    /// Same seed, same requests.
    pub seed: u64,
}

/// The same in reports: what was run.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub struct ShapeReport {
    /// How the scheduler batched.
    pub policy: &'static str,
    /// ModelThreads.
    pub model_threads: u32,
    /// Models.
    pub models: u32,
    /// GPU slots.
    pub gpus: u32,
    /// Variants of each model.
    pub variants: u32,
}

impl Shape {
    pub(super) fn check(&self) -> Result<(), SchedError> {
        use baton_core::VARIANTS_MAX;
        use baton_scheduler::limits::{GPUS_MAX, MODEL_THREADS_MAX};
        let wrong = if !(1..=MODEL_THREADS_MAX).contains(&self.model_threads) {
            format!("model threads: give 1 to {MODEL_THREADS_MAX}")
        } else if !(self.model_threads..=MODELS_MAX).contains(&self.models) {
            format!("models: give {} (one per model thread) to {MODELS_MAX}", self.model_threads)
        } else if !(1..=GPUS_MAX).contains(&self.gpus) {
            format!("gpus: give 1 to {GPUS_MAX}")
        } else if !(1..=VARIANTS_MAX as u32).contains(&self.variants) {
            format!("variants: give 1 to {VARIANTS_MAX}")
        } else {
            return Ok(());
        };
        Err(SchedError::Shape(wrong))
    }
}

/// Keeps the queues' memory below a gigabyte.
const MODELS_MAX: u32 = 10_000;

impl From<Shape> for ShapeReport {
    fn from(shape: Shape) -> Self {
        let Shape { policy, model_threads, models, gpus, variants, .. } = shape;
        Self { policy: policy.name(), model_threads, models, gpus, variants }
    }
}

impl fmt::Display for ShapeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { policy, model_threads, models, gpus, variants } = self;
        write!(f, "{policy}, {model_threads} model threads, {models} models, {gpus} GPUs")?;
        if *variants > 1 { write!(f, ", {variants} variants") } else { Ok(()) }
    }
}
