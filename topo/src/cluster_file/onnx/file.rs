//! What an ONNX file says of its inputs and outputs. The weights are skipped.
//!
//! Field numbers and element types are those of `onnx.proto3`.

use std::collections::BTreeSet;
use std::path::Path;

use prost::{Message, Oneof};

use crate::signature::ElementType;

/// What exporters write for any length: dimensions that are called that need not be as long as each other.
const NO_NAMES: [&str; 2] = ["", "?"];
/// Protocol Buffers allow no more in one message.
const FILE_BYTES_MAX: u64 = 2 << 30;

#[derive(Clone, PartialEq, Message)]
struct ModelProto {
    #[prost(message, optional, tag = "7")]
    graph: Option<GraphProto>,
    #[prost(message, repeated, tag = "14")]
    metadata_props: Vec<Entry>,
}

#[derive(Clone, PartialEq, Message)]
struct GraphProto {
    #[prost(message, repeated, tag = "5")]
    initializer: Vec<Initializer>,
    #[prost(message, repeated, tag = "11")]
    input: Vec<ValueInfo>,
    #[prost(message, repeated, tag = "12")]
    output: Vec<ValueInfo>,
}

/// A weight, of which is read what it is called and which other file has its bytes.
#[derive(Clone, PartialEq, Message)]
struct Initializer {
    #[prost(string, tag = "8")]
    name: String,
    #[prost(message, repeated, tag = "13")]
    external_data: Vec<Entry>,
}

#[derive(Clone, PartialEq, Message)]
struct Entry {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(string, tag = "2")]
    value: String,
}

#[derive(Clone, PartialEq, Message)]
struct ValueInfo {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(message, optional, tag = "2")]
    r#type: Option<TypeProto>,
}

#[derive(Clone, PartialEq, Message)]
struct TypeProto {
    #[prost(message, optional, tag = "1")]
    tensor: Option<TensorType>,
}

#[derive(Clone, PartialEq, Message)]
struct TensorType {
    #[prost(int32, tag = "1")]
    element: i32,
    #[prost(message, optional, tag = "2")]
    shape: Option<Shape>,
}

#[derive(Clone, PartialEq, Message)]
struct Shape {
    #[prost(message, repeated, tag = "1")]
    dim: Vec<Dimension>,
}

#[derive(Clone, PartialEq, Message)]
struct Dimension {
    #[prost(oneof = "Length", tags = "1, 2")]
    length: Option<Length>,
}

#[derive(Clone, PartialEq, Oneof)]
enum Length {
    #[prost(int64, tag = "1")]
    Value(i64),
    #[prost(string, tag = "2")]
    Symbol(String),
}

/// A dimension as the file has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Dim {
    /// This long.
    Fixed(u32),
    /// As long as the task says. Without a name in the file it is called by its place: `ids.1`.
    Symbol(String),
}

impl Dim {
    pub(super) fn symbol(&self) -> Option<&str> {
        match self {
            Self::Symbol(name) => Some(name),
            Self::Fixed(_) => None,
        }
    }
}

/// A tensor as the file has it, batch dimension included.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Tensor {
    pub(super) name: String,
    pub(super) element: ElementType,
    pub(super) dims: Vec<Dim>,
    /// Which dimension is the batch; `None`: it has none.
    pub(super) batch_axis: Option<usize>,
}

impl Tensor {
    /// The dimensions of one row, each with its place in the tensor.
    pub(super) fn row_dims(&self) -> impl Iterator<Item = (usize, &Dim)> {
        self.dims.iter().enumerate().filter(|&(axis, _)| Some(axis) != self.batch_axis)
    }
}

/// What a file takes and gives.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(super) struct OnnxFile {
    pub(super) inputs: Vec<Tensor>,
    pub(super) outputs: Vec<Tensor>,
    /// Outputs that cannot be served, such as sequences, and why not.
    pub(super) unserved: Vec<(String, String)>,
    /// Files beside it that have weights of it, each once.
    pub(super) others: BTreeSet<String>,
    /// The variants that its input selects, where the file says them; else empty.
    pub(super) variants: Vec<Named>,
}

/// Reads a file's content.
///
/// # Errors
/// What is wrong with it, in words.
pub(super) fn content(path: &Path) -> Result<Vec<u8>, String> {
    let bytes = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    if bytes > FILE_BYTES_MAX {
        return Err("it is larger than 2 GiB, so it is no ONNX file".to_owned());
    }
    std::fs::read(path).map_err(|error| error.to_string())
}

