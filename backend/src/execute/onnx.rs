//! Models in ONNX files, executed on the CPU by ONNX Runtime.
//!
//! The library is opened at run time from `ORT_DYLIB_PATH`, so a backend without ONNX models needs
//! none. A model has one f32 input with a dynamic batch dimension; of several outputs the first is
//! the answer. One thread per GPU slot: ONNX Runtime's own pool would fight our pinned threads.
//! Inputs are used where they landed; ONNX Runtime allocates the output from its arena, and it is
//! copied out once.

use std::ffi::OsString;
use std::path::Path;
use std::sync::OnceLock;

use baton_core::ModelId;
use baton_topo::{EngineSpec, ModelSpec};
use ort::environment::Environment;
use ort::session::Session;
use ort::value::{Outlet, TensorElementType, TensorRef};
use zerocopy::{FromBytes, IntoBytes};

use super::{Engine, EngineError};

/// Names the ONNX Runtime library.
const LIBRARY_VARIABLE: &str = "ORT_DYLIB_PATH";
const LIBRARY_FIX: &str = "`./x demo` fetches ONNX Runtime and sets ORT_DYLIB_PATH; by hand: \
                           export ORT_DYLIB_PATH=\"$(./x onnxruntime)\"";

/// ONNX Runtime allows one environment per process.
static ENVIRONMENT: OnceLock<Result<Environment, String>> = OnceLock::new();

/// Executes models from ONNX files.
#[derive(Default)]
pub struct Onnx {
    /// By [`ModelId`]; `None` where the model is not ours.
    models: Vec<Option<Model>>,
}

struct Model {
    session: Session,
    /// Batch dimension first; rewritten for every batch.
    shape: Vec<i64>,
    output_floats: usize,
}

impl Engine for Onnx {
    fn load(&mut self, models: &[ModelSpec]) -> Result<(), EngineError> {
        let environment = environment(std::env::var_os(LIBRARY_VARIABLE))?;
        for spec in models {
            if let EngineSpec::Onnx { file, input_shape } = &spec.engine {
                let model = Model::load(environment, spec, file, input_shape).map_err(|fault| {
                    EngineError::Load {
                        model: spec.name.clone(),
                        file: file.display().to_string(),
                        problem: fault.problem,
                        fix: fault.fix.into(),
                    }
                })?;
                let index = spec.id.0 as usize;
                self.models.resize_with(self.models.len().max(index + 1), || None);
                self.models[index] = Some(model);
            }
        }
        Ok(())
    }

    fn execute(
        &mut self,
        model: ModelId,
        rows: &[u8],
        batch: u32,
        outputs: &mut [u8],
    ) -> Result<(), EngineError> {
        let failed = |problem| EngineError::Execute { model, batch, problem };
        match self.models.get_mut(model.0 as usize) {
            Some(Some(model)) => model.execute(rows, batch, outputs).map_err(failed),
            _ => Err(failed("not loaded".into())),
        }
    }
}

/// What is wrong with a model, and what to do.
struct Fault {
    problem: String,
    fix: &'static str,
}

impl Fault {
    fn new(problem: impl Into<String>, fix: &'static str) -> Self {
        Self { problem: problem.into(), fix }
    }
}

impl Model {
    fn load(
        environment: &Environment,
        spec: &ModelSpec,
        file: &Path,
        input_shape: &[u32],
    ) -> Result<Self, Fault> {
        if !file.is_file() {
            return Err(Fault::new("no such file", "correct the model's `file` key"));
        }
        let session = open(environment, file).map_err(|error| {
            Fault::new(error, "check that it is an ONNX model this ONNX Runtime can read")
        })?;
        check_input(session.inputs(), input_shape)?;
        check_output(&spec.name, session.outputs())?;
        let shape = std::iter::once(1).chain(input_shape.iter().map(|&d| i64::from(d))).collect();
        let mut model = Self { session, shape, output_floats: spec.output_bytes as usize / 4 };
        model.prove(spec)?;
        Ok(model)
    }

