//! What the gateway says of itself and of its models, as JSON.

use baton_client::{Extent, TensorSpec};
use serde_json::{Value, json};

use super::memory::Registration;
use super::render::VERSION;
use super::request::Model;

/// What always works, in the protocol's words.
const EXTENSIONS: [&str; 5] =
    ["binary_tensor_data", "model_configuration", "model_repository", "parameters", "statistics"];
const MEMORY: &str = "system_shared_memory";

/// What works here, in the protocol's words.
pub fn extensions(has_memory: bool) -> impl Iterator<Item = &'static str> {
    EXTENSIONS.into_iter().chain(has_memory.then_some(MEMORY))
}

/// The answer to `GET v2`.
pub fn server(has_memory: bool) -> Value {
    let extensions: Vec<&str> = extensions(has_memory).collect();
    json!({ "name": "baton", "version": env!("CARGO_PKG_VERSION"), "extensions": extensions })
}

/// The answer to `GET v2/systemsharedmemory/status`.
pub fn regions(regions: &[Registration]) -> Value {
    let one = |region: &Registration| {
        let Registration { name, key, offset, byte_size } = region;
        json!({ "name": name, "key": key, "offset": offset, "byte_size": byte_size })
    };
    regions.iter().map(one).collect()
}

/// The answer to `GET v2/models/M`.
pub fn metadata(model: &Model<'_>) -> Value {
    let tensor = |spec: &TensorSpec| {
        let shape: Vec<i64> = [-1].into_iter().chain(extents(spec)).collect();
        json!({ "name": spec.name, "datatype": spec.element.oip_name(), "shape": shape })
    };
    json!({
        "name": model.name,
        "versions": [VERSION],
        "platform": "baton",
        "inputs": model.inputs.iter().map(tensor).collect::<Vec<_>>(),
        "outputs": model.outputs.iter().map(tensor).collect::<Vec<_>>(),
    })
}

/// The answer to `GET v2/models/M/config`. Shapes are without the batch dimension there.
pub fn config(model: &Model<'_>) -> Value {
    let tensor = |spec: &TensorSpec| {
        let (name, dims) = (spec.element.oip_name(), extents(spec).collect::<Vec<_>>());
        json!({ "name": spec.name, "data_type": format!("TYPE_{name}"), "dims": dims })
    };
    json!({
        "name": model.name,
        "platform": "baton",
        "backend": "baton",
        "max_batch_size": model.batch_max,
        "input": model.inputs.iter().map(tensor).collect::<Vec<_>>(),
        "output": model.outputs.iter().map(tensor).collect::<Vec<_>>(),
        "dynamic_batching": {},
    })
}

/// A model of the repository.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Indexed {
    /// Its name.
    pub name: String,
    /// It can be used now; otherwise it could be loaded.
    pub is_ready: bool,
}

impl Indexed {
    /// Its state in the protocol's words, and the reason of it.
    pub const fn state(&self) -> (&'static str, &'static str) {
        if self.is_ready { ("READY", "") } else { ("UNAVAILABLE", "unloaded") }
    }
}

/// The answer to `POST v2/repository/index`.
pub fn index(models: &[Indexed]) -> Value {
    let one = |model: &Indexed| {
        let (state, reason) = model.state();
        json!({ "name": model.name, "version": VERSION, "state": state, "reason": reason })
    };
    models.iter().map(one).collect()
}

pub(crate) fn extents(spec: &TensorSpec) -> impl Iterator<Item = i64> + '_ {
    spec.shape.iter().map(|extent| match extent {
        Extent::Fixed(extent) => i64::from(*extent),
        Extent::UpTo(_) => -1,
    })
}

#[cfg(test)]
mod tests {
    use baton_client::ElementType;

    use super::*;

    #[test]
    fn shapes_begin_with_the_batch_where_the_protocol_has_it() {
        let shape = vec![Extent::Fixed(3), Extent::UpTo(64)];
        let x = [TensorSpec { name: "x".into(), element: ElementType::F32, shape }];
        let flag = [TensorSpec { name: "flag".into(), element: ElementType::Bool, shape: vec![] }];
        let model = Model { name: "m", inputs: &x, outputs: &flag, batch_max: 16 };
        let tensor = |name: &str, datatype: &str, shape: &[i64]| json!({ "name": name, "datatype": datatype, "shape": shape });
        let said = metadata(&model);
        assert_eq!(said["inputs"], json!([tensor("x", "FP32", &[-1, 3, -1])]));
        assert_eq!(said["outputs"], json!([tensor("flag", "BOOL", &[-1])]));
        let said = config(&model);
        assert_eq!(
            said["input"],
            json!([{ "name": "x", "data_type": "TYPE_FP32", "dims": [3, -1] }])
        );
        assert_eq!(
            said["output"],
            json!([{ "name": "flag", "data_type": "TYPE_BOOL", "dims": [] }])
        );
        assert_eq!(said["max_batch_size"], 16);
    }

    #[test]
    fn the_index_is_a_list() {
        assert_eq!(index(&[]), json!([]));
        let model = |is_ready| Indexed { name: "m".into(), is_ready };
        let said = index(&[model(true), model(false)]);
        assert_eq!([&said[0]["state"], &said[1]["state"]], ["READY", "UNAVAILABLE"]);
        assert_eq!([&said[0]["reason"], &said[1]["reason"]], ["", "unloaded"]);
    }
}
