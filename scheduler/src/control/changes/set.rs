//! A model's objective, quota or profile changes.

use baton_core::{ModelId, Profile, Quota};
use baton_rdma::Transport;
use baton_topo::{JournalKind, ModelChange, Problem, read_change};

use super::ControlThread;
use crate::commands::ModelCommand;
use crate::control::status::EventKind;
use crate::limits::FRONTENDS_MAX;

impl<T: Transport> ControlThread<T> {
    /// Reads the change and makes it. Clients learn of an objective.
    pub(super) fn set_model(&mut self, text: &str) -> Result<String, String> {
        let change = read_change(text).map_err(|problems| Problem::lines(&problems))?;
        let name = change.name.clone();
        let unknown = || format!("there is no model named `{name}`");
        let model = self.named(&name)?;
        self.replaceable(model)?;
        let profile = change.profile.as_ref().map(|new| self.fitting(model, new)).transpose()?;
        let entry = self.parts.catalog.entry_mut(model).ok_or_else(unknown)?;
        entry.set_objective(change.slo.unwrap_or(entry.spec.slo));
        let quota = change.quota(entry.spec.quota);
        let is_other_quota = quota != entry.spec.quota;
        entry.spec.quota = quota;
        if let Some(profile) = profile {
            let before = std::mem::replace(&mut entry.spec.profile, profile);
            // What it was planned with until now: it is not the catalogue's any more.
            self.profiles.entry(model).or_insert_with(|| vec![before]);
        }
        self.spread(model, &change, is_other_quota);
        self.write_down(JournalKind::Set, &name, text);
        let changed = change.in_words();
        tracing::info!(name, changed, "a model is changed");
        self.note_event(EventKind::ModelChanged, &format!("model {name}"), &changed);
        Ok(format!("model `{name}` is changed"))
    }

    /// Tells the model's ModelThread and every client.
    fn spread(&mut self, model: ModelId, change: &ModelChange, is_other_quota: bool) {
        let Some(entry) = self.parts.catalog.entry(model).cloned() else { return };
        let quota =
            is_other_quota.then(|| Quota::new(entry.spec.quota, FRONTENDS_MAX).map(Box::new));
        self.tell_home(model, ModelCommand::Set { model, slo: entry.spec.slo, quota });
        self.adopt_profiles([model].into_iter());
        if change.slo.is_some() {
            self.tell_clients(|transport, conn| entry.send_desc(transport, conn));
        }
    }

    /// The profile for the batch sizes that the model has.
    fn fitting(&self, model: ModelId, new: &Profile) -> Result<Profile, String> {
        let Some(entry) = self.parts.catalog.entry(model) else {
            return Err("there is no such model".to_owned());
        };
        if !entry.spec.variants.is_empty() {
            return Err(format!(
                "`{}` has variants, each with its own ℓ(b); to change one, give all [[model.variant]] tables, which \
                 exchanges the model",
                entry.spec.name
            ));
        }
        let measured = |backend: &crate::roster::Backend| {
            backend.profiles.iter().any(|&(id, _)| id == entry.id())
        };
        if self.roster.backends().any(|(_, backend)| measured(backend)) {
            return Err(format!(
                "backends measure ℓ(b) of `{}`; it cannot be set",
                entry.spec.name
            ));
        }
        entry.spec.fitting(new)
    }
}
