//! Containers of dense ids that allocate when they are made and never after.

pub(crate) mod heap;
pub(crate) mod idset;
pub(crate) mod linked_heaps;
pub(crate) mod range_max;
