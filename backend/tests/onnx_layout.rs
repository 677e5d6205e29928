//! Model files whose batch is not the first dimension of everything, and inputs that all rows share. Needs `ORT_DYLIB_PATH`; says
//! so loudly when it is not set.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[allow(dead_code, reason = "other tests use the rest")]
mod onnx_engine;
#[allow(dead_code, reason = "other tests use the rest")]
mod onnx_files;

use std::path::PathBuf;

use baton_topo::ModelSpec;
use baton_topo::signature::TensorRef;

use onnx_engine::{bytes, described, execute, floats, has_runtime, load, scratch, spec};
use onnx_files::{BOOL, Dim, FLOAT, INT64, model_file};

/// A row of these tensors, each with its shape.
fn row(spec: &ModelSpec, tensors: &[(&[u32], &[u8])]) -> Vec<u8> {
    let tensor = |&(shape, bytes): &(&[u32], _)| TensorRef { shape: shape.to_vec(), bytes };
    let tensors: Vec<TensorRef<'_>> = tensors.iter().map(tensor).collect();
    let mut row = vec![0; spec.input_bytes as usize];
    let len = spec.signature().input.pack(&tensors, &mut row).unwrap();
    row.truncate(len);
    row
}

/// Transposes its inputs, all dimensions in the opposite order: what has the batch at the end gets it at the beginning.
fn transposer() -> PathBuf {
    let (batch, two, three) = (Dim::Dynamic, Dim::Fixed(2), Dim::Fixed(3));
    let nodes = [("Transpose", "x", "xt"), ("Transpose", "h", "ht"), ("Transpose", "s", "st")];
    let inputs = [
        ("x", FLOAT, &[batch, two][..]),
        ("h", INT64, &[three, batch][..]),
        ("s", BOOL, &[two, batch, three][..]),
    ];
    let outputs = [
        ("xt", FLOAT, &[two, batch][..]),
        ("ht", INT64, &[batch, three][..]),
        ("st", BOOL, &[three, batch, two][..]),
    ];
    scratch("transposer.onnx", &model_file(&nodes, &inputs, &outputs))
}

/// What row `i` has as `s`, at `(a, b)`.
fn flag(i: usize, a: usize, b: usize) -> u8 {
    u8::from((7 * i + 5 * a + 3 * b) % 4 < 2)
}

#[test]
fn each_row_gets_its_own_answer_wherever_the_batch_is() {
    if !has_runtime() {
        return;
    }
    let spec = spec(&transposer(), "batch_max = 5");
    assert_eq!(spec.signature().input.to_string(), "x f32[2], h i64[3], s bool[2, 3]");
    assert_eq!(spec.signature().output.to_string(), "xt f32[2], ht i64[3], st bool[3, 2]");
    let mut engine = load(&spec).unwrap();
    for count in 1..=5_usize {
        let x = |i: usize| bytes(&[i as f32, -1.5]);
        let h = |i: usize| -> Vec<u8> {
            (0..3_u64).flat_map(|layer| (100 * layer + i as u64).to_le_bytes()).collect()
        };
        let s = |i: usize| -> Vec<u8> { (0..6).map(|at| flag(i, at / 3, at % 3)).collect() };
        let rows: Vec<Vec<u8>> = (0..count)
            .map(|i| row(&spec, &[(&[2], &x(i)), (&[3], &h(i)), (&[2, 3], &s(i))]))
            .collect();
        for (i, answer) in execute(&mut engine, &spec, &rows).into_iter().enumerate() {
            let answer = answer.unwrap();
            let [xt, ht, st] = &spec.signature().output.unpack(&answer).unwrap()[..] else {
                panic!("three")
            };
            assert_eq!((xt.bytes, ht.bytes), (&x(i)[..], &h(i)[..]), "row {i} of {count}");
            let turned: Vec<u8> = (0..6).map(|at| flag(i, at % 2, at / 2)).collect();
            assert_eq!(st.bytes, turned, "row {i} of {count}");
        }
    }
}

