//! Where the batch is: the batch dimension of each input and output, and the batch size that a file fixes.
//!
//! The key `batch_dim` comes first. Without it a tensor's batch dimension is the one with the name that the batch has in the
//! inputs, and the first where no other has it.

use std::collections::{BTreeMap, BTreeSet};

use super::constants::{Constant, example};
use super::extents::described;
use super::file::{Dim, OnnxFile, Tensor};
use super::{Refusal, Section, no_such};
use crate::signature::RANK_MAX;

/// What exporters call the batch, in lower case.
const NAMES: [&str; 3] = ["batch", "batch_size", "batchsize"];

/// How the rows of a batch lie in the tensors of an ONNX file.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct BatchLayout {
    /// The batch size of every execution, if the file fixes it.
    pub fixed_batch: Option<u32>,
    /// The inputs and outputs whose batch dimension is not the first, by name. `None`: it has none.
    pub others: BTreeMap<String, Option<usize>>,
    /// Inputs that all rows share, which are no part of the signature.
    pub constants: Vec<Constant>,
}

impl BatchLayout {
    pub(super) fn new(file: &OnnxFile, fixed_batch: Option<u32>, constants: Vec<Constant>) -> Self {
        let tensors = file.inputs.iter().chain(&file.outputs);
        let others = tensors.filter(|tensor| tensor.batch_axis != Some(0));
        let others = others.map(|tensor| (tensor.name.clone(), tensor.batch_axis)).collect();
        Self { fixed_batch, others, constants }
    }

    /// The batch dimension of an input or output; `None`: it has none.
    pub fn axis_of(&self, tensor: &str) -> Option<usize> {
        self.others.get(tensor).copied().unwrap_or(Some(0))
    }

    /// Whether the batch is the first dimension of each input and output, and no input is a constant.
    pub fn is_plain(&self) -> bool {
        self.others.is_empty() && self.constants.is_empty()
    }

    /// What an operator should see of it; nothing if it is plain.
    pub(in crate::cluster_file) fn in_words(&self) -> Vec<String> {
        let mut named: BTreeMap<usize, Vec<&str>> = BTreeMap::new();
        for (name, axis) in self.others.iter().filter_map(|(name, axis)| Some((name, (*axis)?))) {
            named.entry(axis).or_default().push(name);
        }
        let axis = |(axis, names): (&usize, &Vec<&str>)| {
            format!("the batch is dimension {axis} of {}", names.join(", "))
        };
        let mut words: Vec<String> = named.iter().map(axis).collect();
        if self.others.values().any(Option::is_none) {
            words.push("no dimension is the batch".to_owned());
        }
        words.extend(self.constants.iter().map(|constant| format!("constant {constant}")));
        words
    }
}

/// What the keys say of the batch.
#[derive(Default)]
pub(super) struct Stated {
    /// By the tensor's name.
    pub(super) axes: BTreeMap<String, u32>,
    /// No tensor has a batch dimension: each task executes alone.
    pub(super) is_unbatched: bool,
}

pub(super) fn keys(section: &Section<'_>) -> Stated {
    let axes = section.integers_by_name("batch_dim", 0..=RANK_MAX as u32, "state = 1");
    let is_unbatched = section.truth("batched") == Some(false);
    let both = is_unbatched && section.has("batch_dim");
    if both {
        section.refuse("batch_dim", "means nothing with batched = false", "remove one of them");
    }
    Stated { axes: axes.unwrap_or_default(), is_unbatched: is_unbatched && !both }
}

/// Finds the batch dimension of each tensor.
pub(super) fn place(file: &mut OnnxFile, stated: &Stated) -> Result<(), Refusal> {
    refuse_wrong(file, &stated.axes)?;
    let names = names_of_batch(&file.inputs, &stated.axes);
    let axis = |tensor: &Tensor| {
        let own = stated.axes.get(&tensor.name).map(|&axis| axis as usize);
        (!stated.is_unbatched).then(|| own.unwrap_or_else(|| axis_called(&names, tensor)))
    };
    let axes: Vec<_> = file.inputs.iter().chain(&file.outputs).map(axis).collect();
    let tensors = file.inputs.iter_mut().chain(&mut file.outputs);
    tensors.zip(axes).for_each(|(tensor, axis)| tensor.batch_axis = axis);
    Ok(())
}

fn refuse_wrong(file: &OnnxFile, axes: &BTreeMap<String, u32>) -> Result<(), Refusal> {
    let tensors = || file.inputs.iter().chain(&file.outputs);
    for (name, &axis) in axes {
        let Some(tensor) = tensors().find(|tensor| tensor.name == *name) else {
            return Err(no_such("batch_dim", name, "input or output", tensors()));
        };
        if axis as usize >= tensor.dims.len() {
            let what = format!("says {axis} for {}", described(tensor));
            return Err(("batch_dim", what, "count its dimensions from 0".to_owned()));
        }
    }
    Ok(())
}

