//! Checkpoints that contradict themselves: each is refused, or its odd part named, with what to do.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::collections::BTreeMap;

use baton_supernet::{Checkpoint, Form, Tensor, export};

const TEXT: &str = r#"
    name = "tiny"
    weights = "weights.safetensors"
    [input]
    name = "x"
    shape = [1, 2, 2]
    [output]
    name = "y"
    [dims]
    width = 2
    [[layer]]
    kind = "conv"
    name = "stem"
    out = "width"
    [[layer]]
    kind = "block"
    name = "b"
    residual = true
    [[layer.layer]]
    kind = "batch_norm"
    name = "b.norm"
    [[layer.shortcut]]
    kind = "conv"
    name = "b.short"
    out = "width"
    [[layer]]
    kind = "global_average_pool"
    [[layer]]
    kind = "linear"
    name = "out"
    out = 1
    [[variant]]
    name = "small"
    accuracy = 60
    dims = { width = 1 }
    [[variant]]
    name = "large"
    accuracy = 70
"#;

fn checkpoint(text: &str) -> Checkpoint {
    let shapes: [(&str, &[usize]); 7] = [
        ("stem.weight", &[2, 1, 1, 1]),
        ("b.norm.weight", &[2]),
        ("b.norm.bias", &[2]),
        ("b.norm.mean", &[2, 2]),
        ("b.norm.variance", &[2, 2]),
        ("b.short.weight", &[2, 2, 1, 1]),
        ("out.weight", &[1, 2]),
    ];
    let ones =
        |shape: &[usize]| Tensor { shape: shape.to_vec(), data: vec![1.0; shape.iter().product()] };
    let weights: BTreeMap<String, Tensor> =
        shapes.into_iter().map(|(name, shape)| (name.to_owned(), ones(shape))).collect();
    Checkpoint { description: toml::from_str(text).unwrap(), weights }
}

fn refusal(checkpoint: &Checkpoint) -> String {
    export(checkpoint, Form::Super, &[]).unwrap_err().to_string()
}

#[test]
fn a_dimension_that_is_not_there_is_named_with_those_that_are() {
    let said = refusal(&checkpoint(&TEXT.replace("{ width = 1 }", "{ widht = 1 }")));
    assert_eq!(
        said,
        "variant `small`: there is no dimension `widht`; add it to [dims], which has: width"
    );
    let said = refusal(&checkpoint(&TEXT.replace("{ width = 1 }", "{ width = 3 }")));
    assert!(said.starts_with("variant `small`: `width` is 3, and the largest is 2; "), "{said}");
}

#[test]
fn a_variance_below_zero_is_refused_before_it_makes_answers_of_nan() {
    let mut checkpoint = checkpoint(TEXT);
    checkpoint.weights.get_mut("b.norm.variance").unwrap().data[2] = -0.5;
    let said = refusal(&checkpoint);
    assert_eq!(
        said,
        "tensor `b.norm.variance`: number 2 of it is below 0; store the variance itself"
    );
}

#[test]
fn tensors_of_no_layer_are_known() {
    let mut checkpoint = checkpoint(TEXT);
    assert_eq!(checkpoint.unused(), [""; 0]);
    assert!(export(&checkpoint, Form::Super, &[]).is_ok());
    for name in ["b.weight", "bn.norm.weight", "c", "stem2.weight"] {
        let one = Tensor { shape: vec![1], data: vec![1.0] };
        checkpoint.weights.insert(name.to_owned(), one);
    }
    let named = ["bn.norm.weight", "c", "stem2.weight"];
    assert_eq!(checkpoint.unused(), named, "the block `b` has the first");
}
