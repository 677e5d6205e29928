//! Requests of one task each, encoded.

use std::collections::HashMap;
use std::fmt::Write as _;

use baton_topo::signature::{ElementType, TensorRef, TensorSpec};
use bytes::Bytes;
use prost::Message as _;
use serde_json::json;

use super::describe::Described;
use super::messages::{InferAsk, Parameter, Tensor};

/// How tensors travel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Encoding {
    /// HTTP, numbers as JSON.
    Json,
    /// HTTP, the tensors' bytes behind the JSON.
    Binary,
    /// gRPC, raw contents.
    Grpc,
}

/// An encoded request.
pub(super) struct Encoded {
    pub(super) body: Bytes,
    /// Bytes of the JSON, where the tensors follow it.
    pub(super) json_bytes: Option<usize>,
}

/// Makes the requests of one model.
#[derive(Clone, Debug)]
pub(super) struct Encoder {
    encoding: Encoding,
    model: String,
    tensors: Vec<Tensor>,
    specs: Vec<TensorSpec>,
}

impl Encoder {
    /// # Errors
    /// JSON has no numbers of a tensor's type.
    pub(super) fn new(encoding: Encoding, model: &str, of: &Described) -> Result<Self, String> {
        let specs = of.input.tensors().to_vec();
        let raw = |spec: &&TensorSpec| matches!(spec.element, ElementType::F16 | ElementType::Bf16);
        if let Some(raw) = specs.iter().find(raw).filter(|_| encoding == Encoding::Json) {
            return Err(format!(
                "JSON has no numbers of {}'s type; leave out --json-tensors",
                raw.name
            ));
        }
        let tensor = |(spec, &batched): (&TensorSpec, &bool)| {
            let extents = spec.shape.iter().map(|extent| i64::from(extent.max()));
            let shape = batched.then_some(1).into_iter().chain(extents).collect();
            let datatype = spec.element.oip_name().to_owned();
            Tensor { name: spec.name.clone(), datatype, shape }
        };
        let tensors = specs.iter().zip(&of.batched).map(tensor).collect();
        Ok(Self { encoding, model: model.to_owned(), tensors, specs })
    }

    /// The request with these inputs, and with the parameter `timeout` if the server is to know it.
    pub(super) fn encode(&self, inputs: &[TensorRef<'_>], timeout_us: Option<u64>) -> Encoded {
        match self.encoding {
            Encoding::Json => {
                let data = |at: usize| {
                    let mut text = String::with_capacity(inputs[at].bytes.len() * 3);
                    numbers(self.specs[at].element, inputs[at].bytes, &mut text);
                    format!(",\"data\":[{text}]")
                };
                let body = self.json(data, timeout_us, "");
                Encoded { body: body.into(), json_bytes: None }
            }
            Encoding::Binary => {
                let data = |at: usize| {
                    format!(",\"parameters\":{{\"binary_data_size\":{}}}", inputs[at].bytes.len())
                };
                let mut body =
                    self.json(data, timeout_us, "\"binary_data_output\":true").into_bytes();
                let json_bytes = Some(body.len());
                inputs.iter().for_each(|tensor| body.extend_from_slice(tensor.bytes));
                Encoded { body: body.into(), json_bytes }
            }
            Encoding::Grpc => Encoded { body: self.grpc(inputs, timeout_us), json_bytes: None },
        }
    }

    fn json(
        &self,
        data: impl Fn(usize) -> String,
        timeout_us: Option<u64>,
        parameters: &str,
    ) -> String {
        let mut text = String::from("{\"inputs\":[");
        for (at, Tensor { name, datatype, shape }) in self.tensors.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            let name = json!(name);
            let rest = data(at);
            let _ = write!(
                text,
                "{comma}{{\"name\":{name},\"datatype\":\"{datatype}\",\"shape\":{shape:?}{rest}}}"
            );
        }
        let timeout = timeout_us.map(|us| format!("\"timeout\":{us}")).unwrap_or_default();
        let comma = if timeout.is_empty() || parameters.is_empty() { "" } else { "," };
        let _ = write!(text, "],\"parameters\":{{{parameters}{comma}{timeout}}}}}");
        text
    }

