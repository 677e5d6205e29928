//! The scheduler's catalogue as far as this backend is concerned: its ModelThreads, the id of our
//! sub-cluster and the ids of the models we serve.
//!
//! In: `ThreadDesc`, `SubclusterDesc`, `ModelDesc`, `ModelTable` messages. Out: descriptions of our sub-cluster's models
//! for [`crate::models`], and lookups by the scheduler's ids of those that are loaded. An id is a number in its low 16 bits
//! and, above, how often the number was given to another model before.

use std::net::{IpAddr, SocketAddr};

use baton_core::ModelId;
use baton_rdma::wire::{ModelDesc, ThreadDesc};
use baton_topo::ModelSpec;

/// ModelThreads and models a catalogue may list: bounds what a scheduler can make us allocate.
const THREADS_MAX: u32 = 1024;
pub(crate) const MODELS_MAX: usize = 1 << 16;

/// A model this backend serves, in the scheduler's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ServedModel {
    /// The scheduler's id: what actions and slabs name.
    pub(crate) id: ModelId,
    /// This process's number of it: what engines know it by.
    pub(crate) local: ModelId,
    /// Largest batch.
    pub(crate) batch_max: u32,
    /// Bytes of one input row.
    pub(crate) input_bytes: u32,
    /// Bytes of one output row.
    pub(crate) output_bytes: u32,
    /// Whether all inputs are that long.
    pub(crate) input_is_fixed: bool,
}

impl ServedModel {
    /// The model of `spec`, under the scheduler's `id`.
    pub(crate) fn new(id: u32, spec: &ModelSpec) -> Self {
        Self {
            id: ModelId(id),
            local: spec.id,
            batch_max: spec.profile.batch_max(),
            input_bytes: spec.input_bytes,
            output_bytes: spec.output_bytes,
            input_is_fixed: spec.signature().input.is_fixed(),
        }
    }

    /// Whether an input may have this length.
    pub(crate) fn takes(&self, input_bytes: u32) -> bool {
        match self.input_is_fixed {
            true => input_bytes == self.input_bytes,
            false => (1..=self.input_bytes).contains(&input_bytes),
        }
    }
}

/// Why this backend cannot serve under that catalogue.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum CatalogError {
    /// The scheduler has no such sub-cluster.
    #[error(
        "the scheduler knows no sub-cluster `{0}`; start scheduler and backend with the same cluster file"
    )]
    UnknownSubcluster(String),
    /// A model of our sub-cluster is not in our file.
    #[error(
        "the scheduler expects model `{0}` from this sub-cluster, and our cluster file has it not; \
         start scheduler and backend with the same cluster file"
    )]
    UnknownModel(String),
    /// The two files describe a model differently.
    #[error(
        "model `{model}`: {what} is {theirs} at the scheduler and {ours} here; \
         start scheduler and backend with the same cluster file"
    )]
    Mismatch {
        /// The model.
        model: String,
        /// The key.
        what: &'static str,
        /// The scheduler's value.
        theirs: u32,
        /// Ours.
        ours: u32,
    },
    /// The scheduler sent what no scheduler of this version sends.
    #[error("the scheduler's catalogue is not usable: {0}")]
    Malformed(&'static str),
}

/// What the scheduler says of a model of our sub-cluster.
#[derive(Clone, Debug)]
pub(crate) struct Described {
    pub(crate) desc: ModelDesc,
    pub(crate) name: String,
    /// Its `[[model]]` table, if it was added at run time.
    pub(crate) table: Option<String>,
}

impl Described {
    /// The scheduler's id.
    pub(crate) fn id(&self) -> u32 {
        self.desc.model.get()
    }

    /// The first thing in which the scheduler and `spec` differ: what, theirs, ours.
    pub(crate) fn difference(&self, spec: &ModelSpec) -> Option<(&'static str, u32, u32)> {
        let desc = &self.desc;
        let compared = [
            ("batch_max", desc.batch_max.get(), spec.profile.batch_max()),
            ("input_bytes", desc.input_bytes.get(), spec.input_bytes),
            ("output_bytes", desc.output_bytes.get(), spec.output_bytes),
        ];
        compared.into_iter().find(|(_, theirs, ours)| theirs != ours)
    }
}

/// The catalogue while it arrives, and after.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    threads: Vec<Option<SocketAddr>>,
    subcluster: Option<u32>,
    /// The loaded models of our sub-cluster, by the numbers in the scheduler's ids.
    models: Vec<Option<ServedModel>>,
    /// What was described and not taken yet; at most the last one once the catalogue is complete.
    described: Vec<Described>,
}

impl Catalog {
    /// One ModelThread; `seen` is the scheduler's IP as we reach it.
    ///
    /// # Errors
    /// The number is out of range or described before.
    pub(crate) fn add_thread(
        &mut self,
        desc: &ThreadDesc,
        seen: IpAddr,
    ) -> Result<(), CatalogError> {
        let thread = desc.thread.get();
        if thread >= THREADS_MAX {
            return Err(CatalogError::Malformed("a ModelThread's number is out of range"));
        }
        let index = thread as usize;
        if self.threads.len() <= index {
            self.threads.resize(index + 1, None);
        }
        if self.threads[index].replace(desc.addr.resolve(seen)).is_some() {
            return Err(CatalogError::Malformed("a ModelThread is listed twice"));
        }
        Ok(())
    }

