//! A checkpoint: a description of layers and variants, and the largest network's weights.

mod check;
mod description;
mod tensor;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use safetensors::SafeTensors;

pub use description::{Description, Element, Extent, InputSpec, Layer, OutputSpec, VariantSpec};
pub use tensor::Tensor;

use crate::Problem;

/// A longer description is none.
const DESCRIPTION_BYTES_MAX: u64 = 4 << 20;
/// Protocol Buffers, and so ONNX files, hold no more.
const WEIGHTS_BYTES_MAX: u64 = 2 << 30;

/// A supernet as it was trained.
#[derive(Clone, PartialEq, Debug)]
pub struct Checkpoint {
    /// Layers and variants.
    pub description: Description,
    /// The tensors by name, of the largest network.
    pub weights: BTreeMap<String, Tensor>,
}

impl Checkpoint {
    /// Reads the description, and the weights that it names.
    ///
    /// # Errors
    /// A file is missing, too long or of another format, or the description contradicts itself.
    pub fn read(path: &Path) -> Result<Self, Problem> {
        let place = path.display().to_string();
        let text = String::from_utf8(read(path, DESCRIPTION_BYTES_MAX)?)
            .map_err(|_| Problem::new(&place, "is no text", "name the TOML description"))?;
        let description = Description::parse(&text).map_err(|what| {
            Problem::new(&place, what, "see *A checkpoint* in docs/supernets.md")
        })?;
        description.check()?;
        let folder = path.parent().unwrap_or_else(|| Path::new(""));
        let weights = weights(&folder.join(&description.weights))?;
        Ok(Self { description, weights })
    }

    /// The tensors that belong to no layer, as where the description gives a name twice or leaves a layer out.
    pub fn unused(&self) -> Vec<&str> {
        let mut layers = BTreeSet::new();
        self.description.for_each_layer(&mut |layer| _ = layers.insert(layer.called()));
        let is_used =
            |name: &str| name.match_indices('.').any(|(at, _)| layers.contains(&name[..at]));
        self.weights.keys().map(String::as_str).filter(|&name| !is_used(name)).collect()
    }
}

fn read(path: &Path, bytes_max: u64) -> Result<Vec<u8>, Problem> {
    let place = path.display().to_string();
    let unreadable =
        |error: std::io::Error| Problem::new(&place, error.to_string(), "correct the path");
    let bytes = fs::metadata(path).map_err(unreadable)?.len();
    if bytes > bytes_max {
        let what = format!("has {bytes} bytes, and at most {bytes_max} are read");
        return Err(Problem::new(&place, what, "name another file"));
    }
    fs::read(path).map_err(unreadable)
}

fn weights(path: &Path) -> Result<BTreeMap<String, Tensor>, Problem> {
    let place = path.display().to_string();
    let bytes = read(path, WEIGHTS_BYTES_MAX)?;
    let file = SafeTensors::deserialize(&bytes).map_err(|error| {
        let what = format!("is no safetensors file: {error}");
        Problem::new(&place, what, "write it with the `safetensors` package")
    })?;
    let tensor = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
        let place = format!("{place}, `{name}`");
        Ok((name, Tensor::from_view(&place, &view)?))
    };
    file.tensors().into_iter().map(tensor).collect()
}
