//! Requests as clients write them, and as they should not.

use baton_client::{ElementType, Extent, TensorSpec};
use proptest::prelude::*;

use super::*;

pub(crate) fn tensor(name: &str, element: ElementType, shape: &[Extent]) -> TensorSpec {
    TensorSpec { name: name.into(), element, shape: shape.to_vec() }
}

fn parse(json: &str) -> Result<Request<'_>, Problem> {
    let inputs = [
        tensor("ids", ElementType::I64, &[Extent::UpTo(4)]),
        tensor("scale", ElementType::F32, &[]),
    ];
    let outputs = [tensor("y", ElementType::F32, &[]), tensor("h", ElementType::F16, &[])];
    Request::parse(
        json.as_bytes(),
        &Model { name: "m", inputs: &inputs, outputs: &outputs, batch_max: 8 },
    )
}

const SCALE: &str = r#"{"name":"scale","shape":[2],"datatype":"FP32","data":[1,2]}"#;
const OUTPUTS: &str = r#""outputs":[{"name":"y"}]"#;

/// A request with these for `ids`.
fn ids(rest: &str) -> String {
    format!(r#"{{"inputs":[{{"name":"ids",{rest}}},{SCALE}],{OUTPUTS}}}"#)
}

const GOOD: &str = r#""shape":[2,3],"datatype":"INT64","data":[1,2,3,4,5,6]"#;

/// An input of two rows in the region `r`.
fn shared(bytes: usize) -> String {
    format!(
        r#""shape":[2,3],"datatype":"INT64","parameters":{{"shared_memory_region":"r","shared_memory_offset":7,"shared_memory_byte_size":{bytes}}}"#
    )
}

fn refused(json: &str) -> String {
    parse(json).map(|request| panic!("{request:?}")).unwrap_err().text
}

#[test]
fn keys_come_in_any_order_and_unknown_ones_are_passed_over() {
    let json = r#"{"outputs":[{"parameters":{"binary_data":true},"name":"h"},{"name":"y"}],"more":{"a":[1]},
        "inputs":[{"data":[1,2],"datatype":"FP32","shape":[2],"name":"scale"},
                  {"parameters":{"binary_data_size":48},"shape":[2,3],"name":"ids","datatype":"INT64"}],
        "parameters":{"timeout":20000,"priority":3,"sequence_id":0},"id":"seven"}"#;
    let request = parse(json).unwrap();
    assert_eq!(request.wanted.id.as_deref(), Some("seven"));
    assert_eq!((request.timeout, request.batch), (Some(Duration::from_millis(20)), 2));
    assert_eq!(
        (request.inputs[0].index, request.inputs[0].source.clone()),
        (1, Source::Json("[1,2]"))
    );
    assert_eq!(
        (request.inputs[1].index, request.inputs[1].source.clone()),
        (0, Source::Binary(48))
    );
    assert_eq!(
        (&request.inputs[1].shape[..], &request.inputs[1].extents[..]),
        (&[2, 3][..], &[3][..])
    );
    assert_eq!(request.binary_bytes(), 48);
    let asked = [(1, Form::Binary), (0, Form::Json)].map(|(index, form)| Asked { index, form });
    assert_eq!(request.wanted.outputs, asked);
}

