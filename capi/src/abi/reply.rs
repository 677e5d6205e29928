//! A reply: read where it landed.

use std::ffi::c_void;
use std::sync::Arc;

use baton_client::Reply;

use super::model::{MODELS, no_tensor};
use super::pointers::{Out, OutStruct};
use super::signature;
use super::structs::{ModelHandle, ReplyHandle, Tensor};
use crate::handles::Table;
use crate::status::{E_TENSORS, OK, Refusal, call};

pub(super) static REPLIES: Table<Arc<Reply>> = Table::new(5, "reply");

#[unsafe(no_mangle)]
pub extern "C" fn baton_reply_data(
    reply: ReplyHandle,
    data: Out<*const c_void>,
    bytes: Out<usize>,
) -> i32 {
    call(|| {
        let (reply, data) = (REPLIES.get(reply.id)?, data.given("data")?);
        data.put(reply.bytes().as_ptr().cast());
        bytes.put_if_given(reply.bytes().len());
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_reply_tensor(
    reply: ReplyHandle,
    model: ModelHandle,
    index: usize,
    tensor: OutStruct<Tensor>,
) -> i32 {
    call(|| {
        let (reply, model) = (REPLIES.get(reply.id)?, MODELS.get(model.id)?);
        let out = tensor.given()?;
        let tensors = model.handle.tensors_of(reply.bytes());
        let tensors = tensors.map_err(|problem| Refusal::new(E_TENSORS, problem))?;
        let found = tensors.get(index).ok_or_else(|| no_tensor(index, tensors.len()))?;
        let mut shape = [0; signature::RANK_MAX];
        shape[..found.shape.len()].copy_from_slice(&found.shape);
        out.put(Tensor {
            struct_size: 0,
            element: model.handle.outputs()[index].element as i32,
            rank: found.shape.len() as u32,
            varies: 0,
            shape,
            name: model.outputs[index].as_ptr(),
            data: found.bytes.as_ptr().cast(),
            bytes: found.bytes.len(),
        });
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_reply_free(reply: ReplyHandle) -> i32 {
    call(|| REPLIES.remove(reply.id).map(|_reply| OK))
}
