//! An inference request out of its encoded message. Raw contents stay where they lie; typed contents become bytes.

use baton_client::signature::TENSORS_MAX;
use bytes::Buf;
use prost::Message;
use prost::encoding::{WireType, decode_key, decode_varint, encode_key, encode_varint};

use super::messages::{
    Choice, InferContents, InferInput, InferRequest, InferRequestedOutput, Parameters,
};
use crate::http::frames::Frames;
use crate::protocol::memory::Part;
use crate::protocol::problem::Problem;
use crate::protocol::request::{Source, Written, WrittenInput, WrittenOutput};

/// Bytes of a request without its raw contents: decoded they can take some times their length.
const REST_MAX: usize = 8 << 20;
const INPUTS: u32 = 5;
const OUTPUTS: u32 = 6;
const RAW: u32 = 7;
/// Parameters of a request.
const PARAMETERS: u32 = 4;
const PARAMETERS_MAX: usize = 64;
/// The parameter that says that a tensor lies in shared memory.
const REGION: &str = "shared_memory_region";

/// A request in its parts.
#[derive(Debug, Default)]
pub(super) struct Parts {
    pub(super) rest: InferRequest,
    /// In the order of the inputs.
    pub(super) raw: Vec<Frames>,
}

fn broken(error: &prost::DecodeError) -> Problem {
    Problem::invalid(format!("the message is no inference request: {error}"))
}

impl Parts {
    pub(super) fn of(mut message: Frames) -> Result<Self, Problem> {
        let mut rest = Vec::new();
        let mut raw = Vec::new();
        let mut members = [0usize; RAW as usize + 1];
        while message.has_remaining() {
            let (tag, wire) = decode_key(&mut message).map_err(|error| broken(&error))?;
            count(&mut members, tag)?;
            if tag == RAW && wire == WireType::LengthDelimited {
                let bytes = length(&mut message)?;
                raw.push(message.split_to(bytes));
                continue;
            }
            encode_key(tag, wire, &mut rest);
            field(&mut message, wire, &mut rest)?;
        }
        let rest = InferRequest::decode(&rest[..]).map_err(|error| broken(&error))?;
        Ok(Self { rest, raw })
    }

    /// As a client wrote it, and the bytes of its inputs in their order.
    pub(super) fn written(self) -> Result<(Written<'static>, Frames), Problem> {
        let Self { rest, raw } = self;
        let in_request = rest.inputs.iter().filter(|input| !is_shared(input)).count();
        if !raw.is_empty() && raw.len() != in_request {
            let raw = raw.len();
            let text = format!(
                "there are {raw} raw_input_contents for {in_request} inputs: give one for each"
            );
            return Err(Problem::invalid(text));
        }
        let mut binary = Frames::default();
        let mut raw = raw.into_iter();
        let mut inputs = Vec::with_capacity(rest.inputs.len());
        for input in rest.inputs {
            let source = match shared(&input.name, &input.parameters)? {
                Some(part) => Some(Source::Shared(part)),
                None => {
                    let bytes = contents(&mut raw, &input)?;
                    let source = bytes.as_ref().map(|bytes| Source::Binary(bytes.remaining()));
                    bytes.into_iter().for_each(|bytes| binary.append(bytes));
                    source
                }
            };
            inputs.push(of_input(input, source)?);
        }
        let written = Written {
            id: Some(rest.id).filter(|id| !id.is_empty()),
            timeout_us: number(&rest.parameters, "timeout")?,
            is_sequence: is_sequence(&rest.parameters),
            is_binary: true,
            inputs,
            outputs: rest.outputs.into_iter().map(of_output).collect::<Result<_, _>>()?,
        };
        Ok((written, binary))
    }
}

/// Members of lists, before they are decoded: an empty one takes two bytes and becomes a hundred times as many.
fn count(members: &mut [usize; RAW as usize + 1], tag: u32) -> Result<(), Problem> {
    let Some(count) = members.get_mut(tag as usize) else { return Ok(()) };
    *count += 1;
    let most = match tag {
        INPUTS | OUTPUTS | RAW => TENSORS_MAX,
        PARAMETERS => PARAMETERS_MAX,
        _ => usize::MAX,
    };
    if *count > most {
        return Err(Problem::invalid(format!(
            "field {tag} of the request has more than {most} members"
        )));
    }
    Ok(())
}

/// The length before a field's bytes, which are there.
fn length(message: &mut Frames) -> Result<usize, Problem> {
    let length = decode_varint(message).map_err(|error| broken(&error))?;
    let is_there = |length: &usize| *length <= message.remaining();
    let length = usize::try_from(length).ok().filter(is_there);
    length.ok_or_else(|| {
        Problem::invalid("the message is no inference request: it ends within a field")
    })
}

/// Copies a field.
fn field(message: &mut Frames, wire: WireType, rest: &mut Vec<u8>) -> Result<(), Problem> {
    let bytes = match wire {
        WireType::Varint => {
            encode_varint(decode_varint(message).map_err(|error| broken(&error))?, rest);
            return Ok(());
        }
        WireType::LengthDelimited => {
            let bytes = length(message)?;
            encode_varint(bytes as u64, rest);
            bytes
        }
        WireType::SixtyFourBit => 8,
        WireType::ThirtyTwoBit => 4,
        WireType::StartGroup | WireType::EndGroup => {
            return Err(Problem::invalid("the message is no inference request: it has a group"));
        }
    };
    if bytes > message.remaining() {
        return Err(Problem::invalid(
            "the message is no inference request: it ends within a field",
        ));
    }
    if rest.len() + bytes > REST_MAX {
        let text =
            format!("the request has more than {REST_MAX} bytes beside its raw_input_contents");
        return Err(Problem::invalid(format!("{text}: send tensors as these")));
    }
    let begin = rest.len();
    rest.resize(begin + bytes, 0);
    message.copy_to_slice(&mut rest[begin..]);
    Ok(())
}

