//! What becomes of tasks, by model, slot and member: written by one ModelThread as it happens, read by the ControlThread when
//! an operator or Prometheus asks how the cluster fares.
//!
//! A model that moves to another ModelThread leaves its numbers behind and goes on counting there: the sum over all boards
//! counts, and what grew since another moment. So every number has one writer, and an increment is a load and a store.

use baton_core::{
    BackendId, BatchShape, FrontendId, Gpu, GpuId, ModelId, Nanos, Request, VARIANTS_MAX,
};

use crate::counters::Counter;
use crate::latencies::{CLASSES, class_of};
use crate::limits::{BACKENDS_MAX, FRONTENDS_MAX, GPUS_MAX};

/// See the module documentation.
#[derive(Debug)]
pub struct TaskBoard {
    models: Box<[PerModel<Counter>]>,
    slots: Box<[PerSlot]>,
    frontends: Box<[Turnover]>,
    backends: Box<[Turnover]>,
}

/// What is counted of one slot.
#[derive(Default, Debug)]
struct PerSlot {
    busy_ns: Counter,
    loads: Counter,
    loading_ns: Counter,
}

/// What a slot has done.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct SlotWork {
    /// For how long it has executed.
    pub(crate) busy_ns: u64,
    /// LOADs that ended well.
    pub(crate) loads: u64,
    /// For how long they copied.
    pub(crate) loading_ns: u64,
}

/// Tasks that a member has been given, or has given, and those of them that are done with.
#[derive(Default, Debug)]
struct Turnover {
    begun: Counter,
    ended: Counter,
}

/// What is counted of one model.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PerModel<T> {
    /// Batches that were executed, or whose engine failed.
    pub(crate) batches: T,
    /// Tasks in them.
    pub(crate) tasks: T,
    /// Of these, in batches that ended later than the deadline allows, less the way back.
    pub(crate) late: T,
    /// Of these, without an answer: the backend has informed their frontends.
    pub(crate) failed: T,
    /// Tasks in batches whose inputs were stale when the backend pulled them. They are in none of the numbers above.
    pub(crate) stale: T,
    /// Tasks that were dropped when they arrived, because no slot serves the model.
    pub(crate) unserved: T,
    /// Tasks that ended while they waited, because their application wanted them no more.
    pub(crate) excused: T,
    /// From arrival to the end of the batch: the sum, ns, and counts by class.
    pub(crate) latency_ns: T,
    /// See `latency_ns`.
    pub(crate) latencies: [T; CLASSES],
    /// By variant: those of a model without any are its only one's.
    pub(crate) variants: [PerVariant<T>; VARIANTS_MAX],
}

/// What is counted of one variant of a model.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub(crate) struct PerVariant<T> {
    /// As [`PerModel::batches`].
    pub(crate) batches: T,
    /// As [`PerModel::tasks`].
    pub(crate) tasks: T,
}

/// Since the start, over all boards.
pub(crate) type ModelTotals = PerModel<u64>;

impl<T: Default> Default for PerModel<T> {
    fn default() -> Self {
        let zero = T::default;
        Self {
            batches: zero(),
            tasks: zero(),
            late: zero(),
            failed: zero(),
            stale: zero(),
            unserved: zero(),
            excused: zero(),
            latency_ns: zero(),
            latencies: std::array::from_fn(|_| zero()),
            variants: std::array::from_fn(|_| PerVariant::default()),
        }
    }
}

impl ModelTotals {
    /// Each number with the one of `other`.
    fn merge<T>(&mut self, other: &PerModel<T>, merge: impl Fn(&mut u64, &T)) {
        merge(&mut self.batches, &other.batches);
        merge(&mut self.tasks, &other.tasks);
        merge(&mut self.late, &other.late);
        merge(&mut self.failed, &other.failed);
        merge(&mut self.stale, &other.stale);
        merge(&mut self.unserved, &other.unserved);
        merge(&mut self.excused, &other.excused);
        merge(&mut self.latency_ns, &other.latency_ns);
        let classes = self.latencies.iter_mut().zip(&other.latencies);
        classes.for_each(|(own, other)| merge(own, other));
        for (own, other) in self.variants.iter_mut().zip(&other.variants) {
            merge(&mut own.batches, &other.batches);
            merge(&mut own.tasks, &other.tasks);
        }
    }

