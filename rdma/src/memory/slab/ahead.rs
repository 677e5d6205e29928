//! Tasks that are submitted ahead of their inputs: they queue while the application still writes.
//!
//! Until the input is written the slot refuses every READ as one of a task that is not in flight, so no backend ever has a part of
//! it. A backend that comes too early leaves the task out of its batch. A READ from afar asks no process, so where there are such
//! ([`SlabSet::is_read_from_afar`]) a task's id stays at home until its input is written.

use std::fmt;
use std::ops::{Deref, DerefMut};

use baton_types::TaskId;

use super::SlabSet;
use super::guards::Place;
use super::slot::{InputState, SlotState};

/// The input of a slot that is in flight already, exclusively the caller's until it is written. Dropped before
/// [`InputAhead::finish`], it is given up: it can never be read.
pub struct InputAhead {
    place: Place,
    task: TaskId,
    finished: bool,
}

impl InputAhead {
    /// Only for the slot that was launched ahead just now.
    pub(super) fn new(place: Place, task: TaskId) -> Self {
        Self { place, task, finished: false }
    }

    /// The id under which the task was submitted.
    pub fn task(&self) -> TaskId {
        self.task
    }

    /// The input is written: from now on backends may read it.
    pub fn finish(mut self) {
        self.finished = true;
        self.place.set.write_trailer(self.place.slot, self.task);
    }
}

impl Drop for InputAhead {
    fn drop(&mut self) {
        self.place.end(match self.finished {
            true => SlotState::end_writing,
            false => SlotState::give_up_writing,
        });
    }
}

impl Deref for InputAhead {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        let place = &self.place;
        // SAFETY: a slot whose input is being written has no leases and is not recycled, and its only handle is this
        // one, borrowed shared.
        unsafe { place.slab().inputs.slice(place.input_at(), place.input_len()) }
    }
}

impl DerefMut for InputAhead {
    fn deref_mut(&mut self) -> &mut [u8] {
        let place = &self.place;
        // SAFETY: as for `deref`, and this handle is borrowed mutably.
        unsafe { place.slab().inputs.slice_mut(place.input_at(), place.input_len()) }
    }
}

impl fmt::Debug for InputAhead {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("InputAhead").field("task", &self.task).finish_non_exhaustive()
    }
}

impl SlabSet {
    /// How far the input of a task in flight is; `None` for a stale id.
    pub fn input_state(&self, task: TaskId) -> Option<InputState> {
        self.slot_of(task)?.state.input_state(task.generation())
    }

    /// A READ of this task has come, and was refused, while its input was written. The batch that wanted it does without.
    pub fn is_missed(&self, task: TaskId) -> bool {
        self.slot_of(task).is_some_and(|slot| slot.state.is_missed(task.generation()))
    }

    /// Peers may read inputs without asking this side.
    pub fn is_read_from_afar(&self) -> bool {
        self.resting.get().is_some()
    }

    /// Submits the task of a filling slot ahead of its input. Only by the slot's exclusive owner.
    pub(super) fn launch_ahead(&self, slot: u32) -> TaskId {
        let frontend = self.frontend().0;
        self.slots[slot as usize].frontend.store(frontend, std::sync::atomic::Ordering::Release);
        let task = self.task_at(slot);
        // It names no task of this slot.
        self.write_trailer(slot, TaskId(!task.0));
        self.slots[slot as usize].state.launch_ahead();
        task
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Backing, ReadRefusal, SlabSpec};
    use baton_types::ModelId;
    use std::sync::Arc;

    const MODEL: ModelId = ModelId(0);

    fn set() -> Arc<SlabSet> {
        let spec = SlabSpec { model: MODEL, slots: 1, input_bytes: 8, output_bytes: 8 };
        SlabSet::new(&[spec], 0).unwrap()
    }

    #[test]
    fn no_one_reads_or_answers_an_input_before_it_is_written() {
        let set = set();
        let mut ahead = set.acquire(MODEL).unwrap().submit_ahead();
        let task = ahead.task();
        ahead[..4].fill(7);
        assert_eq!(set.read(task, 8).unwrap_err(), ReadRefusal::Stale);
        assert!(set.landing(task).is_none() && set.renew(task).is_none());
        assert_eq!(set.input_state(task), Some(InputState::Writing));
        ahead[4..].fill(9);
        assert!(set.is_missed(task));
        ahead.finish();
        assert!(set.is_missed(task), "the reader went without it");
        assert!(!set.is_missed(TaskId::new(task.frontend(), task.slot(), 1)), "another task");
        assert_eq!(set.input_state(task), Some(InputState::Written));
        let lease = set.read(task, 8).unwrap();
        assert_eq!(lease.as_ref()[..8], [7, 7, 7, 7, 9, 9, 9, 9]);
        assert_eq!(lease.as_ref()[8..], task.0.to_le_bytes());
    }

