//! Pulling a batch's inputs: one READ per row, all posted at once, straight into the batch's rows.
//!
//! In: an action and a free batch slot; later READ completions. Out: READs for the transport. A row
//! that cannot be read at all is settled here and now; the others when their READ completes, which
//! every posted READ does exactly once.

use baton_rdma::{Read, ReadDone, ReadStatus, Transport};
use baton_types::{FailReason, FrontendId, Nanos, TaskId};

use crate::action::Action;
use crate::counters::Counters;
use crate::fetch_time::FetchTime;
use crate::gpu::Gpu;
use crate::peers::Peers;
use crate::slot::{BatchSlot, Phase};

/// Which row of which batch slot of which GPU slot a READ is for, packed into its tag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Target {
    gpu: usize,
    slot: usize,
    row: u32,
}

impl Target {
    /// Row 16 bits, batch slot 8, GPU slot 8: they fit a tag of 32 bits, which is what travels.
    fn tag(self) -> u64 {
        ((self.gpu as u64) << 24) | ((self.slot as u64) << 16) | u64::from(self.row)
    }

    fn from_tag(tag: u64) -> Self {
        Self {
            gpu: (tag >> 24) as usize,
            slot: (tag >> 16) as usize % 256,
            row: tag as u32 % 65536,
        }
    }
}

const _: () = assert!(baton_topo::GPUS_PER_BACKEND_MAX <= 256 && baton_types::BATCH_MAX <= 65536);

/// Puts `action` into a free batch slot of GPU slot `gpu_index` and appends its READs to `reads`.
pub(crate) fn begin<E>(
    gpu_index: usize,
    gpu: &mut Gpu<E>,
    slot_index: usize,
    action: Action,
    peers: &Peers,
    reads: &mut Vec<Read>,
    counters: &mut Counters,
) {
    let (slot, memory) = (&mut gpu.slots[slot_index], &gpu.memory[slot_index]);
    let (model, rows) = (action.model, action.tasks.len() as u32);
    slot.begin(action);
    for row in 0..rows {
        let task = slot.action().expect("begun above").tasks[row as usize];
        match peers.locate(task, &model) {
            Ok(conn) => {
                let lent = memory.inputs.lend(row, model.input_bytes);
                let mut row_mut = lent.expect("a free slot has no row lent, and fits any batch");
                row_mut.truncate(task.input_bytes);
                let tag = Target { gpu: gpu_index, slot: slot_index, row }.tag();
                reads.push(Read { conn, task: task.id, row: row_mut, tag });
            }
            Err(reason) => {
                slot.settle(row, Some(reason));
                counters.row_lost(reason);
            }
        }
    }
}

/// A READ has completed: its row is the batch's again.
pub(crate) fn settle<E>(
    now: Nanos,
    done: ReadDone,
    gpus: &mut [Gpu<E>],
    fetch_time: &mut FetchTime,
    counters: &mut Counters,
) {
    let target = Target::from_tag(done.tag);
    let bytes = done.row.len() as u64;
    // Before the slot may become Ready: its rows are then borrowed as a whole.
    drop(done.row);
    let slot = gpus.get_mut(target.gpu).and_then(|gpu| gpu.slots.get_mut(target.slot));
    let Some(slot) = slot.filter(|slot| slot.expects(target.row, done.task)) else {
        counters.reads_unexpected += 1;
        return;
    };
    let failure = match done.status {
        ReadStatus::Done => None,
        ReadStatus::Stale => Some(FailReason::StaleGeneration),
        ReadStatus::Refused => Some(FailReason::WrongSize),
        ReadStatus::PeerLost | ReadStatus::Aborted => Some(FailReason::FetchFailed),
    };
    match slot.settle(target.row, failure) {
        None => counters.fetch_bytes += bytes,
        Some(reason) => counters.row_lost(reason),
    }
    if slot.phase() == Phase::Ready {
        slot.fetched(fetch_time.end(target.gpu, target.slot, now));
    }
}

/// Aborts the READs of every batch whose fetch bound has passed, or lets it wait a little longer. A batch whose other rows wait for
/// frontends alone that owe answers is not held up until then. Returns how many.
pub(crate) fn abort_due<E, T: Transport>(
    now: Nanos,
    gpus: &mut [Gpu<E>],
    peers: &Peers,
    transport: &mut T,
) -> usize {
    let mut aborted = 0;
    for (gpu_index, gpu) in gpus.iter_mut().enumerate() {
        for (slot_index, slot) in gpu.slots.iter_mut().enumerate() {
            let conn = |task: TaskId| peers.conn(task.frontend());
            let owes = |task| conn(task).is_some_and(|conn| transport.owes(conn));
            let has_unread = |task| conn(task).is_some_and(|conn| transport.has_unread(conn));
            let Some(may_be_here) = gives_up(now, slot, owes, has_unread) else { continue };
            slot.abort_missing(may_be_here, |row, task| {
                aborted += 1;
                if let Some(conn) = conn(task) {
                    let target = Target { gpu: gpu_index, slot: slot_index, row };
                    transport.abort_read(conn, target.tag());
                }
            });
        }
    }
    aborted
}

