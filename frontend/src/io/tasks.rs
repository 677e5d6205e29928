//! The tasks that were taken over from the application and have no outcome yet, by slot.
//!
//! In: submitted tasks. Out: the task an answer belongs to, once; and those whose lease ran out.

use baton_types::{Nanos, TaskId};

use crate::io::leases::Leases;
use crate::session::{GIVEN_BACK, Task};

#[derive(Debug)]
pub(super) struct Tasks {
    by_slot: Vec<Option<Task>>,
    leases: Leases,
}

impl Tasks {
    pub(super) fn new() -> Self {
        Self { by_slot: Vec::new(), leases: Leases::new(0) }
    }

    /// Makes room for at least `slots` slots.
    pub(super) fn grow(&mut self, slots: usize) {
        if self.by_slot.len() < slots {
            self.by_slot.resize(slots, None);
            self.leases.grow(slots);
        }
    }

    /// Takes a task over until `expires`.
    pub(super) fn insert(&mut self, task: Task, expires: Nanos) {
        let slot = task.id.slot();
        debug_assert!(self.by_slot[slot as usize].is_none(), "a slot has one task");
        self.leases.insert(slot, expires);
        self.by_slot[slot as usize] = Some(task);
    }

    /// The task of this very id; `None` for a stale or unknown one.
    pub(super) fn get(&self, id: TaskId) -> Option<&Task> {
        let task = self.by_slot.get(id.slot() as usize)?.as_ref()?;
        (task.id == id).then_some(task)
    }

    /// The task whose ticket knows it by this id.
    pub(super) fn of_ticket(&mut self, ticket: TaskId) -> Option<&mut Task> {
        let task = self.by_slot.get_mut(ticket.slot() as usize)?.as_mut()?;
        (task.ticket == ticket).then_some(task)
    }

    /// Marks the task with this id as held by no scheduler or backend, to be kept until its deadline.
    /// False if there is no such task.
    pub(super) fn hold(&mut self, id: TaskId) -> bool {
        let Some(task) = self.remove(id) else { return false };
        self.insert(Task { life: GIVEN_BACK, ..task }, task.deadline);
        true
    }

    /// Every one, by its present id.
    pub(super) fn ids(&self) -> impl Iterator<Item = TaskId> + '_ {
        self.by_slot.iter().flatten().map(|task| task.id)
    }

    /// Takes the task of this very id out: it has its outcome.
    pub(super) fn remove(&mut self, id: TaskId) -> Option<Task> {
        let task = *self.get(id)?;
        self.leases.remove(id.slot());
        self.by_slot[id.slot() as usize] = None;
        Some(task)
    }

    /// Takes out the task whose lease runs out first, if that is by `now`.
    pub(super) fn pop_expired(&mut self, now: Nanos) -> Option<Task> {
        let (expires, _) = self.leases.first()?;
        if expires > now { None } else { self.first().and_then(|id| self.remove(id)) }
    }

    /// The task whose lease runs out first.
    pub(super) fn first(&self) -> Option<TaskId> {
        let (_, slot) = self.leases.first()?;
        self.by_slot[slot as usize].map(|task| task.id)
    }

    /// When the first lease runs out.
    pub(super) fn next_expiry(&self) -> Option<Nanos> {
        self.leases.first().map(|(expires, _)| expires)
    }

    pub(super) fn outstanding(&self) -> u32 {
        self.leases.len() as u32
    }
}
