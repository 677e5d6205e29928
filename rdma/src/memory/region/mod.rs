//! Page-aligned, zeroed memory that several owners write in turn.
//!
//! A [`Region`] hands out pointers and slices and knows nothing about who may use them when: the
//! slot states of `slab` and `landing` do. Its own invariant is the bounds: every range handed out
//! lies inside the allocation.
//!
//! From 2 MiB on it asks for transparent huge pages: a card keeps one entry where it would keep 512.
//! These need no reservation and take no other's; where the kernel has none, the memory lies in
//! normal pages. Only the first page is touched here, to see which it is: the owner's thread has
//! heartbeats to answer, and gigabytes take seconds to zero. Registration touches the rest, and so does [`Region::prefault`].
//!
//! A shared region is a file in memory (`memfd_create(2)`), which other processes of this host may map to read it.
//! Its seals keep it as long as it is and let no one else write it.
#![expect(unsafe_code, reason = "raw memory whose exclusivity is decided at run time")]

mod smaps;

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::c_void;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap, mmap_anonymous, mprotect, munmap,
};

/// What NICs and the kernel register and pin by.
const PAGE: usize = 4096;
/// A huge page of x86-64, and of ARM with pages of 4 KiB.
const HUGE_PAGE: usize = 2 * 1024 * 1024;

/// An owned allocation with interior mutability over all its bytes.
pub(crate) struct Region {
    start: NonNull<u8>,
    bytes: usize,
    /// Its first page was a huge one when [`Region::survey`] looked.
    is_huge: AtomicBool,
    origin: Origin,
}

/// Where the memory goes back to.
enum Origin {
    Heap(Layout),
    /// A mapping that begins and ends with at least one inaccessible page.
    Mapping {
        start: NonNull<c_void>,
        bytes: usize,
    },
    /// A mapping of all of a file in memory.
    File(OwnedFd),
}

// SAFETY: a region is plain bytes with no affinity to a thread; it owns its allocation.
unsafe impl Send for Region {}
// SAFETY: `&Region` gives access only through unsafe functions whose callers promise exclusivity.
unsafe impl Sync for Region {}

impl Region {
    /// Zeroed memory of at least `bytes` bytes; `None` if the machine does not give that much.
    pub(crate) fn new(bytes: usize) -> Option<Self> {
        if bytes < HUGE_PAGE { Self::from_heap(bytes) } else { Self::mapped(bytes) }
    }

