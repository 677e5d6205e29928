//! A device's context, and the host's memory that is registered with it.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_rdma::{HostPin, Stay};

use super::{Handle, Library, OpenError};
use crate::driver::CudaError;

/// `CU_MEMHOSTREGISTER_PORTABLE`: page-locked for every device.
const PORTABLE: u32 = 1;

/// The primary context of a device, held as long as anything uses it.
pub(super) struct Context {
    pub(super) library: Arc<Library>,
    device: c_int,
    handle: usize,
    /// Where registered memory begins, and its bytes.
    registered: Mutex<BTreeMap<usize, usize>>,
    /// The device answers nothing any more.
    abandoned: AtomicBool,
}

impl Context {
    pub(super) fn retain(library: Arc<Library>, number: u32) -> Result<Arc<Self>, OpenError> {
        let refused = |error| OpenError::Start { error };
        let count = library.device_count().map_err(refused)?;
        let Some(number) = c_int::try_from(number).ok().filter(|&number| number < count) else {
            return Err(OpenError::Device { device: number, count: count.unsigned_abs() });
        };
        let device = library.device(number).map_err(refused)?;
        let mut handle: Handle = std::ptr::null_mut();
        // SAFETY: writes one handle, which counts until it is released in `drop`.
        let retained = unsafe { (library.call.retain)(&raw mut handle, device) };
        library.check("cuDevicePrimaryCtxRetain", retained).map_err(refused)?;
        let (registered, abandoned) = (Mutex::default(), AtomicBool::new(false));
        let handle = handle as usize;
        Ok(Arc::new(Self { library, device, handle, registered, abandoned }))
    }

    /// Calls of this thread mean this context from now on.
    pub(super) fn set_current(&self) -> Result<(), CudaError> {
        // SAFETY: the context is retained as long as this lives.
        let set = unsafe { (self.library.call.set_current)(self.handle as Handle) };
        self.library.check("cuCtxSetCurrent", set)
    }

    /// Whatever belongs to it stays with the process from now on.
    pub(super) fn abandon(&self) {
        self.abandoned.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_abandoned(&self) -> bool {
        self.abandoned.load(Ordering::Relaxed)
    }

    fn registered(&self) -> MutexGuard<'_, BTreeMap<usize, usize>> {
        self.registered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether these bytes lie in memory that is registered.
    pub(super) fn is_registered(&self, address: usize, bytes: usize) -> bool {
        let registered = self.registered();
        let before = registered.range(..=address).next_back();
        before.is_some_and(|(&start, &length)| {
            address.checked_add(bytes).is_some_and(|end| end <= start + length)
        })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        if self.is_abandoned() {
            return;
        }
        // SAFETY: retained once in `retain`, and everything made in it is gone: all of that holds this.
        let _ = unsafe { (self.library.call.release)(self.device) };
    }
}

/// Registers memory of the host with a device, from any thread.
#[derive(Clone)]
pub struct Pinning(pub(super) Arc<Context>);

impl std::fmt::Debug for Pinning {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pinning(device {})", self.0.device)
    }
}

/// Registered memory; dropping it takes the registration back.
pub struct Pinned {
    context: Arc<Context>,
    address: usize,
}

impl Pinning {
    fn register(&self, memory: &Stay) -> Result<Pinned, CudaError> {
        self.0.set_current()?;
        let (address, bytes) = (memory.address(), memory.bytes());
        let call = self.0.library.call.register;
        // SAFETY: the memory is mapped, and stays so until the registration is dropped.
        let registered = unsafe { call(address as *mut c_void, bytes, PORTABLE) };
        self.0.library.check("cuMemHostRegister", registered)?;
        self.0.registered().insert(address, bytes);
        Ok(Pinned { context: Arc::clone(&self.0), address })
    }
}

impl HostPin for Pinning {
    fn pin(&self, memory: Stay) -> Result<Box<dyn Send + Sync>, String> {
        match self.register(&memory) {
            Ok(pinned) => Ok(Box::new(pinned)),
            Err(error) => Err(error.to_string()),
        }
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        self.context.registered().remove(&self.address);
        if self.context.is_abandoned() {
            return;
        }
        // A context that is lost refuses this, too; the memory goes with the process then.
        let _ = self.context.set_current();
        // SAFETY: registered at this address, and still mapped.
        let _ = unsafe { (self.context.library.call.unregister)(self.address as *mut c_void) };
    }
}
