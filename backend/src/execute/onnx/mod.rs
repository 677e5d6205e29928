//! Models in ONNX files, executed by ONNX Runtime on the CPU, or on a GPU by its CUDA provider (`gpu.rs`).
//!
//! The library is opened at run time from `ORT_DYLIB_PATH`, so a backend without ONNX models needs none. One thread per
//! GPU slot: ONNX Runtime's own pool would fight our pinned threads. Rows of one f32 input are used where they landed;
//! others are gathered tensor by tensor (`batch.rs`), because ONNX Runtime wants those of all rows together.

mod answers;
mod batch;
mod capture;
mod finite;
mod gpu;
mod graphs;
mod strided;
mod tensors;

use std::ffi::OsString;
use std::path::Path;
use std::sync::{Arc, OnceLock};

use baton_topo::signature::{ElementType, Signature};
use baton_topo::{Device, EngineSpec, ModelSpec, OnnxPlace};
use baton_types::ModelId;
use ort::environment::Environment;
use ort::session::Session;
use ort::session::builder::SessionBuilder;
use ort::value::DynValue;

use super::engines::Loose;
use super::rows::Zeros;
use super::store;
use super::{BlockingEngine, EngineError, HostStore, Inputs, LooseModel, Outputs};
pub use graphs::Graphs;

/// Names the ONNX Runtime library.
const LIBRARY_VARIABLE: &str = "ORT_DYLIB_PATH";
const LIBRARY_FIX: &str = "`./x demo` fetches ONNX Runtime and sets ORT_DYLIB_PATH; by hand: \
                           export ORT_DYLIB_PATH=\"$(./x onnxruntime)\"";

/// ONNX Runtime allows one environment per process.
static ENVIRONMENT: OnceLock<Result<Environment, String>> = OnceLock::new();

/// Executes models from ONNX files.
pub struct Onnx {
    /// The number of the GPU slot.
    slot: u32,
    /// What it need not read from files.
    store: HostStore,
    /// By [`ModelId`]; `None` where the model is not loaded.
    models: Vec<Option<Model>>,
}

/// A model that is loaded.
pub(super) struct Model {
    name: String,
    /// Rows that cannot be executed: the log has said so once.
    has_refused: bool,
    /// One for each variant that has a file of its own; otherwise one.
    sessions: Vec<Session>,
    /// The shape of the input that selects the variant, if the file has one.
    control: Option<Vec<i64>>,
    /// How many variants there are: 1 without any.
    variants: u16,
    signature: Signature,
    /// The batch size of every execution, if the file fixes it.
    fixed_batch: Option<u32>,
    /// The batch dimension of each input of a row, and of each output; `None`: it has none.
    axes: [Vec<Option<usize>>; 2],
    /// The inputs that all rows share.
    constants: Vec<(String, DynValue)>,
    /// The input of a row is one f32 tensor of fixed extents whose first dimension is the batch, of any size: rows are used where
    /// they landed.
    in_place: bool,
    /// Looks through answers for numbers that are not finite; `None`: nothing does.
    finite: Option<finite::Watch>,
}

impl BlockingEngine for Onnx {
    /// The size of its files, which is mostly weights. Weights that a file keeps in other files do not count.
    fn model_bytes(&mut self, spec: &ModelSpec) -> u64 {
        files_bytes(spec)
    }

    fn load(&mut self, spec: &ModelSpec) -> Result<(), EngineError> {
        let library = std::env::var_os(LIBRARY_VARIABLE);
        let environment = environment(library.clone())?;
        let EngineSpec::Onnx { file: first, place, .. } = &spec.engine else {
            unreachable!("each engine gets its own kind of model");
        };
        let library = library.unwrap_or_default();
        let host = Host { environment, library: Path::new(&library), slot: self.slot };
        let refused = |file: &Path, fault: Fault| fault.of_model(spec, file);
        let mut sessions = Vec::new();
        for (file, sha256) in spec.checked_files() {
            let content = self.store.get(file);
            if content.is_none() {
                store::check(file, sha256).map_err(|fault| fault.of(spec, file))?;
            }
            let opened = host.open(file, content, *place).and_then(|session| check(session, spec));
            sessions.push(opened.map_err(|fault| refused(file, fault))?);
        }
        let mut model = Model::new(sessions, spec).map_err(|fault| refused(first, fault))?;
        model.finite = place.check_finite.then(|| finite::Watch::new(&spec.name));
        model.prove(spec.profile.batch_max()).map_err(|fault| refused(first, fault))?;
        self.insert(spec.id, model);
        Ok(())
    }

    fn take(&mut self, model: ModelId) -> Option<LooseModel> {
        let model = self.models.get_mut(model.0 as usize)?.take()?;
        Some(LooseModel(Loose::Onnx(Box::new(model))))
    }

    fn put(&mut self, id: ModelId, LooseModel(model): LooseModel) {
        let Loose::Onnx(model) = model else {
            unreachable!("each engine gets its own kind of model");
        };
        self.insert(id, *model);
    }

