//! Actions that wait for a batch slot of their GPU slot, in the order of their windows' beginnings.
//!
//! In: actions that [`crate::admit`] has admitted. Out: to [`crate::fetch`], or back to the
//! scheduler once they have expired. Bounded by [`ACTIONS_MAX`]; nothing here allocates after
//! [`ActionQueue::new`].

use baton_types::{ModelId, Nanos, TaskId};

use crate::execute::StartBy;
use crate::fetch_time::Fetched;
use crate::served::ServedModel;

/// Actions that may wait per GPU slot. The scheduler grants a GPU slot one batch at a time, so a
/// longer queue only holds batches that will expire.
pub(crate) const ACTIONS_MAX: usize = 8;

/// How long past `latest` an execution may still start: the time a previous batch may have
/// overrun its profile before the scheduler would rather have the tasks back.
pub(crate) const START_GRACE: Nanos = Nanos::from_millis(1);

/// A batch that one GPU slot is to execute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Action {
    /// Names the action in the report to the scheduler.
    pub(crate) id: u64,
    /// The ModelThread that sent it: the report goes there.
    pub(crate) thread: u32,
    /// The model.
    pub(crate) model: ServedModel,
    /// Planned start, on this process's clock. Orders actions; an idle GPU slot does not wait for it.
    pub(crate) earliest: Nanos,
    /// Started later than this, the head misses its deadline with the planned variant. On this process's clock.
    pub(crate) latest: Nanos,
    /// By when which variant must start, [`START_GRACE`] included.
    pub(crate) start_by: StartBy,
    /// Head first; 1 ..= the model's `batch_max`, no task twice.
    pub(crate) tasks: Vec<BatchTask>,
    /// Once its inputs are here, if that was measured.
    pub(crate) fetched: Option<Fetched>,
}

/// A task of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct BatchTask {
    /// Which.
    pub(crate) id: TaskId,
    /// Bytes of its input.
    pub(crate) input_bytes: u32,
    /// It waited for a LOAD.
    pub(crate) is_cold: bool,
}

impl Action {
    /// The last moment an execution may start.
    pub(crate) fn expires_at(&self) -> Nanos {
        self.start_by.last()
    }

    /// True when an execution can no longer start in time.
    pub(crate) fn expired(&self, now: Nanos) -> bool {
        now > self.expires_at()
    }
}

/// The actions of one GPU slot that have no batch slot yet.
#[derive(Debug)]
pub(crate) struct ActionQueue {
    /// Latest `earliest` first, so that the next one is the cheap end; equal ones in order of
    /// arrival.
    waiting: Vec<Action>,
    /// Empty task lists to be filled again.
    spare: Vec<Vec<BatchTask>>,
}

impl ActionQueue {
    /// An empty queue that owns `lists` task lists of `batch_max` tasks each: as many as there can
    /// be actions, waiting or in batch slots, at once.
    pub(crate) fn new(lists: usize, batch_max: u32) -> Self {
        let spare = (0..lists).map(|_| Vec::with_capacity(batch_max as usize)).collect();
        Self { waiting: Vec::with_capacity(ACTIONS_MAX), spare }
    }

    /// From now on batches may have up to `batch_max` tasks.
    pub(crate) fn reserve(&mut self, batch_max: u32) {
        self.spare.iter_mut().for_each(|list| list.reserve(batch_max as usize));
    }

    /// True if an action on this model waits.
    pub(crate) fn names(&self, model: ModelId) -> bool {
        self.waiting.iter().any(|action| action.model.local == model)
    }

    /// True when another action must be refused.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.len() >= ACTIONS_MAX
    }

    /// True when no action waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// An empty task list for the next action; give it back by [`ActionQueue::recycle`].
    pub(crate) fn task_list(&mut self) -> Vec<BatchTask> {
        self.spare.pop().unwrap_or_default()
    }

    /// Takes an action's task list back.
    pub(crate) fn recycle(&mut self, mut tasks: Vec<BatchTask>) {
        tasks.clear();
        self.spare.push(tasks);
    }

    /// Queues an action behind those with the same `earliest`. Only while the queue is not full.
    pub(crate) fn push(&mut self, action: Action) {
        assert!(!self.is_full(), "a full action queue refuses before an action is made");
        let at = self.waiting.partition_point(|other| other.earliest > action.earliest);
        self.waiting.insert(at, action);
    }

    /// The action with the smallest `earliest`.
    pub(crate) fn pop(&mut self) -> Option<Action> {
        self.waiting.pop()
    }

    /// Takes out an action that can no longer start in time.
    pub(crate) fn pop_expired(&mut self, now: Nanos) -> Option<Action> {
        let at = self.waiting.iter().position(|action| action.expired(now))?;
        Some(self.waiting.remove(at))
    }

    /// When the first waiting action expires.
    pub(crate) fn next_expiry(&self) -> Option<Nanos> {
        self.waiting.iter().map(Action::expires_at).min()
    }
}

