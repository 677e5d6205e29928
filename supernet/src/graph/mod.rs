//! An ONNX graph in the making: nodes, weights, and what of them depends on the variant.

mod weights;

use std::collections::{BTreeMap, BTreeSet};

use crate::VARIANT_INPUT;
use crate::checkpoint::{Checkpoint, VariantSpec};
use crate::proto::{self, Attribute, GraphProto, NodeProto, TensorProto, ValueInfo};
use crate::size::Size;

/// `variant` with one dimension, as `Slice` wants its ends.
const VARIANT_ROW: &str = "control.variant";

/// Nodes and weights. Names of inputs and outputs have no dot, so those made here are their own.
pub(crate) struct Graph<'a> {
    checkpoint: &'a Checkpoint,
    /// The places of the variants in the checkpoint.
    chosen: &'a [usize],
    /// For each of them, the lengths of all dimensions.
    dims: Vec<BTreeMap<String, usize>>,
    initializers: Vec<TensorProto>,
    initialized: BTreeSet<String>,
    /// What depends on nothing but the variant: executed first, in the outermost graph.
    control: Vec<NodeProto>,
    controlled: BTreeSet<String>,
    /// The graph that nodes go to, behind those around it.
    scopes: Vec<Vec<NodeProto>>,
    /// How many nodes there are: makes names.
    count: usize,
}

impl<'a> Graph<'a> {
    pub(crate) fn new(checkpoint: &'a Checkpoint, chosen: &'a [usize]) -> Self {
        let description = &checkpoint.description;
        let dims = chosen.iter().map(|&at| description.dims_of(&description.variant[at]));
        let mut graph = Self {
            checkpoint,
            chosen,
            dims: dims.collect(),
            initializers: Vec::new(),
            initialized: BTreeSet::new(),
            control: Vec::new(),
            controlled: BTreeSet::new(),
            scopes: vec![Vec::new()],
            count: 0,
        };
        if chosen.len() > 1 {
            let one = graph.integers("control.one", &[1]);
            graph.control("Reshape", &[VARIANT_INPUT, &one], VARIANT_ROW, &[]);
        }
        graph
    }

    /// The nodes and weights of the outermost graph.
    pub(crate) fn finish(mut self) -> (Vec<NodeProto>, Vec<TensorProto>) {
        let last = self.scopes.pop().expect("the outermost graph stays");
        assert!(self.scopes.is_empty(), "each inner graph has been closed");
        self.control.extend(last);
        let mut used = BTreeSet::new();
        note_inputs(&self.control, &mut used);
        self.initializers.retain(|tensor| used.contains(tensor.name()));
        (self.control, self.initializers)
    }

    /// The length for each variant.
    fn lengths(&self, size: &Size) -> Vec<usize> {
        self.dims.iter().map(|dims| size.at(dims)).collect()
    }

    /// The length for the largest of the variants.
    fn most(&self, size: &Size) -> usize {
        self.lengths(size).into_iter().max().expect("there is a variant")
    }

    /// The length, if it is the same for all variants.
    pub(crate) fn extent(&self, size: &Size) -> Option<usize> {
        let lengths = self.lengths(size);
        lengths.iter().all(|&length| length == lengths[0]).then_some(lengths[0])
    }

    /// The length in the checkpoint's tensors.
    pub(crate) fn whole(&self, size: &Size) -> usize {
        size.at(&self.checkpoint.description.dims)
    }

    /// Adds a node with one output, whose name comes back.
    pub(crate) fn node(&mut self, op: &str, inputs: &[&str], attributes: &[Attribute]) -> String {
        self.count += 1;
        let output = format!("{op}.{}", self.count);
        self.scope().push(node(op, inputs, &output, attributes));
        output
    }

    /// Adds a node whose output has this name.
    pub(crate) fn named(&mut self, op: &str, inputs: &[&str], output: &str) {
        self.scope().push(node(op, inputs, output, &[]));
    }

    fn scope(&mut self) -> &mut Vec<NodeProto> {
        self.scopes.last_mut().expect("the outermost graph stays")
    }

    /// Nodes go to an inner graph from now on.
    pub(crate) fn enter(&mut self) {
        self.scopes.push(Vec::new());
    }

    /// The inner graph, which gives `value`, a batch with this shape.
    pub(crate) fn leave(&mut self, value: &str, shape: &[Size]) -> GraphProto {
        let node = self.scopes.pop().expect("an inner graph was entered");
        self.count += 1;
        let extents: Vec<_> = shape.iter().map(|size| self.extent(size)).collect();
        GraphProto {
            node,
            name: format!("branch.{}", self.count),
            output: vec![ValueInfo::batched(value, proto::FLOAT, &extents)],
            ..GraphProto::default()
        }
    }

    /// Which variants execute a block.
    pub(crate) fn executed(&self, block: &str) -> Vec<bool> {
        let variants = &self.checkpoint.description.variant;
        let skips = |variant: &VariantSpec| variant.skip.iter().any(|name| name == block);
        self.chosen.iter().map(|&at| !skips(&variants[at])).collect()
    }

    /// A boolean of the variant, without dimensions.
    pub(crate) fn condition(&mut self, block: &str, executed: &[bool]) -> String {
        let table = format!("control.executed.{block}");
        if self.initialized.insert(table.clone()) {
            self.initializers.push(TensorProto::booleans(&table, executed));
        }
        let chosen = format!("control.executes.{block}");
        self.control("Gather", &[&table, VARIANT_INPUT], &chosen, &[Attribute::int("axis", 0)]);
        chosen
    }

    /// A constant list of integers.
    pub(crate) fn integers(&mut self, name: &str, values: &[i64]) -> String {
        if self.initialized.insert(name.to_owned()) {
            self.initializers.push(TensorProto::integers(name, &[values.len()], values));
        }
        name.to_owned()
    }

    /// A constant number.
    pub(crate) fn number(&mut self, value: f32) -> String {
        let name = format!("number.{value}");
        if self.initialized.insert(name.clone()) {
            self.initializers.push(TensorProto::floats(&name, &[], &[value]));
        }
        name
    }

    fn control(&mut self, op: &str, inputs: &[&str], output: &str, attributes: &[Attribute]) {
        if self.controlled.insert(output.to_owned()) {
            self.control.push(node(op, inputs, output, attributes));
        }
    }
}

fn node(op: &str, inputs: &[&str], output: &str, attributes: &[Attribute]) -> NodeProto {
    NodeProto {
        input: inputs.iter().map(|&input| input.to_owned()).collect(),
        output: vec![output.to_owned()],
        name: output.to_owned(),
        op_type: op.to_owned(),
        attribute: attributes.to_vec(),
    }
}

/// What nodes take, those of inner graphs included.
fn note_inputs(nodes: &[NodeProto], used: &mut BTreeSet<String>) {
    for node in nodes {
        used.extend(node.input.iter().cloned());
        node.attribute.iter().filter_map(Attribute::inner).for_each(|g| note_inputs(&g.node, used));
    }
}
