//! The simulated backends, one GPU slot each: they execute one batch after the other, report, die,
//! leave and come back.

use baton_core::{
    BatchShape, FailReason, Gpu, GpuId, GpuUpdate, Nanos, PIPELINE_DEPTH, Request, Slowdown,
    SubclusterId, Unserved,
};

use super::outbox::{End, Plan, Said};
use super::{Event, World};

/// A slot as it really is, which the core can only estimate.
pub(crate) struct Slot {
    subcluster: SubclusterId,
    life: u32,
    is_present: bool,
    is_draining: bool,
    /// Batches it has: executing and waiting.
    outstanding: u8,
    /// When it will have executed all of them.
    free_at: Nanos,
}

impl Slot {
    pub(crate) fn new(subcluster: SubclusterId) -> Self {
        let (is_present, is_draining) = (false, false);
        Self { subcluster, life: 0, is_present, is_draining, outstanding: 0, free_at: Nanos::ZERO }
    }

    /// Takes batches of this sub-cluster and has none.
    pub(crate) fn is_idle(&self, subcluster: SubclusterId) -> bool {
        let takes_batches = self.is_present && !self.is_draining && self.outstanding == 0;
        takes_batches && self.subcluster == subcluster
    }
}

/// What became of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Fate {
    OnGpu,
    Executed,
    GivenBack,
}

/// A batch that was sent to a backend.
pub(crate) struct Sealed {
    pub(crate) model: u32,
    pub(crate) gpu: Gpu,
    pub(crate) requests: Vec<Request>,
    pub(crate) invalid_after: Nanos,
    pub(crate) schedulable_at: Nanos,
    pub(crate) sealed_at: Nanos,
    pub(crate) start: Nanos,
    pub(crate) took: Nanos,
    pub(crate) slowdown: Slowdown,
    pub(crate) fate: Fate,
}

impl World {
    /// A backend brings the slot, in its next life if it had one.
    pub(crate) fn join_gpu(&mut self, id: usize) {
        let slot = &mut self.slots[id];
        assert!(!slot.is_present);
        *slot = Slot { life: slot.life + 1, is_present: true, ..Slot::new(slot.subcluster) };
        let (gpu, subcluster) = (self.gpu(id), self.slots[id].subcluster);
        self.rank.on_gpu_join(self.now, gpu, subcluster, &mut self.out);
        self.settle();
    }

    /// The slot's backend dies now; the tasks it had are taken back.
    pub(crate) fn kill_gpu(&mut self, id: usize) {
        let gpu = self.gpu(id);
        self.slots[id].is_present = false;
        self.rank.on_gpu_leave(gpu);
        let on_gpu = |b: &Sealed| b.gpu == gpu && b.fate == Fate::OnGpu;
        while let Some(batch) = self.batches.iter().position(on_gpu) {
            self.give_back(batch, Unserved::Failed(FailReason::BackendLost));
        }
        self.settle();
    }

    /// The slot's backend asks to leave.
    pub(crate) fn drain_gpu(&mut self, id: usize) {
        self.slots[id].is_draining = true;
        let gpu = self.gpu(id);
        self.rank.on_gpu_drain(gpu, &mut self.out);
        self.settle();
    }

    /// The slot in its present life.
    pub(crate) fn gpu(&self, id: usize) -> Gpu {
        Gpu { id: GpuId(id as u32), life: self.slots[id].life }
    }

    pub(crate) fn is_present(&self, id: usize) -> bool {
        self.slots[id].is_present
    }

    pub(crate) fn sizes(&self) -> Vec<usize> {
        self.batches.iter().map(|batch| batch.requests.len()).collect()
    }

    /// Time spent executing, over all slots.
    pub(crate) fn busy(&self) -> Nanos {
        self.batches.iter().fold(Nanos::ZERO, |sum, batch| sum + batch.took)
    }

