//! Models in files of a moment, loaded and executed by the engine.

use std::path::{Path, PathBuf};

use baton_backend::execute::{BlockingEngine as _, EngineError, Inputs, Onnx, Outputs};
use baton_topo::{ModelSpec, check_text};
use baton_types::{FailReason, ModelId};

/// True if the tests below can run.
pub(crate) fn has_runtime() -> bool {
    let set = std::env::var_os("ORT_DYLIB_PATH").is_some_and(|path| !path.is_empty());
    if !set {
        eprintln!("SKIPPED: ORT_DYLIB_PATH is not set; export it: $(./x onnxruntime)");
    }
    set
}

/// What a cluster file makes of a model file and more keys, or its problems.
pub(crate) fn described(file: &Path, keys: &str) -> Result<ModelSpec, String> {
    let model = format!("name = \"mine\"\nslo_ms = 50\nfile = \"{}\"\n{keys}", file.display());
    let text = format!("[[model]]\n{model}\n[[backend]]\nname = \"b\"\n");
    let cluster = check_text(Path::new("c.toml"), &text).cluster;
    let said = |problems: Vec<baton_topo::Problem>| {
        problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    };
    cluster.map(|mut cluster| cluster.models.remove(0)).map_err(said)
}

pub(crate) fn spec(file: &Path, keys: &str) -> ModelSpec {
    described(file, keys).unwrap()
}

pub(crate) fn load(spec: &ModelSpec) -> Result<Onnx, EngineError> {
    let mut engine = Onnx::new(0);
    engine.load(spec).map(|()| engine)
}

/// Executes rows of any lengths; the answers, or why there is none.
pub(crate) fn execute(
    engine: &mut Onnx,
    spec: &ModelSpec,
    rows: &[Vec<u8>],
) -> Vec<Result<Vec<u8>, FailReason>> {
    execute_variant(engine, spec, 0, rows)
}

/// The same, by a variant.
pub(crate) fn execute_variant(
    engine: &mut Onnx,
    spec: &ModelSpec,
    variant: u16,
    rows: &[Vec<u8>],
) -> Vec<Result<Vec<u8>, FailReason>> {
    let lens: Vec<u32> = rows.iter().map(|row| row.len() as u32).collect();
    let stride = spec.input_bytes as usize;
    let padded = |row: &Vec<u8>| [&row[..], &vec![0xee; stride - row.len()]].concat();
    let bytes: Vec<u8> = rows.iter().flat_map(padded).collect();
    let mut outputs = Outputs::default();
    outputs.reset(rows.len() as u32, spec.output_bytes);
    let inputs = Inputs::new(&bytes, spec.input_bytes, &lens);
    engine.execute(ModelId(0), variant, inputs, &mut outputs).unwrap();
    (0..outputs.len()).map(|row| outputs.row(row).map(<[u8]>::to_vec)).collect()
}

pub(crate) fn scratch(name: &str, bytes: &[u8]) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

pub(crate) fn bytes(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|float| float.to_le_bytes()).collect()
}

pub(crate) fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}
