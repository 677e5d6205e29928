//! The check every plan passes before the backend commits memory to it.
//!
//! In: a `Plan` message as it came off the wire and the ModelThread it came from. Out: what the
//! rest of the backend may rely on (a model and a GPU slot of ours, 1 ..= `batch_max` distinct
//! tasks, a window on our clock), or the [`Refusal`] that sends the tasks back.

use std::ops::Range;

use baton_core::Nanos;
use baton_rdma::ClockSync;
use baton_rdma::wire;
use zerocopy::little_endian::U64;

use crate::catalog::{Catalog, ServedModel};

/// What plans are checked against.
#[derive(Clone, Debug)]
pub(crate) struct Terms<'a> {
    /// The models served here.
    pub(crate) catalog: &'a Catalog,
    /// The scheduler's clock against ours.
    pub(crate) sync: &'a ClockSync,
    /// The scheduler's numbers of our GPU slots.
    pub(crate) gpus: Range<u32>,
}

/// A plan's fixed part, checked and translated; its tasks have been checked too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Admitted {
    /// Which of our GPU slots, from 0.
    pub(crate) gpu: usize,
    /// The model.
    pub(crate) model: ServedModel,
    /// Planned start, our clock.
    pub(crate) exec_at: Nanos,
    /// Latest useful start, our clock.
    pub(crate) invalid_after: Nanos,
}

/// Why a plan is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// The model is not served here.
    UnknownModel,
    /// The GPU slot is not ours.
    UnknownGpu,
    /// The model lives on another ModelThread.
    WrongThread,
    /// No task, or more than the model's `batch_max`.
    BatchSize,
    /// A task occurs twice.
    DuplicateTask,
    /// The window ends before it begins.
    Window,
    /// The scheduler's clock is not known yet: this backend has not said that it is ready.
    NotReady,
}

/// Checks plans; owns the memory that takes.
#[derive(Debug)]
pub(crate) struct Admission {
    /// Sorted copy of a plan's task ids.
    sorted: Vec<u64>,
}

impl Admission {
    /// For plans of up to `batch_max` tasks.
    pub(crate) fn new(batch_max: u32) -> Self {
        Self { sorted: Vec::with_capacity(batch_max as usize) }
    }

    /// Checks everything about a plan from ModelThread `thread` but whether there is room for it.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub(crate) fn check(
        &mut self,
        plan: &wire::Plan,
        tasks: &[U64],
        thread: u32,
        terms: &Terms<'_>,
    ) -> Result<Admitted, Refusal> {
        let model = *terms.catalog.model(plan.model.get()).ok_or(Refusal::UnknownModel)?;
        if !terms.gpus.contains(&plan.gpu.get()) {
            return Err(Refusal::UnknownGpu);
        }
        if model.thread != thread {
            return Err(Refusal::WrongThread);
        }
        self.check_tasks(tasks, model.batch_max)?;
        if plan.exec_at_ns.get() > plan.invalid_after_ns.get() {
            return Err(Refusal::Window);
        }
        let local =
            |scheduler_ns| terms.sync.to_local(Nanos(scheduler_ns)).ok_or(Refusal::NotReady);
        Ok(Admitted {
            gpu: (plan.gpu.get() - terms.gpus.start) as usize,
            model,
            exec_at: local(plan.exec_at_ns.get())?,
            invalid_after: local(plan.invalid_after_ns.get())?,
        })
    }

    fn check_tasks(&mut self, tasks: &[U64], batch_max: u32) -> Result<(), Refusal> {
        if tasks.is_empty() || tasks.len() > batch_max as usize {
            return Err(Refusal::BatchSize);
        }
        self.sorted.clear();
        self.sorted.extend(tasks.iter().map(|task| task.get()));
        self.sorted.sort_unstable();
        match self.sorted.windows(2).any(|pair| pair[0] == pair[1]) {
            true => Err(Refusal::DuplicateTask),
            false => Ok(()),
        }
    }
}
