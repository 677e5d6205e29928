//! An inference request's JSON.
//!
//! Memory that a request takes beside its body is bounded: lists have as many members as a model can have, and keys that
//! mean nothing here are passed over.

use std::fmt;
use std::marker::PhantomData;

use baton_client::signature::TENSORS_MAX;
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::memory::Part;
use super::numbers::DEPTH_MAX;
use super::problem::Problem;
use super::request::{Model, Request, Source, Written, WrittenInput, WrittenOutput};

#[derive(serde::Deserialize)]
struct Body<'a> {
    id: Option<String>,
    parameters: Option<Parameters>,
    #[serde(borrow)]
    inputs: Few<InputBody<'a>, TENSORS_MAX>,
    outputs: Option<Few<OutputBody, TENSORS_MAX>>,
}

#[derive(serde::Deserialize)]
struct InputBody<'a> {
    name: String,
    datatype: String,
    shape: Few<u32, DEPTH_MAX>,
    parameters: Option<Parameters>,
    #[serde(borrow)]
    data: Option<&'a RawValue>,
}

#[derive(serde::Deserialize)]
struct OutputBody {
    name: String,
    parameters: Option<Parameters>,
}

/// Of a request, an input or an output. Others are passed over.
#[derive(serde::Deserialize, Default)]
struct Parameters {
    timeout: Option<u64>,
    sequence_id: Option<Sequence>,
    binary_data_output: Option<bool>,
    binary_data: Option<bool>,
    binary_data_size: Option<usize>,
    classification: Option<IgnoredAny>,
    shared_memory_region: Option<String>,
    shared_memory_offset: Option<u64>,
    shared_memory_byte_size: Option<u64>,
}

#[derive(serde::Deserialize)]
#[serde(untagged)]
enum Sequence {
    Number(u64),
    Text(String),
}

/// A list of at most `MAX` members.
struct Few<T, const MAX: usize>(Vec<T>);

impl<'de, T: Deserialize<'de>, const MAX: usize> Deserialize<'de> for Few<T, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Members<T, const MAX: usize>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>, const MAX: usize> Visitor<'de> for Members<T, MAX> {
            type Value = Vec<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "a list of at most {MAX}")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = list.next_element()? {
                    if members.len() == MAX {
                        return Err(A::Error::custom(format!(
                            "a list has more than {MAX} members"
                        )));
                    }
                    members.push(member);
                }
                Ok(members)
            }
        }
        deserializer.deserialize_seq(Members::<T, MAX>(PhantomData)).map(Few)
    }
}

impl<'a> Request<'a> {
    /// The request of this JSON.
    ///
    /// # Errors
    /// It is none, or none for this model.
    pub fn parse(json: &'a [u8], model: &Model<'_>) -> Result<Self, Problem> {
        let body: Body<'a> = serde_json::from_slice(json).map_err(|error| {
            Problem::invalid(format!("the JSON is no inference request: {error}"))
        })?;
        let parameters = body.parameters.unwrap_or_default();
        let inputs: Result<_, Problem> =
            body.inputs.0.into_iter().map(InputBody::written).collect();
        let outputs = body.outputs.map_or_else(Vec::new, |outputs| outputs.0);
        let outputs: Result<_, Problem> = outputs.into_iter().map(OutputBody::written).collect();
        let written = Written {
            id: body.id,
            timeout_us: parameters.timeout,
            is_sequence: parameters.is_sequence(),
            is_binary: parameters.binary_data_output.unwrap_or(false),
            inputs: inputs?,
            outputs: outputs?,
        };
        Self::check(written, model)
    }
}

impl Parameters {
    fn is_sequence(&self) -> bool {
        match &self.sequence_id {
            None => false,
            Some(Sequence::Number(number)) => *number != 0,
            Some(Sequence::Text(text)) => !text.is_empty(),
        }
    }

    /// Where in shared memory a tensor lies, if there.
    fn shared(&mut self, tensor: &str) -> Result<Option<Part>, Problem> {
        let (offset, bytes) = (self.shared_memory_offset, self.shared_memory_byte_size);
        Part::of(tensor, self.shared_memory_region.take(), offset, bytes)
    }
}

impl<'a> InputBody<'a> {
    fn written(self) -> Result<WrittenInput<'a>, Problem> {
        let Self { name, datatype, shape, parameters, data } = self;
        let mut parameters = parameters.unwrap_or_default();
        let shared = parameters.shared(&name)?;
        let source = match (data, parameters.binary_data_size, shared) {
            (None, None, None) => None,
            (Some(data), None, None) => Some(Source::Json(data.get())),
            (None, Some(bytes), None) => Some(Source::Binary(bytes)),
            (None, None, Some(part)) => Some(Source::Shared(part)),
            _ => {
                let text = format!(
                    "input {name:?} has more than one of data, binary_data_size and shared_memory_region: give one of them"
                );
                return Err(Problem::invalid(text));
            }
        };
        Ok(WrittenInput { name, datatype, shape: shape.0, source })
    }
}

impl OutputBody {
    fn written(self) -> Result<WrittenOutput, Problem> {
        let mut parameters = self.parameters.unwrap_or_default();
        Ok(WrittenOutput {
            shared: parameters.shared(&self.name)?,
            name: self.name,
            is_binary: parameters.binary_data,
            is_classification: parameters.classification.is_some(),
        })
    }
}
