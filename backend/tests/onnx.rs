//! Real models through ONNX Runtime. Needs `ORT_DYLIB_PATH`; says so loudly when it is not set.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod onnx_files;

use std::path::{Path, PathBuf};

use baton_backend::execute::{Engine, EngineError, Onnx, measure};
use baton_core::{ModelId, Nanos, Profile, QuotaLimits, SubclusterId};
use baton_topo::{Clock, EngineSpec, ModelSpec};

use onnx_files::{Dim, FLOAT, INT64, model_file};

/// True if the tests below can run.
fn has_runtime() -> bool {
    let set = std::env::var_os("ORT_DYLIB_PATH").is_some_and(|path| !path.is_empty());
    if !set {
        eprintln!("SKIPPED: ORT_DYLIB_PATH is not set; export it: $(./x onnxruntime)");
    }
    set
}

fn spec(file: PathBuf, input_shape: &[u32], output_floats: u32, batch_max: u32) -> ModelSpec {
    let profile = Profile::linear(Nanos::from_micros(50), Nanos::from_micros(300), batch_max);
    ModelSpec {
        id: ModelId(2),
        name: "mine".into(),
        subcluster: SubclusterId(0),
        profile: profile.unwrap(),
        slo: Nanos::from_millis(50),
        input_bytes: input_shape.iter().product::<u32>() * 4,
        output_bytes: output_floats * 4,
        queue_capacity: 16,
        quota: QuotaLimits::default(),
        expected_rps: None,
        engine: EngineSpec::Onnx { file, input_shape: input_shape.to_vec() },
    }
}

fn load(spec: &ModelSpec) -> Result<Onnx, EngineError> {
    let mut engine = Onnx::default();
    engine.load(std::slice::from_ref(spec)).map(|()| engine)
}

/// The error of loading `spec`; must name the model and its file.
fn refusal(spec: &ModelSpec) -> String {
    let error = load(spec).err().expect("the model is refused").to_string();
    let EngineSpec::Onnx { file, .. } = &spec.engine else { unreachable!("an ONNX model") };
    assert!(error.contains("`mine`") && error.contains(&file.display().to_string()), "{error}");
    error
}

fn scratch(name: &str, bytes: &[u8]) -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

fn bytes(floats: &[f32]) -> Vec<u8> {
    floats.iter().flat_map(|float| float.to_le_bytes()).collect()
}

fn digits(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/digits").join(name)
}

/// The held-out digits: inputs, reference logits, labels.
struct Heldout {
    inputs: Vec<Vec<u8>>,
    logits: Vec<Vec<f32>>,
    labels: Vec<usize>,
}

impl Heldout {
    fn read() -> Self {
        let file = std::fs::read(digits("heldout.bin")).unwrap();
        let u32_at = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap());
        assert_eq!(&file[..4], b"BDIG");
        assert_eq!((u32_at(4), u32_at(12), u32_at(16)), (1, 64, 10), "version, floats, classes");
        let record = (64 + 10 + 1) * 4;
        let count = u32_at(8) as usize;
        assert_eq!(file.len(), 20 + count * record);
        let mut all = Self { inputs: vec![], logits: vec![], labels: vec![] };
        for image in file[20..].chunks_exact(record) {
            all.inputs.push(image[..256].to_vec());
            let floats = image[256..296].chunks_exact(4);
            all.logits.push(floats.map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect());
            all.labels.push(u32::from_le_bytes(image[296..].try_into().unwrap()) as usize);
        }
        all
    }
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn largest(logits: &[f32]) -> usize {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap()
}

#[test]
fn the_digits_are_recognised_in_batches_of_every_size_as_the_reference_says() {
    if !has_runtime() {
        return;
    }
    let heldout = Heldout::read();
    let mut engine = load(&spec(digits("digits.onnx"), &[1, 8, 8], 10, 32)).unwrap();
    let (mut right, mut at, mut batch) = (0, 0, 1);
    while at < heldout.inputs.len() {
        let size = batch.min(heldout.inputs.len() - at);
        let mut outputs = vec![0; size * 40];
        let rows = heldout.inputs[at..at + size].concat();
        engine.execute(ModelId(2), &rows, size as u32, &mut outputs).unwrap();
        for (i, logits) in outputs.chunks_exact(40).map(floats).enumerate() {
            for (ours, reference) in logits.iter().zip(&heldout.logits[at + i]) {
                assert!((ours - reference).abs() < 1e-3, "image {}: {ours} {reference}", at + i);
            }
            right += usize::from(largest(&logits) == heldout.labels[at + i]);
        }
        at += size;
        batch = batch % 32 + 1;
    }
    let accuracy = right as f64 / heldout.inputs.len() as f64;
    assert!(accuracy > 0.95, "accuracy {accuracy}");
}

