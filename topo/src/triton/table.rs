//! The `[[model]]` table that serves a model of a Triton repository.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use super::model::{Config, Place};
use super::{Defaults, Note};
use crate::cluster_file::{OpenDim, open_dims};

/// What a dimension gets whose largest extent neither the file nor the configuration says.
const EXTENT: i64 = 128;

/// The table, and what of it must be looked at.
///
/// # Errors
/// Why the model cannot be served.
pub(super) fn of(
    folder: &Path,
    config: &Config,
    defaults: Defaults,
) -> Result<(String, Vec<Note>), String> {
    let file = file(folder, config)?;
    let path = file.to_str().ok_or("the path of its file is not UTF-8")?;
    let dims = open_dims(&file, &toml::Table::new()).map_err(|error| format!("{path}: {error}"))?;
    let mut notes = Vec::new();
    let mut note = |text| notes.push(Note { model: config.name.clone(), line: None, text });
    let mut table =
        format!("[[model]]\nname = {}\nfile = {}\n", quoted(&config.name), quoted(path));
    let _ = writeln!(table, "slo_ms = {:?}", config.slo_ms.unwrap_or(defaults.slo_ms));
    if config.slo_ms.is_none() {
        note(format!(
            "slo_ms is {:?}: Triton's models have no objective; choose one",
            defaults.slo_ms
        ));
    }
    if config.batch_max > 0 {
        let _ = writeln!(table, "batch_max = {}", config.batch_max);
    }
    if let Some(capacity) = config.queue_capacity {
        let _ = writeln!(table, "queue_capacity = {capacity}");
    }
    let (stated, guessed) = maxima(&dims, config);
    if !stated.is_empty() {
        let _ = writeln!(table, "dims = {{ {} }}", stated.join(", "));
    }
    if !guessed.is_empty() {
        let names = guessed.join(", ");
        note(format!(
            "dims says {EXTENT} for {names}, which is a guess: state the longest that a task may be"
        ));
    }
    let _ = writeln!(table, "subcluster = \"{}\"", config.place.name());
    if config.place == Place::Gpu {
        table += "device = \"cuda:0\"\n";
    }
    Ok((table + "\n", notes))
}

/// Entries of the key `dims`, and the names of those that are guesses.
fn maxima(dims: &[OpenDim], config: &Config) -> (Vec<String>, Vec<String>) {
    let mut largest: Vec<(&str, Option<i64>)> = Vec::new();
    for dim in dims {
        let extent = extent(dim, config);
        match largest.iter_mut().find(|(key, _)| *key == dim.key()) {
            Some((_, known)) => *known = extent.max(*known),
            None => largest.push((dim.key(), extent)),
        }
    }
    let entry = |(name, extent): &(&str, Option<i64>)| {
        format!("{} = {}", quoted(name), extent.unwrap_or(EXTENT))
    };
    let guessed = largest.iter().filter(|(_, extent)| extent.is_none());
    (largest.iter().map(entry).collect(), guessed.map(|(name, _)| (*name).to_owned()).collect())
}

/// What the configuration says of a dimension that the file leaves open.
fn extent(dim: &OpenDim, config: &Config) -> Option<i64> {
    let shape = config.shapes.get(&dim.tensor)?;
    // With a max_batch_size the configuration's shapes are without the batch.
    let axis = if config.batch_max > 0 { dim.row_axis } else { dim.axis };
    shape.get(axis).copied().filter(|&extent| extent > 0)
}

fn quoted(text: &str) -> String {
    toml::Value::from(text).to_string()
}

/// The file of the version that is served.
fn file(folder: &Path, config: &Config) -> Result<PathBuf, String> {
    let version = match config.version {
        Some(version) => version,
        None => newest(folder)?,
    };
    let file = folder.join(version.to_string()).join(&config.file_name);
    if !file.is_file() {
        return Err(format!("there is no file {}", file.display()));
    }
    Ok(file)
}

fn newest(folder: &Path) -> Result<u64, String> {
    let mut newest: Option<u64> = None;
    for entry in std::fs::read_dir(folder).map_err(|error| error.to_string())? {
        let name = entry.map_err(|error| error.to_string())?.file_name();
        newest = newest.max(name.to_str().and_then(|name| name.parse().ok()));
    }
    newest.ok_or_else(|| "it has no folder of a version, such as 1/".to_owned())
}
