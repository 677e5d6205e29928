//! What is made of a file and the keys beside it.

use super::*;
use crate::signature::ElementType;

fn symbol(name: &str) -> Dim {
    Dim::Symbol(name.into())
}

fn tensor(name: &str, element: ElementType, dims: &[Dim]) -> Tensor {
    Tensor { name: name.into(), element, dims: dims.to_vec(), batch_axis: Some(0) }
}

/// Tokens with a mask, and an embedding and a score for them.
fn encoder() -> OnnxFile {
    let tokens = [symbol("batch"), symbol("seq")];
    let ids = tensor("ids", ElementType::I64, &tokens);
    let mask = tensor("mask", ElementType::I64, &tokens);
    let of_each = [symbol("batch"), symbol("seq"), Dim::Fixed(8)];
    let embedding = tensor("embedding", ElementType::F32, &of_each);
    let score = tensor("score", ElementType::F32, &[symbol("batch")]);
    let (inputs, outputs) = (vec![ids, mask], vec![embedding, score]);
    OnnxFile { inputs, outputs, ..OnnxFile::default() }
}

fn image(batch: Dim) -> OnnxFile {
    let inputs = vec![tensor("x", ElementType::F32, &[batch.clone(), Dim::Fixed(3), symbol("w")])];
    let outputs = vec![tensor("y", ElementType::F32, &[batch, symbol("y.1")])];
    OnnxFile { inputs, outputs, ..OnnxFile::default() }
}

fn keys(dims: &[(&str, u32)]) -> Keys {
    let dims = dims.iter().map(|&(name, max)| (name.to_owned(), max)).collect();
    let of_tensors = OfTensors::default();
    Keys { dims, of_tensors, input_shape: None, outputs: None, output_bytes: None }
}

#[test]
fn a_file_says_everything_but_the_largest_extents() {
    let (signature, fixed) = keys(&[("seq", 4)]).signature(&encoder()).unwrap();
    assert_eq!(signature.input.to_string(), "ids i64[≤4], mask i64[≤4]");
    assert_eq!(signature.output.to_string(), "embedding f32[≤4, 8], score f32[]");
    assert_eq!(fixed, None);
    let (key, what, fix) = keys(&[]).signature(&encoder()).unwrap_err();
    assert_eq!((key, &*fix), ("dims", "state it: dims = { \"seq\" = 128 }"));
    assert_eq!(what, "`ids` i64[batch, seq] has no largest `seq`");
}

/// What exporters of detectors write: an expression for the number of boxes.
const BOXES: &str = "floor(h/8 - 1/8)*floor(w/8 - 1/8) + 1";

fn detector() -> OnnxFile {
    let image = [symbol("n"), Dim::Fixed(3), symbol("h"), symbol("w")];
    let inputs = vec![tensor("image", ElementType::F32, &image)];
    let boxes = [symbol("n"), Dim::Fixed(4), symbol(BOXES)];
    let outputs = vec![tensor("boxes", ElementType::F32, &boxes)];
    OnnxFile { inputs, outputs, ..OnnxFile::default() }
}

#[test]
fn all_that_is_missing_of_a_side_is_named_and_long_names_by_their_place() {
    let (key, what, fix) = keys(&[]).signature(&detector()).unwrap_err();
    assert_eq!((key, &*fix), ("dims", "state it: dims = { \"h\" = 128, \"w\" = 128 }"));
    assert_eq!(what, "`image` f32[n, 3, h, w] has no largest `h`, `w`");
    let (_, what, fix) = keys(&[("h", 8), ("w", 8)]).signature(&detector()).unwrap_err();
    assert_eq!(what, "`boxes` f32[n, 4, boxes.2] has no largest `boxes.2`");
    let fix_of_an_output =
        "state it: dims = { \"boxes.2\" = 128 }; `baton profile` finds it by an execution";
    assert_eq!(fix, fix_of_an_output);
    for name in ["boxes.2", BOXES] {
        let keys = keys(&[("h", 8), ("w", 8), (name, 5)]);
        let (signature, _) = keys.signature(&detector()).unwrap();
        assert_eq!(signature.output.to_string(), "boxes f32[4, ≤5]");
        assert_eq!(keys.unknown(&detector()), []);
    }
}

#[test]
fn a_place_says_more_than_a_name_that_others_have_too() {
    let dims = [("h", 8), ("image.3", 6), ("w", 9), (BOXES, 1), ("boxes.2", 7)];
    let (signature, _) = keys(&dims).signature(&detector()).unwrap();
    assert_eq!(signature.input.to_string(), "image f32[3, ≤8, ≤6]");
    assert_eq!(signature.output.to_string(), "boxes f32[4, ≤7]");
}

/// Classifiers of scikit-learn: a label, and probabilities as a sequence of maps.
#[test]
fn outputs_that_cannot_be_served_are_left_out_on_request_only() {
    let why = "`probability` is not a tensor".to_owned();
    let unserved = vec![("probability".to_owned(), why.clone())];
    let file = OnnxFile { unserved, ..encoder() };
    let with = |outputs: Option<&str>| {
        let outputs = outputs.map(|name| vec![name.to_owned()]);
        Keys { outputs, ..keys(&[("seq", 4)]) }.signature(&file)
    };
    let fix = "choose from embedding, score".to_owned();
    let refusal = ("outputs", why.clone(), fix);
    assert_eq!(with(None).unwrap_err(), refusal);
    assert_eq!(with(Some("probability")).unwrap_err(), refusal);
    assert_eq!(with(Some("score")).unwrap().0.output.to_string(), "score f32[]");
    let none = OnnxFile { outputs: Vec::new(), ..file };
    let (key, what, _) = keys(&[("seq", 4)]).signature(&none).unwrap_err();
    assert_eq!((key, what), ("file", why));
}

