//! The check every action passes before the backend commits memory to it.
//!
//! In: an `Action` message as it came off the wire and the ModelThread it came from. Out: what the
//! rest of the backend may rely on (a model and a GPU slot of ours, 1 ..= `batch_max` distinct
//! tasks, a window on our clock), or the [`Refusal`] that sends the tasks back.

use std::ops::Range;

use baton_membership::ClockSync;
use baton_rdma::wire::{self, ActionTask};
use baton_types::{Nanos, TaskId};

use crate::action::BatchTask;
use crate::served::{ServedModel, ServedModels};

/// What actions are checked against.
#[derive(Clone, Debug)]
pub(crate) struct ActionRules<'a> {
    /// The models served here.
    pub(crate) served: &'a ServedModels,
    /// The scheduler's clock against ours.
    pub(crate) sync: &'a ClockSync,
    /// The scheduler's numbers of our GPU slots.
    pub(crate) gpus: Range<u32>,
}

/// An action's fixed part, checked and translated; its tasks have been checked too.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Admitted {
    /// Which of our GPU slots, from 0.
    pub(crate) gpu: usize,
    /// The model.
    pub(crate) model: ServedModel,
    /// The variant that is to execute.
    pub(crate) variant: u16,
    /// The cheapest that may.
    pub(crate) floor: u16,
    /// Planned start, our clock.
    pub(crate) earliest: Nanos,
    /// Latest useful start, our clock.
    pub(crate) latest: Nanos,
}

/// Why an action is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Refusal {
    /// The model is not served here.
    UnknownModel,
    /// The GPU slot is not ours.
    UnknownGpu,
    /// A kind of action that this build does not know, or a variant that the model has not.
    Unknown,
    /// A batch of no task or of more than the model's `batch_max`.
    BatchSize,
    /// The window ends before it begins.
    Window,
    /// The backend does not know a task's frontend: the action overtook the scheduler's introduction of it,
    /// or the frontend has just left.
    UnknownFrontend,
    /// The scheduler's clock is not known yet: this backend has not reported that it is ready.
    NotReady,
}

/// Checks actions; owns the memory that takes.
#[derive(Debug)]
pub(crate) struct ActionChecker {
    /// Sorted copy of an action's task ids.
    sorted: Vec<u64>,
}

impl ActionChecker {
    /// For actions of up to `batch_max` tasks.
    pub(crate) fn new(batch_max: u32) -> Self {
        Self { sorted: Vec::with_capacity(batch_max as usize) }
    }

    /// From now on actions may have up to `batch_max` tasks.
    pub(crate) fn reserve(&mut self, batch_max: u32) {
        self.sorted.clear();
        self.sorted.reserve(batch_max as usize);
    }

    /// Checks everything about an action but whether there is room for it. Any ModelThread may send it:
    /// models move between them.
    ///
    /// # Errors
    /// See [`Refusal`].
    pub(crate) fn check(
        &self,
        action: &wire::Action,
        tasks: &[ActionTask],
        rules: &ActionRules<'_>,
    ) -> Result<Admitted, Refusal> {
        let model = *rules.served.model(action.model.get()).ok_or(Refusal::UnknownModel)?;
        if !rules.gpus.contains(&action.gpu.get()) {
            return Err(Refusal::UnknownGpu);
        }
        let (variant, floor) = (action.variant.get(), u16::from(action.floor));
        if action.kind != wire::Action::INFER || variant >= model.variants || floor > variant {
            return Err(Refusal::Unknown);
        }
        if !(1..=model.batch_max as usize).contains(&tasks.len()) {
            return Err(Refusal::BatchSize);
        }
        if action.earliest_ns.get() > action.latest_ns.get() {
            return Err(Refusal::Window);
        }
        let local =
            |scheduler_ns| rules.sync.to_local(Nanos(scheduler_ns)).ok_or(Refusal::NotReady);
        Ok(Admitted {
            gpu: (action.gpu.get() - rules.gpus.start) as usize,
            model,
            variant,
            floor,
            earliest: local(action.earliest_ns.get())?,
            latest: local(action.latest_ns.get())?,
        })
    }