    /// What has grown since.
    pub(crate) fn since(mut self, before: &Self) -> Self {
        self.merge(before, |now, before| *now -= before);
        self
    }
}

/// What the ModelThread says.
impl TaskBoard {
    /// For `models` models.
    pub(crate) fn new(models: usize) -> Self {
        let turnovers = |count: u32| (0..count).map(|_| Turnover::default()).collect();
        Self {
            models: (0..models).map(|_| PerModel::default()).collect(),
            slots: (0..GPUS_MAX).map(|_| PerSlot::default()).collect(),
            frontends: turnovers(FRONTENDS_MAX),
            backends: turnovers(BACKENDS_MAX),
        }
    }

    /// A task was submitted.
    #[inline]
    pub(crate) fn submitted(&self, frontend: FrontendId) {
        if let Some(turnover) = self.frontends.get(usize::from(frontend.0)) {
            turnover.begun.add(1);
        }
    }

    /// A task of this frontend has its outcome.
    pub(crate) fn ended(&self, frontend: FrontendId) {
        if let Some(turnover) = self.frontends.get(usize::from(frontend.0)) {
            turnover.ended.add(1);
        }
    }

    /// A ModelThread gave a batch with this number of tasks to a backend.
    #[inline]
    pub(crate) fn given(&self, backend: BackendId, tasks: u64) {
        if let Some(turnover) = self.backends.get(backend.0 as usize) {
            turnover.begun.add(tasks);
        }
    }

    /// The backend has reported a batch with this number of tasks, or never will.
    #[inline]
    pub(crate) fn reported(&self, backend: BackendId, tasks: u64) {
        if let Some(turnover) = self.backends.get(backend.0 as usize) {
            turnover.ended.add(tasks);
        }
    }

    /// The slot has executed for so long.
    #[inline]
    pub(crate) fn busy(&self, gpu: Gpu, took: Nanos) {
        self.slots[gpu.id.0 as usize].busy_ns.add(took.0);
    }

    /// Weights were copied to the slot for so long.
    pub(crate) fn loaded(&self, slot: GpuId, took: Nanos) {
        let slot = &self.slots[slot.0 as usize];
        slot.loads.add(1);
        slot.loading_ns.add(took.0);
    }

    /// A batch of these tasks was executed by `finished`, which are none if all were stale; `done` is what the backend has answered
    /// of it.
    pub(crate) fn executed(
        &self,
        model: ModelId,
        tasks: &[Request],
        done: BatchShape,
        finished: Nanos,
    ) {
        if tasks.is_empty() {
            return;
        }
        let (counts, rows) = (&self.models[model.0 as usize], done.size);
        counts.batches.add(1);
        counts.tasks.add(tasks.len() as u64);
        if let Some(variant) = counts.variants.get(usize::from(done.variant)) {
            variant.batches.add(1);
            variant.tasks.add(tasks.len() as u64);
        }
        counts.failed.add((tasks.len() as u64).saturating_sub(rows.into()));
        tasks.iter().for_each(|task| self.ended(task.task.frontend()));
        if rows == 0 {
            return;
        }
        let (mut late, mut sum_ns) = (0, 0);
        for task in tasks {
            let latency = (finished - task.arrived).0;
            sum_ns += latency;
            late += u64::from(finished > task.deadline);
            counts.latencies[class_of(latency)].add(1);
        }
        counts.latency_ns.add(sum_ns);
        counts.late.add(late.min(rows.into()));
    }

    /// The input of a task was stale when the backend pulled it.
    pub(crate) fn stale(&self, model: ModelId, task: &Request) {
        self.models[model.0 as usize].stale.add(1);
        self.ended(task.task.frontend());
    }

    /// A task was dropped when it arrived, because nothing serves the model.
    pub(crate) fn unserved(&self, model: ModelId) {
        self.models[model.0 as usize].unserved.add(1);
    }

    /// This number of waiting tasks ended because their application wanted them no more.
    pub(crate) fn excused(&self, model: ModelId, tasks: u64) {
        self.models[model.0 as usize].excused.add(tasks);
    }
}

/// What the ControlThread reads: sums over the boards of all ModelThreads.
#[derive(Clone, Debug)]
pub struct TaskBoards(Vec<std::sync::Arc<TaskBoard>>);

impl TaskBoards {
    pub(crate) fn new(boards: Vec<std::sync::Arc<TaskBoard>>) -> Self {
        Self(boards)
    }

