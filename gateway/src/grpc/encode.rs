//! Answers as messages.

use baton_client::{ElementType, ModelHandle, Reply, TensorRef, TensorSpec};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, uint32};
use serde_json::Value;

use super::messages::{
    Choice, Empty, Index, InferParameter, InferResponse, InferStatistics, ModelConfig,
    ModelConfigResponse, ModelIndex, ModelInput, ModelMetadata, ModelOutput, ModelStatistics,
    Parameters, Region, Regions, Spent, Statistics, StreamProblem, TensorMetadata,
};
use super::reader::{PREFIX, seal};
use crate::infer::{head_of, rows};
use crate::protocol::describe::{Indexed, extents};
use crate::protocol::memory::Registration;
use crate::protocol::problem::Problem;
use crate::protocol::render::{self, Head, VERSION};
use crate::protocol::request::{Asked, Form, Model};

/// Fields of an answer, and of its outputs.
const MODEL_NAME: u32 = 1;
const MODEL_VERSION: u32 = 2;
const ID: u32 = 3;
const OUTPUTS: u32 = 5;
const OUTPUT_NAME: u32 = 1;
const OUTPUT_DATATYPE: u32 = 2;
const OUTPUT_SHAPE: u32 = 3;
/// `raw_output_contents` of an answer.
const RAW: u32 = 6;
/// Room for what is not `raw_output_contents`; most need less.
const HEAD_BYTES: usize = 192;
/// The answer in a message of a stream.
const STREAMED: u32 = 2;

/// The answer to an inference in its frame: outputs as bytes, copied once.
pub(super) fn infer(
    (model, id): (&ModelHandle, Option<&str>),
    asked: &[Asked],
    replies: &[Reply],
    is_late: bool,
) -> Result<Vec<u8>, Problem> {
    let rows = rows(model, replies)?;
    answer(&head_of(model.name(), id, replies, is_late), model.outputs(), asked, &rows)
}

fn answer(
    head: &Head<'_>,
    specs: &[TensorSpec],
    asked: &[Asked],
    rows: &[Vec<TensorRef<'_>>],
) -> Result<Vec<u8>, Problem> {
    // One in shared memory has an empty entry: Triton's client in C++ looks for one of each output.
    let sent = |asked: &Asked| if asked.form == Form::Shared { &[] } else { rows };
    let lengths = |asked: &Asked| sent(asked).iter().map(|row| row[asked.index].bytes.len()).sum();
    let lengths: Vec<usize> = asked.iter().map(lengths).collect();
    let raw: usize = lengths.iter().sum();
    let mut message = Vec::with_capacity(HEAD_BYTES + raw);
    message.resize(PREFIX, 0);
    text(MODEL_NAME, head.model, &mut message);
    text(MODEL_VERSION, VERSION, &mut message);
    text(ID, head.id.unwrap_or_default(), &mut message);
    // Seldom any; messages behind one another are one.
    let rest = InferResponse { parameters: parameters(head), ..InferResponse::default() };
    rest.encode(&mut message).expect("a Vec takes everything");
    for asked in asked {
        output(&specs[asked.index], rows.iter().map(|row| &row[asked.index]), &mut message)?;
    }
    for (asked, length) in asked.iter().zip(lengths) {
        encode_key(RAW, WireType::LengthDelimited, &mut message);
        encode_varint(length as u64, &mut message);
        sent(asked).iter().for_each(|row| message.extend_from_slice(row[asked.index].bytes));
    }
    seal(&mut message);
    Ok(message)
}

/// What an output is, without its bytes.
fn output<'a>(
    spec: &TensorSpec,
    rows: impl Iterator<Item = &'a TensorRef<'a>>,
    message: &mut Vec<u8>,
) -> Result<(), Problem> {
    let mut output = Vec::with_capacity(HEAD_BYTES);
    text(OUTPUT_NAME, &spec.name, &mut output);
    text(OUTPUT_DATATYPE, spec.element.oip_name(), &mut output);
    // Extents are not below 0, and then both kinds of numbers are the same bytes.
    uint32::encode_packed(OUTPUT_SHAPE, &render::shape(spec, rows)?, &mut output);
    encode_key(OUTPUTS, WireType::LengthDelimited, message);
    encode_varint(output.len() as u64, message);
    message.extend_from_slice(&output);
    Ok(())
}

/// A field with text; without any there is none.
fn text(tag: u32, text: &str, message: &mut Vec<u8>) {
    if !text.is_empty() {
        encode_key(tag, WireType::LengthDelimited, message);
        encode_varint(text.len() as u64, message);
        message.extend_from_slice(text.as_bytes());
    }
}

