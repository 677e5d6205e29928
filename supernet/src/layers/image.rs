//! Layers over channels, rows and columns.

use super::{Stream, refused, shaped};
use crate::Problem;
use crate::checkpoint::Layer;
use crate::graph::Graph;
use crate::proto::{Attribute, integer};
use crate::size::Size;

const IMAGE: &str = "[channels, rows, columns]";

/// The channels and the two fixed extents.
fn image(layer: &Layer, input: &Stream) -> Result<(Size, [usize; 2]), Problem> {
    match &input.shape[..] {
        [channels, rows, columns] if rows.dim.is_none() && columns.dim.is_none() => {
            Ok((channels.clone(), [rows.each, columns.each]))
        }
        _ => Err(shaped(layer, input, IMAGE)),
    }
}

/// The shape behind a window that moves over rows and columns.
fn moved(
    layer: &Layer,
    channels: Size,
    sides: [usize; 2],
    kernel: [usize; 2],
    [stride, padding]: [usize; 2],
) -> Result<Vec<Size>, Problem> {
    let mut shape = vec![channels];
    for (side, kernel) in sides.into_iter().zip(kernel) {
        let Some(rest) = (side + 2 * padding).checked_sub(kernel) else {
            let what = format!("its window of {kernel} is longer than the {side} that come in");
            return Err(refused(layer, what, "make it smaller, or pad"));
        };
        shape.push(Size::fixed(rest / stride + 1));
    }
    Ok(shape)
}

fn pair(name: &str, value: usize) -> Attribute {
    Attribute::ints(name, &[integer(value); 2])
}

pub(super) fn conv(
    graph: &mut Graph<'_>,
    input: &Stream,
    layer: &Layer,
) -> Result<Stream, Problem> {
    let Layer::Conv { name, out, stride, padding } = layer else { unreachable!("a convolution") };
    let (channels, sides) = image(layer, input)?;
    let weight = format!("{name}.weight");
    let [_, _, rows, columns] = *graph.shape_of(&weight)? else {
        let what = format!("`{weight}` is no [out, in, rows, columns]");
        return Err(refused(layer, what, "store it so"));
    };
    let out = Size::of(out);
    let weight =
        graph.weight(&weight, &[out.clone(), channels, Size::fixed(rows), Size::fixed(columns)])?;
    let mut inputs = vec![input.value.as_str(), &weight];
    let bias = format!("{name}.bias");
    let bias = if graph.has(&bias) {
        Some(graph.weight(&bias, std::slice::from_ref(&out))?)
    } else {
        None
    };
    inputs.extend(bias.as_deref());
    let shape = moved(layer, out, sides, [rows, columns], [*stride, *padding])?;
    let kernel = Attribute::ints("kernel_shape", &[integer(rows), integer(columns)]);
    let pads = Attribute::ints("pads", &[integer(*padding); 4]);
    let value = graph.node("Conv", &inputs, &[kernel, pads, pair("strides", *stride)]);
    Ok(Stream { value, shape, is_tokens: false })
}

pub(super) fn batch_norm(
    graph: &mut Graph<'_>,
    input: &Stream,
    name: &str,
    epsilon: f32,
) -> Result<Stream, Problem> {
    let channels = &input.shape[0];
    let size = std::slice::from_ref(channels);
    let weight = graph.weight(&format!("{name}.weight"), size)?;
    let bias = graph.weight(&format!("{name}.bias"), size)?;
    let mean = graph.statistic(&format!("{name}.mean"), channels)?;
    let variance = format!("{name}.variance");
    graph.refuse_negative(&variance)?;
    let variance = graph.statistic(&variance, channels)?;
    let inputs = [input.value.as_str(), &weight, &bias, &mean, &variance];
    let epsilon = [Attribute::float("epsilon", epsilon)];
    let value = graph.node("BatchNormalization", &inputs, &epsilon);
    Ok(Stream { value, ..input.clone() })
}

pub(super) fn pool(
    graph: &mut Graph<'_>,
    input: &Stream,
    layer: &Layer,
    op: &str,
    [kernel, stride]: [usize; 2],
) -> Result<Stream, Problem> {
    let (channels, sides) = image(layer, input)?;
    let shape = moved(layer, channels, sides, [kernel; 2], [stride, 0])?;
    let attributes = [pair("kernel_shape", kernel), pair("strides", stride)];
    let value = graph.node(op, &[&input.value], &attributes);
    Ok(Stream { value, shape, is_tokens: false })
}

pub(super) fn global_average_pool(
    graph: &mut Graph<'_>,
    input: &Stream,
    layer: &Layer,
) -> Result<Stream, Problem> {
    let (channels, _) = image(layer, input)?;
    let axes = [Attribute::ints("axes", &[2, 3]), Attribute::int("keepdims", 0)];
    let value = graph.node("ReduceMean", &[&input.value], &axes);
    Ok(Stream { value, shape: vec![channels], is_tokens: false })
}

/// Where the first extent is the variant's, the rest lies behind each of it: the part that a variant uses comes first.
pub(super) fn flatten(
    graph: &mut Graph<'_>,
    input: &Stream,
    layer: &Layer,
) -> Result<Stream, Problem> {
    let Some((first, rest)) = input.shape.split_first() else {
        return Err(shaped(layer, input, "at least one dimension"));
    };
    if rest.iter().any(|size| size.dim.is_some()) {
        return Err(shaped(layer, input, "dimensions of which only the first is elastic"));
    }
    let shape = vec![first.times(rest.iter().map(|size| size.each).product())];
    let value = graph.node("Flatten", &[&input.value], &[Attribute::int("axis", 1)]);
    Ok(Stream { value, shape, is_tokens: false })
}