    /// Of one model.
    pub(crate) fn model(&self, model: ModelId) -> ModelTotals {
        let mut sum = ModelTotals::default();
        for board in &self.0 {
            sum.merge(&board.models[model.0 as usize], |sum, count| *sum += count.get());
        }
        sum
    }

    /// What the slot has done.
    pub(crate) fn slot(&self, slot: u32) -> SlotWork {
        let sum = |of: fn(&PerSlot) -> &Counter| {
            self.0.iter().map(|board| of(&board.slots[slot as usize]).get()).sum()
        };
        SlotWork {
            busy_ns: sum(|slot| &slot.busy_ns),
            loads: sum(|slot| &slot.loads),
            loading_ns: sum(|slot| &slot.loading_ns),
        }
    }

    /// Tasks of the frontend that have no outcome yet.
    pub(crate) fn outstanding_of(&self, frontend: FrontendId) -> u64 {
        let of = |board: &TaskBoard| {
            let Turnover { begun, ended } = &board.frontends[usize::from(frontend.0)];
            (begun.get(), ended.get())
        };
        self.difference(of)
    }

    /// Tasks in batches that the backend has.
    pub(crate) fn outstanding_at(&self, backend: BackendId) -> u64 {
        let of = |board: &TaskBoard| {
            let Turnover { begun, ended } = &board.backends[backend.0 as usize];
            (begun.get(), ended.get())
        };
        self.difference(of)
    }

    /// A task may begin on one board and end on another, and both are read while they grow.
    fn difference(&self, of: impl Fn(&TaskBoard) -> (u64, u64)) -> u64 {
        let sums = self.0.iter().map(|board| of(board));
        let (begun, ended) = sums.fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
        begun.saturating_sub(ended)
    }
}

#[cfg(test)]
mod tests {
    use baton_core::TaskId;

    use super::*;

    /// What failed is bad once, however late it was.
    #[test]
    fn of_a_batch_that_failed_in_part_only_the_answers_can_be_late() {
        let board = TaskBoard::new(1);
        let deadline = Nanos::from_millis(10);
        let tasks = [1, 2, 3].map(|task| Request::new(TaskId(task), deadline));
        let ended = deadline + Nanos(1);
        board.executed(ModelId(0), &tasks, BatchShape::of(1), ended);
        let of = TaskBoards::new(vec![board.into()]).model(ModelId(0));
        assert_eq!((of.batches, of.tasks, of.failed, of.late), (1, 3, 2, 1));
    }

    #[test]
    fn tasks_of_a_batch_that_failed_as_a_whole_have_their_outcome() {
        let (board, frontend) = (TaskBoard::new(1), FrontendId(3));
        let tasks = [1, 2].map(|slot| Request::new(TaskId::new(frontend, slot, 0), Nanos(10)));
        tasks.iter().for_each(|_| board.submitted(frontend));
        board.executed(ModelId(0), &tasks, BatchShape::of(0), Nanos(20));
        let boards = TaskBoards::new(vec![board.into()]);
        assert_eq!(boards.outstanding_of(frontend), 0);
        let of = boards.model(ModelId(0));
        assert_eq!((of.failed, of.late, of.latency_ns), (2, 0, 0));
    }

    #[test]
    fn an_answer_is_late_after_its_deadline_and_not_at_it() {
        let board = TaskBoard::new(1);
        let deadline = Nanos::from_millis(10);
        let tasks = [Request::new(TaskId(1), deadline)];
        let late = |board: &TaskBoard| board.models[0].late.get();
        board.executed(ModelId(0), &tasks, BatchShape::of(1), deadline);
        assert_eq!(late(&board), 0);
        board.executed(ModelId(0), &tasks, BatchShape::of(1), deadline + Nanos(1));
        assert_eq!(late(&board), 1);
    }

    #[test]
    fn what_each_variant_has_executed_is_summed_up_over_the_model_threads() {
        let boards = [1, 2].map(|batches| {
            let (board, tasks) =
                (TaskBoard::new(1), [1, 2, 3].map(|task| Request::new(TaskId(task), Nanos(9))));
            (0..batches)
                .for_each(|_| board.executed(ModelId(0), &tasks, BatchShape::of(3), Nanos(5)));
            board.into()
        });
        let of = TaskBoards::new(boards.into()).model(ModelId(0));
        assert_eq!((of.batches, of.variants[0].batches, of.variants[0].tasks), (3, 3, 9));
    }
}