    fn execute(
        &mut self,
        model: ModelId,
        variant: u16,
        inputs: Inputs<'_>,
        outputs: &mut Outputs,
    ) -> Result<(), EngineError> {
        let batch = inputs.len();
        let failed = |problem| EngineError::Execute { model, batch, problem };
        match self.models.get_mut(model.0 as usize) {
            Some(Some(model)) => {
                model.execute(variant, inputs, outputs, batch::SEARCHES_MAX).map_err(failed)
            }
            _ => Err(failed("not loaded".into())),
        }
    }
}

impl Onnx {
    /// No model yet. `slot` is the number of the GPU slot: the device is that many behind the one that a model names.
    pub fn new(slot: u32) -> Self {
        Self::with_store(slot, HostStore::default())
    }

    /// As [`Onnx::new`]; files that `store` has are not read.
    pub fn with_store(slot: u32, store: HostStore) -> Self {
        Self { slot, store, models: Vec::new() }
    }

    fn insert(&mut self, id: ModelId, model: Model) {
        let index = id.0 as usize;
        self.models.resize_with(self.models.len().max(index + 1), || None);
        self.models[index] = Some(model);
    }
}

/// What is wrong with a model, and what to do.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Fault {
    problem: String,
    fix: &'static str,
}

impl Fault {
    fn new(problem: impl Into<String>, fix: &'static str) -> Self {
        Self { problem: problem.into(), fix }
    }

    fn of_model(self, spec: &ModelSpec, file: &Path) -> EngineError {
        EngineError::Load {
            model: spec.name.clone(),
            file: file.display().to_string(),
            problem: self.problem,
            fix: self.fix.into(),
        }
    }
}

/// Bytes of a model's files.
pub(super) fn files_bytes(spec: &ModelSpec) -> u64 {
    // One that is not there is what loading complains about.
    let bytes = |file: &Path| std::fs::metadata(file).map_or(0, |metadata| metadata.len());
    spec.files().into_iter().map(bytes).sum()
}

/// What sessions are opened with.
struct Host<'a> {
    environment: &'a Environment,
    /// ONNX Runtime's library.
    library: &'a Path,
    /// The number of the GPU slot.
    slot: u32,
}

impl Host<'_> {
    /// From the file's `content`, if the store has it.
    fn open(
        &self,
        file: &Path,
        content: Option<Arc<[u8]>>,
        place: OnnxPlace,
    ) -> Result<Session, Fault> {
        match place.device {
            Device::Cpu => {
                let mut builder = builder(self.environment).map_err(unreadable)?;
                let session = match content {
                    Some(content) => builder.commit_from_memory(&content),
                    None => builder.commit_from_file(file),
                };
                session.map_err(text).map_err(unreadable)
            }
            Device::Cuda(first) => self.open_on_gpu(file, (first, None), place),
        }
    }

    /// As [`Host::open`], on a GPU. With a stream, which must outlive the session, it puts its work there.
    fn open_on_gpu(
        &self,
        file: &Path,
        (first, stream): (u32, Option<*mut ()>),
        place: OnnxPlace,
    ) -> Result<Session, Fault> {
        gpu::prepare(self.library)?;
        let builder = builder(self.environment).map_err(unreadable)?;
        gpu::open(builder, file, (first + self.slot, stream), place)
            .map_err(|error| gpu::explained(&error).unwrap_or_else(|| unreadable(error)))
    }
}

fn unreadable(error: String) -> Fault {
    Fault::new(error, "check that it is an ONNX model this ONNX Runtime can read")
}

impl Model {
    fn new(sessions: Vec<Session>, spec: &ModelSpec) -> Result<Self, Fault> {
        let EngineSpec::Onnx { signature, layout, .. } = &spec.engine else {
            unreachable!("each engine gets its own kind of model");
        };
        let (signature, fixed_batch) = (signature.clone(), layout.fixed_batch);
        let axes = [&signature.input, &signature.output]
            .map(|row| row.tensors().iter().map(|tensor| layout.axis_of(&tensor.name)).collect());
        let constants = layout.constants.iter().map(tensors::constant).collect::<Result<_, _>>();
        let constants = constants
            .map_err(|problem| Fault::new(problem, "correct the key constants of the model"))?;
        let floats = matches!(signature.input.tensors(), [one] if one.element == ElementType::F32);
        let is_free = axes[0] == [Some(0)] && fixed_batch.is_none();
        let in_place = floats && signature.input.is_fixed() && is_free;
        let control = spec.is_controlled().then(|| control_shape(&sessions[0])).transpose()?;
        let variants = spec.variant_count();
        Ok(Self {
            sessions,
            control,
            variants,
            signature,
            fixed_batch,
            axes,
            constants,
            in_place,
            finite: None,
            has_refused: false,
            name: spec.name.clone(),
        })
    }

