//! A frontend's inputs, mapped by a backend of the same host.
//!
//! Nothing keeps the frontend from using a slot again while a backend copies out of it. So an input counts only if the trailer
//! behind it named the task when the copy began, and still does when it has ended: a slot's trailer is void before any byte of
//! its next input is written (`slab`).
#![expect(unsafe_code, reason = "reads memory that another process writes")]

use std::io;
use std::os::fd::AsFd;
use std::ptr::{self, NonNull};
use std::sync::atomic::{Ordering, fence};

use baton_types::TaskId;
use rustix::fs::{SealFlags, fcntl_get_seals, fstat};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::protocol::wire::TRAILER_LEN;

/// The memory of another process, to be read.
pub(crate) struct Mapped {
    start: NonNull<u8>,
    bytes: usize,
}

// SAFETY: a mapping has no affinity to a thread, and this handle owns it.
unsafe impl Send for Mapped {}

impl Mapped {
    /// Maps the first `bytes` bytes of a file in memory.
    ///
    /// # Errors
    /// It is none, it is shorter, its owner could cut it short, or the kernel refuses.
    pub(crate) fn new(file: impl AsFd, bytes: usize) -> io::Result<Self> {
        let invalid = |problem| Err(io::Error::new(io::ErrorKind::InvalidInput, problem));
        if !fcntl_get_seals(&file)?.contains(SealFlags::SHRINK) {
            return invalid("the memory could be cut short while it is read");
        }
        let there = fstat(&file)?.st_size;
        if bytes == 0 || usize::try_from(there).map_or(true, |there| there < bytes) {
            return invalid("the memory is shorter than the slots that are said to lie in it");
        }
        // SAFETY: a new mapping at a place of the kernel's choice touches no existing memory.
        let start =
            unsafe { mmap(ptr::null_mut(), bytes, ProtFlags::READ, MapFlags::SHARED, file, 0) }?;
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, bytes })
    }

    /// Copies the input of `task` to `row`: as many bytes as that has, from `offset` on. False, with the row's content meaningless,
    /// if they are not this task's input, or no longer, or lie outside of the mapping.
    pub(crate) fn read(&self, offset: usize, task: TaskId, row: &mut [u8]) -> bool {
        let end = offset.checked_add(row.len()).and_then(|end| end.checked_add(TRAILER_LEN));
        if end.is_none_or(|end| end > self.bytes) || !self.names(offset + row.len(), task) {
            return false;
        }
        // SAFETY: the range is inside the mapping, as just checked.
        let from = unsafe { self.start.as_ptr().add(offset) };
        // SAFETY: the owner cannot shorten the mapping, and the row is no part of it. The owner may write while this copies: bytes have no
        // invalid values, and the trailer then says that these count for nothing.
        unsafe { ptr::copy_nonoverlapping(from, row.as_mut_ptr(), row.len()) };
        // The trailer is looked at after every byte, as its owner makes it void before any byte.
        fence(Ordering::Acquire);
        self.names(offset + row.len(), task)
    }

    /// The trailer at `offset`, inside the mapping, is this task's.
    fn names(&self, offset: usize, task: TaskId) -> bool {
        // SAFETY: the callers have checked the bounds; an array of bytes needs no alignment.
        let at = unsafe { self.start.as_ptr().add(offset).cast::<[u8; TRAILER_LEN]>() };
        // SAFETY: as above. Volatile, because another process may write it at any time.
        u64::from_le_bytes(unsafe { at.read_volatile() }) == task.0
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: mapped in `new` with this very length, and unmapped only here.
        let unmapped = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::sync::atomic::AtomicBool;

    use baton_types::ModelId;
    use rustix::fs::{MemfdFlags, fcntl_add_seals, ftruncate, memfd_create};

    use super::*;
    use crate::memory::slab::{Backing, SlabSet, SlabSpec};

    const BYTES: u32 = 4_000;

    /// One slot whose inputs are shared, and the mapping of them.
    fn slot() -> (std::sync::Arc<SlabSet>, Mapped) {
        let spec = SlabSpec { model: ModelId(0), slots: 1, input_bytes: BYTES, output_bytes: 8 };
        let set = SlabSet::new_at(0, &[spec], 7, Backing::Shared).unwrap();
        let region = set.inputs().next().unwrap().1.clone();
        let mapped = Mapped::new(region.file().unwrap(), region.bytes()).unwrap();
        (set, mapped)
    }

    fn submit(set: &std::sync::Arc<SlabSet>, byte: u8, len: u32) -> TaskId {
        let mut input = set.acquire(ModelId(0)).unwrap();
        input.truncate(len);
        input.fill(byte);
        input.submit()
    }

    #[test]
    fn an_input_counts_while_its_task_is_in_flight_and_with_its_own_length() {
        let (set, mapped) = slot();
        let mut row = vec![0; BYTES as usize];
        for (byte, len) in [(1, BYTES), (2, 13), (3, BYTES - 1)] {
            let task = submit(&set, byte, len);
            let len = len as usize;
            assert!(mapped.read(0, task, &mut row[..len]) && row[..len] == vec![byte; len]);
            assert!(!mapped.read(0, task, &mut row[..len - 1]), "another length");
            assert!(!mapped.read(0, TaskId(task.0 ^ 1), &mut row[..len]), "another task");
            assert!(set.complete(task));
            set.release(task);
            assert!(!mapped.read(0, task, &mut row[..len]), "the task is over");
        }
    }

    #[test]
    fn an_input_that_is_still_written_does_not_count() {
        let (set, mapped) = slot();
        let (mut row, ahead) =
            ([0; BYTES as usize], set.acquire(ModelId(0)).unwrap().submit_ahead());
        let task = ahead.task();
        assert!(!mapped.read(0, task, &mut row));
        ahead.finish();
        assert!(mapped.read(0, task, &mut row));
    }

    #[test]
    fn nothing_outside_the_mapping_is_read() {
        let (set, mapped) = slot();
        let task = submit(&set, 1, BYTES);
        let mut row = vec![0; BYTES as usize];
        for offset in [mapped.bytes, mapped.bytes - BYTES as usize, usize::MAX, usize::MAX - 8] {
            assert!(!mapped.read(offset, task, &mut row), "{offset}");
        }
        let mut row = vec![0; mapped.bytes];
        assert!(!mapped.read(0, task, &mut row), "there is no room for a trailer");
    }

    #[test]
    fn memory_that_could_be_cut_short_is_not_mapped() {
        let file = |seals: Option<SealFlags>, bytes: u64| -> OwnedFd {
            let file = memfd_create("test", MemfdFlags::ALLOW_SEALING).unwrap();
            ftruncate(&file, bytes).unwrap();
            seals.into_iter().for_each(|seals| fcntl_add_seals(&file, seals).unwrap());
            file
        };
        assert!(Mapped::new(file(Some(SealFlags::SHRINK), 4_096), 4_096).is_ok());
        let refused = [
            (file(None, 4_096), 4_096),
            (file(Some(SealFlags::GROW), 4_096), 4_096),
            (file(Some(SealFlags::SHRINK), 4_096), 4_097),
            (file(Some(SealFlags::SHRINK), 4_096), 0),
        ];
        for (file, bytes) in refused {
            assert!(Mapped::new(file, bytes).is_err());
        }
        assert!(Mapped::new(std::fs::File::open("/proc/self/exe").unwrap(), 64).is_err());
    }

    #[test]
    fn the_owner_alone_writes_and_no_one_cuts_short() {
        let (set, _) = slot();
        let region = set.inputs().next().unwrap().1.clone();
        let file = region.file().unwrap();
        assert!(ftruncate(file, 0).is_err() && rustix::io::pwrite(file, &[1], 0).is_err());
        let (access, shared) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
        // SAFETY: a new mapping touches no existing memory.
        let mapped = unsafe { mmap(ptr::null_mut(), 4_096, access, shared, file, 0) };
        assert!(mapped.is_err());
    }

    /// A slot goes round as fast as it can while a reader copies: whatever counts is one task's input, whole.
    #[test]
    fn no_input_is_torn_however_its_slot_is_used_again() {
        let (set, mapped) = slot();
        let (over, latest) = (AtomicBool::new(false), std::sync::atomic::AtomicU64::new(u64::MAX));
        let counted = std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..20_000u32 {
                    let task = submit(&set, round as u8, BYTES);
                    latest.store(task.0, Ordering::Release);
                    assert!(set.complete(task));
                    set.release(task);
                }
                over.store(true, Ordering::Release);
            });
            let (mut row, mut counted) = (vec![0; BYTES as usize], 0);
            while !over.load(Ordering::Acquire) {
                let task = TaskId(latest.load(Ordering::Acquire));
                if mapped.read(0, task, &mut row) {
                    let byte = task.generation().wrapping_sub(7) as u8;
                    assert!(row.iter().all(|other| *other == byte), "torn");
                    counted += 1;
                }
            }
            counted
        });
        eprintln!("{counted} inputs were whole");
    }
}