/// What a file with this content takes and gives.
///
/// # Errors
/// What is wrong with it, in words.
pub(super) fn parse(bytes: &[u8]) -> Result<OnnxFile, String> {
    let model = ModelProto::decode(bytes).map_err(|_| "it is not an ONNX file".to_owned())?;
    let graph = model.graph.ok_or("it is not an ONNX file: it has no graph")?;
    let is_weight = |value: &&ValueInfo| graph.initializer.iter().any(|w| w.name == value.name);
    let inputs = graph.input.iter().filter(|value| !is_weight(value));
    let inputs = inputs.map(tensor).collect::<Result<_, _>>()?;
    let (mut outputs, mut unserved) = (Vec::new(), Vec::new());
    for value in &graph.output {
        match tensor(value) {
            Ok(tensor) => outputs.push(tensor),
            Err(why) => unserved.push((value.name.clone(), why)),
        }
    }
    let variants = variants(&model.metadata_props);
    Ok(OnnxFile { inputs, outputs, unserved, others: others(&graph.initializer), variants })
}

/// A variant as `baton supernet export` writes it down.
#[derive(Clone, PartialEq, Eq, Debug, serde::Deserialize)]
pub(super) struct Named {
    pub(super) name: String,
    /// In per cent, as it is written.
    pub(super) accuracy: serde_json::Number,
}

fn variants(entries: &[Entry]) -> Vec<Named> {
    let entry = entries.iter().find(|entry| entry.key == "baton.variants");
    let named = entry.and_then(|entry| serde_json::from_str::<Vec<Named>>(&entry.value).ok());
    named.unwrap_or_default()
}

fn others(weights: &[Initializer]) -> BTreeSet<String> {
    let entries = weights.iter().flat_map(|weight| &weight.external_data);
    entries.filter(|entry| entry.key == "location").map(|entry| entry.value.clone()).collect()
}

/// Whether these bytes are a model with all its weights: a session can be made from them without a file.
pub fn is_whole_model(bytes: &[u8]) -> bool {
    parse(bytes).is_ok_and(|file| file.others.is_empty())
}

fn tensor(value: &ValueInfo) -> Result<Tensor, String> {
    let name = &value.name;
    let tensor = value.r#type.as_ref().and_then(|of| of.tensor.as_ref());
    let tensor = tensor.ok_or_else(|| format!("`{name}` is not a tensor"))?;
    let element = element(tensor.element)
        .ok_or_else(|| format!("`{name}` has elements of type {}", type_name(tensor.element)))?;
    let shape = tensor.shape.as_ref().ok_or_else(|| format!("`{name}` has no shape"))?;
    let dims = shape.dim.iter().enumerate().map(|(axis, dim)| dimension(name, axis, dim));
    let dims = dims.collect::<Result<_, _>>()?;
    Ok(Tensor { name: name.clone(), element, dims, batch_axis: Some(0) })
}

fn dimension(tensor: &str, axis: usize, dim: &Dimension) -> Result<Dim, String> {
    match &dim.length {
        Some(Length::Value(value)) => match u32::try_from(*value) {
            Ok(value) => Ok(Dim::Fixed(value)),
            Err(_) if *value < 0 => Ok(Dim::Symbol(format!("{tensor}.{axis}"))),
            Err(_) => Err(format!("`{tensor}` is {value} long in dimension {axis}")),
        },
        Some(Length::Symbol(symbol)) if !NO_NAMES.contains(&symbol.as_str()) => {
            Ok(Dim::Symbol(symbol.clone()))
        }
        _ => Ok(Dim::Symbol(format!("{tensor}.{axis}"))),
    }
}

fn element(code: i32) -> Option<ElementType> {
    Some(match code {
        1 => ElementType::F32,
        2 => ElementType::U8,
        3 => ElementType::I8,
        4 => ElementType::U16,
        5 => ElementType::I16,
        6 => ElementType::I32,
        7 => ElementType::I64,
        9 => ElementType::Bool,
        10 => ElementType::F16,
        11 => ElementType::F64,
        12 => ElementType::U32,
        13 => ElementType::U64,
        16 => ElementType::Bf16,
        _ => return None,
    })
}