    /// Zeroed memory of at least `bytes` bytes that other processes of this host may map, once they have
    /// [`Region::file`], and can neither change nor cut short.
    ///
    /// # Errors
    /// The machine does not give that much memory, or its kernel (before Linux 5.1) cannot seal it.
    pub(crate) fn shared(bytes: usize) -> rustix::io::Result<Self> {
        let bytes = bytes.max(1).checked_next_multiple_of(PAGE).ok_or(rustix::io::Errno::NOMEM)?;
        is_to_be_had(bytes)?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("baton-inputs", flags)?;
        ftruncate(&file, bytes as u64)?;
        let (access, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping at a place of the kernel's choice touches no existing memory.
        let start = unsafe { mmap(ptr::null_mut(), bytes, access, shared, &file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        let (is_huge, origin) = (AtomicBool::new(false), Origin::File(file));
        let region = Self { start, bytes, is_huge, origin };
        let seals = SealFlags::SHRINK | SealFlags::GROW | SealFlags::FUTURE_WRITE | SealFlags::SEAL;
        // What is mapped above stays writable: the seal is on what is mapped from now on.
        fcntl_add_seals(region.file().expect("it was made with one"), seals)?;
        Ok(region)
    }

    fn from_heap(bytes: usize) -> Option<Self> {
        let layout = Layout::from_size_align(bytes.max(1).checked_next_multiple_of(PAGE)?, PAGE);
        let layout = layout.ok()?;
        // SAFETY: the layout's size is at least one page, so not zero.
        let start = unsafe { alloc_zeroed(layout) };
        let (start, bytes) = (NonNull::new(start)?, layout.size());
        Some(Self { start, bytes, is_huge: AtomicBool::new(false), origin: Origin::Heap(layout) })
    }

    fn mapped(bytes: usize) -> Option<Self> {
        // Whole huge pages: a rest in small ones would spoil the card's large entries.
        let bytes = bytes.checked_next_multiple_of(HUGE_PAGE)?;
        let reserved = bytes.checked_add(2 * HUGE_PAGE)?;
        let (none, private) = (ProtFlags::empty(), MapFlags::PRIVATE);
        // SAFETY: a new mapping at a place of the kernel's choice touches no existing memory.
        let mapping = unsafe { mmap_anonymous(ptr::null_mut(), reserved, none, private) }.ok()?;
        let mapping = NonNull::new(mapping)?;
        let origin = Origin::Mapping { start: mapping, bytes: reserved };
        let gap = HUGE_PAGE - mapping.addr().get() % HUGE_PAGE;
        // SAFETY: gap + bytes < reserved, because 1 ≤ gap ≤ HUGE_PAGE.
        let start = unsafe { mapping.cast::<u8>().add(gap) };
        // Owns the mapping from here on, whatever fails next.
        let region = Self { start, bytes, is_huge: AtomicBool::new(false), origin };
        region.open().ok()?;
        Some(region)
    }

    /// Makes the middle of a new mapping usable, asks for huge pages and touches the first.
    fn open(&self) -> rustix::io::Result<()> {
        let start = self.start.as_ptr().cast();
        // SAFETY: the range is inside the mapping, which is ours and which no other code knows yet.
        unsafe { mprotect(start, self.bytes, MprotectFlags::READ | MprotectFlags::WRITE)? };
        // A kernel without them says so; then the pages are normal ones, which `huge_bytes` tells.
        // SAFETY: as above; where it has an effect, it is on the size of pages that are not there yet.
        let _ = unsafe { madvise(start, self.bytes, Advice::LinuxHugepage) };
        self.prefault(0, HUGE_PAGE)
    }

    /// Lets the kernel give the pages of a range now, instead of each when it is first written. Any thread, at any time: what
    /// the memory holds stays.
    ///
    /// # Errors
    /// The kernel has no more.
    ///
    /// # Panics
    /// The range does not begin at a page, or leaves the region.
    pub(crate) fn prefault(&self, offset: usize, len: usize) -> rustix::io::Result<()> {
        assert!(offset.is_multiple_of(PAGE), "a page begins at each multiple of its size");
        let start = self.range(offset, len).as_ptr().cast();
        // SAFETY: the range is inside the allocation, and populating does not change what the memory holds.
        match unsafe { madvise(start, len, Advice::LinuxPopulateWrite) } {
            // Before Linux 5.14: pages come when they are touched.
            Err(rustix::io::Errno::INVAL) => Ok(()),
            populated => populated,
        }
    }

    /// The file that it is, if it is shared.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        match &self.origin {
            Origin::File(file) => Some(file.as_fd()),
            Origin::Heap(_) | Origin::Mapping { .. } => None,
        }
    }

    /// Where it begins.
    pub(crate) fn start(&self) -> NonNull<u8> {
        self.start
    }

    /// How long it is: what was asked for, rounded up to whole pages.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Bytes of it in huge pages: all or none, as its first page was at the survey. A kernel short of
    /// memory may give others for the rest.
    pub(crate) fn huge_bytes(&self) -> usize {
        if self.is_huge.load(Ordering::Relaxed) { self.bytes } else { 0 }
    }

    /// Looks in what pages the memory of `what` lies, and warns of others than huge ones. Small regions never lie
    /// in those, nor need shared ones: no card reads them.
    pub(crate) fn survey<'a>(what: &str, regions: impl Iterator<Item = &'a Self>) {
        let needs_huge = |region: &&Self| region.bytes >= HUGE_PAGE && region.file().is_none();
        let large: Vec<&Self> = regions.filter(needs_huge).collect();
        if large.is_empty() {
            return;
        }
        // Unreadable in some sandboxes: then nothing is claimed.
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap_or_default();
        for region in &large {
            let start = region.start.addr().get();
            let huge_bytes = smaps::huge_bytes(&smaps, &(start..start + region.bytes));
            region.is_huge.store(huge_bytes >= HUGE_PAGE, Ordering::Relaxed);
        }
        let bytes: usize = large.iter().map(|region| region.bytes).sum();
        let huge_bytes: usize = large.iter().map(|region| region.huge_bytes()).sum();
        if huge_bytes == bytes {
            // As expected, and a backend has a region for each batch slot: counters say how much.
            tracing::debug!(bytes, "{what}: in huge pages");
        } else {
            // One batch slot's rows are like another's: counters say how much there is of each.
            static TOLD: Once = Once::new();
            let why = "cards need more entries for it; `baton doctor` says what to do";
            TOLD.call_once(|| {
                tracing::warn!(bytes, huge_bytes, "{what}: not all in huge pages; {why}");
            });
        }
    }