#[test]
fn the_latency_is_measured_for_every_batch_size() {
    if !has_runtime() {
        return;
    }
    let spec = spec(digits("digits.onnx"), &[1, 8, 8], 10, 11);
    let mut engine = load(&spec).unwrap();
    let profile = measure(&mut engine, &spec, Clock::start()).unwrap();
    assert_eq!(profile.batch_max(), 11);
    assert!(profile.latency(1) > Nanos::ZERO);
}

#[test]
fn of_several_outputs_the_first_is_the_answer() {
    if !has_runtime() {
        return;
    }
    let row = [Dim::Dynamic, Dim::Fixed(3)];
    let nodes = [("Identity", "x", "same"), ("Neg", "x", "negated")];
    let outputs = [("negated", FLOAT, &row[..]), ("same", FLOAT, &row[..])];
    let file = scratch("two_outputs.onnx", &model_file(&nodes, &[("x", FLOAT, &row)], &outputs));
    let mut engine = load(&spec(file, &[3], 3, 4)).unwrap();
    let rows = bytes(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    let mut outputs = vec![0; rows.len()];
    engine.execute(ModelId(2), &rows, 2, &mut outputs).unwrap();
    assert_eq!(floats(&outputs), [-1.0, -2.0, -3.0, -4.0, -5.0, -6.0]);
}

#[test]
fn a_batch_dimension_that_is_fixed_is_refused() {
    if !has_runtime() {
        return;
    }
    let row = [Dim::Fixed(1), Dim::Fixed(3)];
    let io = ("x", FLOAT, &row[..]);
    let bytes = model_file(&[("Identity", "x", "y")], &[io], &[("y", FLOAT, &row)]);
    let error = refusal(&spec(scratch("fixed.onnx", &bytes), &[3], 3, 4));
    assert!(error.contains("no dynamic batch dimension") && error.contains("symbolic"), "{error}");
}

#[test]
fn a_second_input_and_an_input_of_another_type_are_refused() {
    if !has_runtime() {
        return;
    }
    let row = [Dim::Dynamic, Dim::Fixed(3)];
    let add = [("Identity", "x", "y"), ("Identity", "x2", "y2")];
    let inputs = [("x", FLOAT, &row[..]), ("x2", FLOAT, &row[..])];
    let outputs = [("y", FLOAT, &row[..]), ("y2", FLOAT, &row[..])];
    let two = scratch("two_inputs.onnx", &model_file(&add, &inputs, &outputs));
    assert!(refusal(&spec(two, &[3], 3, 4)).contains("it has 2 inputs"));

    let bytes = model_file(&[("Identity", "x", "y")], &[("x", INT64, &row)], &[("y", INT64, &row)]);
    assert!(refusal(&spec(scratch("int64.onnx", &bytes), &[3], 3, 4)).contains("f32 tensor"));
}

#[test]
fn sizes_that_disagree_with_the_cluster_file_are_refused_with_both_sides() {
    if !has_runtime() {
        return;
    }
    let shape = refusal(&spec(digits("digits.onnx"), &[1, 9, 9], 10, 4));
    assert!(shape.contains("[1, 8, 8]") && shape.contains("[1, 9, 9]"), "{shape}");
    let output = refusal(&spec(digits("digits.onnx"), &[1, 8, 8], 12, 4));
    assert!(output.contains("1 rows of 12 floats") && output.contains("output_bytes"), "{output}");
}

#[test]
fn a_file_that_is_missing_or_no_model_is_refused() {
    if !has_runtime() {
        return;
    }
    let error = refusal(&spec("/nowhere/model.onnx".into(), &[3], 3, 4));
    assert!(error.contains("no such file"), "{error}");
    refusal(&spec(scratch("garbage.onnx", b"not a model"), &[3], 3, 4));
}
