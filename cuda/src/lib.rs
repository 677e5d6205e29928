//! CUDA for Baton's backend, in three layers.
//!
//! | layer | module |
//! |---|---|
//! | the calls of the CUDA driver that Baton makes, as a trait | [`Driver`] |
//! | the driver's library, opened at run time: `libcuda.so.1`, no toolkit | `library` |
//! | batches: rows to the device while others execute, answers back, ordered by events alone | [`Pipeline`] |
//!
//! The pipeline is safe code and knows no library, so a simulated driver in virtual time (`sim`) carries its property
//! tests. `docs/gpu.md` describes the whole.
//!
//! Unsafe code is confined to `library`.
#![deny(unsafe_code)]

mod driver;
mod kernel;
mod library;
mod pipeline;

pub use driver::{
    CudaError, DeviceBlock, DeviceMemory, Driver, Event, HostBlock, HostSource, Kernel, Lane,
    RowsAt, Stream,
};
pub use kernel::{CHECKSUM, CHECKSUM_BYTES, KernelSource, header};
pub use library::{
    DeviceExport, DeviceFacts, ExportError, Gpu, GpuState, Graph, Library, LockedClocks, Nvml,
    NvmlError, OpenError, Pinned, Pinning, Recorder,
};
pub use pipeline::{Back, End, Job, PATIENCE, Pipeline, Program, Room, Tensor, Times, Work};
