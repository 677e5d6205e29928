//! Tasks that were submitted ahead of their inputs.
//!
//! The scheduler queues them like any other. A backend that pulls an input which is still being written is refused as for a stale
//! task, leaves the row out of its batch, and says so when it answers the others. No process but this has the task from then on. The
//! slot remembers the refusal, so that the client need not wait for that word: once the input is written, it submits the task again
//! under its slot's next generation. A task whose input does not come ends at its deadline. Where inputs are read from afar, which no one can refuse, tasks are held like that from the beginning.

use baton_rdma::{InputState, Transport};
use baton_types::{DropReason, FailReason, Nanos, TaskId, Unserved};

use crate::io::models::Served;
use crate::io::{ClientIo, Serving};
use crate::session::{GIVEN_BACK, Task};

impl<T: Transport> ClientIo<T> {
    /// An input is there. If its task is held, or a batch has gone without it, the task goes out (again) in this pass.
    pub(super) fn on_written(&mut self, ticket: TaskId) {
        let Some(serving) = &mut self.serving else { return };
        let Some(&mut task) = serving.tasks.of_ticket(ticket) else { return };
        let is_missed = serving.is_missed(&task);
        self.counters.inputs_late.add(u64::from(is_missed));
        if is_missed || task.life == GIVEN_BACK {
            serving.submit_soon(task.id);
        }
    }

    /// How a task ends that a peer has ended for this reason; `None`: it does not, because its input was still to come.
    pub(super) fn end_without_input(&mut self, id: TaskId, why: Unserved) -> Option<Unserved> {
        let Some(serving) = &mut self.serving else { return Some(why) };
        let task = serving.tasks.get(id).filter(|task| task.ahead).copied();
        // The id is the present one, so the slot has refused the READ for this one reason.
        let Some(task) = task.filter(|_| why == Unserved::Failed(FailReason::StaleGeneration))
        else {
            return Some(why);
        };
        match serving.input_state(&task) {
            _ if task.is_cancelled => return Some(Unserved::Dropped(DropReason::Cancelled)),
            Some(InputState::Writing) => {}
            // The word that it is written is on its way, or was here before this.
            Some(InputState::Written) => serving.submit_soon(id),
            Some(InputState::GivenUp) | None => {
                return Some(Unserved::Dropped(DropReason::Cancelled));
            }
        }
        serving.tasks.hold(id);
        None
    }
}

impl Serving {
    /// In this pass, if there is a scheduler.
    fn submit_soon(&mut self, id: TaskId) {
        self.pending.push_back(id);
        self.pending_at = Some(Nanos::ZERO);
    }

    fn is_missed(&self, task: &Task) -> bool {
        let served = self.models.get(task.model);
        served.is_some_and(|served| served.model.slabs.is_missed(task.id))
    }

    fn input_state(&self, task: &Task) -> Option<InputState> {
        let Served { model, .. } = self.models.get(task.model)?;
        model.slabs.input_state(task.id)
    }

    /// Its id must not be known anywhere before its input is written.
    pub(super) fn must_wait_for_input(&self, task: &Task) -> bool {
        let Some(Served { model, .. }) = self.models.get(task.model) else { return false };
        model.slabs.is_read_from_afar()
            && model.slabs.input_state(task.id) == Some(InputState::Writing)
    }
}