/// Negates steps of a sequence, which come before the batch.
#[test]
fn rows_of_several_lengths_before_the_batch_are_answered_as_if_each_were_alone() {
    if !has_runtime() {
        return;
    }
    let steps = [Dim::Named("t"), Dim::Dynamic, Dim::Fixed(2)];
    let bytes_of =
        model_file(&[("Neg", "x", "y")], &[("x", FLOAT, &steps)], &[("y", FLOAT, &steps)]);
    let spec = spec(&scratch("steps.onnx", &bytes_of), "dims = { t = 4 }\nbatch_max = 6");
    let mut engine = load(&spec).unwrap();
    let values = |i: usize, t: u32| (0..2 * t).map(|at| (10 * i) as f32 + at as f32).collect();
    let lens = [3, 1, 4, 3, 3, 0];
    let values: Vec<Vec<f32>> = lens.iter().enumerate().map(|(i, &t)| values(i, t)).collect();
    let rows: Vec<Vec<u8>> =
        values.iter().zip(lens).map(|(x, t)| row(&spec, &[(&[t, 2], &bytes(x))])).collect();
    for (i, answer) in execute(&mut engine, &spec, &rows).into_iter().enumerate() {
        let answer = answer.unwrap();
        let y = &spec.signature().output.unpack(&answer).unwrap()[0];
        assert_eq!(y.shape, [lens[i], 2]);
        let negated: Vec<f32> = values[i].iter().map(|x| -x).collect();
        assert_eq!(floats(y.bytes), negated, "row {i}");
    }
}

/// In batches of each size.
fn negates_rows_of_six(spec: &ModelSpec) {
    let mut engine = load(spec).unwrap();
    for count in 1..=4_u8 {
        let rows: Vec<Vec<f32>> =
            (0..count).map(|i| (0..6).map(|at| f32::from(10 * i + at)).collect()).collect();
        let inputs: Vec<Vec<u8>> = rows.iter().map(|row| bytes(row)).collect();
        for (row, answer) in rows.iter().zip(execute(&mut engine, spec, &inputs)) {
            let negated: Vec<f32> = row.iter().map(|x| -x).collect();
            assert_eq!(floats(&answer.unwrap()), negated, "of {count}");
        }
    }
}

#[test]
fn a_fixed_batch_behind_other_dimensions_is_filled_up_with_zeros() {
    if !has_runtime() {
        return;
    }
    let state = [Dim::Fixed(3), Dim::Fixed(4), Dim::Fixed(2)];
    let bytes_of =
        model_file(&[("Neg", "x", "y")], &[("x", FLOAT, &state)], &[("y", FLOAT, &state)]);
    let spec = spec(&scratch("fixed-state.onnx", &bytes_of), "batch_dim = { x = 1, y = 1 }");
    assert_eq!(spec.profile.batch_max(), 4);
    negates_rows_of_six(&spec);
}

/// The file says of its output `[1, seqlen]`; executed it has three dimensions, of which the second is the batch.
#[test]
fn an_output_whose_shape_the_file_says_wrong_is_answered_as_its_table_says() {
    if !has_runtime() {
        return;
    }
    let (real, wrong) =
        ([Dim::Fixed(3), Dim::Dynamic, Dim::Fixed(2)], [Dim::Fixed(1), Dim::Named("seqlen")]);
    let inputs = [("x", FLOAT, &real[..])];
    let file = model_file(&[("Neg", "x", "y")], &inputs, &[("y", FLOAT, &wrong)]);
    let file = scratch("misdescribed.onnx", &file);
    let keys = "batch_max = 4\nbatch_dim = { x = 1, y = 1 }";
    let spec = spec(&file, &format!("{keys}\nshapes = {{ y = [3, \"batch\", 2] }}"));
    negates_rows_of_six(&spec);
    let other = self::spec(&file, &format!("{keys}\nshapes = {{ y = [3, \"batch\", 5] }}"));
    let Err(error) = load(&other) else { panic!("it is refused") };
    assert!(error.to_string().contains("`y`"), "{error}");
}