/// What the batch is called in the inputs. Without the key it has one of the usual names; or it is called as their first
/// dimensions are, but where some of those have a fixed length and others have not, as what all inputs have.
fn names_of_batch<'a>(inputs: &'a [Tensor], axes: &BTreeMap<String, u32>) -> BTreeSet<&'a str> {
    let of = |input: &'a Tensor| input.dims.iter().filter_map(Dim::symbol);
    let all = || inputs.iter().flat_map(of);
    let stated = inputs.iter().filter_map(|input| {
        let axis = *axes.get(&input.name)? as usize;
        input.dims.get(axis)?.symbol()
    });
    let usual = all().filter(|name| NAMES.contains(&name.to_lowercase().as_str()));
    let unstated = inputs.iter().filter(|input| !axes.contains_key(&input.name));
    let leading: Vec<&Dim> = unstated.filter_map(|input| input.dims.first()).collect();
    let first: BTreeSet<&str> = leading.iter().filter_map(|dim| dim.symbol()).collect();
    let is_mixture = !first.is_empty() && leading.iter().any(|dim| dim.symbol().is_none());
    let is_shared = |name: &&str| inputs.iter().all(|input| of(input).any(|other| other == *name));
    let shared: BTreeSet<&str> = all().filter(is_shared).collect();
    let shared_first = shared.intersection(&first).copied().collect();
    let shared = if is_mixture && shared.len() == 1 { shared } else { BTreeSet::new() };
    let choices = [stated.collect(), usual.collect(), shared_first, shared, first];
    choices.into_iter().find(|names| !names.is_empty()).unwrap_or_default()
}

/// The first dimension, unless another one alone is called so.
fn axis_called(names: &BTreeSet<&str>, tensor: &Tensor) -> usize {
    let is_batch = |dim: &Dim| dim.symbol().is_some_and(|name| names.contains(name));
    let mut axes = (0..tensor.dims.len()).filter(|&axis| is_batch(&tensor.dims[axis]));
    match (axes.next(), axes.next()) {
        (Some(axis), None) => axis,
        _ => 0,
    }
}

/// The batch size that the inputs fix; `None`: any.
pub(super) fn size(inputs: &[Tensor]) -> Result<Option<u32>, Refusal> {
    let (mut fixed, mut any) = (None::<(u32, &Tensor)>, None);
    for input in inputs {
        let Some(axis) = input.batch_axis else { return Ok(Some(1)) };
        match (input.dims.get(axis), fixed) {
            (Some(Dim::Symbol(_)), _) => any = Some(input),
            (Some(&Dim::Fixed(size)), Some((of, other))) if of != size => {
                let (one, other) = ((of, other), (size, input));
                return Err(different(one, other));
            }
            (Some(&Dim::Fixed(size)), _) => fixed = Some((size, input)),
            (None, _) => return Err(no_dimensions(input)),
        }
    }
    match (fixed, any) {
        (Some((size, one)), Some(other)) => Err(mixture(size, one, &other.name)),
        (Some((0, one)), None) => {
            Err(("file", format!("the batch dimension of `{}` is 0", one.name), EXPORT.to_owned()))
        }
        (Some((size, _)), None) => Ok(Some(size)),
        (None, _) => Ok(None),
    }
}

const EXPORT: &str = "export it with the batch as a dimension of every input, or let each task execute alone: batched = false";

fn no_dimensions(input: &Tensor) -> Refusal {
    let fix = format!("give the value that all rows share: {}", example(input));
    ("file", format!("input `{}` has no dimensions", input.name), fix)
}

/// The batch is `size` in `one`, if it is there, and open in `other`.
fn mixture(size: u32, one: &Tensor, other: &str) -> Refusal {
    let what = format!("the batch dimension is {size} in {} and open in `{other}`", described(one));
    let fix = elsewhere(one, |dim| dim.symbol().is_some()).unwrap_or_else(|| {
        format!("if all rows share `{}`, give its value: {}", one.name, example(one))
    });
    ("file", what, format!("{fix}; otherwise {EXPORT}"))
}

/// Two inputs fix different batch sizes, if it is the batch that they fix.
fn different((size, one): (u32, &Tensor), (of_other, other): (u32, &Tensor)) -> Refusal {
    let what = format!(
        "the batch dimension is {size} in {} and {of_other} in {}",
        described(one),
        described(other)
    );
    let is = |size| move |dim: &Dim| *dim == Dim::Fixed(size);
    let fix = elsewhere(other, is(size)).or_else(|| elsewhere(one, is(of_other)));
    let fix = fix.unwrap_or_else(|| "say which it is: batch_dim = { NAME = 1 }".to_owned());
    ("file", what, format!("{fix}; otherwise {EXPORT}"))
}

