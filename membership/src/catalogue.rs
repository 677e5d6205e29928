//! What the scheduler has: its ModelThreads, its sub-clusters and its models. Pure.
//!
//! In: catalogue messages, at a join all at once and afterwards one model at a time. Out: the same, checked and bounded.

use std::net::{IpAddr, SocketAddr};

use baton_rdma::wire::{Message, ModelDesc, TensorDesc, ThreadDesc, VariantDesc};
use baton_topo::signature::{TENSORS_MAX, TensorSpec};
use baton_types::{ACCURACY_MAX, VARIANTS_MAX};

use crate::error::MembershipError;

/// ModelThreads, sub-clusters and models that a catalogue may list: they bound what a broken scheduler can make a
/// member store.
const THREADS_MAX: usize = 1_024;
const SUBCLUSTERS_MAX: usize = 65_536;
/// See [`THREADS_MAX`].
pub const MODELS_MAX: usize = 65_536;

/// What the scheduler says of a model.
#[derive(Clone, Debug)]
pub struct DescribedModel {
    /// Its ids, sizes and objective.
    pub desc: ModelDesc,
    /// Its name.
    pub name: String,
    /// The tensors of its input row and of its output row; empty for an emulated model.
    pub tensors: [Vec<TensorSpec>; 2],
    /// Its variants, the cheapest first: each more accurate than the one before. Empty for a model without any.
    pub variants: Vec<DescribedVariant>,
    /// Its `[[model]]` table, if it was added at run time. Only backends get it.
    pub table: Option<String>,
}

/// What the scheduler says of a variant.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DescribedVariant {
    /// Its name.
    pub name: String,
    /// How often its answers are right, in 1/100,000.
    pub accuracy: u32,
}

impl DescribedModel {
    /// The scheduler's id.
    pub fn id(&self) -> u32 {
        self.desc.model.get()
    }
}

/// A catalogue while it arrives.
#[derive(Clone, Default, Debug)]
pub struct Catalogue {
    /// By number.
    threads: Vec<Option<SocketAddr>>,
    /// Their ids and names.
    subclusters: Vec<(u32, String)>,
    /// In the order of their descriptions.
    models: Vec<DescribedModel>,
}