    /// Copies an action's tasks to `list`, each once; returns how many were left out. A frontend that
    /// submits a task twice must not cost the others in its batch theirs.
    pub(crate) fn list(&mut self, tasks: &[ActionTask], list: &mut Vec<BatchTask>) -> usize {
        self.sorted.clear();
        self.sorted.extend(tasks.iter().map(|task| task.task.get()));
        self.sorted.sort_unstable();
        let twice = self.sorted.windows(2).any(|pair| pair[0] == pair[1]);
        for task in tasks {
            let (id, input_bytes) = (TaskId(task.task.get()), task.input_len());
            if !twice || !list.iter().any(|listed| listed.id == id) {
                list.push(BatchTask { id, input_bytes, is_cold: task.is_cold() });
            }
        }
        tasks.len() - list.len()
    }
}

#[cfg(test)]
mod tests {

    use baton_types::{GpuId, ModelId};

    use super::*;
    use crate::test_models::{emulated, supernet};

    /// The model is 5 at the scheduler and 0 here.
    fn served() -> ServedModels {
        let mut served = ServedModels::default();
        served.serve(ServedModel::new(5, &emulated("toy", 0, 16, 3))).unwrap();
        served
    }

    fn action() -> wire::Action {
        wire::Action::infer(1, [Nanos(1_500), Nanos(1_700)], ModelId(5), GpuId(8))
    }

    fn check(action: &wire::Action, sync: &ClockSync) -> Result<Admitted, Refusal> {
        let served = served();
        let rules = ActionRules { served: &served, sync, gpus: 7..9 };
        let task = |id: u64| ActionTask { task: id.into(), input_bytes: 16.into(), cost: 0.into() };
        ActionChecker::new(3).check(action, &[task(10), task(11)], &rules)
    }

    /// A scheduler whose clock is 1 µs ahead.
    fn synced() -> ClockSync {
        let mut sync = ClockSync::new();
        sync.on_pong(Nanos(100), Nanos(1_100), Nanos(100));
        sync
    }

    #[test]
    fn a_sound_plan_is_translated_to_our_clock_and_our_numbers() {
        let admitted = check(&action(), &synced()).unwrap();
        assert_eq!(admitted.gpu, 1);
        assert_eq!((admitted.earliest, admitted.latest), (Nanos(500), Nanos(700)));
        assert_eq!((admitted.model.id.0, admitted.model.local.0), (5, 0));
    }

    #[test]
    fn a_window_may_be_one_moment_and_not_less() {
        let window = |earliest, latest| {
            let window = [Nanos(earliest), Nanos(latest)];
            check(&wire::Action::infer(1, window, ModelId(5), GpuId(8)), &synced())
        };
        assert!(window(1_500, 1_500).is_ok());
        assert_eq!(window(1_501, 1_500), Err(Refusal::Window));
    }

    #[test]
    fn only_variants_that_the_model_has_are_admitted_and_no_floor_above_them() {
        let mut served = ServedModels::default();
        served.serve(ServedModel::new(5, &supernet("toy", 0, 16, 3))).unwrap();
        let sync = synced();
        let rules = ActionRules { served: &served, sync: &sync, gpus: 7..9 };
        let task = ActionTask { task: 10.into(), input_bytes: 16.into(), cost: 0.into() };
        let check = |variant: u16, floor: u8| {
            let action = wire::Action { variant: variant.into(), floor, ..action() };
            let admitted = ActionChecker::new(3).check(&action, &[task], &rules);
            admitted.map(|admitted| (admitted.variant, admitted.floor))
        };
        assert_eq!([check(0, 0), check(1, 0), check(1, 1)], [Ok((0, 0)), Ok((1, 0)), Ok((1, 1))]);
        assert_eq!([check(2, 0), check(0, 1)], [Err(Refusal::Unknown); 2]);
    }

    #[test]
    fn a_plan_before_the_clocks_were_compared_is_refused() {
        assert_eq!(check(&action(), &ClockSync::new()), Err(Refusal::NotReady));
    }

    #[test]
    fn a_task_that_is_named_again_is_listed_once_wherever_it_stands() {
        let task = |id: u64| ActionTask { task: id.into(), input_bytes: 16.into(), cost: 0.into() };
        for ids in [[10, 10, 11, 12], [10, 11, 12, 10], [12, 11, 10, 11]] {
            let mut list = Vec::new();
            assert_eq!(ActionChecker::new(4).list(&ids.map(task), &mut list), 1, "{ids:?}");
            let mut listed: Vec<u64> = list.iter().map(|task| task.id.0).collect();
            listed.sort_unstable();
            assert_eq!(listed, [10, 11, 12], "{ids:?}");
        }
    }
}
