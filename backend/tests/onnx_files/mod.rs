//! Small ONNX files, written by hand: just enough of the format for a few element-wise nodes.

/// `TensorProto.FLOAT`
pub(crate) const FLOAT: u64 = 1;
/// `TensorProto.INT64`
pub(crate) const INT64: u64 = 7;
/// `TensorProto.STRING`
pub(crate) const STRING: u64 = 8;
/// `TensorProto.BOOL`
pub(crate) const BOOL: u64 = 9;
/// `TensorProto.FLOAT16`
pub(crate) const FLOAT16: u64 = 10;

/// One dimension of a tensor.
#[derive(Clone, Copy)]
pub(crate) enum Dim {
    Dynamic,
    Named(&'static str),
    Fixed(u64),
}

/// A named input or output: name, element type, shape.
pub(crate) type Value<'a> = (&'a str, u64, &'a [Dim]);

/// A model of `nodes` (operator, inputs with commas between them, output).
pub(crate) fn model_file(
    nodes: &[(&str, &str, &str)],
    inputs: &[Value<'_>],
    outputs: &[Value<'_>],
) -> Vec<u8> {
    let mut graph = Vec::new();
    for (operator, inputs, output) in nodes {
        let inputs: Vec<u8> = inputs.split(',').flat_map(|input| text(1, input)).collect();
        let node = [inputs, text(2, output), text(4, operator)].concat();
        graph.extend(nested(1, &node));
    }
    graph.extend(text(2, "test"));
    inputs.iter().for_each(|value| graph.extend(nested(11, &value_info(value))));
    outputs.iter().for_each(|value| graph.extend(nested(12, &value_info(value))));
    let (ir_version, opset) = (number(1, 8), nested(8, &number(2, 17)));
    [ir_version, nested(7, &graph), opset].concat()
}

/// A supernet of two rows in, two out: each element times the number of the variant, which the input `variant` of this shape
/// gives.
pub(crate) fn supernet_file(control: &[Dim]) -> Vec<u8> {
    let to_float = [text(1, "to"), number(3, FLOAT), number(20, 2)].concat();
    let cast =
        [text(1, "variant"), text(2, "times"), text(4, "Cast"), nested(5, &to_float)].concat();
    let multiply = [text(1, "x"), text(1, "times"), text(2, "y"), text(4, "Mul")].concat();
    let row = [Dim::Dynamic, Dim::Fixed(2)];
    let graph = [
        nested(1, &cast),
        nested(1, &multiply),
        text(2, "test"),
        nested(11, &value_info(&("x", FLOAT, &row))),
        nested(11, &value_info(&("variant", INT64, control))),
        nested(12, &value_info(&("y", FLOAT, &row))),
    ];
    [number(1, 8), nested(7, &graph.concat()), nested(8, &number(2, 17))].concat()
}

fn value_info(&(name, element, shape): &Value<'_>) -> Vec<u8> {
    let dims: Vec<u8> = shape
        .iter()
        .flat_map(|dim| match dim {
            Dim::Fixed(size) => nested(1, &number(1, *size)),
            Dim::Dynamic => nested(1, &text(2, "batch")),
            Dim::Named(name) => nested(1, &text(2, name)),
        })
        .collect();
    let tensor = [number(1, element), nested(2, &dims)].concat();
    [text(1, name), nested(2, &nested(1, &tensor))].concat()
}

fn number(field: u64, value: u64) -> Vec<u8> {
    [varint(field << 3), varint(value)].concat()
}

fn text(field: u64, value: &str) -> Vec<u8> {
    nested(field, value.as_bytes())
}

fn nested(field: u64, bytes: &[u8]) -> Vec<u8> {
    [varint((field << 3) | 2), varint(bytes.len() as u64), bytes.to_vec()].concat()
}

fn varint(mut value: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    while value >= 0x80 {
        bytes.push((value as u8) | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
    bytes
}
