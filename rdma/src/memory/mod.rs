//! Memory that one side writes while another part of the process holds a handle to it: a frontend's slabs, a backend's
//! batches, and the registered regions below both. The only room of this package with unsafe code besides `verbs`.

pub(crate) mod landing;
mod lent;
pub(crate) mod mapped;
pub(crate) mod region;
pub(crate) mod slab;

pub use landing::{BatchBuffer, HostPin, NoMemory, RowMut, RowsRef, Stay};
pub use slab::{
    Backing, InputAhead, InputMut, InputState, OutputMut, OutputRef, ReadLease, ReadRefusal,
    SlabError, SlabSet, SlabSpec,
};