/// Whether the missing rows of a batch are given up now: if so, whether some of them may have arrived unread.
fn gives_up(
    now: Nanos,
    slot: &BatchSlot,
    owes: impl Fn(TaskId) -> bool,
    has_unread: impl Fn(TaskId) -> bool,
) -> Option<bool> {
    let is_due = slot.fetch_bound()? <= now;
    if !is_due && !slot.is_held_up_by(owes) {
        return None;
    }
    let may_be_here = slot.missing().any(has_unread);
    (is_due || !may_be_here).then_some(may_be_here)
}

/// A frontend is gone: its rows are left out of every batch that does not execute yet. Call while
/// its connection is still known.
pub(crate) fn vanish<E, T: Transport>(
    frontend: FrontendId,
    gpus: &mut [Gpu<E>],
    peers: &Peers,
    transport: &mut T,
    counters: &mut Counters,
) {
    let conn = peers.conn(frontend);
    for (gpu_index, gpu) in gpus.iter_mut().enumerate() {
        for (slot_index, slot) in gpu.slots.iter_mut().enumerate() {
            let lost = slot.vanish(frontend, |row, _| {
                if let Some(conn) = conn {
                    let target = Target { gpu: gpu_index, slot: slot_index, row };
                    transport.abort_read(conn, target.tag());
                }
            });
            counters.rows_fetch_failed += u64::from(lost);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::slot::tests::{fetching, task};

    /// A batch of three frontends that may start from 50 ns on, and of which the first row is here. Frontends are named by
    /// their numbers.
    fn aborted(now: u64, owe: &[u16], unread: &[u16]) -> (Vec<u32>, Option<Nanos>) {
        let mut slot = fetching(&[1, 2, 3]);
        slot.settle(0, None);
        let is_in = |frontends: &[u16], task: TaskId| frontends.contains(&task.frontend().0);
        let (owes, has_unread) = (|task| is_in(owe, task), |task| is_in(unread, task));
        let mut rows = Vec::new();
        if let Some(may_be_here) = gives_up(Nanos(now), &slot, owes, has_unread) {
            slot.abort_missing(may_be_here, |row, _| rows.push(row));
        }
        (rows, slot.fetch_bound())
    }

    #[test]
    fn missing_rows_have_until_the_window_ends_and_longer_if_one_of_them_may_be_here_unread() {
        let last = fetching(&[1]).action().map(|action| action.expires_at() + Nanos(1));
        let waits = Some(Nanos(50));
        assert_eq!(aborted(49, &[], &[]), (vec![], waits));
        assert_eq!(aborted(50, &[], &[]), (vec![1, 2], None));
        for unread in [&[2][..], &[3], &[2, 3]] {
            assert_eq!(aborted(50, &[], unread), (vec![], last), "{unread:?}");
        }
        assert_eq!(aborted(50, &[], &[1]), (vec![1, 2], None), "that one is here");
    }

    #[test]
    fn rows_of_frontends_that_owe_answers_are_given_up_before_unless_one_may_be_here_unread() {
        let waits = (vec![], Some(Nanos(50)));
        assert_eq!(aborted(0, &[2, 3], &[]), (vec![1, 2], None));
        assert_eq!(aborted(0, &[2], &[]), waits, "the third may come");
        for unread in [&[2][..], &[3], &[2, 3]] {
            assert_eq!(aborted(0, &[2, 3], unread), waits, "{unread:?}");
        }
    }

    #[test]
    fn what_is_given_up_is_given_up_once() {
        let mut slot = fetching(&[1, 2]);
        slot.settle(0, None);
        let gives_up = |slot: &_| gives_up(Nanos(50), slot, |_| true, |_| false);
        assert_eq!(gives_up(&slot), Some(false));
        slot.abort_missing(false, |row, of| assert_eq!((row, of), (1, task(2, 1))));
        assert_eq!(gives_up(&slot), None);
    }

    #[test]
    fn tags_name_every_row_of_every_slot_within_32_bits() {
        for target in [
            Target { gpu: 0, slot: 0, row: 0 },
            Target { gpu: 3, slot: 2, row: 1 },
            Target { gpu: 255, slot: 255, row: 65535 },
        ] {
            assert_eq!(Target::from_tag(target.tag()), target);
            assert!(u32::try_from(target.tag()).is_ok());
        }
    }
}
