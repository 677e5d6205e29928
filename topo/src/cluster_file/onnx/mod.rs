//! `engine = "onnx"`: what of a model its file says, and what its other keys add.
//!
//! One dimension of every tensor is the batch, the first unless the file or the key `batch_dim` says otherwise. Of the others, those
//! without a fixed length need a maximum, from `dims` or, for a model with one input, from `input_shape`. Inputs that all rows share
//! have their values from `constants`; they are no part of the signature.

mod batch;
mod constants;
mod extents;
mod file;
mod remote;
mod shapes;

pub use batch::BatchLayout;
pub use constants::Constant;
pub use extents::{OpenDim, open_dims};
pub use file::is_whole_model;
pub(super) use remote::located;
pub use remote::{describe_pulled, is_url};

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use baton_types::VARIANTS_MAX;

use self::extents::{Extents, open_of, row};
use self::file::{Dim, Named, OnnxFile, Tensor};
use super::section::Section;
use super::sha256::{self, Sha256};
use crate::signature::{
    ElementType, Extent, INPUT_BYTES_MAX, OUTPUT_BYTES_MAX, Row, Signature, TensorSpec,
};

/// Longest in one dimension: keeps products within reach.
const EXTENT_MAX: u32 = 1 << 28;

/// What the file and the keys say of a model.
#[derive(Clone)]
pub(super) struct OnnxModel {
    pub(super) file: PathBuf,
    /// What its content must have.
    pub(super) sha256: Option<Sha256>,
    pub(super) signature: Signature,
    pub(super) layout: BatchLayout,
    /// The variants that the file names.
    pub(super) variants: Vec<String>,
    /// The size of the file, and of those beside it that have weights of it.
    pub(super) bytes: u64,
}

/// Why a model cannot be served: the key, what is wrong, what to do.
type Refusal = (&'static str, String, String);

/// A key names a tensor that is none of these: `kind` says what they are.
fn no_such<'a>(
    key: &'static str,
    name: &str,
    kind: &str,
    all: impl IntoIterator<Item = &'a Tensor>,
) -> Refusal {
    let all: Vec<&str> = all.into_iter().map(|tensor| tensor.name.as_str()).collect();
    let what = format!("names `{name}`, and no {kind} is called that");
    (key, what, format!("name one of {}", all.join(", ")))
}

/// The input of a supernet's file that selects the variant: an int64 of shape `[]` or `[1]`.
const CONTROL: &str = "variant";

/// Reads the keys and the file. The key `file` is `of_file`'s, the others are the model's. With `is_controlled` the file takes
/// the variant as an input, which is none of a task's. `None`: there are problems.
pub(super) fn model(
    section: &Section<'_>,
    of_file: &Section<'_>,
    is_controlled: bool,
    folder: &Path,
) -> Option<OnnxModel> {
    of_file.require("file", "name the model file: file = \"model.onnx\"");
    let keys = Keys {
        dims: section.integers_by_name("dims", 1..=EXTENT_MAX, "seq = 128").unwrap_or_default(),
        of_tensors: OfTensors::read(section),
        input_shape: section.integers("input_shape", 1..=EXTENT_MAX),
        outputs: section.texts("outputs"),
        output_bytes: section.integer("output_bytes", 1..=OUTPUT_BYTES_MAX),
    };
    let file = of_file.text("file")?;
    let is_remote = is_url(file);
    let file = located(folder, file);
    let sha256 = sha256::of_section(of_file);
    let (read, bytes) = if is_remote {
        let (read, bytes) = remote::read(of_file)?;
        (Ok(read), bytes)
    } else {
        remote::refuse_keys(of_file);
        let read = read_checked(&file, sha256);
        let bytes = read.as_ref().map_or(0, |read| bytes_of(&file, read));
        (read, bytes)
    };
    let read = read.and_then(|read| without_control(read, is_controlled));
    let mut variants = Vec::new();
    let understood = read.and_then(|mut read| {
        variants = read.variants.drain(..).map(|variant| variant.name).collect();
        let constants = keys.of_tensors.apply(&mut read)?;
        keys.unknown(&read).into_iter().for_each(|(what, fix)| section.warn("dims", what, fix));
        let (signature, fixed_batch) = keys.signature(&read)?;
        Ok((signature, BatchLayout::new(&read, fixed_batch, constants)))
    });
    let refuse = |(key, what, fix): Refusal| match key {
        "file" | "sha256" => of_file.refuse(key, what, fix),
        _ => section.refuse(key, what, fix),
    };
    let (signature, layout) = understood.map_err(refuse).ok()?;
    Some(OnnxModel { file, sha256, signature, layout, variants, bytes })
}