    /// Executes the smallest and the largest batch once with each variant, of the longest rows: shapes that only clash at run
    /// time are found here, not by the first customer.
    fn prove(&mut self, batch_max: u32) -> Result<(), Fault> {
        let variants = 0..self.variants;
        for (variant, batch) in variants.flat_map(|variant| [(variant, 1), (variant, batch_max)]) {
            let rows = Zeros::new(&self.signature, batch);
            let mut outputs = Outputs::default();
            outputs.reset(batch, self.signature.output.bytes_max());
            self.execute(variant, rows.inputs(), &mut outputs, 0).map_err(|problem| {
                let fix =
                    gpu::explained(&problem).map_or_else(|| unproven(batch), |fault| fault.fix);
                let of = named(variant, self.variants);
                let problem = problem.trim_end();
                Fault::new(format!("a batch of {batch}{of} does not execute: {problem}"), fix)
            })?;
        }
        Ok(())
    }
}

/// What to do about a model that does not execute a batch of this size. A batch of one has been tried before.
fn unproven(batch: u32) -> &'static str {
    match batch {
        1 => "correct dims, batch_dim, input_shape or outputs, or export the model anew",
        _ => {
            "it executes one row: set batch_max = 1, or correct dims, batch_dim, input_shape or outputs, \
             or export the model so that it takes any batch"
        }
    }
}

/// Which variant of how many, in a message; nothing of a model without any.
fn named(variant: u16, variants: u16) -> String {
    if variants > 1 { format!(" of variant {variant}") } else { String::new() }
}

fn environment(library: Option<OsString>) -> Result<&'static Environment, EngineError> {
    let missing = |problem| EngineError::Library { engine: "onnx", problem, fix: LIBRARY_FIX };
    let path = library
        .filter(|path| !path.is_empty())
        .ok_or_else(|| missing(format!("{LIBRARY_VARIABLE} is not set")))?;
    ENVIRONMENT
        .get_or_init(|| {
            let builder = ort::init_from(Path::new(&path)).map_err(text)?;
            builder.with_name("baton").with_telemetry(false).build().map_err(text)
        })
        .as_ref()
        .map_err(|problem| missing(problem.clone()))
}

/// Without threads of its own.
fn builder(environment: &Environment) -> Result<SessionBuilder, String> {
    Session::builder(environment)
        .map_err(text)?
        .with_intra_threads(1)
        .map_err(text)?
        .with_inter_threads(1)
        .map_err(text)?
        .with_intra_op_spinning(false)
        .map_err(text)?
        .with_inter_op_spinning(false)
        .map_err(text)
}

/// The input that selects a supernet's variant.
const CONTROL: &str = "variant";

/// The shape of that input: `[]` or `[1]`.
fn control_shape(session: &Session) -> Result<Vec<i64>, Fault> {
    let control = session.inputs().iter().find(|input| input.name() == CONTROL);
    let shape = control.and_then(|input| input.dtype().tensor_shape());
    let shape = shape.map(|shape| shape.iter().copied().collect::<Vec<i64>>());
    shape.filter(|shape| shape.is_empty() || *shape == [1]).ok_or_else(|| {
        let problem = format!("its input `{CONTROL}` is not an int64 of shape [] or [1]");
        Fault::new(problem, "export the model anew")
    })
}

/// The file may have been exchanged since the cluster file was read.
fn check(session: Session, spec: &ModelSpec) -> Result<Session, Fault> {
    let EngineSpec::Onnx { signature, layout, .. } = &spec.engine else {
        unreachable!("each engine gets its own kind of model");
    };
    let is_constant = |name: &str| layout.constants.iter().any(|constant| constant.name == name);
    let is_input = |name: &&str| (!spec.is_controlled() || *name != CONTROL) && !is_constant(name);
    let inputs = session.inputs().iter().map(|input| input.name()).filter(is_input);
    let ours = signature.input.tensors().iter().map(|tensor| tensor.name.as_str());
    let outputs: Vec<&str> = session.outputs().iter().map(|output| output.name()).collect();
    let mut wanted = signature.output.tensors().iter().map(|tensor| tensor.name.as_str());
    if inputs.eq(ours) && wanted.all(|name| outputs.contains(&name)) {
        return Ok(session);
    }
    let fix = "the file has changed: start again, scheduler and backends";
    Err(Fault::new("it has other inputs or outputs than the cluster file's reader saw", fix))
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variant_is_named_where_there_are_several() {
        assert_eq!(named(0, 1), "");
        assert_eq!(named(1, 2), " of variant 1");
    }

    #[test]
    fn without_the_library_the_error_names_the_variable_and_the_command_that_sets_it() {
        for library in [None, Some(OsString::new())] {
            let Err(error) = environment(library) else { panic!("there is no library") };
            let error = error.to_string();
            assert!(error.contains("ORT_DYLIB_PATH is not set"), "{error}");
            assert!(error.contains("./x demo"), "{error}");
        }
    }
}