    fn grpc(&self, inputs: &[TensorRef<'_>], timeout_us: Option<u64>) -> Bytes {
        let timeout = timeout_us
            .map(|us| ("timeout".to_owned(), Parameter { int64: i64::try_from(us).ok() }));
        let ask = InferAsk {
            model_name: self.model.clone(),
            parameters: timeout.into_iter().collect::<HashMap<_, _>>(),
            inputs: self.tensors.clone(),
            raw: inputs.iter().map(|tensor| Bytes::copy_from_slice(tensor.bytes)).collect(),
        };
        super::framed(&ask.encode_to_vec())
    }
}

/// Numbers of a tensor with commas between them.
fn numbers(element: ElementType, bytes: &[u8], text: &mut String) {
    macro_rules! each {
        ($type:ty) => {
            for (at, chunk) in bytes.chunks_exact(size_of::<$type>()).enumerate() {
                let number = <$type>::from_le_bytes(chunk.try_into().expect("as many bytes"));
                let comma = if at > 0 { "," } else { "" };
                // As Rust writes them for itself: floats keep their point, and exponents are JSON's.
                let _ = write!(text, "{comma}{number:?}");
            }
        };
    }
    match element {
        ElementType::F32 => each!(f32),
        ElementType::F64 => each!(f64),
        ElementType::I8 => each!(i8),
        ElementType::I16 => each!(i16),
        ElementType::I32 => each!(i32),
        ElementType::I64 => each!(i64),
        ElementType::U8 => each!(u8),
        ElementType::U16 => each!(u16),
        ElementType::U32 => each!(u32),
        ElementType::U64 => each!(u64),
        ElementType::Bool => {
            let flags: Vec<&str> =
                bytes.iter().map(|&flag| if flag == 0 { "false" } else { "true" }).collect();
            text.push_str(&flags.join(","));
        }
        // Refused when the encoder is made.
        ElementType::F16 | ElementType::Bf16 => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::oip::messages::Metadata;

    fn encoder(encoding: Encoding, datatype: &str) -> Result<Encoder, String> {
        let tensor = |name: &str, datatype: &str, shape: &[i64]| Tensor {
            name: name.into(),
            datatype: datatype.into(),
            shape: shape.to_vec(),
        };
        let inputs = vec![tensor("x", datatype, &[-1, 2]), tensor("k", "BOOL", &[1])];
        let said = Metadata { platform: String::new(), inputs, outputs: Vec::new() };
        Encoder::new(encoding, "m", &Described::new(&said, &[]).unwrap())
    }

    fn encode(encoding: Encoding, timeout_us: Option<u64>) -> Encoded {
        let x = [1.5f32.to_le_bytes(), (-2.0f32).to_le_bytes()].concat();
        let of = |bytes| TensorRef { shape: Vec::new(), bytes };
        encoder(encoding, "FP32").unwrap().encode(&[of(&x[..]), of(&[1])], timeout_us)
    }

    #[test]
    fn json_has_the_numbers_and_the_deadline() {
        let Encoded { body, json_bytes } = encode(Encoding::Json, Some(50_000));
        let said: serde_json::Value = serde_json::from_slice(&body).unwrap();
        let expected = json!({
            "inputs": [
                { "name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1.5, -2.0] },
                { "name": "k", "datatype": "BOOL", "shape": [1], "data": [true] },
            ],
            "parameters": { "timeout": 50_000 },
        });
        assert_eq!((said, json_bytes), (expected, None));
        assert!(encoder(Encoding::Json, "FP16").unwrap_err().contains("--json-tensors"));
    }

    #[test]
    fn bytes_follow_the_json() {
        let Encoded { body, json_bytes } = encode(Encoding::Binary, None);
        let (head, tensors) = body.split_at(json_bytes.unwrap());
        let said: serde_json::Value = serde_json::from_slice(head).unwrap();
        assert_eq!(said["inputs"][0]["parameters"], json!({ "binary_data_size": 8 }));
        assert_eq!(said["parameters"], json!({ "binary_data_output": true }));
        assert_eq!((tensors.len(), tensors[8]), (9, 1));
        let with = encode(Encoding::Binary, Some(7)).body;
        assert!(
            String::from_utf8_lossy(&with).contains(r#""binary_data_output":true,"timeout":7}"#)
        );
    }

    #[test]
    fn grpc_has_raw_contents_behind_a_prefix() {
        let body = encode(Encoding::Grpc, Some(9)).body;
        assert_eq!(body[..5], [&[0][..], &(body.len() as u32 - 5).to_be_bytes()].concat());
        let ask = InferAsk::decode(&body[5..]).unwrap();
        assert_eq!((ask.model_name.as_str(), ask.raw.len()), ("m", 2));
        assert_eq!(ask.parameters["timeout"].int64, Some(9));
        assert_eq!(ask.inputs[0].shape, [1, 2]);
    }
}