    #[test]
    fn a_slot_is_not_used_again_while_its_former_input_is_written() {
        for finishes in [true, false] {
            let set = set();
            let ahead = set.acquire(MODEL).unwrap().submit_ahead();
            let task = ahead.task();
            assert!(set.complete(task));
            set.release(task);
            assert_eq!(set.in_use(), 1, "the application still writes");
            if finishes {
                ahead.finish();
            } else {
                drop(ahead);
            }
            assert_eq!(set.in_use(), 0);
            assert_eq!(set.input_state(task), None);
            let next = set.acquire(MODEL).unwrap().submit();
            assert_eq!(next.generation(), task.generation() + 1);
            assert!(set.read(next, 8).is_ok());
        }
    }

    #[test]
    fn an_input_that_is_given_up_is_never_read_nor_submitted_again() {
        let set = set();
        let ahead = set.acquire(MODEL).unwrap().submit_ahead();
        let task = ahead.task();
        drop(ahead);
        assert_eq!(set.input_state(task), Some(InputState::GivenUp));
        assert_eq!(set.read(task, 8).unwrap_err(), ReadRefusal::Stale);
        assert!(set.renew(task).is_none() && set.landing(task).is_none());
        assert!(set.complete(task));
        set.release(task);
        assert_eq!(set.in_use(), 0);
    }

    #[test]
    fn an_input_has_its_own_length_whatever_was_in_its_slot_before() {
        let set = set();
        for len in [8, 3, 5] {
            let mut input = set.acquire(MODEL).unwrap();
            input.truncate(len);
            let ahead = input.submit_ahead();
            let task = ahead.task();
            assert_eq!(ahead.len(), len as usize);
            ahead.finish();
            assert_eq!(set.read(task, len).unwrap().as_ref()[len as usize..], task.0.to_le_bytes());
            assert!(set.complete(task));
            set.release(task);
        }
    }

    #[test]
    fn an_input_that_was_truncated_may_be_written_anew_and_longer() {
        let set = set();
        let mut input = set.acquire(MODEL).unwrap();
        let whole = input.len();
        input.truncate(3);
        assert_eq!(input.len(), 3);
        input.restore();
        assert_eq!(input.len(), whole);
    }

    /// Backends that were asked to read a task under its former number may do so still, though it is answered under the next.
    #[test]
    fn of_the_slots_of_answered_tasks_only_those_of_renewed_ones_rest() {
        let set = set();
        set.rest();
        let rests = |is_renewed: bool| {
            let task = set.acquire(MODEL).unwrap().submit();
            let task = if is_renewed { set.renew(task).unwrap() } else { task };
            set.landing(task).unwrap().commit(8);
            assert!(set.complete(task));
            drop(set.output(task));
            let resting = set.take_resting();
            resting.into_iter().for_each(|slot| set.end_rest(slot));
            resting.is_some()
        };
        assert_eq!([false, true, false].map(rests), [false, true, false]);
    }

    /// Numbers count from the set's first slot, as its peers know them.
    #[test]
    fn a_slot_that_rests_is_free_again_when_its_rest_ends() {
        let spec = SlabSpec { model: MODEL, slots: 2, input_bytes: 8, output_bytes: 8 };
        let set = SlabSet::new_at(40, &[spec], 0, Backing::Private).unwrap();
        set.rest();
        let tasks = [(); 2].map(|()| set.acquire(MODEL).unwrap().submit());
        for task in tasks {
            assert!(set.complete(task));
            set.release(task);
        }
        assert_eq!((set.in_use(), set.acquire(MODEL).is_err()), (2, true));
        let resting = [(); 3].map(|()| set.take_resting());
        assert_eq!(resting, [Some(tasks[0].slot()), Some(tasks[1].slot()), None]);
        set.end_rest(tasks[1].slot());
        assert_eq!(
            (set.in_use(), set.acquire(MODEL).unwrap().submit().slot()),
            (1, tasks[1].slot())
        );
    }

    #[test]
    fn a_written_input_is_submitted_again_under_the_next_generation() {
        let set = set();
        let mut ahead = set.acquire(MODEL).unwrap().submit_ahead();
        let early = ahead.task();
        ahead.fill(5);
        ahead.finish();
        let again = set.renew(early).unwrap();
        assert_eq!(again.generation(), early.generation() + 1);
        assert_eq!(set.read(early, 8).unwrap_err(), ReadRefusal::Stale);
        assert_eq!(set.read(again, 8).unwrap().as_ref()[..8], [5; 8]);
        assert!(!set.is_missed(again) && !set.is_read_from_afar());
    }
}