/// What to write if the one dimension other than the first that is such is the batch.
fn elsewhere(tensor: &Tensor, is_such: impl Fn(&Dim) -> bool) -> Option<String> {
    let mut axes = (1..tensor.dims.len()).filter(|&axis| is_such(&tensor.dims[axis]));
    let (axis, None) = (axes.next()?, axes.next()) else { return None };
    let key = toml_key(&tensor.name);
    Some(format!("if dimension {axis} of it is the batch: batch_dim = {{ {key} = {axis} }}"))
}

/// A name as a key in an inline table.
pub(super) fn toml_key(name: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    let is_bare = !name.is_empty() && name.chars().all(bare);
    if is_bare { name.to_owned() } else { format!("{name:?}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::signature::ElementType;

    fn symbol(name: &str) -> Dim {
        Dim::Symbol(name.into())
    }

    fn tensor(name: &str, dims: &[Dim]) -> Tensor {
        let (name, dims, batch_axis) = (name.into(), dims.to_vec(), Some(0));
        Tensor { name, element: ElementType::F32, dims, batch_axis }
    }

    /// The batch dimension of each input, and of an output with all of these names.
    fn axes(inputs: &[&[Dim]], output: &[Dim], stated: &[(&str, u32)]) -> Vec<usize> {
        let inputs = inputs.iter().enumerate();
        let inputs = inputs.map(|(at, dims)| tensor(&format!("x{at}"), dims)).collect();
        let outputs = vec![tensor("y", output)];
        let mut file = OnnxFile { inputs, outputs, ..OnnxFile::default() };
        let axes = stated.iter().map(|&(name, axis)| (name.to_owned(), axis)).collect();
        place(&mut file, &Stated { axes, is_unbatched: false }).unwrap();
        let tensors = file.inputs.iter().chain(&file.outputs);
        tensors.map(|tensor| tensor.batch_axis.unwrap()).collect()
    }

    #[test]
    fn a_key_is_quoted_unless_toml_takes_it_as_it_is() {
        for (name, key) in [("a_1-b", "a_1-b"), ("a.b", "\"a.b\""), ("", "\"\"")] {
            assert_eq!(toml_key(name), key);
        }
    }

    #[test]
    fn the_batch_is_where_its_name_is() {
        let [t, n, batch] = ["T", "N", "batch"].map(symbol);
        let eight = Dim::Fixed(8);
        let state = |name: &Dim| [Dim::Fixed(2), name.clone(), eight.clone()];
        let usual = [batch.clone(), t.clone()];
        assert_eq!(axes(&[&usual, &state(&batch)], &state(&batch), &[]), [0, 1, 1]);
        assert_eq!(axes(&[&[n.clone(), t.clone()], &state(&n)], &state(&n), &[]), [0, 1, 1]);
        let time_first = [t.clone(), batch.clone(), eight.clone()];
        assert_eq!(axes(&[&time_first], &time_first, &[]), [1, 1]);
        let time_first = [t.clone(), n.clone(), eight.clone()];
        assert_eq!(axes(&[&time_first, &state(&n)], &time_first, &[]), [1, 1, 1]);
        assert_eq!(axes(&[&usual], &time_first, &[]), [0, 0], "an output with other names");
    }

    #[test]
    fn what_was_the_batch_stays_it() {
        let [a, b, seq, batch] = ["a", "b", "seq", "batch"].map(symbol);
        let eight = Dim::Fixed(8);
        let (ids, mask) = ([a.clone(), seq.clone()], [b.clone(), seq.clone()]);
        assert_eq!(axes(&[&ids, &mask], &[seq.clone(), eight.clone()], &[]), [0, 0, 0]);
        let tokens = [batch.clone(), seq.clone()];
        let square = [batch.clone(), seq.clone(), batch.clone()];
        assert_eq!(axes(&[&tokens, &tokens, &square], &square, &[]), [0, 0, 0, 0]);
        let fixed = [Dim::Fixed(1), eight];
        assert_eq!(axes(&[&fixed, &[Dim::Fixed(2), Dim::Fixed(1)]], &fixed, &[]), [0, 0, 0]);
        let image = [Dim::Fixed(1), Dim::Fixed(64), symbol("width")];
        assert_eq!(axes(&[&image], &image, &[]), [0, 0], "the file fixes the batch");
        assert_eq!(axes(&[&image, &image], &image, &[]), [0, 0, 0], "the file fixes the batch");
        let capital = [symbol("Batch_Size"), batch];
        assert_eq!(axes(&[&capital], &capital, &[]), [0, 0], "two are called so");
    }

    #[test]
    fn the_key_comes_first_and_names_the_batch_for_the_others() {
        let [t, n, other] = ["T", "N", "other"].map(symbol);
        let first = [t, n.clone()];
        assert_eq!(axes(&[&first], &[other.clone(), n.clone()], &[("x0", 1)]), [1, 1]);
        assert_eq!(axes(&[&first], &[other, n], &[("x0", 1), ("y", 0)]), [1, 0]);
    }
}
