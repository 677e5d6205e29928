//! Every kind of engine one GPU slot needs, each with its models.

use baton_core::ModelId;
use baton_topo::{Clock, EngineSpec, ModelSpec};

use super::{Emulated, Engine, EngineError, Inputs, Onnx, Outputs};

/// The engines of one GPU slot; itself an engine that hands each model to the right one. A kind is started with its first
/// model.
pub struct Engines {
    clock: Clock,
    seed: u64,
    emulated: Option<Emulated>,
    onnx: Option<Onnx>,
    /// By [`ModelId`].
    kind_of: Vec<Option<Kind>>,
}

#[derive(Clone, Copy)]
enum Kind {
    Emulated,
    Onnx,
}

impl Engines {
    /// No engine yet. `seed` decides the emulated engine's jitter.
    pub fn new(clock: Clock, seed: u64) -> Self {
        Self { clock, seed, emulated: None, onnx: None, kind_of: Vec::new() }
    }

    /// The engine of a model that is loaded.
    fn of(&mut self, model: ModelId) -> Option<&mut dyn Engine> {
        match (*self.kind_of.get(model.0 as usize)?)? {
            Kind::Emulated => self.emulated.as_mut().map(|engine| engine as &mut dyn Engine),
            Kind::Onnx => self.onnx.as_mut().map(|engine| engine as &mut dyn Engine),
        }
    }
}

impl Engine for Engines {
    fn load(&mut self, model: &ModelSpec) -> Result<(), EngineError> {
        let (clock, seed) = (self.clock, self.seed);
        let kind = match model.engine {
            EngineSpec::Emulated { .. } => {
                self.emulated.get_or_insert_with(|| Emulated::new(clock, seed)).load(model)?;
                Kind::Emulated
            }
            EngineSpec::Onnx { .. } => {
                self.onnx.get_or_insert_with(Onnx::default).load(model)?;
                Kind::Onnx
            }
        };
        let index = model.id.0 as usize;
        self.kind_of.resize(self.kind_of.len().max(index + 1), None);
        self.kind_of[index] = Some(kind);
        Ok(())
    }

    fn unload(&mut self, model: ModelId) {
        if let Some(engine) = self.of(model) {
            engine.unload(model);
            self.kind_of[model.0 as usize] = None;
        }
    }

    fn execute(
        &mut self,
        model: ModelId,
        inputs: Inputs<'_>,
        outputs: &mut Outputs,
    ) -> Result<(), EngineError> {
        let (batch, problem) = (inputs.len(), "not loaded".into());
        let engine = self.of(model).ok_or(EngineError::Execute { model, batch, problem })?;
        engine.execute(model, inputs, outputs)
    }
}
