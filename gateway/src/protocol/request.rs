//! An inference request: what its JSON says, checked against what the model takes.
//!
//! Memory that a request takes beside its body is bounded: lists have as many members as a model can have, and keys that
//! mean nothing here are passed over.

use std::fmt;
use std::marker::PhantomData;
use std::time::Duration;

use baton_client::TensorSpec;
use baton_client::signature::TENSORS_MAX;
use serde::de::{Deserialize, Deserializer, Error as _, IgnoredAny, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::datatype;
use super::numbers::DEPTH_MAX;
use super::problem::{Kind, Problem};

/// What a model takes and gives.
#[derive(Clone, Copy, Debug)]
pub struct Model<'a> {
    /// Its inputs, without the batch dimension.
    pub inputs: &'a [TensorSpec],
    /// Its outputs.
    pub outputs: &'a [TensorSpec],
    /// Most tasks of one request.
    pub batch_max: usize,
}

/// A request that fits its model.
#[derive(Debug)]
pub struct Request<'a> {
    /// Comes back with the answer.
    pub id: Option<String>,
    /// The parameter `timeout`.
    pub timeout: Option<Duration>,
    /// Tasks: the first dimension of every input.
    pub batch: usize,
    /// One for each input of the model, in the order of the request.
    pub inputs: Vec<Tensor<'a>>,
    /// What is to be in the answer, in this order.
    pub outputs: Vec<Asked>,
}

/// An input of a request.
#[derive(Debug)]
pub struct Tensor<'a> {
    /// Which of the model's inputs it is.
    pub index: usize,
    /// Its shape, the batch dimension first.
    pub shape: Vec<usize>,
    /// The extents of one task.
    pub extents: Vec<u32>,
    /// Its elements.
    pub source: Source<'a>,
}

/// Where the elements of an input are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source<'a> {
    /// In the JSON, as this text.
    Json(&'a str),
    /// Behind the JSON; how many bytes.
    Binary(usize),
}

/// An output of the answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Asked {
    /// Which of the model's outputs.
    pub index: usize,
    /// Whether as bytes behind the JSON.
    pub is_binary: bool,
}

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
    shared_memory_region: Option<IgnoredAny>,
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
        refuse_sequences(&parameters)?;
        let mut request = Self {
            id: body.id,
            timeout: parameters.timeout.map(Duration::from_micros),
            batch: 0,
            inputs: Vec::with_capacity(model.inputs.len()),
            outputs: outputs(body.outputs, parameters.binary_data_output, model)?,
        };
        for input in body.inputs.0 {
            request.add(input, model)?;
        }
        let given = |index| request.inputs.iter().any(|input| input.index == index);
        match (0..model.inputs.len()).find(|&index| !given(index)) {
            Some(missing) => {
                let (spec, name) = (&model.inputs[missing], &model.inputs[missing].name);
                Err(Problem::invalid(format!("input {name:?} is missing: {}", shape_of(spec))))
            }
            None => Ok(request),
        }
    }

    /// Bytes of binary data that follow the JSON.
    pub fn binary_bytes(&self) -> usize {
        let bytes = |input: &Tensor<'_>| match input.source {
            Source::Binary(bytes) => bytes,
            Source::Json(_) => 0,
        };
        self.inputs.iter().map(bytes).fold(0, usize::saturating_add)
    }

    fn add(&mut self, input: InputBody<'a>, model: &Model<'_>) -> Result<(), Problem> {
        let name = &input.name;
        let index = index_of(name, "input", model.inputs)?;
        if self.inputs.iter().any(|other| other.index == index) {
            return Err(Problem::invalid(format!("input {name:?} is given twice")));
        }
        let spec = &model.inputs[index];
        let shape = self.shape(&input, spec, model.batch_max)?;
        let parameters = input.parameters.unwrap_or_default();
        if parameters.shared_memory_region.is_some() {
            return Err(not_done("shared memory", "send the tensor in the request"));
        }
        let source = match (input.data, parameters.binary_data_size) {
            (Some(_), Some(_)) => {
                let text =
                    format!("input {name:?} has data and binary_data_size: give one of them");
                return Err(Problem::invalid(text));
            }
            (Some(data), None) => Source::Json(data.get()),
            (None, Some(bytes)) => {
                check_bytes(name, spec, &shape, bytes)?;
                Source::Binary(bytes)
            }
            (None, None) => {
                let text = format!("input {name:?} has no data: give data, or binary_data_size");
                return Err(Problem::invalid(text));
            }
        };
        self.batch = shape[0];
        let extents = shape[1..].iter().map(|&extent| extent as u32).collect();
        self.inputs.push(Tensor { index, shape, extents, source });
        Ok(())
    }

    /// The shape that an input states, if the model takes it.
    fn shape(
        &self,
        input: &InputBody<'_>,
        spec: &TensorSpec,
        batch_max: usize,
    ) -> Result<Vec<usize>, Problem> {
        let (name, given) = (&input.name, &input.shape.0);
        if input.datatype != datatype::name(spec.element) {
            let (got, text) = (&input.datatype, shape_of(spec));
            return Err(Problem::invalid(format!(
                "input {name:?} is {got}; the model takes {text}"
            )));
        }
        let fits = given.len() == spec.shape.len() + 1
            && spec.shape.iter().zip(&given[1..]).all(|(extent, &given)| extent.allows(given));
        if !fits {
            let text = shape_of(spec);
            return Err(Problem::invalid(format!(
                "input {name:?} has shape {given:?}; the model takes {text}"
            )));
        }
        let batch = given[0] as usize;
        if !(1..=batch_max).contains(&batch) {
            let bound = "which is as many tasks as the gateway has slots for";
            let text =
                format!("input {name:?} has a batch of {batch}; give 1 to {batch_max}, {bound}");
            return Err(Problem::invalid(text));
        }
        if self.batch > 0 && self.batch != batch {
            let (one, other) = (self.batch, batch);
            let text = format!("the inputs have batches of {one} and {other}: they must be equal");
            return Err(Problem::invalid(text));
        }
        Ok(given.iter().map(|&extent| extent as usize).collect())
    }
}

