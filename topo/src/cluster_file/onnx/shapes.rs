//! Outputs whose shape a file does not say, or says wrong: the key `shapes` says it instead, the batch included.

use std::collections::BTreeMap;

use toml::Value;
use toml::de::DeValue;

use super::file::{Dim, OnnxFile};
use super::{EXTENT_MAX, Refusal, Section};
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

/// The same of a model's table that was not checked.
pub(super) fn of_table(table: &toml::Table) -> Shapes {
    let dim = |value: &Value| match value {
        Value::Integer(extent) => u32::try_from(*extent).ok().map(Dim::Fixed),
        other => other.as_str().map(|name| Dim::Symbol(name.to_owned())),
    };
    let shapes = table.get("shapes").and_then(Value::as_table).into_iter().flatten();
    let shapes = shapes.filter_map(|(name, shape)| {
        let dims = shape.as_array()?.iter().map(dim).collect::<Option<_>>()?;
        Some((name.clone(), dims))
    });
    shapes.collect()
}

/// Gives outputs the shapes that are stated.
pub(super) fn state(file: &mut OnnxFile, shapes: &Shapes) -> Result<(), Refusal> {
    for (name, dims) in shapes {
        let Some(output) = file.outputs.iter_mut().find(|output| output.name == *name) else {
            let all: Vec<&str> = file.outputs.iter().map(|output| output.name.as_str()).collect();
            let what = format!("names `{name}`, and no output is called that");
            return Err(("shapes", what, format!("name one of {}", all.join(", "))));
        };
        output.dims.clone_from(dims);
    }
    Ok(())
}
