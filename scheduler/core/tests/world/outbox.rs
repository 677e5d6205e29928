//! Collects what the two state machines decide; the world delivers it.

use std::collections::{BTreeMap, VecDeque};

use baton_core::{
    Batch, Candidate, Gpu, GpuUpdate, Grant, ModelId, ModelSink, Nanos, RankSink, Request,
    Slowdown, TaskId, Unserved,
};

/// How a task ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Completed { at: Nanos, batch: u32, gpu: u32 },
    Unserved(Unserved),
}

/// What a machine told the other.
#[derive(Clone, Copy)]
pub(crate) enum Said {
    Candidate(ModelId, Option<Candidate>, u32),
    Gpu(GpuUpdate),
    Grant(ModelId, Grant),
}

/// A plan as the backend sees it.
pub(crate) struct Plan {
    pub(crate) model: u32,
    pub(crate) gpu: Gpu,
    pub(crate) slowdown: Slowdown,
    pub(crate) exec_at: Nanos,
    pub(crate) invalid_after: Nanos,
    pub(crate) schedulable_at: Nanos,
    pub(crate) requests: Vec<Request>,
}

#[derive(Default)]
pub(crate) struct Outbox {
    /// In the order it was said.
    pub(crate) said: VecDeque<Said>,
    pub(crate) plans: Vec<Plan>,
    pub(crate) ends: BTreeMap<u64, End>,
    pub(crate) drained: Vec<Gpu>,
    /// Slots that models gave back.
    pub(crate) returned: u64,
}

impl Outbox {
    /// Records the one end a task may have.
    pub(crate) fn end(&mut self, task: TaskId, end: End) {
        let before = self.ends.insert(task.0, end);
        assert!(before.is_none(), "{task:?} ended twice: {before:?}, then {end:?}");
    }
}

impl ModelSink for Outbox {
    fn candidate(&mut self, model: ModelId, candidate: Option<Candidate>, grants: u32) {
        self.said.push_back(Said::Candidate(model, candidate, grants));
    }

    fn dispatch(&mut self, batch: &Batch<'_>) {
        let requests: Vec<Request> = batch.requests().collect();
        assert!(!batch.is_empty() && requests.len() == batch.len() as usize);
        assert!(requests.is_sorted_by_key(|r| r.deadline), "head first");
        assert!(batch.exec_at <= batch.invalid_after, "planned within its window");
        self.plans.push(Plan {
            model: batch.model.0,
            gpu: batch.grant.gpu,
            slowdown: batch.grant.slowdown,
            exec_at: batch.exec_at,
            invalid_after: batch.invalid_after,
            schedulable_at: batch.schedulable_at,
            requests,
        });
    }

    fn gpu(&mut self, update: GpuUpdate) {
        self.returned += u64::from(matches!(update, GpuUpdate::Returned { .. }));
        self.said.push_back(Said::Gpu(update));
    }

    fn end_task(&mut self, task: TaskId, why: Unserved) {
        self.end(task, End::Unserved(why));
    }
}

impl RankSink for Outbox {
    fn grant(&mut self, model: ModelId, grant: Grant) {
        self.said.push_back(Said::Grant(model, grant));
    }

    fn drained(&mut self, gpu: Gpu) {
        self.drained.push(gpu);
    }
}
