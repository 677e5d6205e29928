//! What is written of the ONNX format. Field numbers and codes are those of `onnx.proto3`.

use prost::Message;

/// A length as the format writes it.
pub(crate) fn integer(length: usize) -> i64 {
    i64::try_from(length).expect("lengths are at most 2^20, and lists shorter")
}

/// `TensorProto.FLOAT`
pub(crate) const FLOAT: i32 = 1;
/// `TensorProto.INT64`
pub(crate) const INT64: i32 = 7;
/// `TensorProto.BOOL`
pub(crate) const BOOL: i32 = 9;

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ModelProto {
    #[prost(int64, tag = "1")]
    pub(crate) ir_version: i64,
    #[prost(string, tag = "2")]
    pub(crate) producer_name: String,
    #[prost(message, optional, tag = "7")]
    pub(crate) graph: Option<GraphProto>,
    #[prost(message, repeated, tag = "8")]
    pub(crate) opset_import: Vec<OperatorSet>,
    #[prost(message, repeated, tag = "14")]
    pub(crate) metadata_props: Vec<Entry>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct OperatorSet {
    #[prost(string, tag = "1")]
    pub(crate) domain: String,
    #[prost(int64, tag = "2")]
    pub(crate) version: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Entry {
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    #[prost(string, tag = "2")]
    pub(crate) value: String,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct GraphProto {
    #[prost(message, repeated, tag = "1")]
    pub(crate) node: Vec<NodeProto>,
    #[prost(string, tag = "2")]
    pub(crate) name: String,
    #[prost(message, repeated, tag = "5")]
    pub(crate) initializer: Vec<TensorProto>,
    #[prost(message, repeated, tag = "11")]
    pub(crate) input: Vec<ValueInfo>,
    #[prost(message, repeated, tag = "12")]
    pub(crate) output: Vec<ValueInfo>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct NodeProto {
    #[prost(string, repeated, tag = "1")]
    pub(crate) input: Vec<String>,
    #[prost(string, repeated, tag = "2")]
    pub(crate) output: Vec<String>,
    #[prost(string, tag = "3")]
    pub(crate) name: String,
    #[prost(string, tag = "4")]
    pub(crate) op_type: String,
    #[prost(message, repeated, tag = "5")]
    pub(crate) attribute: Vec<Attribute>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Attribute {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(float, tag = "2")]
    f: f32,
    #[prost(int64, tag = "3")]
    i: i64,
    #[prost(message, optional, tag = "6")]
    g: Option<GraphProto>,
    #[prost(int64, repeated, tag = "8")]
    ints: Vec<i64>,
    #[prost(int32, tag = "20")]
    kind: i32,
}

impl Attribute {
    pub(crate) fn float(name: &str, f: f32) -> Self {
        Self { name: name.into(), f, kind: 1, ..Self::default() }
    }

    pub(crate) fn int(name: &str, i: i64) -> Self {
        Self { name: name.into(), i, kind: 2, ..Self::default() }
    }

    pub(crate) fn graph(name: &str, graph: GraphProto) -> Self {
        Self { name: name.into(), g: Some(graph), kind: 5, ..Self::default() }
    }

    /// The graph in it.
    pub(crate) fn inner(&self) -> Option<&GraphProto> {
        self.g.as_ref()
    }

    pub(crate) fn ints(name: &str, ints: &[i64]) -> Self {
        Self { name: name.into(), ints: ints.to_vec(), kind: 7, ..Self::default() }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorProto {
    #[prost(int64, repeated, tag = "1")]
    dims: Vec<i64>,
    #[prost(int32, tag = "2")]
    data_type: i32,
    #[prost(string, tag = "8")]
    name: String,
    #[prost(bytes = "vec", tag = "9")]
    raw_data: Vec<u8>,
}

impl TensorProto {
    pub(crate) fn floats(name: &str, shape: &[usize], data: &[f32]) -> Self {
        let raw = data.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self::new(name, FLOAT, shape, raw)
    }

    pub(crate) fn integers(name: &str, shape: &[usize], data: &[i64]) -> Self {
        let raw = data.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self::new(name, INT64, shape, raw)
    }

    pub(crate) fn booleans(name: &str, data: &[bool]) -> Self {
        Self::new(name, BOOL, &[data.len()], data.iter().map(|&value| value.into()).collect())
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    fn new(name: &str, data_type: i32, shape: &[usize], raw_data: Vec<u8>) -> Self {
        let dims = shape.iter().map(|&extent| integer(extent)).collect();
        Self { dims, data_type, name: name.to_owned(), raw_data }
    }
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct ValueInfo {
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
    #[prost(int64, optional, tag = "1")]
    value: Option<i64>,
    #[prost(string, optional, tag = "2")]
    symbol: Option<String>,
}

impl ValueInfo {
    /// A tensor with the batch first. `None`: the length depends on the variant.
    pub(crate) fn batched(name: &str, element: i32, extents: &[Option<usize>]) -> Self {
        let batch = Dimension { value: None, symbol: Some("batch".into()) };
        let of = |extent: &Option<usize>| Dimension { value: extent.map(integer), symbol: None };
        Self::new(name, element, [batch].into_iter().chain(extents.iter().map(of)).collect())
    }

    /// A tensor without dimensions.
    pub(crate) fn scalar(name: &str, element: i32) -> Self {
        Self::new(name, element, Vec::new())
    }

    fn new(name: &str, element: i32, dim: Vec<Dimension>) -> Self {
        let tensor = Some(TensorType { element, shape: Some(Shape { dim }) });
        Self { name: name.to_owned(), r#type: Some(TypeProto { tensor }) }
    }
}
