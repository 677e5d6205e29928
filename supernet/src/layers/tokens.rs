//! Layers over the features of tokens, or of whole inputs.

use super::{Stream, refused, shaped};
use crate::Problem;
use crate::checkpoint::{Extent, Layer};
use crate::graph::Graph;
use crate::proto::Attribute;
use crate::size::Size;

const TOKENS: &str = "[tokens, features]";

fn features(input: &Stream) -> Size {
    input.shape.last().expect("a layer's output has a dimension").clone()
}

pub(super) fn linear(
    graph: &mut Graph<'_>,
    input: &Stream,
    name: &str,
    out: &Size,
) -> Result<Stream, Problem> {
    let value = product(graph, &input.value, name, &features(input), out)?;
    let mut shape = input.shape.clone();
    *shape.last_mut().expect("a layer's output has a dimension") = out.clone();
    Ok(Stream { value, shape, is_tokens: false })
}

/// x · Wᵀ + b, the bias if there is one. Weights lie as [out, in].
pub(super) fn product(
    graph: &mut Graph<'_>,
    value: &str,
    name: &str,
    features: &Size,
    out: &Size,
) -> Result<String, Problem> {
    let weight = graph.transposed(&format!("{name}.weight"), &[out.clone(), features.clone()])?;
    let product = graph.node("MatMul", &[value, &weight], &[]);
    let bias = format!("{name}.bias");
    if !graph.has(&bias) {
        return Ok(product);
    }
    let bias = graph.weight(&bias, std::slice::from_ref(out))?;
    Ok(graph.node("Add", &[&product, &bias], &[]))
}

pub(super) fn layer_norm(
    graph: &mut Graph<'_>,
    input: &Stream,
    name: &str,
    epsilon: f32,
) -> Result<Stream, Problem> {
    let size = [features(input)];
    let weight = graph.weight(&format!("{name}.weight"), &size)?;
    let bias = graph.weight(&format!("{name}.bias"), &size)?;
    let attributes = [Attribute::int("axis", -1), Attribute::float("epsilon", epsilon)];
    let value = graph.node("LayerNormalization", &[&input.value, &weight, &bias], &attributes);
    Ok(Stream { value, ..input.clone() })
}

pub(super) fn embedding(
    graph: &mut Graph<'_>,
    input: &Stream,
    layer: &Layer,
    name: &str,
    out: &Extent,
) -> Result<Stream, Problem> {
    let weight = format!("{name}.weight");
    let [words, _] = *graph.shape_of(&weight)? else {
        return Err(refused(layer, format!("`{weight}` is no [words, features]"), "store it so"));
    };
    let out = Size::of(out);
    let weight = graph.weight(&weight, &[Size::fixed(words), out.clone()])?;
    let value = graph.node("Gather", &[&weight, &input.value], &[Attribute::int("axis", 0)]);
    let shape = [&input.shape[..], &[out]].concat();
    Ok(Stream { value, shape, is_tokens: false })
}

pub(super) fn position(
    graph: &mut Graph<'_>,
    input: &Stream,
    layer: &Layer,
    name: &str,
) -> Result<Stream, Problem> {
    if input.shape.len() != 2 {
        return Err(shaped(layer, input, TOKENS));
    }
    let weight = graph.weight(&format!("{name}.weight"), &input.shape)?;
    let value = graph.node("Add", &[&input.value, &weight], &[]);
    Ok(Stream { value, ..input.clone() })
}

pub(super) fn mean(
    graph: &mut Graph<'_>,
    input: &Stream,
    layer: &Layer,
) -> Result<Stream, Problem> {
    if input.shape.len() != 2 {
        return Err(shaped(layer, input, TOKENS));
    }
    let axes = [Attribute::ints("axes", &[1]), Attribute::int("keepdims", 0)];
    let value = graph.node("ReduceMean", &[&input.value], &axes);
    Ok(Stream { value, shape: input.shape[1..].to_vec(), is_tokens: false })
}

/// x · (1 + erf(x / √2)) / 2, the nodes that ONNX Runtime replaces by one.
pub(super) fn gelu(graph: &mut Graph<'_>, input: &Stream) -> Stream {
    let [root, one, half] = [std::f32::consts::SQRT_2, 1.0, 0.5].map(|value| graph.number(value));
    let scaled = graph.node("Div", &[&input.value, &root], &[]);
    let error = graph.node("Erf", &[&scaled], &[]);
    let raised = graph.node("Add", &[&error, &one], &[]);
    let product = graph.node("Mul", &[&input.value, &raised], &[]);
    let value = graph.node("Mul", &[&product, &half], &[]);
    Stream { value, ..input.clone() }
}
