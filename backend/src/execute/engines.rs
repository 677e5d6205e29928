//! Every kind of engine one GPU slot needs, each with its models.

use baton_core::ModelId;
use baton_topo::{Clock, EngineSpec, ModelSpec};

use super::{Emulated, Engine, EngineError, Onnx};

/// The engines of one GPU slot; itself an engine that hands each model to the right one. Only the
/// kinds its models ask for are started.
pub struct Engines {
    clock: Clock,
    seed: u64,
    kinds: Vec<Box<dyn Engine>>,
    /// By [`ModelId`]: which of `kinds`.
    kind_of: Vec<Option<usize>>,
}

impl Engines {
    /// No engine yet. `seed` decides the emulated engine's jitter.
    pub fn new(clock: Clock, seed: u64) -> Self {
        Self { clock, seed, kinds: Vec::new(), kind_of: Vec::new() }
    }

    fn load_kind(
        &mut self,
        mut engine: Box<dyn Engine>,
        models: &[ModelSpec],
        wanted: impl Fn(&EngineSpec) -> bool,
    ) -> Result<(), EngineError> {
        let models: Vec<ModelSpec> =
            models.iter().filter(|spec| wanted(&spec.engine)).cloned().collect();
        if models.is_empty() {
            return Ok(());
        }
        engine.load(&models)?;
        for spec in &models {
            let index = spec.id.0 as usize;
            if self.kind_of.len() <= index {
                self.kind_of.resize(index + 1, None);
            }
            self.kind_of[index] = Some(self.kinds.len());
        }
        self.kinds.push(engine);
        Ok(())
    }
}

impl Engine for Engines {
    fn load(&mut self, models: &[ModelSpec]) -> Result<(), EngineError> {
        let emulated = Box::new(Emulated::new(self.clock, self.seed));
        self.load_kind(emulated, models, |spec| matches!(spec, EngineSpec::Emulated { .. }))?;
        self.load_kind(Box::<Onnx>::default(), models, |spec| {
            matches!(spec, EngineSpec::Onnx { .. })
        })
    }

    fn execute(
        &mut self,
        model: ModelId,
        rows: &[u8],
        batch: u32,
        outputs: &mut [u8],
    ) -> Result<(), EngineError> {
        match self.kind_of.get(model.0 as usize) {
            Some(&Some(kind)) => self.kinds[kind].execute(model, rows, batch, outputs),
            _ => Err(EngineError::Execute { model, batch, problem: "not loaded".into() }),
        }
    }
}
