//! The worker's messages about batches: answers to the frontends first, then the report to the
//! ModelThread, so that a reported batch is an answered batch.

use baton_core::Nanos;
use baton_rdma::Transport;
use baton_rdma::wire::{BatchDone, BatchStatus, Plan as WirePlan};

use super::Worker;
use crate::error::BackendError;
use crate::execute::Executor;
use crate::plan::Plan;
use crate::reply::{self, Stamp};

impl<T: Transport, E: Executor> Worker<T, E> {
    /// Sends a batch's answers; once all are out, reports it and frees its slot. False while a
    /// frontend holds it up.
    pub(super) fn answer(&mut self, gpu_index: usize, slot_index: usize, now: Nanos) -> bool {
        let Self { gpus, peers, transport, counters, join, .. } = self;
        let gpu = &mut gpus[gpu_index];
        let slot = &mut gpu.slots[slot_index];
        let execution = slot.execution();
        let stamp = Stamp {
            started: join.to_scheduler(execution.started),
            finished: join.to_scheduler(execution.finished),
            gpu: join.first_gpu() + gpu_index as u32,
        };
        let outputs = &gpu.memory[slot_index].outputs;
        if !reply::answer_all(slot, outputs, &stamp, now, peers, transport, counters) {
            return false;
        }
        let rows = slot.executed_rows();
        let plan = slot.free();
        let status = if execution.succeeded {
            counters.batches_executed += 1;
            counters.rows_executed += u64::from(rows);
            BatchStatus::Executed
        } else {
            counters.engine_errors += 1;
            BatchStatus::EngineError
        };
        self.report(gpu_index, &plan, rows, status, (execution.started, execution.finished), now);
        self.gpus[gpu_index].plans.recycle(plan.tasks);
        true
    }

    /// Reports a batch's result to the ModelThread; `span` is its execution on our clock.
    pub(super) fn report(
        &mut self,
        gpu: usize,
        plan: &Plan,
        rows: u32,
        status: BatchStatus,
        span: (Nanos, Nanos),
        now: Nanos,
    ) {
        let done = BatchDone {
            batch: plan.batch.into(),
            started_ns: self.join.to_scheduler(span.0).0.into(),
            finished_ns: self.join.to_scheduler(span.1).0.into(),
            gpu: (self.join.first_gpu() + gpu as u32).into(),
            rows: (rows as u16).into(),
            status: status as u8,
            reserved: 0,
        };
        self.send_report(plan.thread, &done, now);
    }

    /// Refuses a plan that never got a place: its tasks are the scheduler's again.
    pub(super) fn refuse_plan(&mut self, thread: u32, plan: &WirePlan, now: Nanos) {
        let at = self.join.to_scheduler(now).0;
        let done = BatchDone {
            batch: plan.batch,
            started_ns: at.into(),
            finished_ns: at.into(),
            gpu: plan.gpu,
            rows: 0.into(),
            status: BatchStatus::Refused as u8,
            reserved: 0,
        };
        self.send_report(thread, &done, now);
    }

    /// A report must not be lost; a ModelThread that does not take it is as good as gone.
    fn send_report(&mut self, thread: u32, done: &BatchDone, now: Nanos) {
        let Some(conn) = self.join.thread(thread) else { return };
        if let Err(error) = self.transport.send(conn, done, &[]) {
            let problem = format!("ModelThread {thread} takes no reports: {error}");
            self.fail(BackendError::SchedulerLost(problem), now);
        }
    }
}
