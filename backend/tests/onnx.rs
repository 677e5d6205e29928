//! Real models through ONNX Runtime. Needs `ORT_DYLIB_PATH`; says so loudly when it is not set.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod onnx_engine;
mod onnx_files;

use std::path::{Path, PathBuf};

use baton_backend::execute::{Blocking, BlockingEngine, Inputs, Outputs, measure};
use baton_topo::signature::TensorRef;
use baton_topo::{Clock, EngineSpec, ModelSpec, check_text};
use baton_types::{FailReason, ModelId, Nanos};

use onnx_engine::{
    bytes, described, execute, execute_variant, floats, has_runtime, load, scratch, spec,
};
use onnx_files::{BOOL, Dim, FLOAT, FLOAT16, INT64, STRING, model_file, supernet_file};

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

fn largest(logits: &[f32]) -> usize {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap()
}

#[test]
fn the_digits_are_recognised_in_batches_of_every_size_as_the_reference_says() {
    if !has_runtime() {
        return;
    }
    let heldout = Heldout::read();
    let spec = spec(&digits("digits.onnx"), "batch_max = 32");
    let mut engine = load(&spec).unwrap();
    let (mut right, mut at, mut batch) = (0, 0, 1);
    while at < heldout.inputs.len() {
        let size = batch.min(heldout.inputs.len() - at);
        let answers = execute(&mut engine, &spec, &heldout.inputs[at..at + size]);
        for (i, logits) in answers.into_iter().map(|answer| floats(&answer.unwrap())).enumerate() {
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
    let spec = spec(&digits("digits.onnx"), "batch_max = 11");
    let engine = load(&spec).unwrap();
    let profiles = measure(&mut Blocking::new(engine, Clock::start()), &spec).unwrap();
    let [profile] = &profiles[..] else { panic!("one of a model without variants") };
    assert_eq!(profile.batch_max(), 11);
    assert!(profile.latency(1) > Nanos::ZERO);
}

/// Each input, negated or as it is.
fn two_outputs() -> PathBuf {
    let row = [Dim::Dynamic, Dim::Fixed(3)];
    let nodes = [("Identity", "x", "same"), ("Neg", "x", "negated")];
    let outputs = [("negated", FLOAT, &row[..]), ("same", FLOAT, &row[..])];
    scratch("two_outputs.onnx", &model_file(&nodes, &[("x", FLOAT, &row)], &outputs))
}

#[test]
fn all_outputs_are_answered_or_those_that_are_chosen() {
    if !has_runtime() {
        return;
    }
    let file = two_outputs();
    let rows = [bytes(&[1.0, 2.0, 3.0]), bytes(&[4.0, 5.0, 6.0])];
    let answers = |keys: &str| {
        let spec = spec(&file, keys);
        let row = spec.signature().output;
        let answers = execute(&mut load(&spec).unwrap(), &spec, &rows);
        let of = |answer: Result<Vec<u8>, FailReason>| {
            let answer = answer.unwrap();
            let tensors = row.unpack(&answer).unwrap();
            tensors.iter().map(|tensor| floats(tensor.bytes)).collect::<Vec<_>>()
        };
        answers.into_iter().map(of).collect::<Vec<_>>()
    };
    let both = [
        [vec![-1.0, -2.0, -3.0], vec![1.0, 2.0, 3.0]],
        [vec![-4.0, -5.0, -6.0], vec![4.0, 5.0, 6.0]],
    ];
    assert_eq!(answers(""), both);
    assert_eq!(answers("outputs = [\"same\"]"), [[both[0][1].clone()], [both[1][1].clone()]]);
    // As it was before model files were read: the first output.
    assert_eq!(answers("input_shape = [3]\noutput_bytes = 12")[0], [both[0][0].clone()]);
}

#[test]
fn a_fixed_batch_dimension_is_served_with_batches_of_that_size() {
    if !has_runtime() {
        return;
    }
    let row = [Dim::Fixed(4), Dim::Fixed(2)];
    let bytes_of = model_file(&[("Neg", "x", "y")], &[("x", FLOAT, &row)], &[("y", FLOAT, &row)]);
    let file = scratch("fixed.onnx", &bytes_of);
    let spec = spec(&file, "");
    assert_eq!(spec.profile.batch_max(), 4);
    assert!(described(&file, "batch_max = 5").unwrap_err().contains("from 1 to 4"));
    let mut engine = load(&spec).unwrap();
    for count in 1..=4 {
        let rows: Vec<Vec<u8>> = (0..count).map(|i| bytes(&[i as f32, 1.0])).collect();
        for (i, answer) in execute(&mut engine, &spec, &rows).into_iter().enumerate() {
            assert_eq!(floats(&answer.unwrap()), [-(i as f32), -1.0], "row {i} of {count}");
        }
    }
}

/// Tokens and their mask, both of any length up to `seq`, and a scale.
fn tokens() -> PathBuf {
    let some = [Dim::Dynamic, Dim::Named("seq")];
    let nodes =
        [("Neg", "ids", "negated"), ("Not", "mask", "hidden"), ("Identity", "scale", "as_was")];
    let inputs = [
        ("ids", INT64, &some[..]),
        ("mask", BOOL, &some[..]),
        ("scale", FLOAT16, &[Dim::Dynamic][..]),
    ];
    let outputs = [
        ("negated", INT64, &some[..]),
        ("hidden", BOOL, &some[..]),
        ("as_was", FLOAT16, &[Dim::Dynamic][..]),
    ];
    scratch("tokens.onnx", &model_file(&nodes, &inputs, &outputs))
}

/// One task's row of [`tokens`], of `count` tokens from `first` on.
fn token_row(spec: &ModelSpec, first: i64, count: u32) -> Vec<u8> {
    let ids: Vec<u8> = (first..first + i64::from(count)).flat_map(|id| id.to_le_bytes()).collect();
    let mask: Vec<u8> = (0..count).map(|i| (i % 2) as u8).collect();
    let scale = (first as u16).to_le_bytes();
    let tensor = |shape: &[u32], bytes| TensorRef { shape: shape.to_vec(), bytes };
    let tensors = [tensor(&[count], &ids[..]), tensor(&[count], &mask), tensor(&[], &scale)];
    let mut row = vec![0; spec.input_bytes as usize];
    let len = spec.signature().input.pack(&tensors, &mut row).unwrap();
    row.truncate(len);
    row
}

#[test]
fn rows_of_several_inputs_types_and_lengths_are_answered_as_if_each_were_alone() {
    if !has_runtime() {
        return;
    }
    let spec = spec(&tokens(), "dims = { seq = 5 }\nbatch_max = 8");
    let mut engine = load(&spec).unwrap();
    let of: Vec<(i64, u32)> =
        [3, 5, 3, 1, 5].into_iter().zip(1..).map(|(n, i)| (i * 10, n)).collect();
    let rows: Vec<Vec<u8>> = of.iter().map(|&(first, n)| token_row(&spec, first, n)).collect();
    let output = spec.signature().output;
    for (&(first, count), answer) in of.iter().zip(execute(&mut engine, &spec, &rows)) {
        let answer = answer.unwrap();
        let [negated, hidden, scale] = &output.unpack(&answer).unwrap()[..] else {
            panic!("three")
        };
        let expected: Vec<u8> =
            (first..first + i64::from(count)).flat_map(|id| (-id).to_le_bytes()).collect();
        assert_eq!((negated.bytes, &negated.shape[..]), (&expected[..], &[count][..]));
        let unmasked: Vec<u8> = (0..count).map(|i| 1 - (i % 2) as u8).collect();
        assert_eq!(hidden.bytes, unmasked);
        assert_eq!(scale.bytes, (first as u16).to_le_bytes());
    }
}

#[test]
fn a_row_that_is_none_of_the_models_fails_alone() {
    if !has_runtime() {
        return;
    }
    let spec = spec(&tokens(), "dims = { seq = 5 }");
    let good = token_row(&spec, 1, 2);
    let cut = good[..good.len() - 1].to_vec();
    let mut huge = good.clone();
    huge[0] = 200;
    let answers = execute(&mut load(&spec).unwrap(), &spec, &[cut, good, huge]);
    assert_eq!(answers[0], Err(FailReason::WrongSize));
    assert!(answers[1].is_ok());
    assert_eq!(answers[2], Err(FailReason::WrongSize));
}

/// An index that is out of range fails the whole call of ONNX Runtime.
#[test]
fn a_row_that_cannot_be_executed_fails_alone() {
    if !has_runtime() {
        return;
    }
    let some = [Dim::Dynamic, Dim::Fixed(1)];
    let inputs = [("words", FLOAT, &[Dim::Fixed(4)][..]), ("ids", INT64, &some[..])];
    let file =
        model_file(&[("Gather", "words,ids", "found")], &inputs, &[("found", FLOAT, &some[..])]);
    let keys = "constants = { words = [10.0, 11.0, 12.0, 13.0] }\nbatch_max = 64";
    let spec = spec(&scratch("words.onnx", &file), keys);
    let mut engine = load(&spec).unwrap();
    for (count, bad) in [(64, &[0][..]), (64, &[17]), (63, &[62]), (8, &[3, 4])] {
        let id = |row: i64| if bad.contains(&row) { 4 } else { row % 4 };
        let rows: Vec<Vec<u8>> = (0..count).map(|row| id(row).to_le_bytes().to_vec()).collect();
        for (row, answer) in (0..).zip(execute(&mut engine, &spec, &rows)) {
            let right = bytes(&[10.0 + (row % 4) as f32]);
            let expected = if bad.contains(&row) { Err(FailReason::Engine) } else { Ok(right) };
            assert_eq!(answer, expected, "row {row} of {count}");
        }
    }
}

/// Its rows execute alone, which is no reason to serve it.
#[test]
fn a_model_whose_larger_batches_do_not_execute_is_refused() {
    if !has_runtime() {
        return;
    }
    let inputs =
        [("x", INT64, &[Dim::Dynamic, Dim::Fixed(1)][..]), ("axes", INT64, &[Dim::Fixed(1)])];
    let file = model_file(&[("Squeeze", "x,axes", "y")], &inputs, &[("y", INT64, &[Dim::Dynamic])]);
    let spec = |batch_max| {
        spec(
            &scratch("one-by-one.onnx", &file),
            &format!("constants = {{ axes = [0] }}\nbatch_max = {batch_max}"),
        )
    };
    assert!(load(&spec(1)).is_ok());
    let refused = load(&spec(4)).map(|_| ()).unwrap_err().to_string();
    assert!(refused.contains("a batch of 4 does not execute"), "{refused}");
    assert!(refused.contains("; it executes one row: set batch_max = 1"), "{refused}");
    assert!(!refused.contains('\n'), "one line: {refused}");
}

#[test]
fn a_model_that_is_unloaded_is_gone_and_can_come_back() {
    if !has_runtime() {
        return;
    }
    let spec = spec(&two_outputs(), "");
    let mut engine = load(&spec).unwrap();
    engine.unload(ModelId(0));
    let row = bytes(&[1.0, 2.0, 3.0]);
    let mut outputs = Outputs::default();
    outputs.reset(1, spec.output_bytes);
    let error =
        engine.execute(ModelId(0), 0, Inputs::new(&row, 12, &[12]), &mut outputs).unwrap_err();
    assert!(error.to_string().contains("not loaded"), "{error}");
    engine.load(&spec).unwrap();
    assert!(execute(&mut engine, &spec, &[row])[0].is_ok());
}

#[test]
fn what_cannot_be_served_is_refused_when_the_cluster_file_is_read() {
    let row = [Dim::Dynamic, Dim::Fixed(3)];
    let words =
        model_file(&[("Identity", "x", "y")], &[("x", STRING, &row)], &[("y", STRING, &row)]);
    let error = described(&scratch("words.onnx", &words), "").unwrap_err();
    assert!(error.contains("`x` has elements of type string"), "{error}");
    let error = described(&digits("digits.onnx"), "input_shape = [1, 9, 9]").unwrap_err();
    assert!(error.contains("[1, 8, 8]") || error.contains("image"), "{error}");
    assert!(described(&digits("digits.onnx"), "output_bytes = 48").unwrap_err().contains("logits"));
    assert!(described(Path::new("/nowhere/m.onnx"), "").unwrap_err().contains("there is no file"));
    let error = described(&scratch("garbage.onnx", b"not a model"), "").unwrap_err();
    assert!(error.contains("not an ONNX file"), "{error}");
}

#[test]
fn a_file_that_changed_since_the_cluster_file_was_read_is_refused() {
    if !has_runtime() {
        return;
    }
    let spec = spec(&two_outputs(), "");
    let mut engine = spec.engine.clone();
    let EngineSpec::Onnx { file, .. } = &mut engine else { unreachable!("an ONNX model") };
    *file = tokens();
    let error = load(&ModelSpec { engine, ..spec }).err().unwrap().to_string();
    assert!(error.contains("`mine`") && error.contains("the file has changed"), "{error}");
}

#[test]
fn an_answer_that_is_not_finite_is_refused_where_the_model_asks_for_it() {
    if !has_runtime() {
        return;
    }
    let rows = [bytes(&[0.5; 64]), bytes(&[f32::NAN; 64]), bytes(&[1.0; 64])];
    for (keys, refused) in [("", false), ("check_finite = true", true)] {
        let spec = spec(&digits("digits.onnx"), keys);
        let mut engine = load(&spec).unwrap();
        let answers = execute(&mut engine, &spec, &rows);
        assert!(answers[0].is_ok() && answers[2].is_ok(), "the others are answered");
        assert_eq!(answers[1].is_err(), refused, "{keys}");
        if refused {
            assert_eq!(answers[1], Err(FailReason::Engine));
        }
    }
}

/// Three variants; `more` are keys of each.
fn variants(more: impl Fn(usize) -> String) -> String {
    let one = |n: usize| {
        format!("[[model.variant]]\nname = \"v{n}\"\naccuracy = {}\n{}\n", 70 + n, more(n))
    };
    (0..3).map(one).collect()
}

#[test]
fn the_control_input_selects_the_variant_whatever_its_shape_and_each_is_measured() {
    if !has_runtime() {
        return;
    }
    for (name, control) in [("scalar", &[][..]), ("one", &[Dim::Fixed(1)])] {
        let file = scratch(&format!("super-{name}.onnx"), &supernet_file(control));
        let spec = spec(&file, &format!("batch_max = 4\n{}", variants(|_| String::new())));
        assert_eq!(
            spec.signature().input.to_string(),
            "x f32[2]",
            "the control input is none of a task's"
        );
        let mut engine = load(&spec).unwrap();
        let rows = vec![bytes(&[1.0, 2.0]), bytes(&[3.0, 4.0])];
        for variant in 0..3_u16 {
            let times = f32::from(variant);
            let expected =
                [[1.0, 2.0], [3.0, 4.0]].map(|row| Ok(bytes(&row.map(|x: f32| x * times))));
            assert_eq!(execute_variant(&mut engine, &spec, variant, &rows), expected, "{name}");
        }
        let mut outputs = Outputs::default();
        outputs.reset(1, 8);
        let none = engine.execute(ModelId(0), 3, Inputs::new(&rows[0], 8, &[8]), &mut outputs);
        assert!(none.unwrap_err().to_string().contains("no variant 3"));
        let profiles = measure(&mut Blocking::new(engine, Clock::start()), &spec).unwrap();
        assert_eq!(
            profiles.iter().map(baton_types::Profile::batch_max).collect::<Vec<_>>(),
            [4; 3]
        );
    }
}

#[test]
fn variants_may_have_a_file_each_which_must_take_and_give_the_same() {
    let row = [Dim::Dynamic, Dim::Fixed(2)];
    let unary = |operator| {
        model_file(&[(operator, "x", "y")], &[("x", FLOAT, &row)], &[("y", FLOAT, &row)])
    };
    let operators = ["Identity", "Neg", "Abs"];
    let files: Vec<PathBuf> = operators
        .iter()
        .map(|operator| scratch(&format!("variant-{operator}.onnx"), &unary(*operator)))
        .collect();
    let text = |files: &[PathBuf]| {
        let keys = variants(|n| format!("file = \"{}\"", files[n].display()));
        format!("[[model]]\nname = \"mine\"\nslo_ms = 50\n{keys}[[backend]]\nname = \"b\"\n")
    };
    let read = |files: &[PathBuf]| check_text(Path::new("c.toml"), &text(files)).cluster;
    let spec = read(&files).unwrap().models.remove(0);
    assert!(!spec.is_controlled() && spec.files().len() == 3);
    let wide = [Dim::Dynamic, Dim::Fixed(3)];
    let other = model_file(&[("Neg", "x", "y")], &[("x", FLOAT, &wide)], &[("y", FLOAT, &wide)]);
    let other = [files[0].clone(), scratch("variant-wide.onnx", &other), files[2].clone()];
    let problem = read(&other).unwrap_err()[0].to_string();
    assert!(problem.contains("variant[1].file: takes or gives other tensors"), "{problem}");
    if !has_runtime() {
        return;
    }
    let mut engine = load(&spec).unwrap();
    let expected = [[1.0, -2.0], [-1.0, 2.0], [1.0, 2.0]];
    for (variant, answer) in (0..).zip(expected) {
        let answers = execute_variant(&mut engine, &spec, variant, &[bytes(&[1.0, -2.0])]);
        assert_eq!(answers, [Ok(bytes(&answer))]);
    }
}

#[test]
fn a_file_and_the_variants_of_the_cluster_file_must_agree() {
    let file = scratch("super-alone.onnx", &supernet_file(&[]));
    let problem = described(&file, "").unwrap_err();
    assert!(
        problem.contains("file: its input `variant` selects one of several variants"),
        "{problem}"
    );
    let row = [Dim::Dynamic, Dim::Fixed(2)];
    let plain = model_file(&[("Neg", "x", "y")], &[("x", FLOAT, &row)], &[("y", FLOAT, &row)]);
    let file = scratch("no-control.onnx", &plain);
    let problem = described(&file, &variants(|_| String::new())).unwrap_err();
    assert!(problem.contains("the model has no input `variant`"), "{problem}");
}