    /// Where `len` bytes from `offset` begin.
    ///
    /// # Panics
    /// The range leaves the region: a bug in the caller's bookkeeping, never input.
    pub(crate) fn range(&self, offset: usize, len: usize) -> NonNull<u8> {
        let end = offset.checked_add(len);
        assert!(end.is_some_and(|end| end <= self.bytes), "range outside the region");
        // SAFETY: offset ≤ offset + len ≤ the allocation's size, just asserted.
        unsafe { self.start.add(offset) }
    }

    /// The bytes of a range.
    ///
    /// # Safety
    /// Nothing writes the range while the slice lives.
    pub(crate) unsafe fn slice(&self, offset: usize, len: usize) -> &[u8] {
        let start = self.range(offset, len);
        // SAFETY: in bounds and initialised (zeroed at birth); the caller excludes writers.
        unsafe { std::slice::from_raw_parts(start.as_ptr(), len) }
    }

    /// The bytes of a range, writable.
    ///
    /// # Safety
    /// Nothing else reads or writes the range while the slice lives.
    #[expect(clippy::mut_from_ref, reason = "exclusivity is the caller's, see Safety")]
    pub(crate) unsafe fn slice_mut(&self, offset: usize, len: usize) -> &mut [u8] {
        let start = self.range(offset, len);
        // SAFETY: in bounds and initialised; the caller excludes every other access.
        unsafe { std::slice::from_raw_parts_mut(start.as_ptr(), len) }
    }
}

/// Whether the kernel would give this process so much memory: of a file in memory it promises any length.
fn is_to_be_had(bytes: usize) -> rustix::io::Result<()> {
    let (access, private) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
    // SAFETY: a new mapping at a place of the kernel's choice touches no existing memory.
    let mapping = unsafe { mmap_anonymous(ptr::null_mut(), bytes, access, private) }?;
    // SAFETY: it was just mapped with this length, and no one knows it.
    unsafe { munmap(mapping, bytes) }
}