/// As the HTTP call has them.
fn parameters(head: &Head<'_>) -> Parameters {
    let named = |name: &str, choice| (name.to_owned(), InferParameter { choice: Some(choice) });
    let late = head.is_late.then(|| named("baton_late", Choice::Bool(true)));
    let cold = head.is_cold.then(|| named("baton_cold", Choice::Bool(true)));
    let variant = head.variant.into_iter().flat_map(|(name, accuracy)| {
        let (name, accuracy) = (Choice::Text(name.to_owned()), Choice::Double(accuracy));
        [named("baton_variant", name), named("baton_accuracy", accuracy)]
    });
    late.into_iter().chain(cold).chain(variant).collect()
}

/// An answer, out of its frame, as a message of a stream.
pub(super) fn streamed(answer: &[u8]) -> Vec<u8> {
    let answer = &answer[PREFIX..];
    let mut message = Vec::with_capacity(answer.len() + 12);
    encode_key(STREAMED, WireType::LengthDelimited, &mut message);
    encode_varint(answer.len() as u64, &mut message);
    message.extend_from_slice(answer);
    message
}

/// A problem as a message of a stream, with the request's id.
pub(super) fn streamed_problem(problem: &Problem, id: String) -> Vec<u8> {
    let infer_response = Some(InferResponse { id, ..InferResponse::default() });
    StreamProblem { error_message: problem.text.clone(), infer_response }.encode_to_vec()
}

pub(super) fn metadata(model: &Model<'_>) -> ModelMetadata {
    let tensor = |spec: &TensorSpec| TensorMetadata {
        name: spec.name.clone(),
        datatype: spec.element.oip_name().to_owned(),
        shape: [-1].into_iter().chain(extents(spec)).collect(),
    };
    ModelMetadata {
        name: model.name.to_owned(),
        versions: vec![VERSION.to_owned()],
        platform: "baton".to_owned(),
        inputs: model.inputs.iter().map(tensor).collect(),
        outputs: model.outputs.iter().map(tensor).collect(),
    }
}

pub(super) fn config(model: &Model<'_>) -> ModelConfigResponse {
    let input = |spec: &TensorSpec| ModelInput {
        name: spec.name.clone(),
        data_type: config_type(spec.element),
        dims: extents(spec).collect(),
    };
    let output = |spec: &TensorSpec| ModelOutput {
        name: spec.name.clone(),
        data_type: config_type(spec.element),
        dims: extents(spec).collect(),
    };
    let config = ModelConfig {
        name: model.name.to_owned(),
        platform: "baton".to_owned(),
        max_batch_size: i32::try_from(model.batch_max).unwrap_or(i32::MAX),
        input: model.inputs.iter().map(input).collect(),
        output: model.outputs.iter().map(output).collect(),
        dynamic_batching: Some(Empty {}),
        backend: "baton".to_owned(),
    };
    ModelConfigResponse { config: Some(config) }
}

/// `DataType` of a model's configuration.
const fn config_type(element: ElementType) -> i32 {
    match element {
        ElementType::Bool => 1,
        ElementType::U8 => 2,
        ElementType::U16 => 3,
        ElementType::U32 => 4,
        ElementType::U64 => 5,
        ElementType::I8 => 6,
        ElementType::I16 => 7,
        ElementType::I32 => 8,
        ElementType::I64 => 9,
        ElementType::F16 => 10,
        ElementType::F32 => 11,
        ElementType::F64 => 12,
        ElementType::Bf16 => 14,
    }
}

pub(super) fn regions(known: Vec<Registration>) -> Regions {
    let region = |region: Registration| {
        let Registration { name, key, offset, byte_size } = region;
        (name.clone(), Region { name, key, offset, byte_size })
    };
    Regions { regions: known.into_iter().map(region).collect() }
}

pub(super) fn index(models: &[Indexed]) -> Index {
    let model = |model: &Indexed| {
        let (state, reason) = model.state();
        ModelIndex {
            name: model.name.clone(),
            version: VERSION.to_owned(),
            state: state.to_owned(),
            reason: reason.to_owned(),
        }
    };
    Index { models: models.iter().map(model).collect() }
}

