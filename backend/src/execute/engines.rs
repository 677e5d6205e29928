//! Every kind of engine one GPU slot needs, each with its models.

use baton_core::ModelId;
use baton_topo::{Clock, EngineSpec, ModelSpec};

use super::{Emulated, Engine, EngineError, Inputs, Onnx, Outputs, emulated, onnx};

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

/// A loaded model between two engines: it goes from the thread that loaded it to the one that executes it.
pub(super) enum LooseModel {
    Emulated(emulated::Model),
    Onnx(Box<onnx::Model>),
}

impl Engines {
    /// No engine yet. `seed` decides the emulated engine's jitter.
    pub fn new(clock: Clock, seed: u64) -> Self {
        Self { clock, seed, emulated: None, onnx: None, kind_of: Vec::new() }
    }

    fn emulated(&mut self) -> &mut Emulated {
        let (clock, seed) = (self.clock, self.seed);
        self.emulated.get_or_insert_with(|| Emulated::new(clock, seed))
    }

    fn onnx(&mut self) -> &mut Onnx {
        self.onnx.get_or_insert_with(Onnx::default)
    }

    fn note(&mut self, model: ModelId, kind: Kind) {
        let index = model.0 as usize;
        self.kind_of.resize(self.kind_of.len().max(index + 1), None);
        self.kind_of[index] = Some(kind);
    }

    /// Gives a loaded model away; `None` if it is not loaded.
    pub(super) fn take(&mut self, model: ModelId) -> Option<LooseModel> {
        match self.kind_of.get_mut(model.0 as usize)?.take()? {
            Kind::Emulated => self.emulated().take(model).map(LooseModel::Emulated),
            Kind::Onnx => self.onnx().take(model).map(|model| LooseModel::Onnx(Box::new(model))),
        }
    }

    /// Takes a model in that other engines loaded.
    pub(super) fn put(&mut self, id: ModelId, model: LooseModel) {
        let kind = match model {
            LooseModel::Emulated(model) => {
                self.emulated().put(id, model);
                Kind::Emulated
            }
            LooseModel::Onnx(model) => {
                self.onnx().put(id, *model);
                Kind::Onnx
            }
        };
        self.note(id, kind);
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
        let kind = match model.engine {
            EngineSpec::Emulated { .. } => {
                self.emulated().load(model)?;
                Kind::Emulated
            }
            EngineSpec::Onnx { .. } => {
                self.onnx().load(model)?;
                Kind::Onnx
            }
        };
        self.note(model.id, kind);
        Ok(())
    }

    fn unload(&mut self, model: ModelId) {
        self.take(model);
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