fn type_name(code: i32) -> String {
    match code {
        8 => "string, which do not travel".to_owned(),
        14 | 15 => "complex, which are not served".to_owned(),
        other => format!("number {other}, which is not known"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(name: &str, element: i32, dims: Vec<Option<Length>>) -> ValueInfo {
        let dim = dims.into_iter().map(|length| Dimension { length }).collect();
        let tensor = Some(TensorType { element, shape: Some(Shape { dim }) });
        ValueInfo { name: name.into(), r#type: Some(TypeProto { tensor }) }
    }

    fn file(input: Vec<ValueInfo>, weights: &[&str]) -> Vec<u8> {
        let weight = |&name: &&str| Initializer { name: name.into(), external_data: vec![] };
        let initializer = weights.iter().map(weight).collect();
        let output = vec![value("y", 1, vec![Some(Length::Value(-1))])];
        let graph = GraphProto { initializer, input, output };
        ModelProto { graph: Some(graph), metadata_props: Vec::new() }.encode_to_vec()
    }

    #[test]
    fn inputs_are_read_without_the_weights() {
        let symbol = |name: &str| Some(Length::Symbol(name.into()));
        let ids = vec![symbol("batch"), symbol("seq"), None, symbol("?"), symbol("?")];
        let ids = value("ids", 7, ids);
        let weight = value("w", 1, vec![Some(Length::Value(3))]);
        let read = parse(&file(vec![ids, weight], &["w"])).unwrap();
        let dims = ["batch", "seq", "ids.2", "ids.3", "ids.4"]
            .map(|name| Dim::Symbol(name.into()))
            .to_vec();
        let (name, element, batch_axis) = ("ids".into(), ElementType::I64, Some(0));
        assert_eq!(read.inputs, [Tensor { name, element, dims, batch_axis }]);
        assert_eq!(read.outputs[0].dims, [Dim::Symbol("y.0".into())]);
    }

    #[test]
    fn weights_in_other_files_are_noticed() {
        let at = |key: &str, value: &str| Entry { key: key.into(), value: value.into() };
        let weight = |name: &str, external_data| Initializer { name: name.into(), external_data };
        let initializer = vec![
            weight("a", vec![at("location", "m.data"), at("offset", "0")]),
            weight("b", vec![at("location", "m.data"), at("offset", "64")]),
            weight("c", vec![]),
        ];
        let output = vec![value("y", 1, vec![None])];
        let graph = GraphProto { initializer, input: vec![], output };
        let bytes = ModelProto { graph: Some(graph), metadata_props: Vec::new() }.encode_to_vec();
        assert_eq!(parse(&bytes).unwrap().others, BTreeSet::from(["m.data".to_owned()]));
        assert!(!is_whole_model(&bytes) && is_whole_model(&file(vec![], &["w"])));
    }

    #[test]
    fn what_cannot_be_served_is_said() {
        let said = |bytes: &[u8]| parse(bytes).unwrap_err();
        assert!(said(b"not one").contains("not an ONNX file"));
        assert!(said(&[]).contains("no graph"));
        let words = value("words", 8, vec![None]);
        assert!(said(&file(vec![words], &[])).contains("`words` has elements of type string"));
        let list = ValueInfo { name: "list".into(), r#type: Some(TypeProto { tensor: None }) };
        assert!(said(&file(vec![list.clone()], &[])).contains("`list` is not a tensor"));
        let output = vec![list, value("y", 1, vec![])];
        let graph = GraphProto { output, ..GraphProto::default() };
        let model = ModelProto { graph: Some(graph), ..ModelProto::default() };
        let read = parse(&model.encode_to_vec()).unwrap();
        assert_eq!(read.outputs.iter().map(|output| &*output.name).collect::<Vec<_>>(), ["y"]);
        assert_eq!(read.unserved, [("list".to_owned(), "`list` is not a tensor".to_owned())]);
    }

    #[test]
    fn the_digits_are_read() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/digits/digits.onnx");
        let OnnxFile { inputs, outputs, .. } = parse(&content(&path).unwrap()).unwrap();
        let batch = Dim::Symbol("batch".into());
        assert_eq!(inputs[0].dims[0], batch);
        assert_eq!(inputs[0].dims[1..], [1, 8, 8].map(Dim::Fixed));
        assert_eq!(
            (&*outputs[0].name, &outputs[0].dims[..]),
            ("logits", &[batch, Dim::Fixed(10)][..])
        );
    }
}