/// `x · scale + shift`, where all rows share the two.
#[test]
fn constants_are_the_same_for_all_rows_and_no_part_of_them() {
    if !has_runtime() {
        return;
    }
    let nodes = [("Mul", "x,scale", "scaled"), ("Add", "scaled,shift", "y")];
    for pair in [Dim::Fixed(2), Dim::Named("pair")] {
        let x = [Dim::Dynamic, pair];
        let inputs =
            [("scale", FLOAT, &[][..]), ("x", FLOAT, &x[..]), ("shift", FLOAT, &[pair][..])];
        let file = scratch("affine.onnx", &model_file(&nodes, &inputs, &[("y", FLOAT, &x)]));
        let keys = "constants = { scale = 3, shift = [0.5, -1.0] }\nbatch_max = 4";
        let keys = match pair {
            Dim::Named(_) => format!("{keys}\ndims = {{ pair = 2 }}"),
            _ => keys.to_owned(),
        };
        let spec = spec(&file, &keys);
        let mut engine = load(&spec).unwrap();
        for count in 1..=4_u8 {
            let x = |i: u8| bytes(&[f32::from(i), 10.0]);
            let rows: Vec<Vec<u8>> = (0..count).map(|i| row(&spec, &[(&[2], &x(i))])).collect();
            for (i, answer) in (0_u8..).zip(execute(&mut engine, &spec, &rows)) {
                let answer = answer.unwrap();
                let y = &spec.signature().output.unpack(&answer).unwrap()[0];
                assert_eq!(floats(y.bytes), [3.0 * f32::from(i) + 0.5, 29.0], "{i} of {count}");
            }
        }
    }
}

#[test]
fn without_a_batch_each_task_executes_alone() {
    if !has_runtime() {
        return;
    }
    let nodes = [("Transpose", "x", "turned"), ("Mul", "turned,t", "y")];
    let inputs = [("x", FLOAT, &[Dim::Named("steps"), Dim::Fixed(2)][..]), ("t", FLOAT, &[][..])];
    let outputs = [("y", FLOAT, &[Dim::Fixed(2), Dim::Named("steps")][..])];
    let file = scratch("alone.onnx", &model_file(&nodes, &inputs, &outputs));
    let spec = spec(&file, "batched = false\ndims = { steps = 3 }");
    assert_eq!(spec.profile.batch_max(), 1);
    let mut engine = load(&spec).unwrap();
    let inputs = row(&spec, &[(&[2, 2], &bytes(&[1.0, 2.0, 3.0, 4.0])), (&[], &bytes(&[10.0]))]);
    let answer = execute(&mut engine, &spec, &[inputs]).remove(0).unwrap();
    let y = &spec.signature().output.unpack(&answer).unwrap()[0];
    assert_eq!((&y.shape[..], floats(y.bytes)), (&[2, 2][..], vec![10.0, 30.0, 20.0, 40.0]));
}

#[test]
fn an_output_whose_batch_is_elsewhere_is_named_with_what_to_write() {
    if !has_runtime() {
        return;
    }
    let three = [Dim::Dynamic, Dim::Fixed(3)];
    let turned = [Dim::Named("some"), Dim::Named("more")];
    let file =
        model_file(&[("Transpose", "x", "y")], &[("x", FLOAT, &three)], &[("y", FLOAT, &turned)]);
    let file = scratch("turned.onnx", &file);
    let Err(error) = load(&spec(&file, "dims = { more = 16 }")) else { panic!("it is refused") };
    let said = "a batch of 1 does not execute: output `y` has shape [3, 1] for 1 rows; \
                if dimension 1 is the batch: batch_dim = { \"y\" = 1 }";
    assert!(error.to_string().contains(said), "{error}");
    assert!(load(&spec(&file, "batch_dim = { y = 1 }\ndims = { some = 3 }")).is_ok());
    let unknown = described(&file, "batch_dim = { y = 1 }").unwrap_err();
    assert!(unknown.contains("has no largest `some`"), "{unknown}");
}
