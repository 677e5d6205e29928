//! Plans that wait for a batch slot of their GPU slot, earliest `exec_at` first.
//!
//! In: plans that [`crate::admit`] has admitted. Out: to [`crate::fetch`], or back to the
//! scheduler once they have expired. Bounded by [`PLANS_MAX`]; nothing here allocates after
//! [`PlanQueue::new`].

use baton_core::{Nanos, TaskId};

use crate::catalog::ServedModel;

/// Plans that may wait per GPU slot. The scheduler grants a GPU slot one batch at a time, so a
/// longer queue only holds batches that will expire.
pub(crate) const PLANS_MAX: usize = 8;

/// How long past `invalid_after` an execution may still start: the time a previous batch may have
/// overrun its profile before the scheduler would rather have the tasks back.
pub(crate) const START_GRACE: Nanos = Nanos::from_millis(1);

/// A sealed batch for one GPU slot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    /// Names the batch in the report to the scheduler.
    pub(crate) batch: u64,
    /// The ModelThread that sent it: the report goes there.
    pub(crate) thread: u32,
    /// What to execute.
    pub(crate) model: ServedModel,
    /// Planned start, on this process's clock. Orders plans; an idle GPU slot does not wait for it.
    pub(crate) exec_at: Nanos,
    /// Started later than this, the head misses its deadline. On this process's clock.
    pub(crate) invalid_after: Nanos,
    /// Head first; 1 ..= the model's `batch_max`, no task twice.
    pub(crate) tasks: Vec<TaskId>,
}

impl Plan {
    /// The last moment an execution may start.
    pub(crate) fn expires_at(&self) -> Nanos {
        self.invalid_after + START_GRACE
    }

    /// True when an execution can no longer start in time.
    pub(crate) fn expired(&self, now: Nanos) -> bool {
        now > self.expires_at()
    }
}

/// The plans of one GPU slot that have no batch slot yet.
#[derive(Debug)]
pub(crate) struct PlanQueue {
    /// Latest `exec_at` first, so that the next one is the cheap end; equal ones in order of
    /// arrival.
    waiting: Vec<Plan>,
    /// Empty task lists to be filled again.
    spare: Vec<Vec<TaskId>>,
}

impl PlanQueue {
    /// An empty queue that owns `lists` task lists of `batch_max` tasks each: as many as there can
    /// be plans, waiting or in batch slots, at once.
    pub(crate) fn new(lists: usize, batch_max: u32) -> Self {
        let spare = (0..lists).map(|_| Vec::with_capacity(batch_max as usize)).collect();
        Self { waiting: Vec::with_capacity(PLANS_MAX), spare }
    }

    /// True when another plan must be refused.
    pub(crate) fn is_full(&self) -> bool {
        self.waiting.len() >= PLANS_MAX
    }

    /// True when no plan waits.
    pub(crate) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// An empty task list for the next plan; give it back by [`PlanQueue::recycle`].
    pub(crate) fn task_list(&mut self) -> Vec<TaskId> {
        self.spare.pop().unwrap_or_default()
    }

    /// Takes a plan's task list back.
    pub(crate) fn recycle(&mut self, mut tasks: Vec<TaskId>) {
        tasks.clear();
        self.spare.push(tasks);
    }

    /// Queues a plan behind those with the same `exec_at`. Only while the queue is not full.
    pub(crate) fn push(&mut self, plan: Plan) {
        assert!(!self.is_full(), "a full plan queue refuses before a plan is made");
        let at = self.waiting.partition_point(|other| other.exec_at > plan.exec_at);
        self.waiting.insert(at, plan);
    }

    /// The plan with the smallest `exec_at`.
    pub(crate) fn pop(&mut self) -> Option<Plan> {
        self.waiting.pop()
    }

    /// Takes out a plan that can no longer start in time.
    pub(crate) fn pop_expired(&mut self, now: Nanos) -> Option<Plan> {
        let at = self.waiting.iter().position(|plan| plan.expired(now))?;
        Some(self.waiting.remove(at))
    }

    /// When the first waiting plan expires.
    pub(crate) fn next_expiry(&self) -> Option<Nanos> {
        self.waiting.iter().map(Plan::expires_at).min()
    }
}

#[cfg(test)]
mod tests {
    use baton_core::{FrontendId, ModelId};

    use super::*;

    fn plan(batch: u64, exec_at: u64, invalid_after: u64) -> Plan {
        Plan {
            batch,
            thread: 0,
            model: ServedModel {
                id: ModelId(0),
                local: ModelId(0),
                batch_max: 4,
                input_bytes: 8,
                output_bytes: 8,
            },
            exec_at: Nanos(exec_at),
            invalid_after: Nanos(invalid_after),
            tasks: vec![TaskId::new(FrontendId(1), batch as u32, 0)],
        }
    }

    #[test]
    fn the_earliest_start_leaves_first_whatever_the_order_of_arrival() {
        let mut queue = PlanQueue::new(PLANS_MAX, 4);
        for (batch, exec_at) in [(1, 30), (2, 10), (3, 20), (4, 10)] {
            queue.push(plan(batch, exec_at, 100));
        }
        let order: Vec<u64> = std::iter::from_fn(|| queue.pop()).map(|plan| plan.batch).collect();
        assert_eq!(order, [2, 4, 3, 1], "equal starts keep their order of arrival");
    }

    #[test]
    fn eight_plans_fill_the_queue() {
        let mut queue = PlanQueue::new(PLANS_MAX, 4);
        for batch in 0..8 {
            assert!(!queue.is_full());
            queue.push(plan(batch, 10, 100));
        }
        assert!(queue.is_full());
        queue.pop();
        assert!(!queue.is_full());
    }

    #[test]
    fn a_plan_expires_one_millisecond_after_its_window() {
        let mut queue = PlanQueue::new(PLANS_MAX, 4);
        let window_end = 5_000_000;
        queue.push(plan(1, 1, window_end));
        queue.push(plan(2, 2, window_end * 2));
        let last_chance = Nanos(window_end) + START_GRACE;
        assert_eq!(queue.next_expiry(), Some(last_chance));
        assert!(queue.pop_expired(last_chance).is_none());
        assert_eq!(queue.pop_expired(last_chance + Nanos(1)).unwrap().batch, 1);
        assert!(queue.pop_expired(last_chance + Nanos(1)).is_none(), "batch 2 still has time");
    }

    #[test]
    fn task_lists_are_used_again_without_allocating() {
        let mut queue = PlanQueue::new(1, 4);
        let mut list = queue.task_list();
        let capacity = list.capacity();
        list.push(TaskId(1));
        queue.recycle(list);
        let again = queue.task_list();
        assert!(again.is_empty());
        assert_eq!(again.capacity(), capacity);
    }
}
