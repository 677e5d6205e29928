//! Page-aligned, zeroed memory that several owners write in turn.
//!
//! A [`Region`] hands out pointers and slices and knows nothing about who may use them when: the
//! slot states of `slab` and `landing` do. Its own invariant is the bounds: every range handed out
//! lies inside the allocation.
#![expect(unsafe_code, reason = "raw memory whose exclusivity is decided at run time")]

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

/// What NICs and the kernel register and pin by.
const PAGE: usize = 4096;

/// An owned allocation with interior mutability over all its bytes.
pub(crate) struct Region {
    start: NonNull<u8>,
    layout: Layout,
}

// SAFETY: a region is plain bytes with no affinity to a thread; it owns its allocation.
unsafe impl Send for Region {}
// SAFETY: `&Region` gives access only through unsafe functions whose callers promise exclusivity.
unsafe impl Sync for Region {}

impl Region {
    /// Zeroed memory of at least `bytes` bytes; `None` if the machine does not give that much.
    pub(crate) fn new(bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes.max(1).checked_next_multiple_of(PAGE)?, PAGE);
        let layout = layout.ok()?;
        // SAFETY: the layout's size is at least one page, so not zero.
        let start = unsafe { alloc_zeroed(layout) };
        Some(Self { start: NonNull::new(start)?, layout })
    }

    /// Where it begins.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// How long it is: what was asked for, rounded up to whole pages.
    pub(crate) fn bytes(&self) -> usize {
        self.layout.size()
    }

    /// Where `len` bytes from `offset` begin.
    ///
    /// # Panics
    /// The range leaves the region: a bug in the caller's bookkeeping, never input.
    pub(crate) fn range(&self, offset: usize, len: usize) -> NonNull<u8> {
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.layout.size()), "range outside the region");
        // SAFETY: offset ≤ offset + len ≤ the allocation's size, just asserted.
        unsafe { self.start.add(offset) }
    }

    /// The bytes of a range.
    ///
    /// # Safety
    /// Nobody writes the range while the slice lives.
    pub(crate) unsafe fn slice(&self, offset: usize, len: usize) -> &[u8] {
        let start = self.range(offset, len);
        // SAFETY: in bounds and initialised (zeroed at birth); the caller excludes writers.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }

    /// The bytes of a range, writable.
    ///
    /// # Safety
    /// Nobody else reads or writes the range while the slice lives.
    #[expect(clippy::mut_from_ref, reason = "exclusivity is the caller's, see Safety")]
    pub(crate) unsafe fn slice_mut(&self, offset: usize, len: usize) -> &mut [u8] {
        let start = self.range(offset, len);
        // SAFETY: in bounds and initialised; the caller excludes every other access.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: allocated in `new` with this very layout, and freed only here.
        unsafe { dealloc(self.start.as_ptr(), self.layout) }
    }
}
