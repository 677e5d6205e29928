//! Blocks: what is added to what comes in, and what a variant may leave out.

use super::{Stream, all, refused};
use crate::Problem;
use crate::checkpoint::Layer;
use crate::export::branches;
use crate::graph::Graph;
use crate::size::shape_text;

pub(super) fn block(
    graph: &mut Graph<'_>,
    input: &Stream,
    layer: &Layer,
) -> Result<Stream, Problem> {
    let Layer::Block { name, .. } = layer else { unreachable!("a block") };
    let executed = graph.executed(name);
    if executed.iter().all(|&executed| executed) {
        return layers(graph, input, layer);
    }
    graph.enter();
    let out = layers(graph, input, layer)?;
    if out.shape != input.shape {
        let [comes, goes] = [input, &out].map(|stream| shape_text(&stream.shape));
        let what = format!("{comes} comes in and {goes} goes out, so it cannot be skipped");
        return Err(refused(layer, what, "give it the same shape, or let no variant skip it"));
    }
    let then = graph.leave(&out.value, &out.shape);
    // Nothing is left of a block that no variant executes, or whose blocks no variant executes.
    if !executed.contains(&true) || out.value == input.value {
        return Ok(input.clone());
    }
    graph.enter();
    let same = graph.node("Identity", &[&input.value], &[]);
    let otherwise = graph.leave(&same, &input.shape);
    let condition = graph.condition(name, &executed);
    let value = graph.node("If", &[&condition], &branches(then, otherwise));
    Ok(Stream { value, ..input.clone() })
}

/// The block's layers, and what is added to them.
fn layers(graph: &mut Graph<'_>, input: &Stream, block: &Layer) -> Result<Stream, Problem> {
    let Layer::Block { residual, layer, shortcut, .. } = block else { unreachable!("a block") };
    let out = all(graph, input.clone(), layer)?;
    if !residual {
        return Ok(out);
    }
    let other = all(graph, input.clone(), shortcut)?;
    if other.shape != out.shape {
        let [other, out] = [&other, &out].map(|stream| shape_text(&stream.shape));
        let what = format!("its layers give {out}, to which {other} cannot be added");
        return Err(refused(block, what, "correct `out` of its layers, or give it a shortcut"));
    }
    let value = graph.node("Add", &[&out.value, &other.value], &[]);
    Ok(Stream { value, ..out })
}