fn of_input(
    input: InferInput,
    source: Option<Source<'static>>,
) -> Result<WrittenInput<'static>, Problem> {
    let InferInput { name, datatype, shape, .. } = input;
    let extents: Result<Vec<u32>, _> = shape.iter().map(|&extent| u32::try_from(extent)).collect();
    let shape = extents.map_err(|_| {
        let rank = shape.len().min(8);
        Problem::invalid(format!(
            "input {name:?} has shape {:?}…: extents are not below 0",
            &shape[..rank]
        ))
    })?;
    Ok(WrittenInput { name, datatype, shape, source })
}

fn of_output(output: InferRequestedOutput) -> Result<WrittenOutput, Problem> {
    let InferRequestedOutput { name, parameters } = output;
    let is_classification = parameters.contains_key("classification");
    let shared = shared(&name, &parameters)?;
    Ok(WrittenOutput { name, is_binary: None, shared, is_classification })
}

fn is_shared(input: &InferInput) -> bool {
    input.parameters.contains_key(REGION)
}

/// Where in shared memory a tensor lies, if there.
fn shared(tensor: &str, parameters: &Parameters) -> Result<Option<Part>, Problem> {
    let region = match parameters.get(REGION).and_then(|parameter| parameter.choice.clone()) {
        Some(Choice::Text(region)) => Some(region),
        None if !parameters.contains_key(REGION) => None,
        _ => return Err(Problem::invalid(format!("the parameter {REGION} is no text"))),
    };
    let of = |name| number(parameters, name);
    Part::of(tensor, region, of("shared_memory_offset")?, of("shared_memory_byte_size")?)
}

/// The bytes of an input that travels in its request: raw ones have no more to do with it than their order.
fn contents(
    raw: &mut impl Iterator<Item = Frames>,
    input: &InferInput,
) -> Result<Option<Frames>, Problem> {
    match raw.next() {
        Some(bytes) => Ok(Some(bytes)),
        None => input.contents.as_ref().map(|contents| typed(input, contents)).transpose(),
    }
}

/// Clients send whole numbers as either type.
fn number(parameters: &Parameters, name: &str) -> Result<Option<u64>, Problem> {
    let Some(parameter) = parameters.get(name) else { return Ok(None) };
    let number = match parameter.choice {
        Some(Choice::Int64(number)) => u64::try_from(number).ok(),
        Some(Choice::Uint64(number)) => Some(number),
        _ => None,
    };
    let wrong = || Problem::invalid(format!("the parameter {name} is no whole number"));
    number.map(Some).ok_or_else(wrong)
}

fn is_sequence(parameters: &Parameters) -> bool {
    match parameters.get("sequence_id").and_then(|parameter| parameter.choice.as_ref()) {
        Some(Choice::Int64(id)) => *id != 0,
        Some(Choice::Uint64(id)) => *id != 0,
        Some(Choice::Text(id)) => !id.is_empty(),
        Some(Choice::Bool(_) | Choice::Double(_)) | None => false,
    }
}

/// Typed contents as a tensor's bytes.
fn typed(input: &InferInput, contents: &InferContents) -> Result<Frames, Problem> {
    fn narrow<T, U: TryFrom<T> + Copy, const N: usize>(
        values: Vec<T>,
        bytes: impl Fn(U) -> [u8; N],
    ) -> Option<Vec<u8>> {
        let mut all = Vec::with_capacity(values.len() * N);
        for value in values {
            all.extend_from_slice(&bytes(U::try_from(value).ok()?));
        }
        Some(all)
    }
    let ints = || contents.ints.clone();
    let uints = || contents.uints.clone();
    let bytes = match &input.datatype[..] {
        "BOOL" => Some(contents.bools.iter().map(|&is_so| u8::from(is_so)).collect()),
        "INT8" => narrow(ints(), i8::to_le_bytes),
        "INT16" => narrow(ints(), i16::to_le_bytes),
        "INT32" => narrow(ints(), i32::to_le_bytes),
        "INT64" => narrow(contents.int64s.clone(), i64::to_le_bytes),
        "UINT8" => narrow(uints(), u8::to_le_bytes),
        "UINT16" => narrow(uints(), u16::to_le_bytes),
        "UINT32" => narrow(uints(), u32::to_le_bytes),
        "UINT64" => narrow(contents.uint64s.clone(), u64::to_le_bytes),
        "FP32" => narrow(contents.floats.clone(), f32::to_le_bytes),
        "FP64" => narrow(contents.doubles.clone(), f64::to_le_bytes),
        other => {
            let text = format!("input {:?}: there are no typed contents for {other}", input.name);
            return Err(Problem::invalid(format!("{text}: use raw_input_contents")));
        }
    };
    let wrong = || {
        let text = format!("input {:?} has an element that is no {}", input.name, input.datatype);
        Problem::invalid(text)
    };
    bytes.map(Frames::from).ok_or_else(wrong)
}

#[cfg(test)]
#[path = "decode_tests.rs"]
mod tests;
