//! The lengths of dimensions other than the batch: those that the file says, and the largest of those that it leaves open.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use toml::Table;
use toml::de::DeTable;

use super::file::{self, Dim, OnnxFile, Tensor};
use super::{OfTensors, Refusal, Section};
use crate::cluster_file::problem::Findings;
use crate::signature::{Extent, Row, TensorSpec};

/// A longer name is an expression as a rule, too long for a cluster file: such a dimension is called by its place.
const NAME_LEN_MAX: usize = 32;

/// A dimension other than the batch that a file leaves open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct OpenDim {
    /// As the file calls it. Tensors may share it. Its place where the file has no name.
    pub name: String,
    /// The tensor's name.
    pub tensor: String,
    /// Its place in the tensor, from 0.
    pub axis: usize,
    /// Its place in a row of the tensor, which has no batch dimension.
    pub row_axis: usize,
    /// Whether the tensor is an output.
    pub of_output: bool,
    /// `TENSOR.AXIS`, which no other dimension is called.
    place: String,
}

impl OpenDim {
    fn new(of: &Tensor, axis: usize, name: &str, of_output: bool) -> Self {
        let (name, tensor, place) = (name.into(), of.name.clone(), place(&of.name, axis));
        let row_axis = axis - usize::from(of.batch_axis.is_some_and(|batch| batch < axis));
        Self { name, tensor, axis, row_axis, of_output, place }
    }

    /// What the key `dims` should call it.
    pub fn key(&self) -> &str {
        if self.name.len() > NAME_LEN_MAX { &self.place } else { &self.name }
    }

    /// Whether the key `dims` may call it that.
    pub fn is_called(&self, key: &str) -> bool {
        self.name == key || self.place == key
    }
}

fn place(tensor: &str, axis: usize) -> String {
    format!("{tensor}.{axis}")
}

/// The open dimensions of a file's inputs and outputs, by what the model's table says of the batch and of constants.
///
/// # Errors
/// What is wrong with the file or those keys, in words.
pub fn open_dims(file: &Path, table: &Table) -> Result<Vec<OpenDim>, String> {
    let mut read = file::parse(&file::content(file)?)?;
    let text = table.to_string();
    let entries = DeTable::parse(&text).map_err(|error| error.to_string())?;
    let findings = Findings::new(file, &text);
    let keys = OfTensors::read(&Section::root(entries.get_ref(), &findings));
    keys.apply(&mut read).map_err(|(_, what, _)| what)?;
    Ok(open_of(&read))
}

pub(super) fn open_of(OnnxFile { inputs, outputs, .. }: &OnnxFile) -> Vec<OpenDim> {
    let sides = [(inputs, false), (outputs, true)];
    let tensors = sides.into_iter().flat_map(|(side, is)| side.iter().map(move |one| (one, is)));
    tensors.flat_map(|(tensor, of_output)| open_in(tensor, of_output)).collect()
}

fn open_in(tensor: &Tensor, of_output: bool) -> impl Iterator<Item = OpenDim> + '_ {
    tensor.row_dims().filter_map(move |(axis, dim)| match dim {
        Dim::Symbol(name) => Some(OpenDim::new(tensor, axis, name, of_output)),
        Dim::Fixed(_) => None,
    })
}

/// The lengths of dimensions that have names.
pub(super) struct Extents<'a> {
    /// By the key `dims`.
    stated: &'a BTreeMap<String, u32>,
    /// By the key `input_shape`.
    known: BTreeMap<String, u32>,
}

impl<'a> Extents<'a> {
    pub(super) fn new(stated: &'a BTreeMap<String, u32>) -> Self {
        Self { stated, known: BTreeMap::new() }
    }

