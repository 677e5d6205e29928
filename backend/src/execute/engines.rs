//! Every kind of engine one GPU slot needs, each with its models.

use baton_topo::{Clock, EngineSpec, ModelSpec};
use baton_types::ModelId;

use super::{
    BlockingEngine, Emulated, EngineError, HostStore, Inputs, Onnx, Outputs, cuda, emulated, onnx,
};

/// The engines of one GPU slot; itself an engine that hands each model to the right one. A kind is started with its first
/// model.
pub struct Engines {
    clock: Clock,
    slot: u32,
    seed: u64,
    store: HostStore,
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

impl Kind {
    /// `None` for a model that executes on a device: these engines block.
    fn of(model: &ModelSpec) -> Option<Self> {
        match model.engine {
            EngineSpec::Emulated { .. } => Some(Self::Emulated),
            EngineSpec::Onnx { .. } => Some(Self::Onnx),
            EngineSpec::Cuda => None,
        }
    }
}

/// A loaded model between two engines of a kind: it goes from the thread that loaded it to the one that executes it.
pub struct LooseModel(pub(super) Loose);

pub(super) enum Loose {
    Emulated(emulated::Model),
    Cuda(cuda::Model),
    Onnx(Box<onnx::Model>),
}

impl LooseModel {
    fn kind(&self) -> Kind {
        match self.0 {
            Loose::Emulated(_) => Kind::Emulated,
            Loose::Onnx(_) => Kind::Onnx,
            Loose::Cuda(_) => unreachable!("such a model is not loaded here"),
        }
    }
}

impl Engines {
    /// No engine yet. `slot` is the number of the GPU slot, `seed` decides the emulated engine's jitter.
    /// Files that `store` has are read from there.
    pub fn new(clock: Clock, slot: u32, seed: u64, store: HostStore) -> Self {
        Self { clock, slot, seed, store, emulated: None, onnx: None, kind_of: Vec::new() }
    }

    /// The engine of this kind.
    fn of(&mut self, kind: Kind) -> &mut dyn BlockingEngine {
        let Self { clock, slot, seed, ref store, .. } = *self;
        match kind {
            Kind::Emulated => self.emulated.get_or_insert_with(|| Emulated::new(clock, seed)),
            Kind::Onnx => self.onnx.get_or_insert_with(|| Onnx::with_store(slot, store.clone())),
        }
    }

    fn note(&mut self, model: ModelId, kind: Kind) {
        let index = model.0 as usize;
        self.kind_of.resize(self.kind_of.len().max(index + 1), None);
        self.kind_of[index] = Some(kind);
    }

    /// The kind of a model that is loaded.
    fn kind_of(&self, model: ModelId) -> Option<Kind> {
        *self.kind_of.get(model.0 as usize)?
    }
}

impl BlockingEngine for Engines {
    fn model_bytes(&mut self, model: &ModelSpec) -> u64 {
        Kind::of(model).map_or(0, |kind| self.of(kind).model_bytes(model))
    }

    fn load(&mut self, model: &ModelSpec) -> Result<(), EngineError> {
        let kind = Kind::of(model).ok_or_else(|| EngineError::Load {
            model: model.name.clone(),
            file: "engine = \"cuda\"".into(),
            problem: "this GPU slot executes the models of other engines".into(),
            fix: "put it into a sub-cluster whose models all have engine = \"cuda\"".into(),
        })?;
        self.of(kind).load(model)?;
        self.note(model.id, kind);
        Ok(())
    }

    fn take(&mut self, model: ModelId) -> Option<LooseModel> {
        let kind = self.kind_of.get_mut(model.0 as usize)?.take()?;
        self.of(kind).take(model)
    }

    fn put(&mut self, id: ModelId, model: LooseModel) {
        let kind = model.kind();
        self.of(kind).put(id, model);
        self.note(id, kind);
    }

    fn execute(
        &mut self,
        model: ModelId,
        variant: u16,
        inputs: Inputs<'_>,
        outputs: &mut Outputs,
    ) -> Result<(), EngineError> {
        let (batch, problem) = (inputs.len(), "not loaded".into());
        let kind = self.kind_of(model).ok_or(EngineError::Execute { model, batch, problem })?;
        self.of(kind).execute(model, variant, inputs, outputs)
    }
}
