//! The emulated GPUs of one ModelThread: each batch ends ℓ(b) after its start, or is given back as
//! too late.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use baton_core::{Nanos, Profile};
use baton_rdma::wire::{Action, ActionDone, ActionStatus, WireFetch};

/// A batch that is executing: ordered by its end.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Running {
    ends_at: Nanos,
    started_at: Nanos,
    batch: u64,
    gpu: u32,
    rows: u16,
    variant: u16,
    expired: bool,
}

/// The batches that have not ended. A slot executes one at a time; what other ModelThreads send to
/// it is not seen here, that they do not overlap is the RankThread's affair.
#[derive(Debug)]
pub(super) struct Gpus {
    /// By variant.
    profiles: Vec<Profile>,
    running: BinaryHeap<Reverse<Running>>,
    /// When each slot has ended everything it was sent.
    free_at: Box<[Nanos]>,
}

impl Gpus {
    /// `profiles` are those of a model's variants: one, or the cheapest first.
    pub(super) fn new(profiles: Vec<Profile>, slots: u32) -> Self {
        let most = slots as usize * usize::from(baton_core::PIPELINE_DEPTH);
        let free_at = vec![Nanos::ZERO; slots as usize].into();
        Self { profiles, running: BinaryHeap::with_capacity(most), free_at }
    }

    /// ℓ(b), of the cheapest variant.
    pub(super) fn latency(&self, rows: u32) -> Nanos {
        self.profiles[0].latency(rows)
    }

    /// Executes an action that arrived at `now`; false if it cannot start in time, and is given back.
    pub(super) fn start(&mut self, now: Nanos, action: &Action, rows: u16) -> bool {
        let (gpu, variant) = (action.gpu.get(), action.variant.get());
        let latency = self.profiles[usize::from(variant)].latency(rows.into());
        let free_at = &mut self.free_at[gpu as usize];
        let started_at = Nanos(action.earliest_ns.get()).max(now).max(*free_at);
        let expired = started_at > Nanos(action.latest_ns.get());
        let ends_at = if expired { now } else { started_at + latency };
        *free_at = ends_at.max(*free_at);
        let batch = action.action.get();
        self.running.push(Reverse(Running {
            ends_at,
            started_at,
            batch,
            gpu,
            rows,
            variant,
            expired,
        }));
        !expired
    }

    /// The report of a batch that has ended by `now`, and how many tasks it was.
    pub(super) fn finished(&mut self, now: Nanos) -> Option<(ActionDone, u16)> {
        let &Reverse(done) = self.running.peek().filter(|next| next.0.ends_at <= now)?;
        self.running.pop();
        let status = if done.expired { ActionStatus::Expired } else { ActionStatus::Executed };
        let report = ActionDone {
            action: done.batch.into(),
            started_ns: done.started_at.0.into(),
            finished_ns: done.ends_at.0.into(),
            gpu: done.gpu.into(),
            rows: done.rows.into(),
            status: status as u8,
            variant: done.variant as u8,
            fetch: WireFetch::NOT_MEASURED,
        };
        Some((report, done.rows))
    }
}
