//! The conservation oracle, task by task: each one that was submitted is executed or ended, and
//! only once, and nothing else is.

use baton_core::TaskId;
use baton_scheduler::Counter;

/// The last task of every input slot, and whether it is still open.
#[derive(Debug)]
pub(super) struct Ledger {
    /// By slot: twice the generation, and 1 while the task is open.
    slots: Box<[u32]>,
    open: u64,
}

/// Of a slot without a task yet: closed, and of the last generation. Not zero, so that the memory is
/// resident from the start and does not look like growth.
const UNUSED: u32 = 2 * (TaskId::GENERATIONS - 1);

impl Ledger {
    /// Without tasks.
    pub(super) fn new() -> Self {
        Self { slots: vec![UNUSED; TaskId::SLOTS_MAX as usize].into(), open: 0 }
    }

    /// The task is handed to the scheduler. A slot whose task is still open counts as a violation.
    pub(super) fn open(&mut self, task: TaskId, violations: &Counter) {
        let slot = &mut self.slots[task.slot() as usize];
        let was_open = u64::from(*slot % 2);
        violations.add(was_open);
        self.open += 1 - was_open;
        *slot = 2 * task.generation() + 1;
    }

    /// The task was executed or ended. Counts as a violation unless it was open.
    pub(super) fn close(&mut self, task: TaskId, violations: &Counter) {
        let slot = &mut self.slots[task.slot() as usize];
        if *slot == 2 * task.generation() + 1 {
            *slot -= 1;
            self.open -= 1;
        } else {
            violations.add(1);
        }
    }

    /// Tasks that are open.
    pub(super) fn count_open(&self) -> u64 {
        self.open
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_core::FrontendId;

    fn task(slot: u32, generation: u32) -> TaskId {
        TaskId::new(FrontendId(0), slot, generation)
    }

    #[test]
    fn each_task_is_opened_and_closed_once() {
        let (mut ledger, violations) = (Ledger::new(), Counter::default());
        ledger.open(task(3, 0), &violations);
        ledger.open(task(4, 0), &violations);
        ledger.close(task(3, 0), &violations);
        assert_eq!((violations.get(), ledger.count_open()), (0, 1));
        ledger.open(task(3, 1), &violations);
        assert_eq!((violations.get(), ledger.count_open()), (0, 2));
    }

    #[test]
    fn a_second_outcome_a_stale_one_and_one_for_no_task_are_violations() {
        let (mut ledger, violations) = (Ledger::new(), Counter::default());
        ledger.open(task(3, 1), &violations);
        ledger.close(task(3, 0), &violations);
        assert_eq!(violations.get(), 1, "of an earlier generation");
        ledger.open(task(5, 0), &violations);
        ledger.close(task(5, 0), &violations);
        ledger.close(task(5, 0), &violations);
        assert_eq!(violations.get(), 2, "a second outcome");
        ledger.close(task(9, 0), &violations);
        assert_eq!(violations.get(), 3, "never submitted");
        ledger.open(task(6, 0), &violations);
        ledger.open(task(6, 1), &violations);
        assert_eq!(violations.get(), 4, "the slot's task was open");
    }
}