    pub(super) fn take_shape(&mut self, input: &Tensor, shape: &[u32]) -> Result<(), Refusal> {
        let row: Vec<&Dim> = input.row_dims().map(|(_, dim)| dim).collect();
        let fits = |(dim, &extent): (&&Dim, &u32)| match dim {
            Dim::Fixed(fixed) => *fixed == extent,
            Dim::Symbol(_) => true,
        };
        if row.len() != shape.len() || !row.iter().zip(shape).all(fits) {
            let what = format!("is {shape:?}, and the input is {}", described(input));
            return Err(("input_shape", what, "remove it: the file says it".to_owned()));
        }
        for (dim, &extent) in row.iter().zip(shape) {
            if let Dim::Symbol(name) = dim {
                self.known.insert(name.clone(), extent);
            }
        }
        Ok(())
    }

    /// The place is more exact than the name, which several dimensions may have.
    fn of(&self, dim: &OpenDim) -> Option<Extent> {
        let stated = || self.stated.get(&dim.place).or_else(|| self.stated.get(&dim.name));
        let known = self.known.get(&dim.name).map(|&extent| Extent::Fixed(extent));
        known.or_else(|| stated().map(|&max| Extent::UpTo(max)))
    }

    /// What is called differently and has no length yet, of these tensors.
    fn missing(&self, tensors: &[Tensor], of_output: bool) -> Vec<OpenDim> {
        let open = tensors.iter().flat_map(|tensor| open_in(tensor, of_output));
        let mut missing: Vec<OpenDim> = open.filter(|dim| self.of(dim).is_none()).collect();
        let mut keys = BTreeSet::new();
        missing.retain(|dim| keys.insert(dim.key().to_owned()));
        missing
    }
}

/// What travels of these tensors, which are the model's inputs, or outputs of it.
pub(super) fn row(
    tensors: &[Tensor],
    of_output: bool,
    extents: &Extents<'_>,
) -> Result<Row, Refusal> {
    let missing = extents.missing(tensors, of_output);
    if !missing.is_empty() {
        return Err(unknown_extents(tensors, &missing));
    }
    let spec = |tensor: &Tensor| {
        let extent = |(axis, dim): (usize, &Dim)| match dim {
            Dim::Fixed(extent) => Some(Extent::Fixed(*extent)),
            Dim::Symbol(name) => extents.of(&OpenDim::new(tensor, axis, name, of_output)),
        };
        let shape = tensor.row_dims().filter_map(extent).collect();
        TensorSpec { name: tensor.name.clone(), element: tensor.element, shape }
    };
    Row::new(tensors.iter().map(spec).collect()).ok_or_else(|| {
        let (many, side) = (tensors.len(), if of_output { "output" } else { "input" });
        let what = format!("its {many} {side}(s) do not make a row");
        ("file", what, "export it with 1 to 32 of up to 8 dimensions, none of them 0".to_owned())
    })
}

fn unknown_extents(tensors: &[Tensor], missing: &[OpenDim]) -> Refusal {
    let is_open = |tensor: &&Tensor| missing.iter().any(|dim| dim.tensor == tensor.name);
    let open: Vec<String> = tensors.iter().filter(is_open).map(described).collect();
    let named: Vec<String> = missing.iter().map(|dim| format!("`{}`", dim.key())).collect();
    let what = format!("{} has no largest {}", open.join(", "), named.join(", "));
    let entries: Vec<String> = missing.iter().map(|dim| format!("{:?} = 128", dim.key())).collect();
    let state = format!("state it: dims = {{ {} }}", entries.join(", "));
    let fix = match missing.iter().any(|dim| dim.of_output) {
        true => format!("{state}; `baton profile` finds it by an execution"),
        false => state,
    };
    ("dims", what, fix)
}

pub(super) fn described(tensor: &Tensor) -> String {
    let dim = |(axis, dim): (usize, &Dim)| match dim {
        Dim::Fixed(extent) => extent.to_string(),
        Dim::Symbol(name) => OpenDim::new(tensor, axis, name, false).key().to_owned(),
    };
    let dims: Vec<String> = tensor.dims.iter().enumerate().map(dim).collect();
    format!("`{}` {}[{}]", tensor.name, tensor.element, dims.join(", "))
}