#[test]
fn without_outputs_all_are_meant() {
    let json = ids(GOOD).replace(OUTPUTS, r#""parameters":{"binary_data_output":true}"#);
    let asked = [0, 1].map(|index| Asked { index, form: Form::Binary });
    assert_eq!(parse(&json).unwrap().wanted.outputs, asked);
    let text = refused(&ids(GOOD).replace(OUTPUTS, r#""outputs":[]"#));
    assert!(text.contains("FP16, which JSON has not"), "{text}");
}

#[test]
fn tensors_may_lie_in_shared_memory() {
    let part = |region: &str, offset, bytes| Part { region: region.into(), offset, bytes };
    let h = r#"{"name":"h","parameters":{"binary_data":false,"shared_memory_region":"out","shared_memory_byte_size":64}}"#;
    let json = ids(&shared(48)).replace(OUTPUTS, &format!(r#""outputs":[{h},{{"name":"y"}}]"#));
    let request = parse(&json).unwrap();
    assert_eq!(request.inputs[0].source, Source::Shared(part("r", 7, 48)));
    assert_eq!(request.binary_bytes(), 0, "nothing of it follows the JSON");
    let asked = [(1, Form::Shared), (0, Form::Json)].map(|(index, form)| Asked { index, form });
    assert_eq!(request.wanted.outputs, asked, "FP16, which JSON has not, is not in the JSON");
    assert_eq!(request.wanted.places, [(1, part("out", 0, 64))]);
    let all: Vec<&str> = request.parts().map(|part| &part.region[..]).collect();
    assert_eq!(all, ["r", "out"]);
}

#[test]
fn what_does_not_fit_the_model_is_named() {
    let cases = [
        (GOOD.replace("INT64", "INT32"), "the model takes INT64 of shape [batch, ≤4]"),
        (GOOD.replace("[2,3]", "[2,5]"), "has shape [2, 5]"),
        (GOOD.replace("[2,3]", "[6]"), "has shape [6]"),
        (GOOD.replace("[2,3]", "[0,3]"), "has a batch of 0; give 1 to 8"),
        (GOOD.replace("[2,3]", "[9,3]"), "has a batch of 9; give 1 to 8"),
        (GOOD.replace("[2,3]", "[3,2]"), "batches of 3 and 2"),
        (GOOD.replace("[2,3]", "[-1,3]"), "no inference request"),
        (GOOD.replace("[2,3]", "[1,1,1,1,1,1,1,1,1,1]"), "more than 9 members"),
        (r#""shape":[2,3],"datatype":"INT64""#.into(), "has no data"),
        (format!(r#"{GOOD},"parameters":{{"binary_data_size":48}}"#), "give one of them"),
        (
            r#""shape":[2,3],"datatype":"INT64","parameters":{"shared_memory_region":"r"}"#.into(),
            "no shared_memory_byte_size",
        ),
        (shared(47), "47 bytes of shared memory; its shape makes 48"),
        (shared(48).replace("\"parameters\"", "\"data\":[1],\"parameters\""), "give one of them"),
        (
            r#""shape":[2,3],"datatype":"INT64","parameters":{"binary_data_size":47}"#.into(),
            "its shape makes 48",
        ),
    ];
    for (rest, words) in cases {
        let text = refused(&ids(&rest));
        assert!(text.contains(words), "{rest}: {text}");
    }
}

#[test]
fn names_are_those_of_the_model_and_each_once() {
    assert!(refused(&ids(GOOD).replace("\"ids\"", "\"tokens\"")).contains("it has: ids, scale"));
    assert!(refused(&ids(GOOD).replace("\"y\"", "\"z\"")).contains("it has: y, h"));
    assert!(refused(&ids(&format!("{GOOD}}},{{\"name\":\"ids\",{GOOD}"))).contains("twice"));
    let missing = format!(r#"{{"inputs":[{SCALE}],{OUTPUTS}}}"#);
    assert!(refused(&missing).contains("input \"ids\" is missing: INT64 of shape [batch, ≤4]"));
}

#[test]
fn what_is_no_request_or_not_done_is_refused() {
    for json in ["", "{", "[]", "{}", "null", r#"{"inputs":7}"#, "\u{feff}{}"] {
        assert!(refused(json).contains("no inference request"), "{json}");
    }
    let sequence =
        ids(GOOD).replace(OUTPUTS, &format!(r#"{OUTPUTS},"parameters":{{"sequence_id":"s"}}"#));
    assert_eq!(parse(&sequence).unwrap_err().kind, Kind::NotDone);
    let class =
        ids(GOOD).replace(r#""name":"y""#, r#""name":"y","parameters":{"classification":3}"#);
    assert_eq!(parse(&class).unwrap_err().kind, Kind::NotDone);
}

#[test]
fn hostile_documents_cost_no_more_than_they_are_long() {
    let many = format!(r#"{{"inputs":[{}]}}"#, vec![SCALE; 100_000].join(","));
    assert!(refused(&many).contains("more than 32 members"));
    let deep = format!(r#"{{"inputs":[],"x":{}"#, "[".repeat(1_000_000));
    assert!(refused(&deep).contains("no inference request"));
}

proptest! {
    /// A byte changed, inserted or taken out: an error or a request, never a panic, and what is accepted fits the model.
    #[test]
    fn damaged_requests_do_no_harm(at in 0usize..180, byte in any::<u8>(), how in 0..3) {
        let mut json = ids(GOOD).into_bytes();
        let at = at % json.len();
        match how {
            0 => json[at] = byte,
            1 => json.insert(at, byte),
            _ => { json.remove(at); }
        }
        let text = String::from_utf8_lossy(&json);
        if let Ok(request) = parse(&text) {
            prop_assert!(request.inputs.len() == 2 && (1..=8).contains(&request.batch));
        }
    }
}
