//! The shared receive queue: buffers that the messages of all control queue pairs land in.
#![expect(unsafe_code, reason = "calls libibverbs")]

use std::io;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::error::VerbsError;
use super::ffi::{self, PostSrqRecv, RecvWr, Sge, SrqInitAttr};
use super::memory::ProtectionDomain;
use crate::verbs::engine::Piece;

/// Receives per chain, at most.
pub(crate) const REFILL: usize = 32;

/// A shared receive queue.
pub(crate) struct SharedReceives {
    pd: Arc<ProtectionDomain>,
    pub(super) srq: NonNull<ffi::Srq>,
    post_srq_recv: PostSrqRecv,
}

// SAFETY: libibverbs allows every call on it from any thread.
unsafe impl Send for SharedReceives {}
// SAFETY: as above; calls at the same time are allowed too.
unsafe impl Sync for SharedReceives {}

impl SharedReceives {
    /// A queue with room for `receives` of one piece each.
    ///
    /// # Errors
    /// The driver refuses.
    pub(crate) fn new(pd: &Arc<ProtectionDomain>, receives: u32) -> Result<Arc<Self>, VerbsError> {
        let device = &pd.device;
        // SAFETY: the context is open.
        let ops = unsafe { &device.context.as_ref().ops };
        let post_srq_recv = ops.post_srq_recv.ok_or_else(|| device.failed("its data path", 95))?;
        let (srq_context, max_wr) = (ptr::null_mut(), receives);
        let mut attr = SrqInitAttr { srq_context, max_wr, max_sge: 1, srq_limit: 0 };
        // SAFETY: the domain lives as long as the queue, which holds it; `attr` is complete.
        let srq = unsafe { (device.library.create_srq)(pd.pd.as_ptr(), &raw mut attr) };
        let srq = NonNull::new(srq).ok_or_else(|| device.refused("a shared receive queue"))?;
        Ok(Arc::new(Self { pd: Arc::clone(pd), srq, post_srq_recv }))
    }

    /// Posts receives, at most [`REFILL`]: their ids and buffers.
    ///
    /// # Errors
    /// The driver refuses one; those before it are posted.
    ///
    /// # Safety
    /// The buffers are registered for landing, stay so until this queue is gone, and are neither read
    /// nor written until the receive's completion has been polled.
    pub(crate) unsafe fn post(&self, receives: &[(u64, Piece)]) -> io::Result<()> {
        assert!(receives.len() <= REFILL, "a chain is bounded by its builder");
        let mut pieces = [Sge::default(); REFILL];
        let blank =
            || RecvWr { wr_id: 0, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 1 };
        let mut wrs: [RecvWr; REFILL] = std::array::from_fn(|_| blank());
        for (at, &(id, Piece { addr, len: length, lkey })) in receives.iter().enumerate() {
            pieces[at] = Sge { addr, length, lkey };
            (wrs[at].wr_id, wrs[at].sg_list) = (id, &raw mut pieces[at]);
        }
        for at in (1..receives.len()).rev() {
            wrs[at - 1].next = &raw mut wrs[at];
        }
        if receives.is_empty() {
            return Ok(());
        }
        let (first, mut refused) = (&raw mut wrs[0], ptr::null_mut());
        // SAFETY: the chain and its pieces outlive the call; the buffers are the caller's promise.
        let errno = unsafe { (self.post_srq_recv)(self.srq.as_ptr(), first, &raw mut refused) };
        if errno == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(errno.abs())) }
    }
}

impl Drop for SharedReceives {
    fn drop(&mut self) {
        // SAFETY: ours, destroyed only here; every queue pair on it held a reference and is gone.
        let errno = unsafe { (self.pd.device.library.destroy_srq)(self.srq.as_ptr()) };
        if errno != 0 {
            tracing::error!(errno, "a shared receive queue could not be destroyed");
        }
    }
}
