//! Attention of tokens to each other. A variant uses the first heads.

use super::tokens::product;
use super::{Stream, shaped};
use crate::Problem;
use crate::checkpoint::Layer;
use crate::graph::Graph;
use crate::proto::{Attribute, integer};
use crate::size::Size;

pub(super) fn attention(
    graph: &mut Graph<'_>,
    input: &Stream,
    layer: &Layer,
) -> Result<Stream, Problem> {
    let Layer::Attention { name, heads, head_size } = layer else { unreachable!("an attention") };
    let [_, features] = &input.shape[..] else {
        return Err(shaped(layer, input, "[tokens, features]"));
    };
    let inner = Size::of(heads).times(*head_size);
    let mut of = |part: &str, order: &[i64]| {
        let name = format!("{name}.{part}");
        let all = product(graph, &input.value, &name, features, &inner)?;
        Ok::<_, Problem>(split(graph, &all, *head_size, order))
    };
    let query = of("query", &[0, 2, 1, 3])?;
    let key = of("key", &[0, 2, 3, 1])?;
    let value = of("value", &[0, 2, 1, 3])?;
    let scores = graph.node("MatMul", &[&query, &key], &[]);
    let scale = graph.number(1.0 / (*head_size as f32).sqrt());
    let scaled = graph.node("Mul", &[&scores, &scale], &[]);
    let weights = graph.node("Softmax", &[&scaled], &[Attribute::int("axis", -1)]);
    let mixed = graph.node("MatMul", &[&weights, &value], &[]);
    let together = graph.node("Transpose", &[&mixed], &[Attribute::ints("perm", &[0, 2, 1, 3])]);
    let shape = graph.integers("control.together", &[0, 0, -1]);
    let together = graph.node("Reshape", &[&together, &shape], &[]);
    let value = product(graph, &together, &format!("{name}.out"), &inner, features)?;
    Ok(Stream { value, ..input.clone() })
}

/// [batch, tokens, heads · size] as [batch, tokens, heads, size], in another order.
fn split(graph: &mut Graph<'_>, value: &str, size: usize, order: &[i64]) -> String {
    let shape = graph.integers(&format!("control.heads.{size}"), &[0, 0, -1, integer(size)]);
    let heads = graph.node("Reshape", &[value, &shape], &[]);
    graph.node("Transpose", &[&heads], &[Attribute::ints("perm", order)])
}