impl Drop for Region {
    fn drop(&mut self) {
        match &self.origin {
            // SAFETY: allocated in `from_heap` with this very layout, and freed only here.
            Origin::Heap(layout) => unsafe { dealloc(self.start.as_ptr(), *layout) },
            Origin::Mapping { start, bytes } => {
                // SAFETY: mapped in `mapped` with this very length, and unmapped only here.
                let unmapped = unsafe { munmap(start.as_ptr(), *bytes) };
                debug_assert!(unmapped.is_ok(), "{unmapped:?}");
            }
            Origin::File(_) => {
                // SAFETY: mapped in `shared` with this very length, and unmapped only here.
                let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
                debug_assert!(unmapped.is_ok(), "{unmapped:?}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_zeroed_page_aligned_and_no_shorter_than_asked_for() {
        for asked in [0, 1, PAGE, PAGE + 1, HUGE_PAGE - 1, HUGE_PAGE, 3 * HUGE_PAGE + 5] {
            let region = Region::new(asked).unwrap();
            let align = if asked < HUGE_PAGE { PAGE } else { HUGE_PAGE };
            assert_eq!(region.start().addr().get() % align, 0, "{asked}");
            assert!(region.bytes() >= asked && region.bytes() - asked <= align, "{asked}");
            // SAFETY: no other code knows the region.
            let bytes = unsafe { region.slice_mut(0, region.bytes()) };
            assert!(bytes.iter().all(|byte| *byte == 0), "{asked}");
            bytes.fill(0xa5);
            assert!(region.huge_bytes() <= region.bytes());
        }
    }

    /// What the kernel says of the host decides what is expected, so this fails on any host where
    /// the advice has no effect.
    #[test]
    fn large_regions_lie_in_huge_pages_where_the_kernel_gives_them() {
        let mode = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled");
        let is_on = mode.is_ok_and(|mode| !mode.contains("[never]"));
        let (large, small) = (Region::new(4 * HUGE_PAGE).unwrap(), Region::new(PAGE).unwrap());
        assert_eq!(large.huge_bytes(), 0, "not looked at yet");
        Region::survey("a test's memory", [&large, &small].into_iter());
        let expected = if is_on { 4 * HUGE_PAGE } else { 0 };
        assert_eq!(large.huge_bytes(), expected, "transparent pages on: {is_on}; memory scarce?");
        assert_eq!(small.huge_bytes(), 0);
    }

    #[test]
    fn memory_beyond_what_there_is_is_refused() {
        assert!(Region::new(usize::MAX).is_none());
        assert!(Region::new(usize::MAX - 3 * HUGE_PAGE).is_none());
        assert!(Region::new(1 << 60).is_none());
        for bytes in [1 << 46, 1 << 60, usize::MAX] {
            assert!(Region::shared(bytes).is_err(), "{bytes}");
        }
    }

    #[test]
    fn a_shared_region_is_zeroed_and_no_shorter_than_asked_for() {
        for asked in [0, 1, PAGE, PAGE + 1, HUGE_PAGE + 5] {
            let region = Region::shared(asked).unwrap();
            assert!(region.bytes() >= asked && region.bytes() - asked <= PAGE, "{asked}");
            let file = region.file().unwrap();
            assert_eq!(rustix::fs::fstat(file).unwrap().st_size as usize, region.bytes());
            // SAFETY: no other code knows the region.
            let bytes = unsafe { region.slice_mut(0, region.bytes()) };
            assert!(bytes.iter().all(|byte| *byte == 0), "{asked}");
            bytes.fill(0xa5);
        }
        assert!(Region::new(PAGE).unwrap().file().is_none());
    }

    /// Bytes of it that the kernel has given.
    fn resident(region: &Region) -> usize {
        let start = region.start().addr().get();
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        smaps::bytes_of("Rss:", &smaps, &(start..start + region.bytes()))
    }

    #[test]
    fn pages_come_ahead_where_they_are_asked_for_and_nothing_else_changes() {
        let bytes = 4 * HUGE_PAGE;
        for region in [Region::new(bytes).unwrap(), Region::shared(bytes).unwrap()] {
            // SAFETY: no other code knows the region.
            unsafe { region.slice_mut(0, 1)[0] = 7 };
            assert!(resident(&region) <= HUGE_PAGE);
            region.prefault(2 * HUGE_PAGE, HUGE_PAGE).unwrap();
            let some = resident(&region);
            assert!((HUGE_PAGE..=2 * HUGE_PAGE).contains(&some), "{some}");
            region.prefault(0, bytes).unwrap();
            assert_eq!(resident(&region), bytes);
            // SAFETY: as above.
            let after = unsafe { region.slice(0, bytes) };
            assert!(after[0] == 7 && after[1..].iter().all(|byte| *byte == 0));
        }
    }

    #[test]
    #[should_panic = "range outside the region"]
    fn no_page_beyond_it_comes_ahead() {
        let _ = Region::new(HUGE_PAGE).unwrap().prefault(PAGE, HUGE_PAGE);
    }

    #[test]
    #[should_panic = "range outside the region"]
    fn no_range_leaves_it() {
        Region::new(HUGE_PAGE).unwrap().range(HUGE_PAGE, 1);
    }
}