    /// One sub-cluster; remembered if it is `ours`.
    pub(crate) fn add_subcluster(&mut self, id: u32, name: &str, ours: &str) {
        if name == ours {
            self.subcluster = Some(id);
        }
    }

    /// One model.
    ///
    /// # Errors
    /// There are too many.
    pub(crate) fn describe(&mut self, desc: &ModelDesc, name: &str) -> Result<(), CatalogError> {
        if self.described.len() >= MODELS_MAX {
            return Err(CatalogError::Malformed("it lists too many models"));
        }
        self.described.push(Described { desc: *desc, name: name.to_owned(), table: None });
        Ok(())
    }

    /// The table of the model that was described last.
    ///
    /// # Errors
    /// It is that of another one.
    pub(crate) fn add_table(&mut self, id: u32, table: &str) -> Result<(), CatalogError> {
        let last = self.described.last_mut().filter(|last| last.id() == id);
        let last = last.ok_or(CatalogError::Malformed("a table without its model"))?;
        last.table = Some(table.to_owned());
        Ok(())
    }

    /// The catalogue is complete. Returns what it says of the models of sub-cluster `ours`.
    ///
    /// # Errors
    /// There is no such sub-cluster, or something is missing.
    pub(crate) fn complete(&mut self, ours: &str) -> Result<Vec<Described>, CatalogError> {
        if self.subcluster.is_none() {
            return Err(CatalogError::UnknownSubcluster(ours.to_owned()));
        }
        if self.threads.is_empty() || self.threads.iter().any(Option::is_none) {
            return Err(CatalogError::Malformed("a ModelThread is missing"));
        }
        self.take_described()
    }

    /// What was described of models of our sub-cluster. Only once the catalogue is complete.
    ///
    /// # Errors
    /// A model lives nowhere.
    pub(crate) fn take_described(&mut self) -> Result<Vec<Described>, CatalogError> {
        let mut described = std::mem::take(&mut self.described);
        described.retain(|model| Some(model.desc.subcluster.get()) == self.subcluster);
        let threads = self.threads.len();
        match described.iter().all(|model| (model.desc.thread.get() as usize) < threads) {
            true => Ok(described),
            false => Err(CatalogError::Malformed("a model lives on an unlisted ModelThread")),
        }
    }

    /// A description behind the complete catalogue: the one before that had no table counts no more.
    pub(crate) fn describe_another(&mut self, desc: &ModelDesc, name: &str) {
        let (desc, name) = (*desc, name.to_owned());
        self.described.clear();
        self.described.push(Described { desc, name, table: None });
    }

    /// A model is loaded: actions may name it.
    ///
    /// # Errors
    /// Another one has its number.
    pub(crate) fn serve(&mut self, model: ServedModel) -> Result<(), CatalogError> {
        let index = number(model.id.0);
        if self.models.len() <= index {
            self.models.resize(index + 1, None);
        }
        if self.models[index].is_some() {
            return Err(CatalogError::Malformed("two models have one number"));
        }
        self.models[index] = Some(model);
        Ok(())
    }

    /// A model is removed; its id is unknown from now on. `None` if it is not served.
    pub(crate) fn remove(&mut self, id: u32) -> Option<ServedModel> {
        self.model(id)?;
        self.models[number(id)].take()
    }

    /// Our sub-cluster's id; 0 before [`Catalog::complete`].
    pub(crate) fn subcluster(&self) -> u32 {
        self.subcluster.unwrap_or(0)
    }

    /// Addresses of the ModelThreads, by number.
    pub(crate) fn threads(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.threads.iter().flatten().copied()
    }

    /// The served model with the scheduler's id `id`.
    pub(crate) fn model(&self, id: u32) -> Option<&ServedModel> {
        self.models.get(number(id))?.as_ref().filter(|model| model.id.0 == id)
    }

    /// The served models, by their numbers.
    pub(crate) fn models(&self) -> impl Iterator<Item = &ServedModel> {
        self.models.iter().flatten()
    }
}

/// An id without its life.
fn number(id: u32) -> usize {
    id as usize % MODELS_MAX
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_models::emulated;

    #[test]
    fn an_id_of_another_life_of_its_number_is_unknown() {
        let mut catalog = Catalog::default();
        let spec = emulated("toy", 0, 16, 3);
        let (first, second) = (7, 7 | 1 << 16);
        catalog.serve(ServedModel::new(first, &spec)).unwrap();
        assert_eq!((catalog.model(first).is_some(), catalog.model(second)), (true, None));
        assert_eq!(catalog.remove(second), None);
        assert!(catalog.serve(ServedModel::new(second, &spec)).is_err(), "the number is taken");
        assert!(catalog.remove(first).is_some());
        catalog.serve(ServedModel::new(second, &spec)).unwrap();
        assert_eq!((catalog.model(first), catalog.model(second).is_some()), (None, true));
    }

    #[test]
    fn a_table_belongs_to_the_model_before_it() {
        let mut catalog = Catalog::default();
        assert!(catalog.add_table(3, "name = \"toy\"").is_err());
        let desc = ModelDesc {
            model: 3.into(),
            thread: 0.into(),
            subcluster: 0.into(),
            batch_max: 1.into(),
            input_bytes: 1.into(),
            output_bytes: 8.into(),
            slo_ns: 1.into(),
        };
        catalog.describe_another(&desc, "toy");
        assert!(catalog.add_table(4, "").is_err());
        catalog.add_table(3, "name = \"toy\"").unwrap();
    }
}
