//! Layers as ONNX nodes.

mod attention;
mod block;
mod image;
mod tokens;

use crate::Problem;
use crate::checkpoint::Layer;
use crate::graph::Graph;
use crate::size::{Size, shape_text};

/// What goes from one layer to the next.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Stream {
    /// Its name in the graph.
    pub(crate) value: String,
    /// Its extents without the batch: channels, rows, columns; or tokens, features; or features.
    pub(crate) shape: Vec<Size>,
    /// It holds places in a vocabulary.
    pub(crate) is_tokens: bool,
}

/// Adds the layers one behind the other.
pub(crate) fn all(
    graph: &mut Graph<'_>,
    input: Stream,
    layers: &[Layer],
) -> Result<Stream, Problem> {
    layers.iter().try_fold(input, |stream, layer| one(graph, stream, layer))
}

fn one(graph: &mut Graph<'_>, input: Stream, layer: &Layer) -> Result<Stream, Problem> {
    if input.is_tokens != matches!(layer, Layer::Embedding { .. }) {
        let what = "an embedding takes integers, and every other layer numbers";
        return Err(refused(layer, what, "correct the input's element, or the order of layers"));
    }
    match layer {
        Layer::Conv { .. } => image::conv(graph, &input, layer),
        Layer::BatchNorm { name, epsilon } => image::batch_norm(graph, &input, name, *epsilon),
        Layer::MaxPool { kernel, stride } => {
            image::pool(graph, &input, layer, "MaxPool", [*kernel, *stride])
        }
        Layer::AveragePool { kernel, stride } => {
            image::pool(graph, &input, layer, "AveragePool", [*kernel, *stride])
        }
        Layer::GlobalAveragePool {} => image::global_average_pool(graph, &input, layer),
        Layer::Flatten {} => image::flatten(graph, &input, layer),
        Layer::LayerNorm { name, epsilon } => tokens::layer_norm(graph, &input, name, *epsilon),
        Layer::Linear { name, out } => tokens::linear(graph, &input, name, &Size::of(out)),
        Layer::Embedding { name, out } => tokens::embedding(graph, &input, layer, name, out),
        Layer::Position { name } => tokens::position(graph, &input, layer, name),
        Layer::MeanOfTokens {} => tokens::mean(graph, &input, layer),
        Layer::Attention { .. } => attention::attention(graph, &input, layer),
        Layer::Relu {} => Ok(elementwise(graph, input, "Relu")),
        Layer::Tanh {} => Ok(elementwise(graph, input, "Tanh")),
        Layer::Gelu {} => Ok(tokens::gelu(graph, &input)),
        Layer::Block { .. } => block::block(graph, &input, layer),
    }
}

fn elementwise(graph: &mut Graph<'_>, input: Stream, op: &str) -> Stream {
    let value = graph.node(op, &[&input.value], &[]);
    Stream { value, ..input }
}

fn refused(layer: &Layer, what: impl Into<String>, fix: &str) -> Problem {
    Problem::new(format!("layer `{}`", layer.called()), what, fix)
}

/// The layer needs another shape.
fn shaped(layer: &Layer, input: &Stream, wanted: &str) -> Problem {
    let what = format!("takes {wanted}, and {} comes in", shape_text(&input.shape));
    refused(layer, what, "correct the layers before it")
}
