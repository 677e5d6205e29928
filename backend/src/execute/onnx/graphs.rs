//! Models on a GPU as CUDA graphs: one for each variant and size of batch ([`ladder`]). A smaller batch executes as the next
//! larger graph; what the rows behind it hold is left there.
//!
//! ONNX Runtime puts its work into a stream of its own, from which it is captured once; afterwards only the driver is asked.
//! Weights and tensors stay ONNX Runtime's.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use baton_cuda::{Driver as _, Gpu, Graph, Program, Recorder};
use baton_topo::{Device, EngineSpec, ModelSpec};
use ort::session::{IoBinding, Session};

use super::super::{EngineError, HostStore, Outputs, ladder, step, store};
use super::answers::Answers;
use super::capture::Capture;
use super::finite::Watch;
use super::{Fault, Host, LIBRARY_VARIABLE, check, environment};

/// A model's graphs.
pub struct Graphs {
    /// By variant; each by the rows of its batches, ascending.
    programs: Vec<Vec<(u32, Program<Graph>)>>,
    answers: Answers,
    /// What the device had less once they were loaded; another process's memory counts if it was taken meanwhile.
    device_bytes: u64,
    /// Behind the graphs, which use its memory.
    _loaded: Mutex<Loaded>,
}

/// What the graphs need while they live; given up in this order.
struct Loaded {
    _bindings: Vec<IoBinding>,
    _sessions: Vec<Session>,
    _recorder: Recorder,
}

impl std::fmt::Debug for Graphs {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Graphs").field("programs", &self.programs).finish_non_exhaustive()
    }
}

impl Graphs {
    /// Loads a model onto the device of that GPU slot, and captures its batches.
    ///
    /// # Errors
    /// Names the model, its file and the fix.
    pub fn load(
        gpu: &mut Gpu,
        spec: &ModelSpec,
        (slot, store): (u32, &HostStore),
    ) -> Result<Self, EngineError> {
        let EngineSpec::Onnx { signature, place, .. } = &spec.engine else {
            unreachable!("each engine gets its own kind of model");
        };
        let library = std::env::var_os(LIBRARY_VARIABLE);
        let environment = environment(library.clone())?;
        let library = library.unwrap_or_default();
        let host = Host { environment, library: Path::new(&library), slot };
        let recorder = gpu.recorder().map_err(|error| {
            let fix = "`baton doctor` says what is there";
            EngineError::Library { engine: "cuda", problem: error.to_string(), fix }
        })?;
        let before = gpu.free_bytes().unwrap_or_default();
        let finite = place.check_finite.then(|| Watch::new(&spec.name));
        let mut graphs = Self {
            programs: Vec::new(),
            answers: Answers::new(signature, finite),
            device_bytes: 0,
            _loaded: Mutex::new(Loaded {
                _bindings: Vec::new(),
                _sessions: Vec::new(),
                _recorder: recorder,
            }),
        };
        for (file, sha256) in spec.checked_files() {
            if store.get(file).is_none() {
                store::check(file, sha256).map_err(|fault| fault.of(spec, file))?;
            }
            let added = graphs.add(&host, spec, file);
            added.map_err(|fault| fault.of_model(spec, file))?;
        }
        graphs.device_bytes = before.saturating_sub(gpu.free_bytes().unwrap_or_default());
        Ok(graphs)
    }

    /// A variant that executes this file.
    fn add(&mut self, host: &Host<'_>, spec: &ModelSpec, file: &Path) -> Result<(), Fault> {
        let EngineSpec::Onnx { signature, place, layout, .. } = &spec.engine else {
            unreachable!("each engine gets its own kind of model");
        };
        let Device::Cuda(first) = place.device else {
            unreachable!("a model on the CPU is not captured");
        };
        let loaded = self._loaded.get_mut().unwrap_or_else(PoisonError::into_inner);
        let recorder = &loaded._recorder;
        let session = host.open_on_gpu(file, (first, Some(recorder.stream())), *place)?;
        let mut session = check(session, spec)?;
        let sizes = match layout.fixed_batch {
            Some(rows) => vec![rows],
            None => ladder(spec.profile.batch_max()),
        };
        let mut programs = Vec::new();
        // The largest first: what it takes for its operators' results is enough for the others.
        for rows in sizes.into_iter().rev() {
            let capture = Capture::new(&session, signature, first + host.slot, rows)?;
            let (program, binding) = capture.program(&mut session, recorder)?;
            programs.push((rows, program));
            loaded._bindings.push(binding);
        }
        programs.reverse();
        loaded._sessions.push(session);
        self.programs.push(programs);
        Ok(())
    }

    /// Bytes of an answer.
    pub fn answer_bytes(&self) -> u32 {
        self.answers.bytes()
    }

    /// Bytes of the device that it takes.
    pub fn device_bytes(&self) -> u64 {
        self.device_bytes
    }

    /// What executes that many rows.
    ///
    /// # Panics
    /// There is no such variant, or so large a batch.
    pub fn program(&self, variant: u16, rows: u32) -> &Program<Graph> {
        let found = step(&self.programs[usize::from(variant)], rows);
        found.expect("no batch is larger than the largest graph")
    }

    /// Deals the answers to a batch's rows, which were that long.
    pub(in super::super) fn answer(&self, lens: &[u32], answers: &[u8], outputs: &mut Outputs) {
        self.answers.deal(lens, answers, outputs);
    }
}
