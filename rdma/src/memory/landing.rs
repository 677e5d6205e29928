//! A batch's input rows, contiguous, each filled by its own READ.
//!
//! Rows are lent one by one to be filled ([`RowMut`]) and, once all are back, the batch is
//! read as a whole ([`RowsRef`]). The invariant: a row has one owner; while the whole is borrowed
//! no row is lent; and all rows lent at a time have the same length, so that different rows do not
//! overlap. The first row lent after everything was returned fixes the length.
#![expect(unsafe_code, reason = "turns the lending state into references to row memory")]

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};

use baton_types::BATCH_MAX;

use crate::memory::lent::Lent;
use crate::memory::region::Region;

/// The machine does not give memory for a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("no memory for a batch of {bytes} bytes; use smaller batches")]
pub struct NoMemory {
    /// What was asked for.
    pub bytes: usize,
}

/// Memory that stays where it is until the guard that was made for it is dropped.
#[derive(Debug)]
pub struct Stay {
    address: usize,
    bytes: usize,
}

impl Stay {
    /// Where it begins: at a page.
    pub fn address(&self) -> usize {
        self.address
    }

    /// How long it is: whole pages.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// Registers memory with a device that copies from it.
pub trait HostPin {
    /// Registers it. The memory is unmapped after what is returned was dropped.
    ///
    /// # Errors
    /// The device's driver refuses, in its words.
    fn pin(&self, memory: Stay) -> Result<Box<dyn Send + Sync>, String>;
}

/// Page-aligned memory for one batch.
pub struct BatchBuffer {
    /// Its registration with a device, if it has one. The first field, so that it ends before the memory does.
    pinned: OnceLock<Box<dyn Send + Sync>>,
    /// Shared with its registration, if a fabric has one.
    region: Arc<Region>,
    bytes: usize,
    lent: Lent,
}

impl BatchBuffer {
    /// Zeroed memory of `bytes` bytes.
    ///
    /// # Errors
    /// The machine does not give that much memory.
    pub fn new(bytes: usize) -> Result<Arc<Self>, NoMemory> {
        let region = Region::new(bytes).ok_or(NoMemory { bytes })?;
        Region::survey("batch rows", std::iter::once(&region));
        let (region, pinned) = (Arc::new(region), OnceLock::new());
        Ok(Arc::new(Self { pinned, region, bytes, lent: Lent::default() }))
    }

    /// As [`BatchBuffer::new`], registered with a device.
    ///
    /// # Errors
    /// See there; or the device's driver refuses, which the log says in its words.
    pub fn pinned(bytes: usize, with: &dyn HostPin) -> Result<Arc<Self>, NoMemory> {
        let buffer = Self::new(bytes)?;
        let memory = buffer.memory();
        let stay = Stay { address: memory.start().addr().get(), bytes: memory.bytes() };
        let pinned = with.pin(stay).map_err(|problem| {
            tracing::error!(bytes, "rows cannot be registered with the device: {problem}");
            NoMemory { bytes }
        })?;
        let _ = buffer.pinned.set(pinned);
        Ok(buffer)
    }

    /// Row number `row` of rows of `row_bytes` bytes, exclusively the caller's. `None` if it is
    /// lent already, lies outside the buffer (or beyond the largest batch), if rows of another
    /// length are lent, or if the buffer is borrowed as a whole.
    pub fn lend(self: &Arc<Self>, row: u32, row_bytes: u32) -> Option<RowMut> {
        let at = self.locate(row, row_bytes)?;
        self.lent.lend(row, row_bytes).then(|| RowMut {
            buffer: Arc::clone(self),
            at,
            row,
            len: row_bytes,
        })
    }

    /// The first `count` rows as one slice; `None` while a row is lent or another such borrow
    /// exists, or if the buffer is shorter.
    pub fn rows(self: &Arc<Self>, count: u32, row_bytes: u32) -> Option<RowsRef> {
        let bytes = (count as usize).checked_mul(row_bytes as usize)?;
        let fits = bytes <= self.bytes && self.lent.borrow_whole();
        fits.then(|| RowsRef { buffer: Arc::clone(self), bytes })
    }

