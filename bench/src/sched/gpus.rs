//! The emulated GPUs of one ModelThread: each batch ends ℓ(b) after its planned start.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use baton_core::{Nanos, Profile};
use baton_rdma::wire::{BatchDone, BatchStatus, Plan};

/// A batch that is executing: ordered by its end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Running {
    ends_at: Nanos,
    started_at: Nanos,
    batch: u64,
    gpu: u32,
    rows: u16,
}

/// The batches that have not ended. The scheduler's plan says when a slot is free, so slots need
/// no queue of their own.
#[derive(Debug)]
pub(super) struct Gpus {
    profile: Profile,
    running: BinaryHeap<Reverse<Running>>,
}

impl Gpus {
    pub(super) fn new(profile: Profile, slots: u32) -> Self {
        let most = slots as usize * usize::from(baton_core::PIPELINE_DEPTH);
        Self { profile, running: BinaryHeap::with_capacity(most) }
    }

    /// ℓ(b).
    pub(super) fn latency(&self, rows: u32) -> Nanos {
        self.profile.latency(rows)
    }

    /// Executes a plan that arrived at `now`.
    pub(super) fn start(&mut self, now: Nanos, plan: &Plan, rows: u16) {
        let started_at = Nanos(plan.exec_at_ns.get()).max(now);
        self.running.push(Reverse(Running {
            ends_at: started_at + self.profile.latency(rows.into()),
            started_at,
            batch: plan.batch.get(),
            gpu: plan.gpu.get(),
            rows,
        }));
    }

    /// The report of a batch that has ended by `now`.
    pub(super) fn finished(&mut self, now: Nanos) -> Option<BatchDone> {
        let &Reverse(done) = self.running.peek().filter(|next| next.0.ends_at <= now)?;
        self.running.pop();
        Some(BatchDone {
            batch: done.batch.into(),
            started_ns: done.started_at.0.into(),
            finished_ns: done.ends_at.0.into(),
            gpu: done.gpu.into(),
            rows: done.rows.into(),
            status: BatchStatus::Executed as u8,
            reserved: 0,
        })
    }
}
