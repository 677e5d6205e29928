//! Step 5: what a model decides leaves the thread. Batches become actions for backends, ends become
//! messages to frontends, candidates and slot updates go to the RankThread.

use std::sync::Arc;

use baton_core::{
    BackendId, Batch, Candidate, DropReason, FailReason, Gpu, GpuUpdate, Grant, ModelId, ModelSink,
    Nanos, Request, TaskId, Unserved,
};
use baton_rdma::wire::{Action, ActionTask, COLD_SINCE, TaskEnd};
use baton_rdma::{ConnId, Transport};
use zerocopy::IntoBytes;

use crate::board::PublishedCandidate;
use crate::cache::cold::ColdSpans;
use crate::catalog::{model_id, number_and_life};
use crate::commands::Notice;
use crate::counters::ModelThreadCounters;
use crate::in_flight::{InFlight, Planned};
use crate::link::ModelLink;
use crate::peers::{Member, Peers};
use crate::task_board::TaskBoard;

/// Where a model is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// This thread has nothing to do with it.
    Elsewhere,
    /// Here, by its number within the thread.
    Here(u32),
    /// It was here and has moved: the migration channel to its new home, by its number within the thread.
    Moved(u32),
}

/// Everything around a thread's models: where their decisions go.
pub(crate) struct Dispatch<T> {
    pub(crate) transport: T,
    pub(crate) peers: Peers,
    pub(crate) link: ModelLink,
    pub(crate) in_flight: InFlight,
    /// Where each model of the scheduler is, as far as this thread knows.
    pub(crate) places: Vec<Place>,
    /// How often each model had moved when it came here.
    pub(crate) moves: Vec<u32>,
    /// How many models had each number before: the other half of a model's id.
    pub(crate) lives: Vec<u16>,
    /// Which tasks came while no slot held their model.
    pub(crate) cold: ColdSpans,
    /// Batches of each model that were planned here and are with backends.
    pub(crate) with_backends: Vec<u32>,
    /// The model that was granted a slot last: what it decides about slots is about that one.
    pub(crate) granted: ModelId,
    /// Batches whose plan could not be sent; taken back once the model is done deciding.
    pub(crate) undelivered: Vec<u64>,
    /// The tasks of the action being written.
    tasks: Vec<ActionTask>,
    /// When each batch whose plan went out in this pass had become schedulable.
    pub(crate) planned: Vec<Nanos>,
    pub(crate) board: Arc<TaskBoard>,
    pub(crate) counters: Arc<ModelThreadCounters>,
}

impl<T: Transport> Dispatch<T> {
    pub(crate) fn new(
        transport: T,
        link: ModelLink,
        in_flight: InFlight,
        places: Vec<Place>,
        (board, counters): (Arc<TaskBoard>, Arc<ModelThreadCounters>),
    ) -> Self {
        let cold = ColdSpans::new(if link.cache.is_some() { places.len() } else { 0 });
        Self {
            transport,
            peers: Peers::default(),
            link,
            cold,
            in_flight,
            moves: vec![0; places.len()],
            lives: vec![0; places.len()],
            with_backends: vec![0; places.len()],
            granted: ModelId(0),
            undelivered: Vec::new(),
            tasks: Vec::with_capacity(baton_core::BATCH_MAX as usize),
            planned: Vec::with_capacity(places.len()),
            places,
            board,
            counters,
        }
    }

    /// Where the model with this id is.
    ///
    /// # Errors
    /// How its tasks end if there is none.
    pub(crate) fn place_of(&self, id: u32) -> Result<Place, Unserved> {
        let (ModelId(number), life) = number_and_life(id);
        let known = self.lives.get(number as usize).copied();
        match known {
            Some(known) if known == life => Ok(self.places[number as usize]),
            Some(known) if life < known => Err(Unserved::Dropped(DropReason::ModelRemoved)),
            _ => Err(Unserved::Failed(FailReason::UnknownModel)),
        }
    }

    /// A backend has reported the batch, or never will: forgets it. Its tasks are in `requests`.
    #[inline]
    pub(crate) fn take_report(
        &mut self,
        name: u64,
        requests: &mut Vec<Request>,
    ) -> Option<Planned> {
        let backend = self.in_flight.get(name)?.backend;
        let planned = self.in_flight.remove(name, requests)?;
        self.board.reported(backend, requests.len() as u64);
        self.with_backends[planned.model.0 as usize] -= 1;
        Some(planned)
    }

    /// Tells a frontend that a task ended here.
    pub(crate) fn tell(&mut self, task: TaskId, why: Unserved) {
        self.counters.count_end(why);
        self.send_end(task, why, 0);
    }

    /// Tells a frontend that a task was not accepted, and how long it had better wait before the next.
    pub(crate) fn refuse(&mut self, task: TaskId, why: DropReason, retry_after: Nanos) {
        self.counters.count_end(Unserved::Dropped(why));
        self.send_end(task, Unserved::Dropped(why), retry_ms(retry_after));
    }

    fn send_end(&mut self, task: TaskId, why: Unserved, retry_ms: u16) {
        self.board.ended(task.frontend());
        let sent = match self.peers.frontend(task.frontend()) {
            Some(conn) => self.transport.send(conn, &task_end(task, why, retry_ms), &[]).is_ok(),
            None => false,
        };
        if !sent {
            self.counters.outcomes_undelivered.add(1);
        }
    }

