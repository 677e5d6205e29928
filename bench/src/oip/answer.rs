//! Answers, decoded: their tensors in the model's order, end to end.

use baton_topo::signature::TensorSpec;
use bytes::{Buf as _, Bytes};
use prost::Message as _;
use serde::Deserialize;
use serde_json::Value;

use super::messages::{Contents, InferAnswer};
use crate::load::write_numbers;

#[derive(Deserialize)]
struct Said {
    outputs: Vec<Output>,
}

#[derive(Deserialize)]
struct Output {
    name: String,
    #[serde(default)]
    data: Value,
    #[serde(default)]
    parameters: Parameters,
}

#[derive(Deserialize, Default)]
struct Parameters {
    binary_data_size: Option<usize>,
}

/// The tensors of an HTTP answer, of which the first `json_bytes` are JSON; `None` if it is none of this model.
pub(super) fn http(
    body: &[u8],
    json_bytes: Option<usize>,
    specs: &[TensorSpec],
) -> Option<Vec<u8>> {
    let (json, mut binary) = body.split_at_checked(json_bytes.unwrap_or(body.len()))?;
    let Said { outputs } = serde_json::from_slice(json).ok()?;
    let mut tensors = Vec::with_capacity(outputs.len());
    for output in outputs {
        let spec = specs.iter().find(|spec| spec.name == output.name)?;
        let bytes = match output.parameters.binary_data_size {
            Some(bytes) => {
                let (tensor, rest) = binary.split_at_checked(bytes)?;
                binary = rest;
                tensor.to_vec()
            }
            None => {
                let mut bytes = Vec::new();
                write_numbers(&output.data, spec.element, &mut bytes)?;
                bytes
            }
        };
        tensors.push((output.name, bytes));
    }
    in_order(&tensors, specs)
}

/// The tensors of a message of gRPC's, its prefix included.
pub(super) fn grpc(mut body: Bytes, specs: &[TensorSpec]) -> Option<Vec<u8>> {
    if body.len() < 5 {
        return None;
    }
    body.advance(5);
    let InferAnswer { outputs, raw } = InferAnswer::decode(body).ok()?;
    let mut raw = raw.into_iter();
    let tensor = |output: super::messages::Output| {
        let bytes = match &output.contents {
            Some(contents) => typed(contents),
            None => raw.next()?.to_vec(),
        };
        Some((output.name, bytes))
    };
    let tensors: Vec<(String, Vec<u8>)> = outputs.into_iter().map(tensor).collect::<Option<_>>()?;
    in_order(&tensors, specs)
}

/// Small whole numbers travel as `ints` and `uints`: such tensors are longer here than what they are compared with, so
/// they count as wrong and not as unchecked.
fn typed(contents: &Contents) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend(contents.bools.iter().map(|&flag| u8::from(flag)));
    contents.ints.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
    contents.int64s.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
    contents.uints.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
    contents.uint64s.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
    contents.floats.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
    contents.doubles.iter().for_each(|number| bytes.extend(number.to_le_bytes()));
    bytes
}

fn in_order(tensors: &[(String, Vec<u8>)], specs: &[TensorSpec]) -> Option<Vec<u8>> {
    let of = |spec: &TensorSpec| tensors.iter().find(|(name, _)| *name == spec.name);
    let parts: Vec<&[u8]> =
        specs.iter().map(|spec| of(spec).map(|(_, bytes)| &bytes[..])).collect::<Option<_>>()?;
    Some(parts.concat())
}

#[cfg(test)]
mod tests {
    use baton_topo::signature::{ElementType, Extent};

    use super::*;
    use crate::oip::messages::Output as GrpcOutput;

    fn specs() -> Vec<TensorSpec> {
        let spec = |name: &str, element, extent| TensorSpec {
            name: name.into(),
            element,
            shape: vec![Extent::Fixed(extent)],
        };
        vec![spec("y", ElementType::F32, 1), spec("n", ElementType::I16, 2)]
    }

    const EXPECTED: [u8; 8] = [0, 0, 128, 63, 7, 0, 255, 255];

    #[test]
    fn numbers_and_bytes_give_the_same_tensors_in_the_models_order() {
        let json = br#"{"outputs":[{"name":"n","data":[[7],[-1]]},{"name":"y","data":[1]}]}"#;
        assert_eq!(http(json, None, &specs()).unwrap(), EXPECTED);
        let head = br#"{"outputs":[{"name":"n","parameters":{"binary_data_size":4}},{"name":"y","parameters":{"binary_data_size":4}}]}"#;
        let body = [&head[..], &EXPECTED[4..], &EXPECTED[..4]].concat();
        assert_eq!(http(&body, Some(head.len()), &specs()).unwrap(), EXPECTED);
        let output = |name: &str, contents| GrpcOutput { name: name.into(), contents };
        let raw = vec![Bytes::copy_from_slice(&EXPECTED[4..])];
        let typed = Contents { floats: vec![1.0], ..Contents::default() };
        let answer =
            InferAnswer { outputs: vec![output("n", None), output("y", Some(typed))], raw };
        let message = crate::oip::framed(&answer.encode_to_vec());
        assert_eq!(grpc(message, &specs()).unwrap(), EXPECTED);
    }

    #[test]
    fn what_is_no_answer_of_the_model_is_none() {
        for json in
            [&b"{"[..], b"{}", br#"{"outputs":[]}"#, br#"{"outputs":[{"name":"z","data":[1]}]}"#]
        {
            assert_eq!(http(json, None, &specs()), None, "{}", String::from_utf8_lossy(json));
        }
        let past = br#"{"outputs":[{"name":"y","parameters":{"binary_data_size":9}}]}"#;
        assert_eq!(http(past, Some(past.len()), &specs()), None);
        assert_eq!(http(past, Some(past.len() + 1), &specs()), None);
        assert_eq!(grpc(Bytes::from_static(&[0, 0]), &specs()), None);
        assert_eq!(grpc(Bytes::from_static(&[0, 0, 0, 0, 0]), &specs()), None, "no tensors");
    }
}