impl Catalogue {
    /// Takes in a message. `observed` is the scheduler's address as this side reaches it. Returns false if the message
    /// is not part of a catalogue.
    ///
    /// # Errors
    /// The message contradicts another one, or there are too many.
    pub fn take_in(
        &mut self,
        message: &Message<'_>,
        observed: IpAddr,
    ) -> Result<bool, MembershipError> {
        match message {
            Message::ThreadDesc(desc) => self.add_thread(desc, observed)?,
            Message::SubclusterDesc(desc, name) => {
                self.add_subcluster(desc.subcluster.get(), name)?;
            }
            Message::ModelDesc(desc, name) => self.add_model(desc, name)?,
            Message::TensorDesc(desc, name) => self.add_tensor(desc, name)?,
            Message::VariantDesc(desc, name) => self.add_variant(desc, name)?,
            Message::ModelTable(table, text) => self.add_table(table.model.get(), text)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn add_thread(&mut self, desc: &ThreadDesc, observed: IpAddr) -> Result<(), MembershipError> {
        let number = desc.thread.get() as usize;
        if number >= THREADS_MAX {
            return bad(format!("ModelThread {number} of {THREADS_MAX} at most"));
        }
        if self.threads.len() <= number {
            self.threads.resize(number + 1, None);
        }
        match self.threads[number].replace(desc.addr.resolve(observed)) {
            None => Ok(()),
            Some(_) => bad(format!("ModelThread {number} is announced twice")),
        }
    }

    fn add_subcluster(&mut self, id: u32, name: &str) -> Result<(), MembershipError> {
        if self.subclusters.len() == SUBCLUSTERS_MAX {
            return bad(format!("more than {SUBCLUSTERS_MAX} sub-clusters"));
        }
        self.subclusters.push((id, name.to_owned()));
        Ok(())
    }

    fn add_model(&mut self, desc: &ModelDesc, name: &str) -> Result<(), MembershipError> {
        if self.models.len() == MODELS_MAX {
            return bad(format!("more than {MODELS_MAX} models"));
        }
        let (name, tensors) = (name.to_owned(), [Vec::new(), Vec::new()]);
        self.models.push(DescribedModel {
            desc: *desc,
            name,
            tensors,
            variants: Vec::new(),
            table: None,
        });
        Ok(())
    }

    fn add_tensor(&mut self, desc: &TensorDesc, name: &str) -> Result<(), MembershipError> {
        let id = desc.model.get();
        let model = self.models.last_mut().filter(|model| model.id() == id);
        let side = model.and_then(|model| model.tensors.get_mut(usize::from(desc.side)));
        let side = side.filter(|side| side.len() < TENSORS_MAX);
        match side.zip(desc.spec(name)) {
            Some((side, spec)) => {
                side.push(spec);
                Ok(())
            }
            None => bad(format!("tensor {name} of model {id} cannot be")),
        }
    }

    fn add_variant(&mut self, desc: &VariantDesc, name: &str) -> Result<(), MembershipError> {
        let (id, accuracy) = (desc.model.get(), desc.accuracy.get());
        let model = self.models.last_mut().filter(|model| model.id() == id);
        let next = |variants: &&mut Vec<DescribedVariant>| {
            let rises = variants.last().is_none_or(|before| before.accuracy < accuracy);
            rises && variants.len() < VARIANTS_MAX && accuracy <= ACCURACY_MAX
        };
        match model.map(|model| &mut model.variants).filter(next) {
            Some(variants) => {
                variants.push(DescribedVariant { name: name.to_owned(), accuracy });
                Ok(())
            }
            None => bad(format!("variant {name} of model {id} cannot be")),
        }
    }

    fn add_table(&mut self, id: u32, text: &str) -> Result<(), MembershipError> {
        let Some(model) = self.models.last_mut().filter(|model| model.id() == id) else {
            return bad(format!("a table of model {id}, which is not the one described last"));
        };
        model.table = Some(text.to_owned());
        Ok(())
    }

    /// The addresses of the ModelThreads by number, once all are announced.
    pub(crate) fn threads(&self) -> Result<Vec<SocketAddr>, MembershipError> {
        let threads: Option<Vec<_>> = self.threads.iter().copied().collect();
        match threads.filter(|threads| !threads.is_empty()) {
            Some(threads) => Ok(threads),
            None => bad(String::from("a ModelThread is missing")),
        }
    }

    /// The id of a sub-cluster.
    pub fn subcluster(&self, name: &str) -> Option<u32> {
        self.subclusters.iter().find(|(_, known)| known == name).map(|(id, _)| *id)
    }

    /// The name of a sub-cluster.
    pub fn subcluster_name(&self, id: u32) -> Option<&str> {
        self.subclusters.iter().find(|(known, _)| *known == id).map(|(_, name)| name.as_str())
    }

    /// The models that are described here.
    pub fn models(&self) -> &[DescribedModel] {
        &self.models
    }

    /// Takes the models out that are described here, if each lives on one of `threads` ModelThreads.
    ///
    /// # Errors
    /// A model lives on no ModelThread.
    pub fn take_models(&mut self, threads: usize) -> Result<Vec<DescribedModel>, MembershipError> {
        let models = std::mem::take(&mut self.models);
        match models.iter().find(|model| model.desc.thread.get() as usize >= threads) {
            None => Ok(models),
            Some(lost) => bad(format!(
                "{} lives on ModelThread {}, which is unknown",
                lost.name, lost.desc.thread
            )),
        }
    }

    /// Takes a model out that is removed again. Returns false if it is not described here.
    pub fn remove_model(&mut self, id: u32) -> bool {
        let before = self.models.len();
        self.models.retain(|model| model.id() != id);
        self.models.len() < before
    }
}

fn bad<T>(what: String) -> Result<T, MembershipError> {
    Err(MembershipError::BadCatalogue(what))
}
