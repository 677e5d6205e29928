//! Memory of a device as a dma-buf: a file that the drivers of other devices can use (GPUDirect).

use std::ffi::{c_int, c_ulonglong, c_void};
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use super::pinned::Context;
use super::{Library, OpenError};
use crate::driver::CudaError;

/// Where the memory is, how many bytes, which kind of handle (a file's descriptor), flags. From CUDA 11.7 on.
pub(super) type GetHandle =
    unsafe extern "C" fn(*mut c_void, u64, usize, c_int, c_ulonglong) -> c_int;

pub(super) const SYMBOL: &str = "cuMemGetHandleForAddressRange";
/// `CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD`.
const DMA_BUF_FD: c_int = 1;
/// `CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED`.
const DMA_BUF_SUPPORTED: c_int = 124;
/// What is given out begins and ends at pages of the host, which are at most this large on any host that Linux runs on.
const PAGE: usize = 64 << 10;

/// Why no memory of a device is given out.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ExportError {
    /// The library lacks the function.
    #[error("the driver has no {SYMBOL}; it is older than CUDA 11.7")]
    OldDriver,
    /// The driver says that it cannot.
    #[error(
        "the driver gives out no memory of this device as a dma-buf; NVIDIA's open kernel modules may"
    )]
    Unsupported,
    /// The device cannot be used.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The driver said that it can, and refused.
    #[error(transparent)]
    Refused(#[from] CudaError),
}

/// Memory of a device that was given out. Dropping it closes the file and gives the memory back.
pub struct DeviceExport {
    // Before the memory: fields are dropped in their order.
    file: OwnedFd,
    bytes: usize,
    memory: Allocation,
}

/// Memory of a device, with the context that it belongs to.
struct Allocation {
    context: Arc<Context>,
    address: u64,
}

impl Library {
    /// Takes at least this much memory of a device and gives it out.
    ///
    /// # Errors
    /// See [`ExportError`].
    pub fn export(
        self: &Arc<Self>,
        device: u32,
        bytes: usize,
    ) -> Result<DeviceExport, ExportError> {
        let get_handle = self.get_handle.ok_or(ExportError::OldDriver)?;
        let number = self.device(device.cast_signed())?;
        // Drivers that do not know the attribute do not have what it asks for.
        if !self.attribute(DMA_BUF_SUPPORTED, number).is_ok_and(|can| can != 0) {
            return Err(ExportError::Unsupported);
        }
        let context = Context::retain(Arc::clone(self), device)?;
        context.set_current()?;
        let bytes = bytes.max(1).next_multiple_of(PAGE);
        let memory = Allocation::new(context, bytes + PAGE)?;
        let start = memory.address.next_multiple_of(PAGE as u64);
        let mut file: c_int = -1;
        let to = (&raw mut file).cast();
        // SAFETY: the range lies within the allocation, and a descriptor is written, which is one number.
        let given = unsafe { get_handle(to, start, bytes, DMA_BUF_FD, 0) };
        self.check(SYMBOL, given)?;
        // SAFETY: the driver has opened it for this call alone.
        let file = unsafe { OwnedFd::from_raw_fd(file) };
        Ok(DeviceExport { file, bytes, memory })
    }
}

impl DeviceExport {
    /// Its bytes, from the beginning of the file.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

impl AsFd for DeviceExport {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl std::fmt::Debug for DeviceExport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "DeviceExport({} bytes at {:#x})", self.bytes, self.memory.address)
    }
}

impl Allocation {
    fn new(context: Arc<Context>, bytes: usize) -> Result<Self, CudaError> {
        let mut address = 0;
        // SAFETY: writes one address.
        let made = unsafe { (context.library.call.allocate)(&raw mut address, bytes) };
        context.library.check("cuMemAlloc", made)?;
        Ok(Self { context, address })
    }
}

impl Drop for Allocation {
    fn drop(&mut self) {
        // A context that is lost refuses this, too; the memory goes with the process then.
        let _ = self.context.set_current();
        // SAFETY: allocated in this context, and given back only here.
        let _ = unsafe { (self.context.library.call.free)(self.address) };
    }
}
