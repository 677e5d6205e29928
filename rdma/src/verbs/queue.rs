//! Completion queues.
#![expect(unsafe_code, reason = "calls libibverbs")]

use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::ptr::{self, NonNull};
use std::sync::Arc;

use super::device::Device;
use super::error::VerbsError;
use super::ffi::{self, PollCq, ReqNotifyCq, Wc};
use crate::verbs::control::{CONTROL, Signal};
use crate::verbs::engine::{Completion, Outcome};

/// Completions taken per call.
pub(crate) const POLL_BATCH: c_int = 32;

/// Where completions appear, and the descriptor that announces them.
pub(crate) struct CompletionQueue {
    pub(super) device: Arc<Device>,
    channel: NonNull<ffi::CompChannel>,
    pub(super) cq: NonNull<ffi::Cq>,
    poll_cq: PollCq,
    req_notify: ReqNotifyCq,
}

// SAFETY: libibverbs allows every call on it from any thread.
unsafe impl Send for CompletionQueue {}
// SAFETY: as above; calls at the same time are allowed too.
unsafe impl Sync for CompletionQueue {}

impl CompletionQueue {
    /// A queue with room for `entries` completions.
    ///
    /// # Errors
    /// The driver refuses.
    pub(crate) fn new(device: &Arc<Device>, entries: u32) -> Result<Arc<Self>, VerbsError> {
        let library = &device.library;
        // SAFETY: the context is open.
        let ops = unsafe { &device.context.as_ref().ops };
        let (Some(poll_cq), Some(req_notify)) = (ops.poll_cq, ops.req_notify_cq) else {
            return Err(device.failed("its data path", 95));
        };
        // SAFETY: the context is open.
        let channel = unsafe { (library.create_channel)(device.context.as_ptr()) };
        let channel =
            NonNull::new(channel).ok_or_else(|| device.refused("a completion channel"))?;
        let (context, none) = (device.context.as_ptr(), ptr::null_mut());
        // SAFETY: context and channel live; the queue is destroyed before them.
        let cq = unsafe {
            (library.create_cq)(context, entries.cast_signed(), none, channel.as_ptr(), 0)
        };
        let Some(cq) = NonNull::new(cq) else {
            let refused = device.refused("a completion queue");
            // SAFETY: made above; nothing uses it.
            let _ = unsafe { (library.destroy_channel)(channel.as_ptr()) };
            return Err(refused);
        };
        let queue = Self { device: Arc::clone(device), channel, cq, poll_cq, req_notify };
        rustix::io::ioctl_fionbio(queue.as_fd(), true)
            .map_err(|errno| device.failed("its completion channel", errno.raw_os_error()))?;
        Ok(Arc::new(queue))
    }

    /// Appends completions to `into`, those of control queue pairs to `signals`, up to [`POLL_BATCH`].
    /// Returns how many; the queue was empty if these are fewer.
    pub(crate) fn poll(&self, into: &mut Vec<Completion>, signals: &mut Vec<Signal>) -> usize {
        // A spinning thread polls without end: only what the library fills in is written.
        let mut batch = [const { MaybeUninit::<Wc>::uninit() }; POLL_BATCH as usize];
        let room = batch.as_mut_ptr().cast();
        // SAFETY: the queue lives and `batch` has room for as many as asked for.
        let count = unsafe { (self.poll_cq)(self.cq.as_ptr(), POLL_BATCH, room) };
        let count = count.max(0) as usize;
        // SAFETY: the library has filled in as many as it says.
        for wc in unsafe { batch[..count].assume_init_ref() } {
            if wc.wr_id & CONTROL == 0 {
                into.push(completion(wc));
            } else {
                signals.push(signal(wc));
            }
        }
        count
    }

    /// Asks for the descriptor to become readable at the next completion. Poll once more after.
    pub(crate) fn arm(&self) {
        // SAFETY: the queue lives.
        let _ = unsafe { (self.req_notify)(self.cq.as_ptr(), 0) };
    }

    /// Takes the announcements off the descriptor.
    pub(crate) fn acknowledge(&self) {
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        let library = &self.device.library;
        let channel = self.channel.as_ptr();
        // SAFETY: the channel lives and does not block; both places are written.
        while unsafe { (library.get_cq_event)(channel, &raw mut cq, &raw mut context) } == 0 {
            // SAFETY: the event just taken is of this, the channel's only queue.
            unsafe { (library.ack_cq_events)(cq, 1) };
        }
    }

    /// What the library calls a failed completion's status.
    pub(crate) fn status_text(&self, status: u32) -> String {
        // SAFETY: the library answers every number with a constant string.
        let text = unsafe { (self.device.library.status_text)(status) };
        if text.is_null() {
            return format!("status {status}");
        }
        // SAFETY: a constant C string.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
    }
}

impl AsFd for CompletionQueue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the channel lives until this is dropped.
        let fd = unsafe { self.channel.as_ref().fd };
        // SAFETY: it stays open as long as the channel.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

impl Drop for CompletionQueue {
    fn drop(&mut self) {
        self.acknowledge();
        let library = &self.device.library;
        // SAFETY: every queue pair on it held a reference and is gone; all events are acknowledged.
        let _ = unsafe { (library.destroy_cq)(self.cq.as_ptr()) };
        // SAFETY: its only queue is gone.
        let _ = unsafe { (library.destroy_channel)(self.channel.as_ptr()) };
    }
}

fn completion(wc: &Wc) -> Completion {
    Completion { request: wc.wr_id, outcome: outcome(wc) }
}

fn signal(wc: &Wc) -> Signal {
    // Where it failed, the length means nothing.
    let bytes = if wc.status == ffi::WC_SUCCESS { wc.byte_len } else { 0 };
    Signal { request: wc.wr_id, outcome: outcome(wc), pair: wc.qp_num, bytes }
}

fn outcome(wc: &Wc) -> Outcome {
    match wc.status {
        ffi::WC_SUCCESS => Outcome::Done,
        ffi::WC_FLUSHED => Outcome::Flushed,
        ffi::WC_REMOTE_ACCESS => Outcome::Refused,
        status => Outcome::Failed(status),
    }
}
