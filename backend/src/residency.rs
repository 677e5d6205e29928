//! Which models one GPU slot's executor holds, and what changes that. Pure.
//!
//! In: admitted LOADs and UNLOADs, models that were added or removed, and how it went. Out: jobs for the executor, which
//! runs each alone, between batches. A batch of a model that is not held waits for it, and expires with its window.

use baton_rdma::wire::ActionKind;
use baton_types::{ModelId, Nanos};

use crate::action::{Action, ActionQueue};
use crate::execute::ModelJob;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Residency {
    /// By this process's model ids.
    held: Vec<bool>,
    /// LOADs and UNLOADs that the executor has not been given.
    waiting: ActionQueue,
    /// Models that come or go with the catalogue; they wait for the executor alone.
    changes: Vec<Change>,
    /// What the executor has.
    running: Option<Running>,
}

/// The catalogue has changed. At most one model comes at a time, and each goes once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    /// The model was loaded aside.
    Install(ModelId),
    /// The model was removed.
    Remove(ModelId),
    /// The model leaves for another: it is not held from the moment at which that is known.
    Evict(ModelId),
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one for each GPU slot")]
enum Running {
    Action(Action),
    Change(Change),
    /// Loads what the lost scheduler had unloaded.
    Restore(ModelId),
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
        let waiting = ActionQueue::new(0, 0);
        let mut new = Self { held: Vec::new(), waiting, changes: Vec::new(), running: None };
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

    /// True until the model is forgotten.
    pub(crate) fn is_removing(&self, model: ModelId) -> bool {
        let remove = Change::Remove(model);
        self.changes.contains(&remove)
            || matches!(self.running, Some(Running::Change(change)) if change == remove)
    }

    /// Whether batches of the model can start.
    pub(crate) fn holds(&self, model: ModelId) -> bool {
        self.held.get(model.0 as usize).copied().unwrap_or(false)
    }

    /// LOADs and UNLOADs that wait for the executor.
    pub(crate) fn waiting(&mut self) -> &mut ActionQueue {
        &mut self.waiting
    }

    /// When the next one may start.
    pub(crate) fn earliest(&self) -> Option<Nanos> {
        self.waiting.earliest()
    }

    /// When the first one that waits expires.
    pub(crate) fn next_expiry(&self) -> Option<Nanos> {
        self.waiting.next_expiry()
    }

