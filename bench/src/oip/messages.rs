//! The messages of the protocol's gRPC service, package `inference`, as far as a load generator needs them.

use prost::Message;

#[derive(Clone, PartialEq, Message)]
pub(super) struct Named {
    #[prost(string, tag = "1")]
    pub(super) name: String,
}

#[derive(Clone, PartialEq, Message, serde::Deserialize)]
pub(super) struct Metadata {
    #[serde(default)]
    #[prost(string, tag = "3")]
    pub(super) platform: String,
    #[serde(default)]
    #[prost(message, repeated, tag = "4")]
    pub(super) inputs: Vec<Tensor>,
    #[serde(default)]
    #[prost(message, repeated, tag = "5")]
    pub(super) outputs: Vec<Tensor>,
}

/// A tensor, of metadata, a request or an answer.
#[derive(Clone, PartialEq, Message, serde::Deserialize)]
pub(super) struct Tensor {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) datatype: String,
    #[prost(int64, repeated, tag = "3")]
    pub(super) shape: Vec<i64>,
}

/// Of an answer: `contents` where the server sends no raw bytes.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Output {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(message, optional, tag = "5")]
    pub(super) contents: Option<Contents>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Contents {
    #[prost(bool, repeated, tag = "1")]
    pub(super) bools: Vec<bool>,
    #[prost(int32, repeated, tag = "2")]
    pub(super) ints: Vec<i32>,
    #[prost(int64, repeated, tag = "3")]
    pub(super) int64s: Vec<i64>,
    #[prost(uint32, repeated, tag = "4")]
    pub(super) uints: Vec<u32>,
    #[prost(uint64, repeated, tag = "5")]
    pub(super) uint64s: Vec<u64>,
    #[prost(float, repeated, tag = "6")]
    pub(super) floats: Vec<f32>,
    #[prost(double, repeated, tag = "7")]
    pub(super) doubles: Vec<f64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct InferAnswer {
    #[prost(message, repeated, tag = "5")]
    pub(super) outputs: Vec<Output>,
    #[prost(bytes = "bytes", repeated, tag = "6")]
    pub(super) raw: Vec<bytes::Bytes>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct InferAsk {
    #[prost(string, tag = "1")]
    pub(super) model_name: String,
    #[prost(map = "string, message", tag = "4")]
    pub(super) parameters: std::collections::HashMap<String, Parameter>,
    #[prost(message, repeated, tag = "5")]
    pub(super) inputs: Vec<Tensor>,
    #[prost(bytes = "bytes", repeated, tag = "7")]
    pub(super) raw: Vec<bytes::Bytes>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Parameter {
    #[prost(int64, optional, tag = "2")]
    pub(super) int64: Option<i64>,
}

#[derive(Clone, PartialEq, Message, serde::Deserialize)]
pub(super) struct Statistics {
    #[prost(message, repeated, tag = "1")]
    pub(super) model_stats: Vec<ModelStatistics>,
}

#[derive(Clone, PartialEq, Message, serde::Deserialize)]
pub(super) struct ModelStatistics {
    #[prost(message, optional, tag = "6")]
    pub(super) inference_stats: Option<Spans>,
}

#[derive(Clone, PartialEq, Message, serde::Deserialize)]
pub(super) struct Spans {
    #[prost(message, optional, tag = "3")]
    pub(super) queue: Option<Spent>,
    #[prost(message, optional, tag = "4")]
    pub(super) compute_input: Option<Spent>,
    #[prost(message, optional, tag = "5")]
    pub(super) compute_infer: Option<Spent>,
    #[prost(message, optional, tag = "6")]
    pub(super) compute_output: Option<Spent>,
}

#[derive(Clone, Copy, PartialEq, Message, serde::Deserialize)]
pub(super) struct Spent {
    #[prost(uint64, tag = "1")]
    pub(super) count: u64,
    #[prost(uint64, tag = "2")]
    pub(super) ns: u64,
}
