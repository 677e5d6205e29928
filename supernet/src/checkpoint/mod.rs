//! A checkpoint: a description of layers and variants, and the largest network's weights.

mod check;
mod description;
mod tensor;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::fs::{self, File};
use std::io::{ErrorKind, Read as _};
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

/// Whether it begins as safetensors do, with the length of a JSON object. A foreign file is found out before its gigabytes are read;
/// one that cannot be read at all is for [`read`] to tell.
fn check_header(path: &Path) -> Result<(), &'static str> {
    let Ok(mut file) = File::open(path) else { return Ok(()) };
    let Ok(about) = file.metadata() else { return Ok(()) };
    let mut start = [0; 9];
    match file.read_exact(&mut start) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
            return Err("it is shorter than a header");
        }
        Err(_) => return Ok(()),
        Ok(()) => {}
    }
    let [length @ .., first] = start;
    let length = u64::from_le_bytes(length);
    if length > about.len().saturating_sub(8) || first != b'{' {
        return Err("it does not begin with a header");
    }
    Ok(())
}

fn weights(path: &Path) -> Result<BTreeMap<String, Tensor>, Problem> {
    let place = path.display().to_string();
    let foreign = |why: &dyn Display| {
        let what = format!("is no safetensors file: {why}");
        Problem::new(&place, what, "write it with the `safetensors` package")
    };
    check_header(path).map_err(|why| foreign(&why))?;
    let bytes = read(path, WEIGHTS_BYTES_MAX)?;
    let file = SafeTensors::deserialize(&bytes).map_err(|error| foreign(&error))?;
    let tensor = |(name, view): (String, safetensors::tensor::TensorView<'_>)| {
        let place = format!("{place}, `{name}`");
        Ok((name, Tensor::from_view(&place, &view)?))
    };
    file.tensors().into_iter().map(tensor).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_no_safetensors_is_refused_before_it_is_read() {
        let path = std::env::temp_dir().join(format!("baton-weights-{}", std::process::id()));
        let refusal = |begin: &[u8], bytes: u64| {
            fs::write(&path, begin).unwrap();
            fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(bytes).unwrap();
            weights(&path).unwrap_err().to_string()
        };
        // Longer than any that is read: what is said of it shows that its beginning came first.
        let large = WEIGHTS_BYTES_MAX + 1;
        for (begin, bytes, why) in [
            (&b"PK\x03\x04 an archive"[..], large, "does not begin with a header"),
            (&[16, 0, 0, 0, 0, 0, 0, 0, b'['], large, "does not begin with a header"),
            (&[16, 0, 0, 0, 0, 0, 0, 0, b'{'], 9, "does not begin with a header"),
            (&[0; 8], 8, "shorter than a header"),
            (&[1, 0, 0, 0, 0, 0, 0, 0, b'{'], 9, "is no safetensors file: "),
            (&[2, 0, 0, 0, 0, 0, 0, 0, b'{', b'}'], large, "at most"),
        ] {
            let said = refusal(begin, bytes);
            assert!(said.contains(why), "{begin:?}: {said}");
        }
        fs::remove_file(&path).unwrap();
        let missing = weights(&path).unwrap_err().to_string();
        assert!(
            missing.contains("No such file") && missing.ends_with("correct the path"),
            "{missing}"
        );
    }
}
