//! The messages of the protocol's gRPC service, package `inference`, as far as this gateway reads and writes them. Names and
//! numbers are the interface; fields that are left out here are passed over by either side.
//!
//! `raw_input_contents` (7) of a request, and `outputs` (5) and `raw_output_contents` (6) of an answer are not here: they are taken
//! out of, and put into, the encoded message where they lie.

use std::collections::HashMap;

use prost::{Message, Oneof};

macro_rules! messages {
    ($($(#[doc = $doc:literal])* $name:ident { $($(#[$meta:meta])* $field:ident: $type:ty,)* })*) => {
        $($(#[doc = $doc])* #[derive(Clone, PartialEq, Message)] pub(super) struct $name { $($(#[$meta])* pub(super) $field: $type,)* })*
    };
}

/// Of a request, a tensor or an answer.
pub(super) type Parameters = HashMap<String, InferParameter>;

messages! {
    /// Requests without content.
    Empty {}
    /// The answer of `ServerLive`, `ServerReady` and `ModelReady`.
    Flag { #[prost(bool, tag = "1")] is_so: bool, }
    /// The request of every call about a model.
    ModelName {
        #[prost(string, tag = "1")] name: String,
        #[prost(string, tag = "2")] version: String,
    }
    /// The request of `RepositoryIndex`.
    IndexAsk { #[prost(bool, tag = "2")] only_ready: bool, }
    /// The request of `RepositoryModelLoad` and `RepositoryModelUnload`.
    RepositoryModel {
        #[prost(string, tag = "2")] name: String,
        #[prost(map = "string, message", tag = "3")] parameters: HashMap<String, Empty>,
    }
    ServerMetadata {
        #[prost(string, tag = "1")] name: String,
        #[prost(string, tag = "2")] version: String,
        #[prost(string, repeated, tag = "3")] extensions: Vec<String>,
    }
    ModelMetadata {
        #[prost(string, tag = "1")] name: String,
        #[prost(string, repeated, tag = "2")] versions: Vec<String>,
        #[prost(string, tag = "3")] platform: String,
        #[prost(message, repeated, tag = "4")] inputs: Vec<TensorMetadata>,
        #[prost(message, repeated, tag = "5")] outputs: Vec<TensorMetadata>,
    }
    TensorMetadata {
        #[prost(string, tag = "1")] name: String,
        #[prost(string, tag = "2")] datatype: String,
        #[prost(int64, repeated, tag = "3")] shape: Vec<i64>,
    }
    InferParameter { #[prost(oneof = "Choice", tags = "1, 2, 3, 4, 5")] choice: Option<Choice>, }
    InferRequest {
        #[prost(string, tag = "1")] model_name: String,
        #[prost(string, tag = "2")] model_version: String,
        #[prost(string, tag = "3")] id: String,
        #[prost(map = "string, message", tag = "4")] parameters: Parameters,
        #[prost(message, repeated, tag = "5")] inputs: Vec<InferInput>,
        #[prost(message, repeated, tag = "6")] outputs: Vec<InferRequestedOutput>,
    }
    InferInput {
        #[prost(string, tag = "1")] name: String,
        #[prost(string, tag = "2")] datatype: String,
        #[prost(int64, repeated, tag = "3")] shape: Vec<i64>,
        #[prost(map = "string, message", tag = "4")] parameters: Parameters,
        #[prost(message, optional, tag = "5")] contents: Option<InferContents>,
    }
    InferRequestedOutput {
        #[prost(string, tag = "1")] name: String,
        #[prost(map = "string, message", tag = "2")] parameters: Parameters,
    }
    InferContents {
        #[prost(bool, repeated, tag = "1")] bools: Vec<bool>,
        #[prost(int32, repeated, tag = "2")] ints: Vec<i32>,
        #[prost(int64, repeated, tag = "3")] int64s: Vec<i64>,
        #[prost(uint32, repeated, tag = "4")] uints: Vec<u32>,
        #[prost(uint64, repeated, tag = "5")] uint64s: Vec<u64>,
        #[prost(float, repeated, tag = "6")] floats: Vec<f32>,
        #[prost(double, repeated, tag = "7")] doubles: Vec<f64>,
    }
    InferResponse {
        #[prost(string, tag = "1")] model_name: String,
        #[prost(string, tag = "2")] model_version: String,
        #[prost(string, tag = "3")] id: String,
        #[prost(map = "string, message", tag = "4")] parameters: Parameters,
    }
    /// In a stream a request's problem is said in the message, and the stream goes on.
    StreamProblem {
        #[prost(string, tag = "1")] error_message: String,
        #[prost(message, optional, tag = "2")] infer_response: Option<InferResponse>,
    }
    ModelConfigResponse { #[prost(message, optional, tag = "1")] config: Option<ModelConfig>, }
    ModelConfig {
        #[prost(string, tag = "1")] name: String,
        #[prost(string, tag = "2")] platform: String,
        #[prost(int32, tag = "4")] max_batch_size: i32,
        #[prost(message, repeated, tag = "5")] input: Vec<ModelInput>,
        #[prost(message, repeated, tag = "6")] output: Vec<ModelOutput>,
        #[prost(message, optional, tag = "11")] dynamic_batching: Option<Empty>,
        #[prost(string, tag = "17")] backend: String,
    }
    ModelInput {
        #[prost(string, tag = "1")] name: String,
        #[prost(int32, tag = "2")] data_type: i32,
        #[prost(int64, repeated, tag = "4")] dims: Vec<i64>,
    }
    ModelOutput {
        #[prost(string, tag = "1")] name: String,
        #[prost(int32, tag = "2")] data_type: i32,
        #[prost(int64, repeated, tag = "3")] dims: Vec<i64>,
    }
    Statistics { #[prost(message, repeated, tag = "1")] model_stats: Vec<ModelStatistics>, }
    ModelStatistics {
        #[prost(string, tag = "1")] name: String,
        #[prost(string, tag = "2")] version: String,
        #[prost(uint64, tag = "4")] inference_count: u64,
        #[prost(uint64, tag = "5")] execution_count: u64,
        #[prost(message, optional, tag = "6")] inference_stats: Option<InferStatistics>,
    }
    InferStatistics {
        #[prost(message, optional, tag = "1")] success: Option<Spent>,
        #[prost(message, optional, tag = "2")] fail: Option<Spent>,
        #[prost(message, optional, tag = "3")] queue: Option<Spent>,
        #[prost(message, optional, tag = "4")] compute_input: Option<Spent>,
        #[prost(message, optional, tag = "5")] compute_infer: Option<Spent>,
        #[prost(message, optional, tag = "6")] compute_output: Option<Spent>,
        #[prost(message, optional, tag = "7")] cache_hit: Option<Spent>,
        #[prost(message, optional, tag = "8")] cache_miss: Option<Spent>,
    }
    Spent {
        #[prost(uint64, tag = "1")] count: u64,
        #[prost(uint64, tag = "2")] ns: u64,
    }
    /// The request to register shared memory, and what is said of it.
    Region {
        #[prost(string, tag = "1")] name: String,
        #[prost(string, tag = "2")] key: String,
        #[prost(uint64, tag = "3")] offset: u64,
        #[prost(uint64, tag = "4")] byte_size: u64,
    }
    /// The request about one of them, or, without a name, all.
    RegionName { #[prost(string, tag = "1")] name: String, }
    Regions { #[prost(map = "string, message", tag = "1")] regions: HashMap<String, Region>, }
    Index { #[prost(message, repeated, tag = "1")] models: Vec<ModelIndex>, }
    ModelIndex {
        #[prost(string, tag = "1")] name: String,
        #[prost(string, tag = "2")] version: String,
        #[prost(string, tag = "3")] state: String,
        #[prost(string, tag = "4")] reason: String,
    }
}

/// A parameter's value.
#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Choice {
    #[prost(bool, tag = "1")]
    Bool(bool),
    #[prost(int64, tag = "2")]
    Int64(i64),
    #[prost(string, tag = "3")]
    Text(String),
    #[prost(double, tag = "4")]
    Double(f64),
    #[prost(uint64, tag = "5")]
    Uint64(u64),
}