#[test]
fn outputs_are_chosen_by_name() {
    let outputs = Some(vec!["score".to_owned()]);
    let (signature, _) = Keys { outputs, ..keys(&[("seq", 4)]) }.signature(&encoder()).unwrap();
    assert_eq!(signature.output.to_string(), "score f32[]");
    let outputs = Some(vec!["logits".to_owned()]);
    let (key, _, fix) = Keys { outputs, ..keys(&[("seq", 4)]) }.signature(&encoder()).unwrap_err();
    assert_eq!((key, &*fix), ("outputs", "choose from embedding, score"));
}

#[test]
fn a_fixed_batch_dimension_is_found_and_a_mixture_refused() {
    let dims = [("w", 2), ("y.1", 3)];
    let fixed = |batch| keys(&dims).signature(&image(batch)).map(|(_, fixed)| fixed);
    assert_eq!(fixed(Dim::Fixed(8)), Ok(Some(8)));
    assert_eq!(fixed(symbol("n")), Ok(None));
    assert_eq!(fixed(Dim::Fixed(0)).unwrap_err().1, "the batch dimension of `x` is 0");
    let mut mixed = encoder();
    mixed.inputs[1].dims[0] = Dim::Fixed(1);
    let (_, what, _) = keys(&[("seq", 4)]).signature(&mixed).unwrap_err();
    assert_eq!(what, "the batch dimension is 1 in `mask` i64[1, seq] and open in `ids`");
}

#[test]
fn names_that_the_file_does_not_have_are_told() {
    let told = keys(&[("seq", 4), ("sequense", 4), ("batch", 2)]).unknown(&encoder());
    let what = |name| format!("no tensor of the file has a dimension `{name}`");
    let fix = "remove it; the file leaves open: seq".to_owned();
    assert_eq!(told, [(what("batch"), fix.clone()), (what("sequense"), fix)]);
    let image = image(symbol("n"));
    assert_eq!(keys(&[("w", 2), ("y.1", 3)]).unknown(&image), []);
}

#[test]
fn input_shape_and_output_bytes_still_describe_a_model() {
    let old = |shape: &[u32], bytes| {
        let keys =
            Keys { input_shape: Some(shape.to_vec()), output_bytes: Some(bytes), ..keys(&[]) };
        keys.signature(&image(symbol("n"))).map(|(signature, _)| signature)
    };
    let signature = old(&[3, 5], 40).unwrap();
    assert_eq!(signature.input.to_string(), "x f32[3, 5]");
    assert_eq!(signature.output.to_string(), "y f32[10]");
    assert_eq!(old(&[4, 5], 40).unwrap_err().0, "input_shape");
    assert_eq!(old(&[3, 5], 41).unwrap_err().0, "output_bytes");
    assert_eq!(old(&[], 40).unwrap_err().0, "input_shape");
    assert_eq!(old(&[3], 40).unwrap_err().0, "input_shape");
    let two = Keys { input_shape: Some(vec![4]), ..keys(&[("seq", 4)]) };
    assert_eq!(two.signature(&encoder()).unwrap_err().0, "input_shape");
}

#[test]
fn output_bytes_of_the_first_output_mean_the_first_output() {
    let keys = |bytes| Keys { output_bytes: Some(bytes), ..keys(&[("seq", 4)]) };
    let mut file = encoder();
    file.outputs.reverse();
    let (signature, _) = keys(4).signature(&file).unwrap();
    assert_eq!(signature.output.to_string(), "score f32[]");
    let (key, what, _) = keys(12).signature(&file).unwrap_err();
    assert_eq!((key, &*what), ("output_bytes", "is 12, and the model's output is score f32[]"));
}

/// An input travels with its trailer.
#[test]
fn the_longest_input_leaves_room_for_its_trailer() {
    let bytes = |w: u32| {
        let keys = keys(&[("w", w), ("y.1", 1)]);
        keys.signature(&image(symbol("n"))).map(|(signature, _)| signature.input.bytes_max())
    };
    // Eight bytes say how wide the image is.
    let widest = (INPUT_BYTES_MAX - 8) / 12;
    assert!(bytes(widest).is_ok_and(|bytes| bytes + 12 > INPUT_BYTES_MAX));
    let (key, what, _) = bytes(widest + 1).unwrap_err();
    assert_eq!((key, what.ends_with("more than 67108856")), ("dims", true), "{what}");
}

#[test]
fn the_input_that_selects_a_variant_is_there_if_and_only_if_there_are_several() {
    let with = |element, dims: &[Dim]| {
        let mut file = image(symbol("n"));
        file.inputs.insert(0, tensor(CONTROL, element, dims));
        file
    };
    for dims in [&[][..], &[Dim::Fixed(1)]] {
        let file = with(ElementType::I64, dims);
        let left = without_control(file.clone(), true).unwrap();
        assert!(left.inputs.iter().map(|input| &*input.name).eq(["x"]), "{dims:?}");
        let (key, what, _) = without_control(file, false).unwrap_err();
        assert!(key == "file" && what.contains("selects one of several variants"), "{what}");
    }
    let plain = image(symbol("n"));
    let others = [with(ElementType::I32, &[]), with(ElementType::I64, &[Dim::Fixed(2)])];
    for file in others.into_iter().chain([plain.clone()]) {
        let (key, what, _) = without_control(file, true).unwrap_err();
        assert!(key == "file" && what.contains("the model has no input"), "{what}");
    }
    assert!(without_control(plain, false).is_ok());
}