    /// True when nothing waits and the executor has nothing.
    pub(crate) fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.running.is_none()
    }

    /// The next one is the executor's from now on. From here on an UNLOAD's model is not held.
    pub(crate) fn start(&mut self) -> Option<ModelJob> {
        debug_assert!(self.running.is_none(), "one at a time");
        let action = self.waiting.pop()?;
        let model = action.model.local;
        let job = match action.kind {
            ActionKind::Load => ModelJob::Load(model),
            ActionKind::Unload => {
                self.set(model, false);
                ModelJob::Unload(model)
            }
            ActionKind::Infer => unreachable!("batches wait elsewhere"),
        };
        self.running = Some(Running::Action(action));
        Some(job)
    }

    /// Which change of the catalogue may start. A model goes once nothing is left that needs it.
    fn due_change(&self, is_used: impl Fn(ModelId) -> bool) -> Option<usize> {
        self.changes.iter().position(|change| match *change {
            // In the order in which they came: the model may come again.
            Change::Install(_) | Change::Evict(_) => true,
            Change::Remove(model) => !is_used(model) && !self.waiting.names(model),
        })
    }

    /// Whether [`Residency::start_change`] would start one.
    pub(crate) fn is_change_due(&self, is_used: impl Fn(ModelId) -> bool) -> bool {
        self.due_change(is_used).is_some()
    }

    /// As [`Residency::start`], for a change of the catalogue.
    pub(crate) fn start_change(&mut self, is_used: impl Fn(ModelId) -> bool) -> Option<ModelJob> {
        debug_assert!(self.running.is_none(), "one at a time");
        let due = self.due_change(is_used)?;
        let change = self.changes.remove(due);
        self.running = Some(Running::Change(change));
        Some(match change {
            Change::Install(model) => ModelJob::Install(model),
            Change::Remove(model) | Change::Evict(model) => ModelJob::Remove(model),
        })
    }

    /// A backend joins with every one of `models` loaded, so the executor loads those again that an UNLOAD, or a LOAD that
    /// failed, took from it. Returns the next job; `None` if it holds them all.
    pub(crate) fn restore(
        &mut self,
        mut models: impl Iterator<Item = ModelId>,
    ) -> Option<ModelJob> {
        debug_assert!(self.waiting.is_empty(), "what the lost scheduler sent is abandoned");
        debug_assert!(self.running.is_none(), "one at a time");
        let missing = models.find(|&model| !self.holds(model))?;
        debug_assert!(!self.is_removing(missing), "what is removed is not announced");
        self.running = Some(Running::Restore(missing));
        Some(ModelJob::Load(missing))
    }

    /// The executor is done with it. Returns the LOAD or UNLOAD that is to be reported.
    pub(crate) fn finish(&mut self, succeeded: bool) -> Option<Action> {
        match self.running.take().expect("only what was started comes back") {
            Running::Action(action) => {
                if action.kind == ActionKind::Load {
                    self.set(action.model.local, succeeded);
                }
                Some(action)
            }
            Running::Change(change) => {
                self.set(change.model(), matches!(change, Change::Install(_)));
                None
            }
            Running::Restore(model) => {
                self.set(model, succeeded);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::served::ServedModel;

    fn action(id: u64, kind: ActionKind, model: u32, earliest: u64) -> Action {
        let model = ServedModel {
            id: ModelId(model + 10),
            local: ModelId(model),
            batch_max: 4,
            input_bytes: 8,
            output_bytes: 8,
            input_is_fixed: true,
            variants: 1,
        };
        let (earliest, latest) = (Nanos(earliest), Nanos(100));
        let (start_by, tasks) = (latest.into(), Vec::new());
        Action { id, thread: 0, kind, model, earliest, latest, start_by, tasks, fetched: None }
    }

    #[test]
    fn a_model_is_held_from_its_load_to_its_unload() {
        let mut residency = Residency::new([0, 2].map(ModelId).into_iter());
        let held = |residency: &Residency| [0, 1, 2, 3].map(|id| residency.holds(ModelId(id)));
        assert_eq!(held(&residency), [true, false, true, false]);
        residency.waiting().push(action(1, ActionKind::Load, 1, 20));
        residency.waiting().push(action(2, ActionKind::Unload, 0, 10));
        assert!(matches!(residency.start(), Some(ModelJob::Unload(ModelId(0)))));
        assert_eq!(held(&residency), [false, false, true, false], "gone while it is unloaded");
        assert_eq!(residency.finish(true).unwrap().id, 2);
        assert!(matches!(residency.start(), Some(ModelJob::Load(ModelId(1)))));
        assert_eq!(held(&residency), [false, false, true, false], "not there while it is loaded");
        assert_eq!(residency.finish(true).unwrap().id, 1);
        assert_eq!(held(&residency), [false, true, true, false]);
        assert!(residency.is_idle() && residency.start().is_none());
    }

    #[test]
    fn a_model_that_was_removed_goes_when_nothing_needs_it_and_its_number_can_come_back() {
        let mut residency = Residency::new([0].map(ModelId).into_iter());
        residency.remove(ModelId(0));
        residency.install(ModelId(4));
        assert!(matches!(residency.start_change(|_| true), Some(ModelJob::Install(ModelId(4)))));
        assert!(!residency.holds(ModelId(4)), "not before the executor has it");
        assert!(residency.finish(true).is_none(), "no report is due");
        assert!(residency.holds(ModelId(4)));
        assert!(residency.start_change(|_| true).is_none(), "a batch of it is under way");
        residency.waiting().push(action(1, ActionKind::Load, 0, 10));
        assert!(residency.start_change(|_| false).is_none(), "a LOAD of it waits");
        residency.waiting().pop();
        assert!(matches!(residency.start_change(|_| false), Some(ModelJob::Remove(ModelId(0)))));
        assert!(residency.is_removing(ModelId(0)));
        residency.finish(true);
        assert!(!residency.is_removing(ModelId(0)) && !residency.holds(ModelId(0)));
        residency.install(ModelId(0));
        residency.start_change(|_| false).unwrap();
        residency.finish(true);
        assert!(residency.holds(ModelId(0)));
    }

    #[test]
    fn a_load_that_fails_leaves_the_model_out() {
        let mut residency = Residency::new([0].map(ModelId).into_iter());
        residency.waiting().push(action(1, ActionKind::Load, 0, 10));
        residency.start().unwrap();
        residency.finish(false);
        assert!(!residency.holds(ModelId(0)), "what a failed load leaves behind is not known");
    }
}
