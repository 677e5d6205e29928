//! Which models one GPU slot's executor holds, and the LOADs and UNLOADs that change it. Pure.
//!
//! In: admitted LOADs and UNLOADs, and how they went. Out: jobs for the executor, which executes them and batches one at a
//! time. A batch of a model that is not held waits for it, and expires with its window.

use baton_core::{ModelId, Nanos};
use baton_rdma::wire::ActionKind;

use crate::action::{Action, ActionQueue};
use crate::execute::Job;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct Residency {
    /// By this process's model ids.
    held: Vec<bool>,
    /// LOADs and UNLOADs that the executor has not been given.
    waiting: ActionQueue,
    /// The one that it has.
    running: Option<Action>,
}

impl Residency {
    /// The executor has loaded these models at its start.
    pub(crate) fn new(loaded: impl Iterator<Item = ModelId>) -> Self {
        let mut held = Vec::new();
        for ModelId(id) in loaded {
            held.resize(held.len().max(id as usize + 1), false);
            held[id as usize] = true;
        }
        Self { held, waiting: ActionQueue::new(0, 0), running: None }
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
    pub(crate) fn start(&mut self) -> Option<Job> {
        debug_assert!(self.running.is_none(), "one at a time");
        let action = self.waiting.pop()?;
        let model = action.model.local;
        let job = match action.kind {
            ActionKind::Load => Job::Load(model),
            ActionKind::Unload => {
                self.held[model.0 as usize] = false;
                Job::Unload(model)
            }
            ActionKind::Infer => unreachable!("batches wait elsewhere"),
        };
        self.running = Some(action);
        Some(job)
    }

    /// The executor is done with it.
    pub(crate) fn finish(&mut self, succeeded: bool) -> Action {
        let action = self.running.take().expect("only what was started comes back");
        if action.kind == ActionKind::Load {
            self.held[action.model.local.0 as usize] = succeeded;
        }
        action
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::ServedModel;

    fn action(id: u64, kind: ActionKind, model: u32, earliest: u64) -> Action {
        let model = ServedModel {
            id: ModelId(model + 10),
            local: ModelId(model),
            batch_max: 4,
            input_bytes: 8,
            output_bytes: 8,
            input_is_fixed: true,
        };
        let (earliest, latest) = (Nanos(earliest), Nanos(100));
        Action { id, thread: 0, kind, model, earliest, latest, tasks: Vec::new() }
    }

    #[test]
    fn a_model_is_held_from_its_load_to_its_unload() {
        let mut residency = Residency::new([0, 2].map(ModelId).into_iter());
        let held = |residency: &Residency| [0, 1, 2, 3].map(|id| residency.holds(ModelId(id)));
        assert_eq!(held(&residency), [true, false, true, false]);
        residency.waiting().push(action(1, ActionKind::Load, 1, 20));
        residency.waiting().push(action(2, ActionKind::Unload, 0, 10));
        assert!(matches!(residency.start(), Some(Job::Unload(ModelId(0)))));
        assert_eq!(held(&residency), [false, false, true, false], "gone while it is unloaded");
        assert_eq!(residency.finish(true).id, 2);
        assert!(matches!(residency.start(), Some(Job::Load(ModelId(1)))));
        assert_eq!(held(&residency), [false, false, true, false], "not there while it is loaded");
        assert_eq!(residency.finish(true).id, 1);
        assert_eq!(held(&residency), [false, true, true, false]);
        assert!(residency.is_idle() && residency.start().is_none());
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