    /// A backend that calls itself ready and is not connected here is given nothing more: every batch
    /// for it would come back, and its tasks would wait for the next grant.
    pub(crate) fn report_absent(&mut self, gpu: Gpu) {
        if let Some(backend) = self.peers.unconnected_owner(gpu) {
            self.report_missing(Member::Backend(backend));
        }
    }

    /// Tells the ControlThread of a member that is not connected; once, however often it shows until the
    /// ControlThread has acted on it.
    pub(crate) fn report_missing(&mut self, member: Member) {
        if !self.peers.is_news_that_missing(member) {
            return;
        }
        self.link.notices.send(match member {
            Member::Frontend(id) => Notice::FrontendLost(id),
            Member::Backend(id) => Notice::BackendLost(id),
        });
    }

    fn send_action(
        &mut self,
        (backend, conn): (BackendId, ConnId),
        name: u64,
        batch: &Batch<'_>,
    ) -> bool {
        let says_cold = self.link.cache.is_some() && self.peers.version_of(backend) >= COLD_SINCE;
        let Self { cold, tasks, .. } = self;
        tasks.clear();
        tasks.extend(batch.requests().map(|request| {
            let task = ActionTask::new(&request);
            if says_cold && cold.has(batch.model, &request) { task.cold() } else { task }
        }));
        let window = [batch.exec_at, batch.invalid_after];
        let id = model_id(batch.model, self.lives[batch.model.0 as usize]);
        let action = Action::infer(name, window, ModelId(id), batch.grant.gpu.id);
        let (variant, floor) = (batch.shape.variant.into(), batch.floor as u8);
        let action = Action { variant, floor, ..action };
        self.transport.send(conn, &action, self.tasks.as_bytes()).is_ok()
    }
}

impl<T: Transport> ModelSink for Dispatch<T> {
    #[inline]
    fn candidate(&mut self, model: ModelId, candidate: Option<Candidate>, grants: u32) {
        let moves = self.moves[model.0 as usize];
        self.link.candidate(model, PublishedCandidate { candidate, grants, moves });
    }

    #[inline]
    fn dispatch(&mut self, batch: &Batch<'_>) {
        let Grant { gpu, slowdown, .. } = batch.grant;
        let Batch { model, shape, fetched_at, .. } = *batch;
        let planned = Planned { model, shape, gpu, slowdown, fetched_at };
        let owner = self.peers.backend_of(gpu);
        let backend = owner.map_or(NO_BACKEND, |(backend, _)| backend);
        let name = self
            .in_flight
            .insert(planned, backend, batch.requests())
            .expect("there is room for every slot's pipeline");
        self.with_backends[batch.model.0 as usize] += 1;
        self.board.given(backend, batch.len().into());
        if owner.is_some_and(|owner| self.send_action(owner, name, batch)) {
            self.planned.push(batch.schedulable_at);
            self.counters.plans.add(1);
            self.counters.planned_tasks.add(u64::from(batch.len()));
        } else {
            self.counters.plans_undelivered.add(1);
            self.undelivered.push(name);
            self.report_absent(gpu);
        }
    }

    #[inline]
    fn gpu(&mut self, update: GpuUpdate) {
        self.link.update(self.granted, update);
    }

    fn end_task(&mut self, task: TaskId, why: Unserved) {
        self.tell(task, why);
    }

    fn queue_full(&mut self, task: TaskId, retry_after: Nanos) {
        self.refuse(task, DropReason::QueueFull, retry_after);
    }

    fn over_share(&mut self, task: TaskId, retry_after: Nanos) {
        self.counters.dropped_share.add(1);
        self.send_end(task, Unserved::Dropped(DropReason::QueueFull), retry_ms(retry_after));
    }
}

/// Stands for the backend of a slot whose backend is gone.
const NO_BACKEND: BackendId = BackendId(u32::MAX);

/// The message that tells a frontend how its task ended.
fn task_end(task: TaskId, why: Unserved, retry_ms: u16) -> TaskEnd {
    let (kind, reason) = match why {
        Unserved::Dropped(reason) => (1, reason.code()),
        Unserved::Failed(reason) => (2, reason.code()),
    };
    TaskEnd { task: task.0.into(), kind, reason, retry_ms: retry_ms.into() }
}

/// Rounded up, so that a frontend that waits this long is not too early again.
fn retry_ms(retry_after: Nanos) -> u16 {
    u16::try_from(retry_after.0.div_ceil(1_000_000)).unwrap_or(u16::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frontend_hears_whole_milliseconds_and_at_most_what_the_message_has_room_for() {
        let (ms, longest) = (Nanos::from_millis, u64::from(u16::MAX));
        for (wait, told) in [(Nanos::ZERO, 0), (Nanos(1), 1), (ms(20), 20), (ms(20) + Nanos(1), 21)]
        {
            assert_eq!(retry_ms(wait), told);
        }
        for wait in [ms(longest), ms(longest + 1), Nanos::MAX] {
            assert_eq!(retry_ms(wait), u16::MAX);
        }
    }
}
