//! The scheduler's catalogue as far as this backend is concerned: its ModelThreads, the id of our
//! sub-cluster and the ids of the models we serve.
//!
//! In: `ThreadDesc`, `SubclusterDesc`, `ModelDesc` messages. Out: lookups by the scheduler's ids.
//! Ids are the scheduler's and names decide, because its cluster file may be a newer edition of
//! ours; sizes and batch sizes must agree, because memory and profiles are made from them.

use std::net::{IpAddr, SocketAddr};

use baton_core::ModelId;
use baton_rdma::wire::{ModelDesc, ThreadDesc};
use baton_topo::ModelSpec;

/// ModelThreads and models a catalogue may list: bounds what a scheduler can make us allocate.
const THREADS_MAX: u32 = 1024;
const MODELS_MAX: u32 = 1 << 16;

/// A model this backend serves, in the scheduler's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ServedModel {
    /// The scheduler's id: what actions and slabs name.
    pub(crate) id: ModelId,
    /// Its id in this process's cluster file: what engines know it by.
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

/// The catalogue while it arrives, and after.
#[derive(Debug, Default)]
pub(crate) struct Catalog {
    threads: Vec<Option<SocketAddr>>,
    subcluster: Option<u32>,
    /// Models of our sub-cluster by the scheduler's id.
    models: Vec<Option<ServedModel>>,
    /// Descriptions whose sub-cluster was not known to be ours yet.
    described: Vec<(ModelDesc, String)>,
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
    pub(crate) fn add_model(&mut self, desc: &ModelDesc, name: &str) -> Result<(), CatalogError> {
        if desc.model.get() >= MODELS_MAX || self.described.len() >= MODELS_MAX as usize {
            return Err(CatalogError::Malformed("a model's number is out of range"));
        }
        self.described.push((*desc, name.to_owned()));
        Ok(())
    }

    /// The catalogue is complete: matches it with our `models` of sub-cluster `ours`.
    ///
    /// # Errors
    /// The sub-cluster or one of its models is unknown on one side, or described differently.
    pub(crate) fn complete(
        &mut self,
        ours: &str,
        models: &[ModelSpec],
    ) -> Result<(), CatalogError> {
        let subcluster =
            self.subcluster.ok_or_else(|| CatalogError::UnknownSubcluster(ours.to_owned()))?;
        if self.threads.is_empty() || self.threads.iter().any(Option::is_none) {
            return Err(CatalogError::Malformed("a ModelThread is missing"));
        }
        for (desc, name) in std::mem::take(&mut self.described) {
            if desc.subcluster.get() == subcluster {
                self.serve(&desc, &name, models)?;
            }
        }
        Ok(())
    }

    /// Our sub-cluster's id; 0 before [`Catalog::complete`].
    pub(crate) fn subcluster(&self) -> u32 {
        self.subcluster.unwrap_or(0)
    }

    /// Addresses of the ModelThreads, by number.
    pub(crate) fn threads(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.threads.iter().flatten().copied()
    }

    /// The served model with the scheduler's id `model`.
    pub(crate) fn model(&self, model: u32) -> Option<&ServedModel> {
        self.models.get(model as usize)?.as_ref()
    }

    /// The served models, by the scheduler's ids.
    pub(crate) fn models(&self) -> impl Iterator<Item = &ServedModel> {
        self.models.iter().flatten()
    }

    fn serve(
        &mut self,
        desc: &ModelDesc,
        name: &str,
        ours: &[ModelSpec],
    ) -> Result<(), CatalogError> {
        let spec = ours
            .iter()
            .find(|spec| spec.name == name)
            .ok_or_else(|| CatalogError::UnknownModel(name.to_owned()))?;
        agree(name, "batch_max", desc.batch_max.get(), spec.profile.batch_max())?;
        agree(name, "input_bytes", desc.input_bytes.get(), spec.input_bytes)?;
        agree(name, "output_bytes", desc.output_bytes.get(), spec.output_bytes)?;
        if desc.thread.get() as usize >= self.threads.len() {
            return Err(CatalogError::Malformed("a model lives on an unlisted ModelThread"));
        }
        let index = desc.model.get() as usize;
        if self.models.len() <= index {
            self.models.resize(index + 1, None);
        }
        let served = ServedModel {
            id: ModelId(desc.model.get()),
            local: spec.id,
            batch_max: spec.profile.batch_max(),
            input_bytes: spec.input_bytes,
            output_bytes: spec.output_bytes,
            input_is_fixed: spec.signature().input.is_fixed(),
        };
        match self.models[index].replace(served) {
            None => Ok(()),
            Some(_) => Err(CatalogError::Malformed("a model is listed twice")),
        }
    }
}

fn agree(model: &str, what: &'static str, theirs: u32, ours: u32) -> Result<(), CatalogError> {
    if theirs == ours {
        return Ok(());
    }
    Err(CatalogError::Mismatch { model: model.to_owned(), what, theirs, ours })
}
