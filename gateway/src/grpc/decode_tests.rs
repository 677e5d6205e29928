//! Messages as clients encode them, and as they should not.

use bytes::Buf as _;
use proptest::prelude::*;

use super::super::messages::InferParameter;
use super::*;

fn parameter(choice: Choice) -> InferParameter {
    InferParameter { choice: Some(choice) }
}

fn input(name: &str, datatype: &str, shape: &[i64], contents: Option<InferContents>) -> InferInput {
    let (name, datatype, shape) = (name.into(), datatype.into(), shape.to_vec());
    InferInput { name, datatype, shape, parameters: Parameters::new(), contents }
}

fn request(inputs: Vec<InferInput>) -> InferRequest {
    InferRequest { model_name: "m".into(), id: "7".into(), inputs, ..InferRequest::default() }
}

/// The message, with raw contents where clients write them: at the end.
fn message(request: &InferRequest, raw: &[&[u8]]) -> Vec<u8> {
    let mut message = request.encode_to_vec();
    for raw in raw {
        encode_key(RAW, WireType::LengthDelimited, &mut message);
        encode_varint(raw.len() as u64, &mut message);
        message.extend_from_slice(raw);
    }
    message
}

fn written(message: Vec<u8>) -> Result<(Written<'static>, Vec<u8>), Problem> {
    let (written, mut binary) = Parts::of(message.into())?.written()?;
    let bytes = binary.copy_to_bytes(binary.remaining());
    Ok((written, bytes.to_vec()))
}

#[test]
fn raw_contents_are_those_of_the_inputs_in_their_order() {
    let inputs = vec![input("a", "UINT8", &[1, 3], None), input("b", "INT16", &[1, 1], None)];
    let mut request = request(inputs);
    request.parameters.insert("timeout".into(), parameter(Choice::Int64(20_000)));
    request.parameters.insert("priority".into(), parameter(Choice::Uint64(1)));
    let (written, bytes) = written(message(&request, &[&[1, 2, 3], &[4, 5]])).unwrap();
    assert_eq!((bytes, written.timeout_us), (vec![1, 2, 3, 4, 5], Some(20_000)));
    assert_eq!((written.id.as_deref(), written.is_binary), (Some("7"), true));
    let of = |at: usize| (&written.inputs[at].shape[..], written.inputs[at].source.clone());
    assert_eq!(of(0), (&[1, 3][..], Some(Source::Binary(3))));
    assert_eq!(of(1), (&[1, 1][..], Some(Source::Binary(2))));
}

#[test]
fn a_field_that_is_not_known_is_passed_over() {
    let mut message = Vec::new();
    for (wire, bytes) in [
        (WireType::Varint, &[0x96, 1][..]),
        (WireType::ThirtyTwoBit, &[1; 4]),
        (WireType::SixtyFourBit, &[2; 8]),
        (WireType::LengthDelimited, &[2, 7, 7]),
    ] {
        encode_key(100, wire, &mut message);
        message.extend_from_slice(bytes);
    }
    message.extend(self::message(&request(vec![input("a", "UINT8", &[1, 1], None)]), &[&[9]]));
    let (written, bytes) = written(message).unwrap();
    assert_eq!((written.id.as_deref(), bytes), (Some("7"), vec![9]));
}

#[test]
fn typed_contents_become_bytes_if_they_fit() {
    let contents =
        InferContents { ints: vec![-1, 300], uints: vec![7, 256], ..InferContents::default() };
    let typed = |datatype: &str| {
        let input = input("a", datatype, &[1, 2], Some(contents.clone()));
        written(message(&request(vec![input]), &[])).map(|(_, bytes)| bytes)
    };
    assert_eq!(typed("INT16").unwrap(), [0xff, 0xff, 44, 1]);
    assert_eq!(typed("UINT16").unwrap(), [7, 0, 0, 1]);
    assert_eq!(typed("INT8").unwrap_err().text, "input \"a\" has an element that is no INT8");
    assert!(typed("UINT8").is_err());
    assert!(typed("FP16").unwrap_err().text.contains("use raw_input_contents"));
    assert!(
        typed("FP32").unwrap().is_empty(),
        "there are none; the shape decides whether that is enough"
    );
}

#[test]
fn what_lies_in_shared_memory_has_no_raw_contents() {
    let parameters = |region: Choice| {
        let all =
            [("region", region), ("offset", Choice::Uint64(7)), ("byte_size", Choice::Int64(3))];
        all.map(|(name, choice)| (format!("shared_memory_{name}"), parameter(choice))).into()
    };
    let inputs = vec![input("a", "UINT8", &[1, 3], None), input("b", "UINT8", &[1, 2], None)];
    let mut request = request(inputs);
    request.inputs[0].parameters = parameters(Choice::Text("r".into()));
    let output = InferRequestedOutput { name: "y".into(), ..InferRequestedOutput::default() };
    request.outputs = vec![output.clone(), output];
    request.outputs[1].parameters = request.inputs[0].parameters.clone();
    let (said, bytes) = written(message(&request, &[&[4, 5]])).unwrap();
    let part = Part { region: "r".into(), offset: 7, bytes: 3 };
    assert_eq!(said.inputs[0].source, Some(Source::Shared(part.clone())));
    assert_eq!((said.inputs[1].source.clone(), bytes), (Some(Source::Binary(2)), vec![4, 5]));
    assert_eq!((&said.outputs[0].shared, &said.outputs[1].shared), (&None, &Some(part)));
    let two = written(message(&request, &[&[1, 2, 3], &[4, 5]])).unwrap_err();
    assert!(two.text.contains("2 raw_input_contents for 1 inputs"), "{two:?}");
    request.inputs[0].parameters = parameters(Choice::Int64(1));
    assert!(written(message(&request, &[&[4, 5]])).unwrap_err().text.contains("is no text"));
}

