//! Which models one GPU slot's executor holds, and what changes that. Pure.
//!
//! In: models that were loaded aside, were removed, or leave for others. Out: jobs for the executor, which runs each alone,
//! between batches. A batch of a model that is not held waits for it, and expires with its window.

use baton_types::ModelId;

use crate::execute::ModelJob;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Residency {
    /// By this process's model ids.
    held: Vec<bool>,
    /// What waits for the executor.
    changes: Vec<Change>,
    /// What the executor has.
    running: Option<Change>,
}

/// A model comes or goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    /// The model was loaded aside.
    Install(ModelId),
    /// The model was removed.
    Remove(ModelId),
    /// The model leaves for another: it is not held from the moment at which that is known.
    Evict(ModelId),
}

impl Change {
    fn model(self) -> ModelId {
        match self {
            Self::Install(model) | Self::Remove(model) | Self::Evict(model) => model,
        }
    }
}

impl Residency {
    /// The executor has loaded these models at its start.
    pub(crate) fn new(loaded: impl Iterator<Item = ModelId>) -> Self {
        let mut new = Self { held: Vec::new(), changes: Vec::new(), running: None };
        loaded.for_each(|model| new.set(model, true));
        new
    }

    fn set(&mut self, ModelId(id): ModelId, is_held: bool) {
        let index = id as usize;
        self.held.resize(self.held.len().max(index + 1), false);
        self.held[index] = is_held;
    }

    /// The executor is to take in a model that it has loaded aside.
    pub(crate) fn install(&mut self, model: ModelId) {
        self.changes.push(Change::Install(model));
    }

    /// The executor is to forget a model.
    pub(crate) fn remove(&mut self, model: ModelId) {
        self.changes.push(Change::Remove(model));
    }

    /// The executor is to give a model's memory back. Batches of it that are here wait for nothing and expire.
    pub(crate) fn evict(&mut self, model: ModelId) {
        self.set(model, false);
        self.changes.push(Change::Evict(model));
    }

    /// True until the model is forgotten, or given up.
    pub(crate) fn is_leaving(&self, model: ModelId) -> bool {
        let leaves = |change: &Change| match *change {
            Change::Install(_) => false,
            Change::Remove(leaving) | Change::Evict(leaving) => leaving == model,
        };
        self.changes.iter().chain(&self.running).any(leaves)
    }

    /// Whether batches of the model can start.
    pub(crate) fn holds(&self, model: ModelId) -> bool {
        self.held.get(model.0 as usize).copied().unwrap_or(false)
    }

    /// True when the executor has nothing.
    pub(crate) fn is_idle(&self) -> bool {
        self.running.is_none()
    }

    /// Which change may start. A model that was removed goes once nothing is left that needs it.
    fn due_change(&self, is_used: impl Fn(ModelId) -> bool) -> Option<usize> {
        self.changes.iter().position(|change| match *change {
            // In the order in which they came: the model may come again.
            Change::Install(_) | Change::Evict(_) => true,
            Change::Remove(model) => !is_used(model),
        })
    }

    /// Whether [`Residency::start`] would start one.
    pub(crate) fn is_change_due(&self, is_used: impl Fn(ModelId) -> bool) -> bool {
        self.due_change(is_used).is_some()
    }

    /// The next one is the executor's from now on.
    pub(crate) fn start(&mut self, is_used: impl Fn(ModelId) -> bool) -> Option<ModelJob> {
        debug_assert!(self.running.is_none(), "one at a time");
        let due = self.due_change(is_used)?;
        let change = self.changes.remove(due);
        self.running = Some(change);
        Some(match change {
            Change::Install(model) => ModelJob::Install(model),
            Change::Remove(model) | Change::Evict(model) => ModelJob::Remove(model),
        })
    }

    /// The executor is done with it.
    pub(crate) fn finish(&mut self) {
        let change = self.running.take().expect("only what was started comes back");
        self.set(change.model(), matches!(change, Change::Install(_)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_is_held_once_the_executor_has_it_and_until_it_leaves_for_another() {
        let mut residency = Residency::new([0, 2].map(ModelId).into_iter());
        let held = |residency: &Residency| [0, 1, 2, 3].map(|id| residency.holds(ModelId(id)));
        assert_eq!(held(&residency), [true, false, true, false]);
        residency.evict(ModelId(0));
        residency.install(ModelId(1));
        assert_eq!(held(&residency), [false, false, true, false], "gone before it is unloaded");
        let used = |_| true;
        assert_eq!(residency.start(used), Some(ModelJob::Remove(ModelId(0))), "used or not");
        assert!(!residency.is_idle());
        residency.finish();
        assert_eq!(residency.start(used), Some(ModelJob::Install(ModelId(1))));
        assert_eq!(held(&residency), [false, false, true, false], "not there while it is taken in");
        residency.finish();
        assert_eq!(held(&residency), [false, true, true, false]);
        assert!(residency.is_idle() && residency.start(used).is_none());
    }

    #[test]
    fn a_model_that_was_removed_goes_when_nothing_needs_it_and_its_number_can_come_back() {
        let mut residency = Residency::new([0].map(ModelId).into_iter());
        residency.remove(ModelId(0));
        residency.install(ModelId(4));
        assert_eq!(residency.start(|_| true), Some(ModelJob::Install(ModelId(4))));
        residency.finish();
        assert!(residency.start(|_| true).is_none(), "a batch of it is under way");
        assert!(residency.is_change_due(|_| false) && !residency.is_change_due(|_| true));
        assert_eq!(residency.start(|_| false), Some(ModelJob::Remove(ModelId(0))));
        assert!(residency.is_leaving(ModelId(0)));
        residency.finish();
        assert!(!residency.is_leaving(ModelId(0)) && !residency.holds(ModelId(0)));
        residency.install(ModelId(0));
        residency.start(|_| false).unwrap();
        residency.finish();
        assert!(residency.holds(ModelId(0)));
    }
}