    /// Executes the smallest and the largest batch once: shapes that only clash at run time are
    /// found here, not by the first customer.
    fn prove(&mut self, spec: &ModelSpec) -> Result<(), Fault> {
        for batch in [1, spec.profile.batch_max()] {
            let rows = vec![0; batch as usize * spec.input_bytes as usize];
            let mut outputs = vec![0; batch as usize * spec.output_bytes as usize];
            self.execute(&rows, batch, &mut outputs).map_err(|problem| {
                Fault::new(
                    format!("a batch of {batch} does not execute: {problem}"),
                    "correct input_shape, output_bytes or batch_max, or export the model anew",
                )
            })?;
        }
        Ok(())
    }

    fn execute(&mut self, rows: &[u8], batch: u32, outputs: &mut [u8]) -> Result<(), String> {
        let floats = <[f32]>::ref_from_bytes(rows).map_err(|_| "the rows are not whole floats")?;
        self.shape[0] = i64::from(batch);
        let input = TensorRef::from_array_view((self.shape.as_slice(), floats)).map_err(text)?;
        let results = self.session.run(ort::inputs![input]).map_err(text)?;
        let (shape, answer) = results[0].try_extract_tensor::<f32>().map_err(text)?;
        let rows_out = shape.first().copied().unwrap_or(0);
        if rows_out != i64::from(batch) || answer.len() != batch as usize * self.output_floats {
            return Err(format!(
                "its output has shape {shape:?}, and output_bytes asks for {batch} rows of {} floats",
                self.output_floats
            ));
        }
        outputs.copy_from_slice(answer.as_bytes());
        Ok(())
    }
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

fn open(environment: &Environment, file: &Path) -> Result<Session, String> {
    Session::builder(environment)
        .map_err(text)?
        .with_intra_threads(1)
        .map_err(text)?
        .with_inter_threads(1)
        .map_err(text)?
        .with_intra_op_spinning(false)
        .map_err(text)?
        .with_inter_op_spinning(false)
        .map_err(text)?
        .commit_from_file(file)
        .map_err(text)
}

fn check_input(inputs: &[Outlet], expected: &[u32]) -> Result<(), Fault> {
    let [input] = inputs else {
        let problem = format!("it has {} inputs", inputs.len());
        return Err(Fault::new(problem, "export it with exactly one input"));
    };
    let (Some(TensorElementType::Float32), Some(shape)) =
        (input.dtype().tensor_type(), input.dtype().tensor_shape())
    else {
        let problem = format!("its input is {}", input.dtype());
        return Err(Fault::new(problem, "export it with an f32 tensor as input"));
    };
    match shape.first() {
        Some(&batch) if batch < 0 => {}
        _ => {
            let problem = format!("its input shape {shape:?} has no dynamic batch dimension");
            return Err(Fault::new(problem, "export it with a symbolic first dimension"));
        }
    }
    let row = &shape[1..];
    let fits = |(&has, &want): (&i64, &u32)| has < 0 || has == i64::from(want);
    if row.len() != expected.len() || !row.iter().zip(expected).all(fits) {
        let problem = format!("its input row has shape {row:?} and input_shape is {expected:?}");
        return Err(Fault::new(problem, "set input_shape to the model's, without the batch"));
    }
    Ok(())
}

fn check_output(model: &str, outputs: &[Outlet]) -> Result<(), Fault> {
    let Some(first) = outputs.first() else {
        return Err(Fault::new("it has no output", "export it with an output"));
    };
    if first.dtype().tensor_type() != Some(TensorElementType::Float32) {
        let problem = format!("its first output `{}` is {}", first.name(), first.dtype());
        return Err(Fault::new(problem, "export it with an f32 tensor as first output"));
    }
    if outputs.len() > 1 {
        tracing::info!(
            model,
            output = first.name(),
            of = outputs.len(),
            "answers with the first output"
        );
    }
    Ok(())
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

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