/// Reads the file, if it is the one that `sha256` says.
fn read_checked(file: &Path, sha256: Option<Sha256>) -> Result<OnnxFile, Refusal> {
    if !file.is_file() {
        let fix = match file.is_absolute() {
            true => "put it there, or correct the path",
            false => "give a path relative to this cluster file, or an absolute one",
        };
        return Err(("file", format!("there is no file {}", file.display()), fix.to_owned()));
    }
    let unreadable = |what: String| {
        ("file", format!("{}: {what}", file.display()), "export the model anew".to_owned())
    };
    let content = file::content(file).map_err(unreadable)?;
    let found = sha256.map(|_| Sha256::of(&content));
    if let Some(other) = found.filter(|_| found != sha256) {
        let what = format!("is not that of {}, which is {other}", file.display());
        return Err((
            "sha256",
            what,
            "copy the right file to this host, or correct the key".into(),
        ));
    }
    file::parse(&content).map_err(unreadable)
}

/// What is not there, loading complains about.
fn bytes_of(file: &Path, read: &OnnxFile) -> u64 {
    let bytes = |file: &Path| std::fs::metadata(file).map_or(0, |metadata| metadata.len());
    let others = read.others.iter().map(|other| bytes(&file.with_file_name(other)));
    bytes(file) + others.sum::<u64>()
}

/// The file without its input [`CONTROL`], which must be there if `is_controlled` and may not be otherwise.
fn without_control(mut file: OnnxFile, is_controlled: bool) -> Result<OnnxFile, Refusal> {
    let is_control = |input: &Tensor| {
        let is_one = input.dims.is_empty() || input.dims == [Dim::Fixed(1)];
        input.name == CONTROL && input.element == ElementType::I64 && is_one
    };
    match (file.inputs.iter().position(is_control), is_controlled) {
        (Some(at), true) => drop(file.inputs.remove(at)),
        (None, true) => {
            let what = format!("the model has no input `{CONTROL}`, an int64 of shape [] or [1]");
            let fix = "export it with one, or name a file in each [[model.variant]]";
            return Err(("file", what, fix.to_owned()));
        }
        (Some(_), false) => {
            let what = format!("its input `{CONTROL}` selects one of several variants");
            return Err(("file", what, key_of_variants(&file.variants)));
        }
        (None, false) => {}
    }
    Ok(file)
}

/// What to write of a file's variants: all of it, where the file says what they are.
fn key_of_variants(named: &[Named]) -> String {
    if !(1..=VARIANTS_MAX).contains(&named.len()) {
        return "describe them: a [[model.variant]] for each, with name and accuracy".to_owned();
    }
    let one =
        |Named { name, accuracy }: &Named| format!("{{ name = {name:?}, accuracy = {accuracy} }}");
    let all: Vec<String> = named.iter().map(one).collect();
    format!("describe them: variant = [{}]", all.join(", "))
}

/// Keys that say of a file's tensors what the file does not, or says wrong.
#[derive(Default)]
struct OfTensors {
    shapes: shapes::Shapes,
    constants: constants::Values,
    batch: batch::Stated,
}

impl OfTensors {
    fn read(section: &Section<'_>) -> Self {
        let (shapes, batch) = (shapes::key(section), batch::keys(section));
        Self { shapes, constants: constants::key(section), batch }
    }

    /// Changes the tensors accordingly. Returns the inputs that have a value; they are inputs no longer.
    fn apply(&self, file: &mut OnnxFile) -> Result<Vec<Constant>, Refusal> {
        shapes::state(file, &self.shapes)?;
        let constants = constants::take(file, &self.constants)?;
        batch::place(file, &self.batch)?;
        Ok(constants)
    }
}

struct Keys {
    dims: BTreeMap<String, u32>,
    of_tensors: OfTensors,
    input_shape: Option<Vec<u32>>,
    outputs: Option<Vec<String>>,
    output_bytes: Option<u32>,
}

