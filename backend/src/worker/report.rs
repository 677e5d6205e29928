//! The worker's messages about batches: answers to the frontends first, then the report to the
//! ModelThread, so that a reported batch is an answered batch.

use std::mem;

use baton_rdma::Transport;
use baton_rdma::wire::{
    Action as WireAction, ActionDone, ActionStatus, Body, STALE_SINCE, WireFetch,
};
use baton_types::Nanos;
use zerocopy::IntoBytes;
use zerocopy::little_endian::U16;

use super::Worker;
use crate::action::Action;
use crate::execute::Executor;
use crate::fetch_time::Fetched;
use crate::reply::{self, Stamp};
use crate::slot::Execution;

impl<T: Transport, E: Executor> Worker<T, E> {
    /// Sends a batch's answers; once all are out, reports it and frees its slot. False while a
    /// frontend holds it up.
    pub(super) fn answer(&mut self, gpu_index: usize, slot_index: usize, now: Nanos) -> bool {
        let Self { gpus, peers, transport, counters, join, stale, .. } = self;
        let gpu = &mut gpus[gpu_index];
        let slot = &mut gpu.slots[slot_index];
        let execution = slot.execution();
        let stamp = Stamp {
            started: join.to_scheduler(execution.started),
            finished: join.to_scheduler(execution.finished),
            gpu: join.first_gpu() + gpu_index as u32,
            batch_size: slot.executed_rows(),
            variant: execution.variant,
        };
        let outputs = &gpu.memory[slot_index].outputs;
        if !reply::answer_all(slot, outputs, &stamp, now, peers, transport, counters) {
            return false;
        }
        let mut rows = slot.executed_rows();
        let action = slot.free();
        if join.membership.thread_version(action.thread) >= STALE_SINCE {
            stale.extend(slot.stale_rows().map(U16::new));
        }
        let status = if execution.succeeded {
            // The time is that of the rows which the engine could execute. Without any row it had no batch.
            let unanswered = if rows > 0 { outputs.unanswered() } else { 0 };
            rows -= unanswered;
            counters.batches_executed += 1;
            counters.rows_executed += u64::from(rows);
            counters.rows_unanswered += u64::from(unanswered);
            ActionStatus::Executed
        } else {
            counters.engine_errors += 1;
            ActionStatus::EngineError
        };
        self.report(gpu_index, &action, rows, status, execution, now);
        self.gpus[gpu_index].actions.recycle(action.tasks);
        true
    }

    /// Reports an action's result to the ModelThread, with the rows that were found stale.
    pub(super) fn report(
        &mut self,
        gpu: usize,
        action: &Action,
        rows: u32,
        status: ActionStatus,
        execution: Execution,
        now: Nanos,
    ) {
        let fetch = action.fetched.map_or(WireFetch::NOT_MEASURED, |Fetched { at, took }| {
            WireFetch::new(took, self.join.to_scheduler(at))
        });
        let done = ActionDone {
            action: action.id.into(),
            started_ns: self.join.to_scheduler(execution.started).0.into(),
            finished_ns: self.join.to_scheduler(execution.finished).0.into(),
            gpu: (self.join.first_gpu() + gpu as u32).into(),
            rows: (rows as u16).into(),
            status: status as u8,
            variant: execution.variant as u8,
            fetch,
        };
        let mut stale = mem::take(&mut self.stale);
        self.send_report(action.thread, &done, stale.as_bytes(), now);
        stale.clear();
        self.stale = stale;
    }

    /// Refuses an action that never got a place: its tasks are the scheduler's again.
    pub(super) fn refuse_action(&mut self, thread: u32, action: &WireAction, now: Nanos) {
        let at = self.join.to_scheduler(now).0;
        let done = ActionDone {
            action: action.action,
            started_ns: at.into(),
            finished_ns: at.into(),
            gpu: action.gpu,
            rows: 0.into(),
            status: ActionStatus::Refused as u8,
            variant: 0,
            fetch: WireFetch::NOT_MEASURED,
        };
        self.send_report(thread, &done, &[], now);
    }

    /// A report must not be lost; a ModelThread that does not take it is as good as gone.
    pub(super) fn send_report(&mut self, thread: u32, done: &impl Body, tail: &[u8], now: Nanos) {
        let Some(conn) = self.join.membership.thread(thread) else { return };
        if let Err(error) = self.transport.send(conn, done, tail) {
            let problem = format!("it takes no reports: {error}");
            self.fail(self.join.membership.lost_thread(thread, problem).into(), now);
        }
    }
}