/// Of what the HTTP call answers.
pub(super) fn statistics(said: &Value) -> Statistics {
    let model = |model: &Value| {
        let count = |key: &str| model[key].as_u64().unwrap_or_default();
        let spent = |key: &str| {
            let of = |part: &str| model["inference_stats"][key][part].as_u64().unwrap_or_default();
            Some(Spent { count: of("count"), ns: of("ns") })
        };
        ModelStatistics {
            name: model["name"].as_str().unwrap_or_default().to_owned(),
            version: VERSION.to_owned(),
            inference_count: count("inference_count"),
            execution_count: count("execution_count"),
            inference_stats: Some(InferStatistics {
                success: spent("success"),
                fail: spent("fail"),
                queue: spent("queue"),
                compute_input: spent("compute_input"),
                compute_infer: spent("compute_infer"),
                compute_output: spent("compute_output"),
                cache_hit: spent("cache_hit"),
                cache_miss: spent("cache_miss"),
            }),
        }
    };
    let models = said["model_stats"].as_array().map_or(&[][..], |models| models);
    Statistics { model_stats: models.iter().map(model).collect() }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use baton_client::Extent;
    use serde_json::json;

    use super::super::reader::framed;
    use super::*;
    use crate::protocol::describe;

    const ASKED: [Asked; 2] =
        [Asked { index: 1, form: Form::Binary }, Asked { index: 0, form: Form::Shared }];

    fn specs() -> Vec<TensorSpec> {
        let spec = |name: &str, element| {
            let (name, shape) = (name.into(), vec![Extent::UpTo(4)]);
            TensorSpec { name, element, shape }
        };
        vec![spec("y", ElementType::F32), spec("raw", ElementType::U8)]
    }

    fn row(bytes: &[u8]) -> Vec<TensorRef<'_>> {
        let tensor = |bytes| TensorRef { shape: vec![2], bytes };
        vec![tensor(&[0; 8]), tensor(bytes)]
    }

    /// What clients read of an answer, as the protocol has it.
    #[derive(Clone, PartialEq, Message)]
    struct Read {
        #[prost(string, tag = "1")]
        model: String,
        #[prost(string, tag = "2")]
        version: String,
        #[prost(string, tag = "3")]
        id: String,
        #[prost(map = "string, message", tag = "4")]
        parameters: Parameters,
        #[prost(message, repeated, tag = "5")]
        outputs: Vec<ReadOutput>,
        #[prost(bytes = "vec", repeated, tag = "6")]
        raw: Vec<Vec<u8>>,
    }

    #[derive(Clone, PartialEq, Message)]
    struct ReadOutput {
        #[prost(string, tag = "1")]
        name: String,
        #[prost(string, tag = "2")]
        datatype: String,
        #[prost(int64, repeated, tag = "3")]
        shape: Vec<i64>,
    }

    /// Rows are one batch, and the output in shared memory has an empty entry.
    #[test]
    fn an_answer_has_its_head_and_the_bytes_of_each_output() {
        let variant = Some(("s", 73.5));
        let head = Head { model: "m", id: Some("7"), is_late: true, is_cold: false, variant };
        let message = answer(&head, &specs(), &ASKED, &[row(&[1, 2]), row(&[3, 4])]).unwrap();
        let (prefix, message) = message.split_at(PREFIX);
        assert_eq!(prefix, [0, 0, 0, 0, message.len() as u8]);
        let read = Read::decode(message).unwrap();
        assert_eq!((&read.model[..], &read.version[..], &read.id[..]), ("m", "1", "7"));
        assert_eq!(read.raw, [vec![1, 2, 3, 4], vec![]]);
        let outputs = read.outputs.iter().map(|o| (&o.name[..], &o.datatype[..], &o.shape[..]));
        let shape = &[2, 2][..];
        assert_eq!(outputs.collect::<Vec<_>>(), [("raw", "UINT8", shape), ("y", "FP32", shape)]);
        let of = |name: &str| read.parameters.get(name).and_then(|of| of.choice.clone());
        assert_eq!(of("baton_late"), Some(Choice::Bool(true)));
        assert_eq!(of("baton_cold"), None);
        assert_eq!(of("baton_variant"), Some(Choice::Text("s".to_owned())));
        assert_eq!(of("baton_accuracy"), Some(Choice::Double(73.5)));
    }

    #[test]
    fn a_stream_has_answers_and_problems_of_requests() {
        assert_eq!(streamed(&framed(&[7, 8, 9])), [0x12, 3, 7, 8, 9]);
        let problem = Problem::invalid("no such input");
        let message = streamed_problem(&problem, "7".to_owned());
        let said = StreamProblem::decode(&message[..]).unwrap();
        let id = said.infer_response.map(|response| response.id);
        assert_eq!((said.error_message, id), (problem.text, Some("7".to_owned())));
    }

    /// What one protocol says of a model, the other says too.
    #[test]
    fn a_model_is_described_as_over_http() {
        let (inputs, outputs) = (specs(), specs());
        let model =
            Model { name: "m", inputs: &inputs[..1], outputs: &outputs[1..], batch_max: 16 };
        let said = metadata(&model);
        let tensor = |tensor: &TensorMetadata| {
            let TensorMetadata { name, datatype, shape } = tensor;
            json!({ "name": name, "datatype": datatype, "shape": shape })
        };
        let over_grpc = json!({
            "name": said.name, "versions": said.versions, "platform": said.platform,
            "inputs": said.inputs.iter().map(tensor).collect::<Vec<_>>(),
            "outputs": said.outputs.iter().map(tensor).collect::<Vec<_>>(),
        });
        assert_eq!(over_grpc, describe::metadata(&model));
        let said = config(&model).config.unwrap();
        let tensor = |name: &str, data_type: i32, dims: &[i64]| {
            let element =
                [(2, "TYPE_UINT8"), (11, "TYPE_FP32")].into_iter().collect::<HashMap<_, _>>();
            json!([{ "name": name, "data_type": element[&data_type], "dims": dims }])
        };
        let over_grpc = json!({
            "name": said.name, "platform": said.platform, "backend": said.backend,
            "max_batch_size": said.max_batch_size,
            "input": tensor(&said.input[0].name, said.input[0].data_type, &said.input[0].dims),
            "output": tensor(&said.output[0].name, said.output[0].data_type, &said.output[0].dims),
            "dynamic_batching": said.dynamic_batching.map(|Empty {}| json!({})),
        });
        assert_eq!(over_grpc, describe::config(&model));
    }

    #[test]
    fn what_is_known_of_regions_and_models_is_said_in_full() {
        let (name, key) = ("r".to_owned(), "/input".to_owned());
        let said = regions(vec![Registration { name, key, offset: 7, byte_size: 9 }]).regions;
        let Region { name, key, offset, byte_size } = &said["r"];
        assert_eq!((said.len(), &name[..], &key[..]), (1, "r", "/input"));
        assert_eq!((*offset, *byte_size), (7, 9));
        let one = |is_ready| Indexed { name: "m".to_owned(), is_ready };
        let said = index(&[one(true), one(false)]).models;
        let words = said.iter().map(|model| {
            let ModelIndex { name, version, state, reason } = model;
            [name, version, state, reason].map(|word| &word[..])
        });
        let expected = [["m", "1", "READY", ""], ["m", "1", "UNAVAILABLE", "unloaded"]];
        assert_eq!(words.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn statistics_are_those_of_the_other_protocol() {
        let spent = |count: u64| json!({ "count": count, "ns": 10 * count });
        let parts =
            ["success", "fail", "queue", "compute_input", "compute_infer", "compute_output"];
        let all = parts.iter().chain(&["cache_hit", "cache_miss"]);
        let stats: serde_json::Map<String, Value> =
            (1..).zip(all).map(|(count, part)| ((*part).to_owned(), spent(count))).collect();
        let model = json!({
            "name": "m", "inference_count": 20, "execution_count": 30, "inference_stats": stats
        });
        let said = statistics(&json!({ "model_stats": [model] })).model_stats;
        let said = &said[0];
        assert_eq!((&said.name[..], &said.version[..]), ("m", "1"));
        assert_eq!((said.inference_count, said.execution_count), (20, 30));
        let stats = said.inference_stats.clone().unwrap();
        let spent = [
            stats.success,
            stats.fail,
            stats.queue,
            stats.compute_input,
            stats.compute_infer,
            stats.compute_output,
            stats.cache_hit,
            stats.cache_miss,
        ];
        let of = |part: Option<Spent>| part.map(|Spent { count, ns }| (count, ns)).unwrap();
        assert_eq!(spent.map(of), [1, 2, 3, 4, 5, 6, 7, 8].map(|count| (count, 10 * count)));
    }

    /// As `model_config.proto` numbers them.
    #[test]
    fn each_element_has_its_number() {
        let types = [
            "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64",
            "FP16", "FP32", "FP64", "STRING", "BF16",
        ];
        for &element in ElementType::ALL {
            let number = types.iter().position(|name| *name == element.oip_name()).unwrap() + 1;
            assert_eq!(Ok(config_type(element)), i32::try_from(number), "{element:?}");
        }
    }
}
