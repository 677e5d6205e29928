//! A model: what it takes and gives, and where inputs come from.

use std::ffi::{CString, c_char};
use std::ptr;
use std::sync::Arc;
use std::time::Duration;

use baton_client::{Extent, TensorRef, TensorSpec, wait_for};

use super::pointers::{InStruct, Out, OutStruct, bytes, optional};
use super::structs::{InputHandle, ModelHandle, ModelInfo, Tensor};
use super::{input, signature};
use crate::handles::Table;
use crate::status::{OK, PENDING, Refusal, Result, call};

pub(super) const INPUTS: i32 = 0;
pub(super) const OUTPUTS: i32 = 1;

pub(super) static MODELS: Table<Arc<Model>> = Table::new(2, "model");

/// A handle with its names as C has texts.
pub(super) struct Model {
    pub(super) handle: baton_client::ModelHandle,
    name: CString,
    inputs: Vec<CString>,
    pub(super) outputs: Vec<CString>,
}

pub(super) fn insert(handle: baton_client::ModelHandle) -> Result<ModelHandle> {
    // A name has no zero byte: it stood in a file of text.
    let text = |name: &str| CString::new(name).unwrap_or_default();
    let names = |specs: &[TensorSpec]| specs.iter().map(|spec| text(&spec.name)).collect();
    let (inputs, outputs) = (names(handle.inputs()), names(handle.outputs()));
    let model = Model { name: text(handle.name()), inputs, outputs, handle };
    Ok(ModelHandle { id: MODELS.insert(Arc::new(model))? })
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_model_free(model: ModelHandle) -> i32 {
    call(|| MODELS.remove(model.id).map(|_model| OK))
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_model_describe(model: ModelHandle, info: OutStruct<ModelInfo>) -> i32 {
    call(|| {
        let (model, out) = (MODELS.get(model.id)?, info.given()?);
        let handle = &model.handle;
        out.put(ModelInfo {
            struct_size: 0,
            is_removed: u32::from(handle.is_removed()),
            name: model.name.as_ptr(),
            input_bytes: handle.input_bytes(),
            output_bytes: handle.output_bytes(),
            input_count: model.inputs.len() as u32,
            output_count: model.outputs.len() as u32,
            slo_ns: ns(handle.slo()),
            retry_after_ns: handle.retry_after().map_or(0, ns),
        });
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_model_tensor(
    model: ModelHandle,
    side: i32,
    index: usize,
    tensor: OutStruct<Tensor>,
) -> i32 {
    call(|| {
        let (model, out) = (MODELS.get(model.id)?, tensor.given()?);
        let (specs, names) = match side {
            INPUTS => (model.handle.inputs(), &model.inputs),
            OUTPUTS => (model.handle.outputs(), &model.outputs),
            _ => return Err(Refusal::argument("side: give BATON_INPUTS or BATON_OUTPUTS")),
        };
        let spec = specs.get(index).ok_or_else(|| no_tensor(index, specs.len()))?;
        out.put(described(spec, names[index].as_ptr()));
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_model_input(
    model: ModelHandle,
    timeout_ns: u64,
    input: Out<InputHandle>,
) -> i32 {
    call(|| {
        let (model, out) = (MODELS.get(model.id)?, input.given("input")?);
        let slot = match timeout_ns {
            0 => model.handle.input()?,
            ns => match wait_for(model.handle.input_ready(), Duration::from_nanos(ns)) {
                Some(slot) => slot?,
                None => return Ok(PENDING),
            },
        };
        out.put(InputHandle { id: input::INPUTS.insert(input::Slot::Free(slot))? });
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_model_input_of(
    model: ModelHandle,
    tensors: InStruct<Tensor>,
    count: usize,
    input: Out<InputHandle>,
) -> i32 {
    call(|| {
        let (model, out) = (MODELS.get(model.id)?, input.given("input")?);
        if count > signature::TENSORS_MAX {
            let words =
                format!("count is {count}: a model has {} tensors at most", signature::TENSORS_MAX);
            return Err(Refusal::argument(words));
        }
        let given = tensors.array(count)?;
        let named: Vec<(String, TensorRef<'_>)> = given.iter().map(lent).collect::<Result<_>>()?;
        let refs: Vec<(&str, TensorRef<'_>)> =
            named.iter().map(|(name, tensor)| (&**name, tensor.clone())).collect();
        let slot = model.handle.input_of(&refs)?;
        out.put(InputHandle { id: input::INPUTS.insert(input::Slot::Free(slot))? });
        Ok(OK)
    })
}

/// A tensor that the program gives.
fn lent(tensor: &Tensor) -> Result<(String, TensorRef<'static>)> {
    let name = optional(tensor.name, "tensor.name")?;
    let name = name.ok_or_else(|| Refusal::argument("tensor.name is NULL: give a name"))?;
    let rank = tensor.rank as usize;
    let shape = tensor.shape.get(..rank).ok_or_else(|| {
        Refusal::argument(format!("tensor.rank of {name} is {rank}: BATON_RANK_MAX is the most"))
    })?;
    let bytes = bytes(tensor.data, tensor.bytes, "tensor.data")?;
    Ok((name, TensorRef { shape: shape.to_vec(), bytes }))
}

fn described(spec: &TensorSpec, name: *const c_char) -> Tensor {
    let mut shape = [0; signature::RANK_MAX];
    let mut varies = 0;
    for (dimension, extent) in spec.shape.iter().enumerate() {
        shape[dimension] = extent.max();
        varies |= u32::from(matches!(extent, Extent::UpTo(_))) << dimension;
    }
    let elements: usize = spec.shape.iter().map(|extent| extent.max() as usize).product();
    Tensor {
        struct_size: 0,
        element: spec.element as i32,
        rank: spec.shape.len() as u32,
        varies,
        shape,
        name,
        data: ptr::null(),
        bytes: elements * spec.element.bytes(),
    }
}

pub(super) fn no_tensor(index: usize, count: usize) -> Refusal {
    Refusal::argument(format!("index is {index}, and there are {count} tensors"))
}

fn ns(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}
