//! The models that this backend serves under the present scheduler, by the scheduler's ids. An id is a number in its low
//! 16 bits and, above, how often the number was given to another model before.

use baton_membership::{DescribedModel, MODELS_MAX};
use baton_topo::ModelSpec;
use baton_types::ModelId;

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
    /// Its variants: 1 if it has none.
    pub(crate) variants: u16,
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
            variants: spec.variant_count(),
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
pub enum CatalogueError {
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

/// The first thing in which the scheduler's word and `spec` differ: what, theirs, ours.
pub(crate) fn difference(
    model: &DescribedModel,
    spec: &ModelSpec,
) -> Option<(&'static str, u32, u32)> {
    let desc = &model.desc;
    let variants = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let compared = [
        ("the number of variants", variants(model.variants.len()), variants(spec.variants.len())),
        ("batch_max", desc.batch_max.get(), spec.profile.batch_max()),
        ("input_bytes", desc.input_bytes.get(), spec.input_bytes),
        ("output_bytes", desc.output_bytes.get(), spec.output_bytes),
    ];
    compared.into_iter().find(|(_, theirs, ours)| theirs != ours)
}

/// See the module documentation.
#[derive(Debug, Default)]
pub(crate) struct ServedModels {
    /// The id of our sub-cluster.
    subcluster: u32,
    /// By the numbers in the scheduler's ids.
    models: Vec<Option<ServedModel>>,
}

impl ServedModels {
    /// A model is loaded: actions may name it.
    ///
    /// # Errors
    /// Another one has its number.
    pub(crate) fn serve(&mut self, model: ServedModel) -> Result<(), CatalogueError> {
        let index = number(model.id.0);
        if self.models.len() <= index {
            self.models.resize(index + 1, None);
        }
        if self.models[index].is_some() {
            return Err(CatalogueError::Malformed("two models have one number"));
        }
        self.models[index] = Some(model);
        Ok(())
    }

    /// A model is removed; its id is unknown from now on. `None` if it is not served.
    pub(crate) fn remove(&mut self, id: u32) -> Option<ServedModel> {
        self.model(id)?;
        self.models[number(id)].take()
    }

    /// The scheduler calls our sub-cluster so.
    pub(crate) fn set_subcluster(&mut self, id: u32) {
        self.subcluster = id;
    }

    /// What the scheduler calls our sub-cluster; 0 before the catalogue is complete.
    pub(crate) fn subcluster(&self) -> u32 {
        self.subcluster
    }

    /// The served model with the scheduler's id `id`.
    pub(crate) fn model(&self, id: u32) -> Option<&ServedModel> {
        self.models.get(number(id))?.as_ref().filter(|model| model.id.0 == id)
    }

    /// The served models, by their numbers.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &ServedModel> {
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
        let mut served = ServedModels::default();
        let spec = emulated("toy", 0, 16, 3);
        let (first, second) = (7, 7 | 1 << 16);
        served.serve(ServedModel::new(first, &spec)).unwrap();
        assert_eq!((served.model(first).is_some(), served.model(second)), (true, None));
        assert_eq!(served.remove(second), None);
        assert!(served.serve(ServedModel::new(second, &spec)).is_err(), "the number is taken");
        assert!(served.remove(first).is_some());
        served.serve(ServedModel::new(second, &spec)).unwrap();
        assert_eq!((served.model(first), served.model(second).is_some()), (None, true));
    }
}
