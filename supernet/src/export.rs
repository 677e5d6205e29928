//! From a checkpoint to ONNX files.

use prost::Message as _;

use crate::checkpoint::{Checkpoint, Element, VariantSpec};
use crate::graph::Graph;
use crate::layers::{self, Stream};
use crate::metadata::{self, NamedVariant};
use crate::proto::{self, Attribute, Entry, GraphProto, ModelProto, OperatorSet, ValueInfo};
use crate::size::{Size, shape_text};
use crate::{Problem, VARIANT_INPUT};

/// Every ONNX Runtime from 1.13 on reads these.
const OPSET: i64 = 17;
const IR_VERSION: i64 = 8;

/// What files to make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Form {
    /// One file of all variants, which share the weights; its input `variant` selects one.
    Super,
    /// A file for each variant.
    Static,
}

/// One file.
#[derive(Clone, PartialEq, Debug)]
pub struct Exported {
    /// The variants in it, in the order of the input `variant`; one where there is no such input.
    pub variants: Vec<NamedVariant>,
    /// The file.
    pub bytes: Vec<u8>,
}

/// Makes the files of the variants that are named, in the order of `only`; of all without names.
///
/// # Errors
/// The checkpoint contradicts itself, lacks a tensor, or has no variant of a name.
pub fn export(
    checkpoint: &Checkpoint,
    form: Form,
    only: &[String],
) -> Result<Vec<Exported>, Problem> {
    checkpoint.description.check()?;
    let chosen = chosen(checkpoint, only)?;
    match form {
        Form::Super if chosen.len() < 2 => Err(Problem::new(
            "[[variant]]",
            "a supernet's file has at least two variants",
            "name more, or make a file of the one: --static",
        )),
        Form::Super => Ok(vec![file(checkpoint, &chosen)?]),
        Form::Static => chosen.iter().map(|&one| file(checkpoint, &[one])).collect(),
    }
}

/// The places of the variants.
fn chosen(checkpoint: &Checkpoint, only: &[String]) -> Result<Vec<usize>, Problem> {
    let all = &checkpoint.description.variant;
    if only.is_empty() {
        return Ok((0..all.len()).collect());
    }
    let place = |(at, name): (usize, &String)| {
        let known: Vec<&str> = all.iter().map(|variant| variant.name.as_str()).collect();
        let missing = |what: &str| {
            Problem::new(
                format!("variant `{name}`"),
                what,
                format!("choose from {}", known.join(", ")),
            )
        };
        if only[..at].contains(name) {
            return Err(missing("is named twice"));
        }
        all.iter().position(|variant| variant.name == *name).ok_or_else(|| missing("is not there"))
    };
    only.iter().enumerate().map(place).collect()
}

fn file(checkpoint: &Checkpoint, chosen: &[usize]) -> Result<Exported, Problem> {
    let mut graph = Graph::new(checkpoint, chosen);
    let Checkpoint { description, .. } = checkpoint;
    let shape: Vec<Size> = description.input.shape.iter().map(|&n| Size::fixed(n)).collect();
    let element = match description.input.element {
        Element::F32 => proto::FLOAT,
        Element::I64 => proto::INT64,
    };
    let input =
        Stream { value: description.input.name.clone(), shape, is_tokens: element == proto::INT64 };
    let extents: Vec<_> = input.shape.iter().map(|size| graph.extent(size)).collect();
    let mut inputs = vec![ValueInfo::batched(&description.input.name, element, &extents)];
    let out = layers::all(&mut graph, input, &description.layer)?;
    let extents: Vec<_> = out.shape.iter().map(|size| graph.extent(size)).collect();
    if out.is_tokens || extents.contains(&None) {
        let what = format!("the last layer gives {}", shape_text(&out.shape));
        let fix = "end with a layer whose output is as long for every variant";
        return Err(Problem::new("[[layer]]", what, fix));
    }
    graph.named("Identity", &[&out.value], &description.output.name);
    let output = vec![ValueInfo::batched(&description.output.name, proto::FLOAT, &extents)];
    if chosen.len() > 1 {
        inputs.push(ValueInfo::scalar(VARIANT_INPUT, proto::INT64));
    }
    let (node, initializer) = graph.finish();
    let name = description.name.clone();
    let graph = GraphProto { node, name, initializer, input: inputs, output };
    let variants: Vec<NamedVariant> =
        chosen.iter().map(|&at| named(&description.variant[at])).collect();
    Ok(Exported { bytes: model(graph, &variants).encode_to_vec(), variants })
}

fn named(variant: &VariantSpec) -> NamedVariant {
    NamedVariant { name: variant.name.clone(), accuracy: variant.accuracy }
}

fn model(graph: GraphProto, variants: &[NamedVariant]) -> ModelProto {
    let value = serde_json::to_string(variants).expect("names and numbers are JSON");
    ModelProto {
        ir_version: IR_VERSION,
        producer_name: "baton-supernet".into(),
        graph: Some(graph),
        opset_import: vec![OperatorSet { domain: String::new(), version: OPSET }],
        metadata_props: vec![Entry { key: metadata::KEY.into(), value }],
    }
}

/// An attribute of a node that executes one of two graphs.
pub(crate) fn branches(then: GraphProto, otherwise: GraphProto) -> [Attribute; 2] {
    [Attribute::graph("then_branch", then), Attribute::graph("else_branch", otherwise)]
}