impl Keys {
    fn signature(&self, file: &OnnxFile) -> Result<(Signature, Option<u32>), Refusal> {
        let fixed_batch = batch::size(&file.inputs)?;
        let mut extents = Extents::new(&self.dims);
        let input = self.input(&file.inputs, &mut extents)?;
        let output = self.output(file, &extents)?;
        for (row, max) in [(&input, INPUT_BYTES_MAX), (&output, OUTPUT_BYTES_MAX)] {
            if row.bytes_max() > max {
                let what = format!("{row} has up to {} bytes, more than {max}", row.bytes_max());
                return Err(("dims", what, "state smaller maxima".to_owned()));
            }
        }
        Ok((Signature { input, output }, fixed_batch))
    }

    /// What is wrong with names of dimensions that the file does not have, though the model can be served without them; the fix.
    fn unknown(&self, file: &OnnxFile) -> Vec<(String, String)> {
        let open = open_of(file);
        let known: BTreeSet<&str> = open.iter().map(OpenDim::key).collect();
        let known = known.into_iter().collect::<Vec<_>>().join(", ");
        let problem = |name: &String| {
            let what = format!("no tensor of the file has a dimension `{name}`");
            (what, format!("remove it; the file leaves open: {known}"))
        };
        let has = |name: &&String| open.iter().any(|dim| dim.is_called(name));
        self.dims.keys().filter(|name| !has(name)).map(problem).collect()
    }

    fn input(&self, inputs: &[Tensor], extents: &mut Extents<'_>) -> Result<Row, Refusal> {
        if let Some(shape) = &self.input_shape {
            let [input] = inputs else {
                let what = format!("describes one input, and the model has {}", inputs.len());
                return Err(("input_shape", what, "remove it; name maxima by dims".to_owned()));
            };
            extents.take_shape(input, shape)?;
        }
        row(inputs, false, extents)
    }

    fn output(&self, file: &OnnxFile, extents: &Extents<'_>) -> Result<Row, Refusal> {
        let chosen = self.chosen(file)?;
        match (row(&chosen, true, extents), self.output_bytes) {
            (Ok(row), Some(bytes)) if row.bytes_max() != bytes => {
                self.first_alone(&chosen, extents)
            }
            (Err(_), Some(_)) => self.first_alone(&chosen, extents),
            (row, _) => row,
        }
    }

    fn chosen(
        &self,
        OnnxFile { outputs, unserved, .. }: &OnnxFile,
    ) -> Result<Vec<Tensor>, Refusal> {
        let all: Vec<&str> = outputs.iter().map(|output| output.name.as_str()).collect();
        let refused = |what: String| match all.is_empty() {
            true => ("file", what, "export the model anew".to_owned()),
            false => ("outputs", what, format!("choose from {}", all.join(", "))),
        };
        let Some(names) = &self.outputs else {
            return match unserved.first() {
                Some((_, why)) => Err(refused(why.clone())),
                None => Ok(outputs.clone()),
            };
        };
        let named = |name: &String| {
            let found = outputs.iter().find(|output| output.name == *name).cloned();
            let why = unserved.iter().find(|(other, _)| other == name).map(|(_, why)| why.clone());
            let missing = || format!("the model has no output `{name}`");
            found.ok_or_else(|| refused(why.unwrap_or_else(missing)))
        };
        names.iter().map(named).collect()
    }

    /// `output_bytes` as it was before files were read: the size of the first output.
    fn first_alone(&self, outputs: &[Tensor], extents: &Extents<'_>) -> Result<Row, Refusal> {
        let bytes = self.output_bytes.expect("only where it is given");
        let wrong = |has: &str| {
            let fix = "remove output_bytes: the file says it; or choose outputs = [\"name\"]";
            ("output_bytes", format!("is {bytes}, and the model's output is {has}"), fix.to_owned())
        };
        let first = outputs.first().ok_or_else(|| wrong("missing"))?;
        match row(std::slice::from_ref(first), true, extents) {
            Ok(row) if row.bytes_max() == bytes => Ok(row),
            Ok(row) => Err(wrong(&row.to_string())),
            Err(_) if (bytes as usize).is_multiple_of(first.element.bytes()) => {
                let shape = vec![Extent::Fixed(bytes / first.element.bytes() as u32)];
                let (name, element) = (first.name.clone(), first.element);
                Ok(Row::new(vec![TensorSpec { name, element, shape }]).expect("it is small"))
            }
            Err(_) => Err(wrong(&format!("of {}", first.element))),
        }
    }
}

#[cfg(test)]
mod tests;
