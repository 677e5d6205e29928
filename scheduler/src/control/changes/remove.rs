//! A model is removed: no new tasks → its last ones served → forgotten by every thread → unloaded by the backends.

use baton_core::ModelId;
use baton_rdma::wire::ModelDown;
use baton_rdma::{ConnId, Transport};
use baton_topo::JournalKind;

use super::{Change, ControlThread, Step};
use crate::catalog::ModelStage;
use crate::commands::{ModelCommand, RankCommand};
use crate::control::status::EventKind;
use crate::migration::load_board::ModelLoad;

impl<T: Transport> ControlThread<T> {
    /// The model of this name, or what there is instead.
    pub(super) fn named(&self, name: &str) -> Result<ModelId, String> {
        let names = || self.parts.catalog.entries().map(|(_, entry)| entry.spec.name.as_str());
        let unknown = || {
            let known = names().collect::<Vec<_>>().join(", ");
            format!("there is no model named `{name}`; there are: {known}")
        };
        self.parts.catalog.named(name).ok_or_else(unknown)
    }

    /// The first step: clients learn of it, and the ModelThread accepts no more tasks. A model that
    /// is still being loaded is gone at once.
    pub(super) fn begin_removal(&mut self, operator: ConnId, name: &str) -> Result<(), String> {
        let model = self.named(name)?;
        if let Some(new) = self.parts.catalog.replacement_of(model) {
            let cancelled = self.cancel_replacement(name, new)?;
            self.answer_operator(operator, Ok(cancelled));
            return Ok(());
        }
        match self.changes.step(model) {
            None => {}
            Some(Step::Loaded) => {
                self.abandon_addition(model, "it was removed before every backend had loaded it");
                self.answer_operator(operator, Ok(format!("model `{name}` is not added")));
                return Ok(());
            }
            Some(Step::Served { .. }) => {
                return Err(format!("model `{name}` is being added just now; try again"));
            }
            Some(_) => return Err(format!("model `{name}` is being removed already")),
        }
        self.retire(model, Some(operator));
        Ok(())
    }

    pub(super) fn retire(&mut self, model: ModelId, operator: Option<ConnId>) {
        let Some(entry) = self.parts.catalog.entry_mut(model) else { return };
        entry.stage = ModelStage::Leaving;
        let (down, name) = (ModelDown { model: entry.id().into() }, &entry.spec.name);
        tracing::info!(model = model.0, name, "a model is removed");
        self.changes.under_way.insert(model, Change { operator, step: Step::Retired });
        self.tell_clients(|transport, conn| transport.send(conn, &down, &[]));
        self.tell_home(model, ModelCommand::Retire { model });
    }

    /// The second step: it has no task left. The RankThread forgets it.
    pub(in crate::control) fn on_retired(&mut self, model: ModelId) {
        self.changes.set_step(model, Step::Unranked);
        self.parts.rank.send(RankCommand::Forget { model });
    }

    /// The third step: no more grants. The ModelThreads forget it.
    pub(in crate::control) fn on_unranked(&mut self, model: ModelId, grants: u32) {
        let threads = self.parts.model_threads.len();
        self.changes.set_step(model, Step::Forgotten { threads, grants });
        let life = self.parts.catalog.next_life(model);
        self.tell_model_threads(|| ModelCommand::Forget { model });
        self.tell_model_threads(|| ModelCommand::NextLife { model, life });
    }

    /// The last step, once all have: the backends unload it, and its number is free.
    pub(in crate::control) fn on_forgotten(&mut self, model: ModelId) {
        let Some(Step::Forgotten { threads, grants }) = self.changes.step(model) else { return };
        let threads = threads - 1;
        self.changes.set_step(model, Step::Forgotten { threads, grants });
        if threads > 0 {
            return;
        }
        let Some(entry) = self.parts.catalog.entry(model) else { return };
        let (down, is_added) = (ModelDown { model: entry.id().into() }, entry.is_added());
        let (name, is_replaced) = (entry.spec.name.clone(), entry.is_replaced());
        // Those of other sub-clusters too: they know the frontends' slabs of it.
        self.tell_backends(None, |transport, conn| transport.send(conn, &down, &[]));
        self.free(model, grants);
        self.parts.counters.models_removed.add(1);
        let advice = match is_added || self.journal.is_some() {
            true => "",
            false => {
                "; it is in the cluster file, and comes back with the next scheduler unless it is removed there"
            }
        };
        if !is_replaced {
            self.write_down(JournalKind::Remove, &name, "");
            self.note_event(EventKind::ModelRemoved, &format!("model {name}"), "");
        }
        self.end_change(model, Ok(format!("model `{name}` is removed{advice}")));
    }

    /// Nothing is known of the model any more, and its number is free.
    pub(super) fn free(&mut self, model: ModelId, grants: u32) {
        let Some(id) = self.parts.catalog.entry(model).map(|entry| entry.id()) else { return };
        self.parts.catalog.free(model, grants);
        self.parts.load.write(model, ModelLoad::default());
        self.balance.forget(model);
        self.forget_figures(model);
        self.profiles.remove(&model);
        self.roster.forget_model(id);
        self.slabs_without_model(id);
        // Backends that had only this one to load serve now.
        let waiting = self.roster.backends().filter(|(_, backend)| !backend.is_serving);
        let waiting: Vec<_> = waiting.map(|(backend, _)| backend).collect();
        waiting.into_iter().for_each(|backend| self.serve_with(backend));
    }
}
