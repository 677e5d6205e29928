//! Why slabs, slots and inputs cannot be had.

use baton_types::{ModelId, TaskId};

use baton_topo::signature::INPUT_BYTES_MAX;

/// Why slabs could not be made, or a slot not be had.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum SlabError {
    /// Every slot of the model's slab is in use.
    #[error("every slot of the model's slab is in use; await outcomes or configure more slots")]
    Exhausted,
    /// There is no slab for this model.
    #[error("there is no slab for this model")]
    UnknownModel,
    /// More slots than task ids can address.
    #[error("{0} slots asked for; task ids address {max}", max = TaskId::SLOTS_MAX)]
    TooManySlots(u64),
    /// An input, an output or the slab itself is empty or too large.
    #[error("the slab of model {} has no slots, or an input or output of 0 or over {max} bytes", .0.0,
        max = INPUT_BYTES_MAX)]
    BadSize(ModelId),
    /// Two slabs for one model.
    #[error("model {} has two slabs; give it one with more slots", .0.0)]
    DuplicateModel(ModelId),
    /// The machine does not give that much memory.
    #[error("no memory for the slab of model {}; configure fewer slots", .0.0)]
    NoMemory(ModelId),
}

/// Why a READ is refused.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, thiserror::Error)]
pub enum ReadRefusal {
    /// The slot is not in flight with this generation: decided, recycled, or never submitted.
    #[error("the task is not in flight")]
    Stale,
    /// The slot's input has another size.
    #[error("the slot's input has another size")]
    WrongSize,
    /// There is no such slot.
    #[error("there is no such slot")]
    NoSuchSlot,
}
