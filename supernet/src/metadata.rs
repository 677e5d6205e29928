//! What an exported file says of its variants.

use prost::Message;
use serde::{Deserialize, Serialize};

use crate::proto::Entry;

/// The key of the file's metadata.
pub(crate) const KEY: &str = "baton.variants";

/// A variant as an exported file names it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct NamedVariant {
    /// Its name.
    pub name: String,
    /// In per cent.
    pub accuracy: f64,
}

/// A file of which only the metadata is read.
#[derive(Clone, PartialEq, Message)]
struct Skimmed {
    #[prost(message, repeated, tag = "14")]
    metadata_props: Vec<Entry>,
}

/// The variants of a file that `export` wrote, in the order of its input `variant`.
///
/// # Errors
/// It is no ONNX file, or says nothing of variants.
pub fn variants_of(file: &[u8]) -> Result<Vec<NamedVariant>, String> {
    let file = Skimmed::decode(file).map_err(|_| "it is not an ONNX file".to_owned())?;
    let entry = file.metadata_props.iter().find(|entry| entry.key == KEY);
    let entry = entry.ok_or("it names no variants; make it with `baton supernet export`")?;
    serde_json::from_str(&entry.value).map_err(|error| format!("its list of variants: {error}"))
}