fn check_bytes(
    name: &str,
    spec: &TensorSpec,
    shape: &[usize],
    bytes: usize,
) -> Result<(), Problem> {
    let count = shape.iter().try_fold(spec.element.bytes(), |all, &one| all.checked_mul(one));
    if count != Some(bytes) {
        let made = count.map_or_else(|| "more than can be".to_owned(), |count| count.to_string());
        let text =
            format!("input {name:?} has {bytes} bytes of binary data; its shape makes {made}");
        return Err(Problem::invalid(text));
    }
    Ok(())
}

/// A tensor as clients give it.
fn shape_of(spec: &TensorSpec) -> String {
    let extents: String = spec.shape.iter().map(|extent| format!(", {extent}")).collect();
    format!("{} of shape [batch{extents}]", datatype::name(spec.element))
}

fn index_of(name: &str, what: &str, specs: &[TensorSpec]) -> Result<usize, Problem> {
    specs.iter().position(|spec| spec.name == name).ok_or_else(|| {
        let known: Vec<&str> = specs.iter().map(|spec| &spec.name[..]).collect();
        let known = known.join(", ");
        Problem::invalid(format!("the model has no {what} {name:?}; it has: {known}"))
    })
}

fn refuse_sequences(parameters: &Parameters) -> Result<(), Problem> {
    let is_none = match &parameters.sequence_id {
        None | Some(Sequence::Number(0)) => true,
        Some(Sequence::Number(_)) => false,
        Some(Sequence::Text(text)) => text.is_empty(),
    };
    if is_none { Ok(()) } else { Err(not_done("sequences", "leave sequence_id out")) }
}

fn not_done(what: &str, fix: &str) -> Problem {
    Problem::new(Kind::NotDone, format!("this gateway has no {what}: {fix}"))
}

fn outputs(
    given: Option<Few<OutputBody, TENSORS_MAX>>,
    all_binary: Option<bool>,
    model: &Model<'_>,
) -> Result<Vec<Asked>, Problem> {
    let all_binary = all_binary.unwrap_or(false);
    let given = given.map_or_else(Vec::new, |given| given.0);
    let mut asked = Vec::with_capacity(model.outputs.len());
    for output in &given {
        let index = index_of(&output.name, "output", model.outputs)?;
        let parameters = output.parameters.as_ref();
        if parameters.is_some_and(|parameters| parameters.classification.is_some()) {
            return Err(not_done("classification", "ask for the tensor and take its largest"));
        }
        if parameters.is_some_and(|parameters| parameters.shared_memory_region.is_some()) {
            return Err(not_done("shared memory", "take the tensor from the answer"));
        }
        let is_binary =
            parameters.and_then(|parameters| parameters.binary_data).unwrap_or(all_binary);
        asked.push(Asked { index, is_binary });
    }
    if given.is_empty() {
        let all = 0..model.outputs.len();
        asked.extend(all.map(|index| Asked { index, is_binary: all_binary }));
    }
    let unwritable = asked
        .iter()
        .map(|asked| (&model.outputs[asked.index], asked.is_binary))
        .find(|(spec, is_binary)| !is_binary && !datatype::has_json(spec.element));
    match unwritable {
        Some((spec, _)) => {
            let (name, kind) = (&spec.name, datatype::name(spec.element));
            let text =
                format!("output {name:?} is {kind}, which JSON has not: ask for binary_data");
            Err(Problem::invalid(text))
        }
        None => Ok(asked),
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