    pub(super) fn accept_plans(&mut self) {
        for plan in std::mem::take(&mut self.out.plans) {
            self.accept(plan);
        }
    }

    fn accept(&mut self, plan: Plan) {
        let (now, id) = (self.now, plan.gpu.id.0 as usize);
        let start = plan.exec_at.max(self.slots[id].free_at);
        let profile = &self.configs[plan.model as usize].profile;
        assert!(plan.requests.len() <= profile.batch_max() as usize);
        assert!(plan.schedulable_at <= now.max(plan.exec_at), "a delay counts from the past");
        let latency = profile.latency(plan.requests.len() as u32);
        let batch = self.batches.len();
        self.batches.push(Sealed {
            model: plan.model,
            gpu: plan.gpu,
            requests: plan.requests,
            invalid_after: plan.invalid_after,
            schedulable_at: plan.schedulable_at,
            sealed_at: now,
            start,
            took: Nanos::ZERO,
            slowdown: plan.slowdown,
            fate: Fate::OnGpu,
        });
        if !self.slots[id].is_present || self.slots[id].life != plan.gpu.life {
            return self.give_back(batch, Unserved::Failed(FailReason::BackendLost));
        }
        self.slots[id].outstanding += 1;
        assert!(self.slots[id].outstanding <= PIPELINE_DEPTH, "slot {id} is over-committed");
        if self.refuses_late && start > plan.invalid_after {
            self.push(plan.invalid_after + Nanos(1), Event::Expired(batch));
        } else {
            let slowdown = self.slow.get(&plan.gpu.id.0).copied().unwrap_or(Slowdown::NONE);
            let took = slowdown.applied((self.execution)(latency));
            self.batches[batch].took = took;
            self.slots[id].free_at = start + took;
            self.push(start + took, Event::Executed(batch));
        }
    }

    pub(super) fn executed(&mut self, batch: usize) {
        let Some((gpu, requests)) = self.close(batch, Fate::Executed) else { return };
        let size = requests.len() as u32;
        let Sealed { model, start, took, slowdown, .. } = self.batches[batch];
        let at = start + took;
        for request in requests {
            self.out.end(request.task, End::Completed { at, batch: size, gpu: gpu.id.0 });
        }
        let model = &mut self.models[model as usize];
        let pace =
            self.learns.then(|| model.on_measured(BatchShape::of(size), took, slowdown)).flatten();
        self.out.said.push_back(Said::Gpu(GpuUpdate::Finished { gpu, at, pace, fetched_at: None }));
    }

    /// The batch's tasks stay unanswered: back to the queue with those that can still make it.
    pub(super) fn give_back(&mut self, batch: usize, otherwise: Unserved) {
        let Some((gpu, requests)) = self.close(batch, Fate::GivenBack) else { return };
        let model = self.batches[batch].model as usize;
        for request in requests {
            if self.lost_frontends.contains(&request.task.frontend()) {
                let why = Unserved::Dropped(baton_core::DropReason::FrontendLost);
                self.out.end(request.task, End::Unserved(why));
            } else {
                self.models[model].on_requeue(self.now, request, otherwise, &mut self.out);
            }
        }
        let at = self.now;
        self.out.said.push_back(Said::Gpu(GpuUpdate::Finished {
            gpu,
            at,
            pace: None,
            fetched_at: None,
        }));
    }

    /// Takes the batch off its slot; `None` if it was off already.
    fn close(&mut self, batch: usize, fate: Fate) -> Option<(Gpu, Vec<Request>)> {
        let sealed = &mut self.batches[batch];
        if sealed.fate != Fate::OnGpu {
            return None;
        }
        sealed.fate = fate;
        let gpu = sealed.gpu;
        let slot = &mut self.slots[gpu.id.0 as usize];
        if slot.life == gpu.life {
            slot.outstanding = slot.outstanding.saturating_sub(1);
        }
        Some((gpu, sealed.requests.clone()))
    }
}
