//! Outputs whose shape a file does not say, or says wrong: the key `shapes` says it instead, the batch included.

use std::collections::BTreeMap;

use toml::de::DeValue;

use super::file::{Dim, OnnxFile};
use super::{EXTENT_MAX, Refusal, Section, no_such};
use crate::cluster_file::section;

/// By the output's name.
pub(super) type Shapes = BTreeMap<String, Vec<Dim>>;

pub(super) fn key(section: &Section<'_>) -> Shapes {
    let shape = |value: &DeValue<'_>| match value {
        DeValue::Array(items) => items.iter().map(|item| dim(item.get_ref())).collect(),
        other => Err(refusal(other)),
    };
    section.by_name("shapes", "y = [\"time\", \"batch\", 10]", shape).unwrap_or_default()
}

fn dim(value: &DeValue<'_>) -> Result<Dim, section::Refusal> {
    match value {
        DeValue::Integer(_) => section::integer(value, &(1..=EXTENT_MAX)).map(Dim::Fixed),
        DeValue::String(name) if !name.is_empty() => Ok(Dim::Symbol(name.to_string())),
        other => Err(refusal(other)),
    }
}

fn refusal(value: &DeValue<'_>) -> section::Refusal {
    let fix = "list the dimensions: a length, or a name where it may vary";
    section::Refusal::new(value, fix.to_owned())
}

/// Gives outputs the shapes that are stated.
pub(super) fn state(file: &mut OnnxFile, shapes: &Shapes) -> Result<(), Refusal> {
    for (name, dims) in shapes {
        let Some(output) = file.outputs.iter_mut().find(|output| output.name == *name) else {
            return Err(no_such("shapes", name, "output", &file.outputs));
        };
        output.dims.clone_from(dims);
    }
    Ok(())
}