    /// Copies row `from` over row `to`: closes the gap a failed READ left in a batch. False, with
    /// nothing moved, if anything is lent or borrowed, or a row lies outside the buffer.
    pub fn move_row(&self, from: u32, to: u32, row_bytes: u32) -> bool {
        let (Some(from), Some(to)) = (self.locate(from, row_bytes), self.locate(to, row_bytes))
        else {
            return false;
        };
        if !self.lent.borrow_whole() {
            return false;
        }
        let len = row_bytes as usize;
        let (from, to) = (self.region.range(from, len), self.region.range(to, len));
        // SAFETY: both ranges are in bounds and initialised, the whole buffer is ours, and `copy_to`
        // permits overlap.
        unsafe { from.copy_to(to, len) };
        self.lent.return_whole();
        true
    }

    /// Lets the kernel give all its pages now: a READ into memory whose pages must come first takes many times as long. This
    /// takes a second for some gigabytes, and on virtual machines for less.
    ///
    /// # Errors
    /// The machine does not have that much memory.
    pub fn prefault(&self) -> Result<(), NoMemory> {
        let all = self.region.prefault(0, self.region.bytes());
        all.map_err(|_| NoMemory { bytes: self.bytes })
    }

    /// Bytes of its memory, and of these the bytes in huge pages.
    pub fn memory_bytes(&self) -> (u64, u64) {
        (self.region.bytes() as u64, self.region.huge_bytes() as u64)
    }

    /// Its memory, to be registered.
    pub(crate) fn memory(&self) -> &Arc<Region> {
        &self.region
    }

    fn locate(&self, row: u32, row_bytes: u32) -> Option<usize> {
        let at = (row as usize).checked_mul(row_bytes as usize)?;
        let end = at.checked_add(row_bytes as usize)?;
        (end <= self.bytes && row < BATCH_MAX).then_some(at)
    }
}

impl fmt::Debug for BatchBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BatchBuffer").field("bytes", &self.bytes).field("lent", &self.lent).finish()
    }
}

/// One row, exclusively the holder's. Dropping it returns it; what was written stays.
pub struct RowMut {
    buffer: Arc<BatchBuffer>,
    at: usize,
    row: u32,
    /// At most the bytes the row was lent with.
    len: u32,
}

impl RowMut {
    /// Only the first `len` bytes are wanted; more than there are is all of them.
    pub fn truncate(&mut self, len: u32) {
        self.len = self.len.min(len);
    }

    /// Its number in the batch.
    pub fn row(&self) -> u32 {
        self.row
    }
}

impl Deref for RowMut {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the row is lent to this handle alone, and the handle is borrowed shared.
        unsafe { self.buffer.region.slice(self.at, self.len as usize) }
    }
}

impl DerefMut for RowMut {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: the row is lent to this handle alone, and the handle is borrowed mutably.
        unsafe { self.buffer.region.slice_mut(self.at, self.len as usize) }
    }
}

impl Drop for RowMut {
    fn drop(&mut self) {
        self.buffer.lent.give_back(self.row);
    }
}

impl fmt::Debug for RowMut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RowMut({}, {} bytes)", self.row, self.len)
    }
}

/// The rows of a complete batch. Dropping it lets rows be lent again.
pub struct RowsRef {
    buffer: Arc<BatchBuffer>,
    bytes: usize,
}

impl Deref for RowsRef {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: no row is lent while the whole is borrowed, so there is no writer.
        unsafe { self.buffer.region.slice(0, self.bytes) }
    }
}

impl Drop for RowsRef {
    fn drop(&mut self) {
        self.buffer.lent.return_whole();
    }
}

impl fmt::Debug for RowsRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RowsRef({} bytes)", self.bytes)
    }
}
