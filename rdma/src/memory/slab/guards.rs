//! The handles through which slot memory is touched. Each exists only while the slot's state says
//! so, and gives its part of the state back when dropped.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use baton_types::TaskId;

use super::ahead::InputAhead;
use super::slot::{Reclaim, SlotState};
use super::{Slab, SlabSet, Slot};
use crate::protocol::wire::TRAILER_LEN;

/// A slot's memory. Its methods that make references rest on the slot's state, which the guards
/// below embody.
pub(super) struct Place {
    pub(super) set: Arc<SlabSet>,
    pub(super) slot: u32,
}

impl Place {
    pub(super) fn new(set: Arc<SlabSet>, slot: u32) -> Self {
        Self { set, slot }
    }

    pub(super) fn slot(&self) -> &Slot {
        &self.set.slots[self.slot as usize]
    }

    pub(super) fn slab(&self) -> &Slab {
        &self.set.slabs[self.slot().slab as usize]
    }

    pub(super) fn input_at(&self) -> usize {
        (self.slot - self.slab().first) as usize * self.slab().stride
    }

    fn output_at(&self) -> usize {
        (self.slot - self.slab().first) as usize * self.slab().output_stride
    }

    /// Of the input that was submitted last. The order against it is that of the slot's state.
    pub(super) fn input_len(&self) -> usize {
        self.slot().input_len.load(Ordering::Relaxed) as usize
    }

    /// Returns the guard that `leave` takes off the slot's state.
    pub(super) fn end(&self, leave: impl FnOnce(&SlotState) -> Reclaim) {
        self.set.reclaim(self.slot, leave(&self.slot().state));
    }
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "slot {}", self.slot)
    }
}

/// The input of a slot that is being filled. Dropped without [`InputMut::submit`], the slot is free
/// again.
#[derive(Debug)]
pub struct InputMut {
    place: Place,
    /// Bytes that are the input: the first of the slot.
    len: u32,
    submitted: bool,
}

impl InputMut {
    /// Only for the slot that has just come off the free list.
    pub(super) fn new(place: Place) -> Self {
        let len = place.slab().spec.input_bytes;
        Self { place, len, submitted: false }
    }

    /// The input is the first `len` bytes; more than there are is all of them.
    pub fn truncate(&mut self, len: u32) {
        self.len = self.len.min(len);
    }

    /// The input is the whole slot again, whatever it was truncated to.
    pub fn restore(&mut self) {
        self.len = self.place.slab().spec.input_bytes;
    }

    /// Closes the input: from now on backends may read it. Returns the id to submit.
    pub fn submit(mut self) -> TaskId {
        self.submitted = true;
        self.place.slot().input_len.store(self.len, Ordering::Relaxed);
        self.place.set.launch(self.place.slot)
    }

    /// Submits the task before its input is written. It may not be truncated any more.
    pub fn submit_ahead(mut self) -> InputAhead {
        self.submitted = true;
        let place = Place::new(Arc::clone(&self.place.set), self.place.slot);
        place.slot().input_len.store(self.len, Ordering::Relaxed);
        let task = place.set.launch_ahead(place.slot);
        InputAhead::new(place, task)
    }
}

impl Drop for InputMut {
    fn drop(&mut self) {
        if !self.submitted {
            self.place.slot().state.unfill();
            self.place.set.free(self.place.slot);
        }
    }
}

impl Deref for InputMut {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        let place = &self.place;
        // SAFETY: a filling slot has no leases, and its only handle is this one, borrowed shared.
        unsafe { place.slab().inputs.slice(place.input_at(), self.len as usize) }
    }
}

impl DerefMut for InputMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        let place = &self.place;
        // SAFETY: a filling slot has no leases, and its only handle is this one, borrowed mutably.
        unsafe { place.slab().inputs.slice_mut(place.input_at(), self.len as usize) }
    }
}

/// Keeps an input and its trailer unchanged while a reader uses them.
#[derive(Debug)]
pub struct ReadLease {
    place: Place,
}

impl ReadLease {
    /// Only after [`SlotState::lease`].
    pub(super) fn new(place: Place) -> Self {
        Self { place }
    }
}

impl AsRef<[u8]> for ReadLease {
    /// The input, and behind it the task id, eight bytes little endian.
    fn as_ref(&self) -> &[u8] {
        let place = &self.place;
        let len = place.input_len() + TRAILER_LEN;
        // SAFETY: a slot is filled and recycled only when no lease is out, and this is one.
        unsafe { place.slab().inputs.slice(place.input_at(), len) }
    }
}

impl Drop for ReadLease {
    fn drop(&mut self) {
        self.place.end(SlotState::end_lease);
    }
}

/// Where an answer is written. Dropped without [`OutputMut::commit`], nothing has landed.
#[derive(Debug)]
pub struct OutputMut {
    place: Place,
    landed: bool,
}

impl OutputMut {
    /// Only after [`SlotState::land`].
    pub(super) fn new(place: Place) -> Self {
        Self { place, landed: false }
    }

    /// The first `len` bytes are the answer (at most all of them).
    pub fn commit(mut self, len: u32) {
        let len = len.min(self.place.slab().spec.output_bytes);
        self.place.slot().output_len.store(len, Ordering::Relaxed);
        self.landed = true;
    }
}

impl Deref for OutputMut {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        let (place, len) = (&self.place, self.place.slab().spec.output_bytes as usize);
        // SAFETY: the landing flag, which this guard owns, excludes other writers; readers come
        // only after an answer has landed, and then no landing guard is made.
        unsafe { place.slab().outputs.slice(place.output_at(), len) }
    }
}

impl DerefMut for OutputMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        let (place, len) = (&self.place, self.place.slab().spec.output_bytes as usize);
        // SAFETY: as for `deref`, and this handle is borrowed mutably.
        unsafe { place.slab().outputs.slice_mut(place.output_at(), len) }
    }
}

impl Drop for OutputMut {
    fn drop(&mut self) {
        let landed = self.landed;
        self.place.end(|state| state.end_landing(landed));
    }
}

/// A task's answer. Dropping it lets the slot go.
#[derive(Debug)]
pub struct OutputRef {
    place: Place,
}

impl OutputRef {
    /// Only after [`SlotState::take`].
    pub(super) fn new(place: Place) -> Self {
        Self { place }
    }
}

impl Deref for OutputRef {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        let len = self.place.slot().output_len.load(Ordering::Relaxed) as usize;
        // SAFETY: the answer has landed, so there is no writer, and there will be none before the
        // slot is recycled, which this guard prevents.
        unsafe { self.place.slab().outputs.slice(self.place.output_at(), len) }
    }
}

impl Drop for OutputRef {
    fn drop(&mut self) {
        self.place.end(SlotState::end_take);
    }
}
