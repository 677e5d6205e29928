//! Protection domains and registered memory.
#![expect(unsafe_code, reason = "calls libibverbs")]

use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::process::{Resource, getrlimit};

use super::device::Device;
use super::error::VerbsError;
use super::ffi;
use crate::memory::region::Region;

/// What the fabric may do with registered memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Access {
    /// Peers may READ it; nothing may write it through the fabric. A frontend's inputs.
    RemoteRead,
    /// READs of this process and messages to it land in it; peers cannot address it. A backend's
    /// batch rows, receive buffers.
    Landing,
    /// The device only reads it, for this process. Send slots.
    Sending,
}

impl Access {
    fn flags(self) -> u32 {
        match self {
            Self::RemoteRead => ffi::ACCESS_REMOTE_READ,
            // Nothing here polls the last byte of a landing place, so its order does not matter.
            Self::Sending => 0,
            Self::Landing => ffi::ACCESS_LOCAL_WRITE | ffi::ACCESS_RELAXED_ORDERING,
        }
    }
}

/// Memory and queue pairs work together only within one of these.
pub(crate) struct ProtectionDomain {
    pub(super) device: Arc<Device>,
    pub(super) pd: NonNull<ffi::Pd>,
}

// SAFETY: libibverbs allows every call on it from any thread.
unsafe impl Send for ProtectionDomain {}
// SAFETY: as above; calls at the same time are allowed too.
unsafe impl Sync for ProtectionDomain {}

impl ProtectionDomain {
    /// A domain of `device`.
    ///
    /// # Errors
    /// The driver refuses.
    pub(crate) fn new(device: &Arc<Device>) -> Result<Arc<Self>, VerbsError> {
        // SAFETY: the context is open.
        let pd = unsafe { (device.library.alloc_pd)(device.context.as_ptr()) };
        let pd = NonNull::new(pd).ok_or_else(|| device.refused("a protection domain"))?;
        Ok(Arc::new(Self { device: Arc::clone(device), pd }))
    }

    /// The device it belongs to.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }
}

impl Drop for ProtectionDomain {
    fn drop(&mut self) {
        // SAFETY: ours; whatever was made in it held a reference and is gone.
        let _ = unsafe { (self.device.library.dealloc_pd)(self.pd.as_ptr()) };
    }
}

/// Registered memory: pinned, and known to the device under its keys. Keeps the memory alive.
pub(crate) struct MemoryRegion {
    pd: Arc<ProtectionDomain>,
    mr: NonNull<ffi::Mr>,
    memory: Arc<Region>,
    lkey: u32,
    rkey: u32,
}

// SAFETY: libibverbs allows deregistering from any thread; the rest is plain data.
unsafe impl Send for MemoryRegion {}

impl MemoryRegion {
    /// Registers all of `memory`. `what` names it in errors.
    ///
    /// # Errors
    /// The process may not pin that much, or the driver refuses.
    pub(crate) fn register(
        pd: &Arc<ProtectionDomain>,
        memory: &Arc<Region>,
        access: Access,
        what: &'static str,
    ) -> Result<Self, VerbsError> {
        let (start, bytes) = (memory.start(), memory.bytes());
        let (iova, flags) = (start.addr().get() as u64, access.flags());
        // SAFETY: the range is the region's whole allocation, which outlives the registration.
        let mr = unsafe {
            (pd.device.library.reg_mr)(pd.pd.as_ptr(), start.as_ptr().cast(), bytes, iova, flags)
        };
        let Some(mr) = NonNull::new(mr) else { return Err(registration_error(pd, what, bytes)) };
        // SAFETY: the library returned a memory region, which lives until it is deregistered.
        let keys = unsafe { mr.as_ref() };
        let (lkey, rkey) = (keys.lkey, keys.rkey);
        Ok(Self { pd: Arc::clone(pd), mr, memory: Arc::clone(memory), lkey, rkey })
    }

    /// What local work requests name it by.
    pub(crate) fn lkey(&self) -> u32 {
        self.lkey
    }

    /// What peers name it by.
    pub(crate) fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Its first address.
    pub(crate) fn addr(&self) -> u64 {
        self.memory.start().addr().get() as u64
    }

    /// True if it registers this memory.
    pub(crate) fn is_of(&self, memory: &Arc<Region>) -> bool {
        Arc::ptr_eq(&self.memory, memory)
    }

    /// True if it covers `len` bytes from `addr`.
    pub(crate) fn covers(&self, addr: u64, len: u64) -> bool {
        let at = addr.checked_sub(self.addr());
        at.and_then(|at| at.checked_add(len)).is_some_and(|end| end <= self.memory.bytes() as u64)
    }
}

impl Drop for MemoryRegion {
    fn drop(&mut self) {
        // SAFETY: registered by us and deregistered only here. Afterwards the device does not touch
        // the memory, which `memory` has kept alive until now.
        let failed = unsafe { (self.pd.device.library.dereg_mr)(self.mr.as_ptr()) };
        if failed != 0 {
            // The device may still hold it: the memory is never given back then.
            std::mem::forget(Arc::clone(&self.memory));
            tracing::error!(errno = failed, "memory could not be deregistered; it is kept");
        }
    }
}

/// Memory of another device, registered by the file that its driver has given it out as (a dma-buf). The
/// caller keeps the memory alive.
pub(crate) struct DeviceRegion {
    pd: Arc<ProtectionDomain>,
    mr: NonNull<ffi::Mr>,
}

impl DeviceRegion {
    /// Registers this many bytes from the beginning of `file`, as a landing place of READs.
    ///
    /// # Errors
    /// The library is too old, or the driver refuses.
    pub(crate) fn register(
        pd: &Arc<ProtectionDomain>,
        file: BorrowedFd<'_>,
        bytes: usize,
    ) -> Result<Self, VerbsError> {
        let device = &pd.device;
        let register = device.library.reg_dmabuf_mr()?;
        let (file, access) = (file.as_raw_fd(), Access::Landing.flags().cast_signed());
        // SAFETY: the file is open. The kernel refuses one that is no dma-buf, or is shorter.
        let mr = unsafe { register(pd.pd.as_ptr(), 0, bytes, 0, file, access) };
        let mr = NonNull::new(mr).ok_or_else(|| device.refused("registering a dma-buf"))?;
        Ok(Self { pd: Arc::clone(pd), mr })
    }
}

impl Drop for DeviceRegion {
    fn drop(&mut self) {
        // SAFETY: registered by us and deregistered only here.
        let failed = unsafe { (self.pd.device.library.dereg_mr)(self.mr.as_ptr()) };
        if failed != 0 {
            tracing::error!(errno = failed, "memory of a device could not be deregistered");
        }
    }
}

fn registration_error(pd: &ProtectionDomain, what: &'static str, bytes: usize) -> VerbsError {
    let refused = pd.device.refused("registering memory");
    match getrlimit(Resource::Memlock).current {
        // Drivers say ENOMEM, EAGAIN or EPERM; the limit says which it was.
        Some(limit) if limit < bytes as u64 => VerbsError::Memlock { what, bytes, limit },
        _ => refused,
    }
}
