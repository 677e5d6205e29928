//! The longest extents of a model's outputs, where its file leaves them open: found by an execution of the longest input.

use std::error::Error;
use std::path::Path;

use baton_backend::profile::{answer_shapes, open_driver, usual_device};
use baton_topo::{Device, ModelSpec, OpenDim, Problem, open_dims, read_measured_model};
use toml::{Table, Value};

use crate::model::in_a_file;
use crate::profile::SLO_MS;

/// An output that is as long as this in a dimension is too long.
const TOO_LONG: u32 = 1 << 24;

/// Adds to the key `dims` of a model's table what the outputs need, and returns the key's value then. Nothing is added to a
/// table that is complete, or wrong in other ways.
///
/// # Errors
/// What is missing, and why an execution does not tell.
pub(crate) fn complete(
    table: &mut Table,
    on: Option<Device>,
) -> Result<Option<String>, Box<dyn Error>> {
    let Err(problems) = read(table) else { return Ok(None) };
    let open = open_outputs(table);
    let Some(model) = stood_in(table, &open) else { return Ok(None) };
    let device = on.unwrap_or_else(|| usual_device(&model));
    let shapes = answer_shapes(&model, device, open_driver).map_err(|error| {
        let missing = Problem::lines(&problems);
        format!("{missing}\nan execution does not tell how long it is: {error}")
    })?;
    let outputs = model.signature().output;
    for (spec, shape) in outputs.tensors().iter().zip(&shapes) {
        for dim in open.iter().filter(|dim| dim.tensor == spec.name) {
            state(table, dim.key(), shape[dim.row_axis]);
        }
    }
    Ok(table.get("dims").map(Value::to_string))
}

fn read(table: &Table) -> Result<ModelSpec, Vec<Problem>> {
    let mut table = table.clone();
    // A model that replaces another one keeps its objective.
    table.entry("slo_ms").or_insert_with(|| SLO_MS.into());
    let text = in_a_file(table).unwrap_or_default();
    read_measured_model(&text).map(|model| model.spec)
}

/// Dimensions of outputs that neither the table nor an input has.
fn open_outputs(table: &Table) -> Vec<OpenDim> {
    let file = table.get("file").and_then(Value::as_str).unwrap_or_default();
    let all = open_dims(Path::new(file), table).unwrap_or_default();
    let (outputs, inputs): (Vec<_>, Vec<_>) = all.into_iter().partition(|dim| dim.of_output);
    let stated = table.get("dims").and_then(Value::as_table);
    let is_known = |dim: &OpenDim| {
        let mut keys = stated.into_iter().flat_map(Table::keys);
        keys.any(|key| dim.is_called(key)) || inputs.iter().any(|input| input.name == dim.name)
    };
    outputs.into_iter().filter(|dim| !is_known(dim)).collect()
}

/// The model with outputs as long as an answer has room for, for single rows. `None`: there is more amiss than open outputs.
fn stood_in(table: &Table, open: &[OpenDim]) -> Option<ModelSpec> {
    if open.is_empty() {
        return None;
    }
    let mut table = table.clone();
    table.insert("batch_max".into(), 1.into());
    let mut with = |length| {
        open.iter().for_each(|dim| state(&mut table, dim.key(), length));
        read(&table).ok()
    };
    let mut model = with(1)?;
    // `longest` has room, `too_long` has not.
    let (mut longest, mut too_long) = (1, TOO_LONG);
    while too_long - longest > 1 {
        let length = u32::midpoint(longest, too_long);
        match with(length) {
            Some(longer) => (longest, model) = (length, longer),
            None => too_long = length,
        }
    }
    Some(model)
}

fn state(table: &mut Table, key: &str, extent: u32) {
    let dims = table.entry("dims").or_insert_with(|| Table::new().into());
    if let Value::Table(dims) = dims {
        dims.insert(key.to_owned(), extent.into());
    }
}