#[test]
fn what_makes_no_request_is_refused() {
    let refused = |message: Vec<u8>| written(message).unwrap_err().text;
    let one = request(vec![input("a", "UINT8", &[1, 3], None)]);
    assert!(refused(message(&one, &[&[1], &[2]])).contains("2 raw_input_contents for 1 inputs"));
    let cut = message(&one, &[&[1, 2, 3]]);
    assert!(refused(cut[..cut.len() - 1].to_vec()).contains("ends within a field"));
    assert!(refused(vec![0xff; 30]).contains("no inference request"));
    assert!(refused(vec![0x0b]).contains("group"));
    let negative = request(vec![input("a", "UINT8", &[-1, 3], None)]);
    assert!(refused(message(&negative, &[])).contains("not below 0"));
    let mut timeout = one.clone();
    timeout.parameters.insert("timeout".into(), parameter(Choice::Text("soon".into())));
    assert!(refused(message(&timeout, &[])).contains("timeout is no whole number"));
}

#[test]
fn hostile_messages_cost_no_more_than_they_are_long() {
    let refused = |message: Vec<u8>| written(message).unwrap_err().text;
    // As many as there may be, and a member of no list however often.
    let most = [[0x2a, 0].repeat(32), [0x0a, 0].repeat(1_000)].concat();
    assert!(Parts::of(most.clone().into()).is_ok());
    assert!(refused([most, vec![0x2a, 0]].concat()).contains("more than 32 members"));
    // Of parameters, inputs, outputs and raw contents.
    for (key, most) in [(0x22, 64), (0x2a, 32), (0x32, 32), (0x3a, 32)] {
        assert!(Parts::of([key, 0].repeat(most).into()).is_ok(), "{key:#x}");
        let words = format!("field {} of the request has more than {most} members", key >> 3);
        assert_eq!(refused([key, 0].repeat(most + 1)), words);
    }
    // A hundred thousand inputs of two bytes each.
    assert!(refused([0x2a, 0].repeat(100_000)).contains("more than 32 members"));
}

/// All fields count together, without raw contents.
#[test]
fn what_is_copied_of_a_message_is_bounded() {
    // Key and length of a name take five bytes.
    let named = |bytes: usize| InferRequest { model_name: "n".repeat(bytes), ..<_>::default() };
    let most = message(&named(REST_MAX - 5), &[&[0; 9]]);
    assert!(Parts::of(most.into()).is_ok());
    let more = written(message(&named(REST_MAX - 4), &[])).unwrap_err();
    assert!(more.text.contains("bytes beside its raw_input_contents"), "{more:?}");
    let half = InferRequest { id: "7".repeat(REST_MAX / 2), ..named(REST_MAX / 2) };
    assert!(Parts::of(message(&half, &[]).into()).is_err());
    let names = InferRequest { id: "7".repeat(10_000), ..named(10_000) };
    assert!(Parts::of(message(&names, &[]).into()).is_ok());
}

/// Zero is none, as clients write it who have no sequence.
#[test]
fn a_request_is_of_a_sequence_if_it_names_one() {
    let cases = [
        (Choice::Int64(-1), true),
        (Choice::Int64(0), false),
        (Choice::Uint64(1), true),
        (Choice::Uint64(0), false),
        (Choice::Text("s".into()), true),
        (Choice::Text(String::new()), false),
        (Choice::Bool(true), false),
    ];
    for (id, expected) in cases {
        let mut request = request(vec![]);
        request.parameters.insert("sequence_id".into(), parameter(id.clone()));
        let (said, _) = written(message(&request, &[])).unwrap();
        assert_eq!(said.is_sequence, expected, "{id:?}");
    }
    assert!(!written(message(&request(vec![]), &[])).unwrap().0.is_sequence);
}

proptest! {
    #[test]
    fn damaged_messages_do_no_harm(at in 0usize..60, byte in any::<u8>(), cut in 0usize..60) {
        let contents = InferContents { floats: vec![1.0], ..InferContents::default() };
        let inputs = vec![input("a", "FP32", &[1], Some(contents)), input("b", "UINT8", &[1, 3], None)];
        let mut bytes = message(&request(inputs), &[&[1, 2, 3, 4], &[4, 5, 6]]);
        let place = at % bytes.len();
        bytes[place] = byte;
        bytes.truncate(bytes.len() - cut % 20);
        let _ = written(bytes);
    }
}
