//! A model is replaced by another one with its name: the new one is added, and as soon as it is served the former one is removed.
//! Until then nothing changes for clients. They hear of both at once.

use baton_core::ModelId;
use baton_rdma::{ConnId, Transport};
use baton_topo::{name_of_replaced, replacement};

use super::{ControlThread, Step};
use crate::catalog::Known;

impl<T: Transport> ControlThread<T> {
    /// A change of keys: made at once, or by a model that takes the former one's place.
    pub(super) fn set_or_replace(
        &mut self,
        operator: ConnId,
        text: &str,
    ) -> Result<Option<String>, String> {
        let Some(name) = name_of_replaced(text) else { return self.set_model(text).map(Some) };
        let former = self.parts.catalog.named(&name);
        let former = former.ok_or_else(|| format!("there is no model named `{name}`"))?;
        let id = self.replaceable(former)?;
        let entry = self.parts.catalog.entry(former).expect("it has a name");
        let subcluster = self.parts.catalog.subcluster_name(entry.spec.subcluster);
        let epoch = self.parts.catalog.end().scheduler_epoch.get();
        let mark = format!("Replaces model {id} of scheduler {epoch:x}.");
        let table = replacement(text, &entry.spec, subcluster, &mark)?;
        self.read_table(operator, table, Some(id))
    }

    /// The model's id, if nothing else changes it: it may be changed, or another one may take its place.
    pub(super) fn replaceable(&self, model: ModelId) -> Result<u32, String> {
        let Some(entry) = self.parts.catalog.entry(model) else {
            return Err("the model was removed".to_owned());
        };
        let name = &entry.spec.name;
        if self.changes.is_changing(model) {
            return Err(format!("model `{name}` is being added or removed; try again"));
        }
        match self.parts.catalog.replacement_of(model) {
            Some(_) => Err(format!("model `{name}` is being replaced; try again")),
            None => Ok(entry.id()),
        }
    }

    /// The model with this id, which is to be replaced: its table has been read meanwhile.
    pub(super) fn still_replaceable(&self, id: u32) -> Result<ModelId, String> {
        match self.parts.catalog.known(id) {
            Known::Now(model) => self.replaceable(model).map(|_| model),
            Known::Before | Known::Never => Err("the model was removed meanwhile".to_owned()),
        }
    }

    /// The model's replacement is given up, as far as that is possible.
    pub(super) fn cancel_replacement(
        &mut self,
        name: &str,
        new: ModelId,
    ) -> Result<String, String> {
        if self.changes.step(new) != Some(Step::Loaded) {
            return Err(format!("model `{name}` is being replaced just now; try again"));
        }
        self.abandon_addition(new, "its replacement was given up");
        Ok(format!("model `{name}` is not replaced, and served as before"))
    }
}