#[cfg(test)]
mod tests {
    use baton_types::FrontendId;

    use super::*;

    fn action(id: u64, earliest: u64, latest: u64) -> Action {
        Action {
            id,
            thread: 0,
            model: ServedModel {
                id: ModelId(0),
                local: ModelId(0),
                batch_max: 4,
                input_bytes: 8,
                output_bytes: 8,
                input_is_fixed: true,
                variants: 1,
            },
            earliest: Nanos(earliest),
            latest: Nanos(latest),
            start_by: (Nanos(latest) + START_GRACE).into(),
            tasks: vec![BatchTask {
                id: TaskId::new(FrontendId(1), id as u32, 0),
                input_bytes: 8,
                is_cold: false,
            }],
            fetched: None,
        }
    }

    #[test]
    fn the_earliest_start_leaves_first_whatever_the_order_of_arrival() {
        let mut queue = ActionQueue::new(ACTIONS_MAX, 4);
        for (id, earliest) in [(1, 30), (2, 10), (3, 20), (4, 10)] {
            queue.push(action(id, earliest, 100));
        }
        let order: Vec<u64> = std::iter::from_fn(|| queue.pop()).map(|action| action.id).collect();
        assert_eq!(order, [2, 4, 3, 1], "equal starts keep their order of arrival");
    }

    #[test]
    fn a_model_that_an_action_names_is_known_by_its_number_here() {
        let mut queue = ActionQueue::new(ACTIONS_MAX, 4);
        let mut named = action(1, 10, 100);
        (named.model.id, named.model.local) = (ModelId(5), ModelId(3));
        queue.push(named);
        assert_eq!([3, 5].map(|model| queue.names(ModelId(model))), [true, false]);
    }

    #[test]
    fn eight_actions_fill_the_queue() {
        let mut queue = ActionQueue::new(ACTIONS_MAX, 4);
        for id in 0..8 {
            assert!(!queue.is_full());
            queue.push(action(id, 10, 100));
        }
        assert!(queue.is_full());
        queue.pop();
        assert!(!queue.is_full());
    }

    #[test]
    fn an_action_expires_one_millisecond_after_its_window() {
        let mut queue = ActionQueue::new(ACTIONS_MAX, 4);
        let window_end = 5_000_000;
        queue.push(action(1, 1, window_end));
        queue.push(action(2, 2, window_end * 2));
        let last_chance = Nanos(window_end) + START_GRACE;
        assert_eq!(queue.next_expiry(), Some(last_chance));
        assert!(queue.pop_expired(last_chance).is_none());
        assert_eq!(queue.pop_expired(last_chance + Nanos(1)).unwrap().id, 1);
        assert!(queue.pop_expired(last_chance + Nanos(1)).is_none(), "action 2 still has time");
        queue.push(action(3, 3, window_end));
        assert_eq!(queue.next_expiry(), Some(last_chance), "not of the one that starts first");
    }

    #[test]
    fn task_lists_are_used_again_without_allocating() {
        let mut queue = ActionQueue::new(1, 4);
        let mut list = queue.task_list();
        let capacity = list.capacity();
        list.push(BatchTask { id: TaskId(1), input_bytes: 8, is_cold: false });
        queue.recycle(list);
        let again = queue.task_list();
        assert!(again.is_empty());
        assert_eq!(again.capacity(), capacity);
    }

    #[test]
    fn an_action_that_waits_names_its_model() {
        let mut queue = ActionQueue::new(ACTIONS_MAX, 4);
        let names = |queue: &ActionQueue| [0, 1].map(|model| queue.names(ModelId(model)));
        assert_eq!(names(&queue), [false, false]);
        queue.push(action(1, 10, 100));
        assert_eq!(names(&queue), [true, false]);
        queue.pop();
        assert_eq!(names(&queue), [false, false]);
    }
}
