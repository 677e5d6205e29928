//! How a scenario's GPU slots are divided into sub-clusters, each of which serves models of its own.

use baton_core::SubclusterId;
use serde::Deserialize;

use crate::scenario_file::ScenarioError;

/// `[[subcluster]]` of a scenario file.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SubclusterKey {
    name: String,
    gpus: u32,
}

/// See the module documentation.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Subclusters {
    /// The first slot of each sub-cluster but the first; the last one has all slots from there on.
    boundaries: Vec<u32>,
}

impl Subclusters {
    /// Of the keys of a file.
    ///
    /// # Errors
    /// They have another number of slots than the scenario, or a name twice.
    pub(crate) fn of_keys(keys: &[SubclusterKey], gpus: u32) -> Result<Self, ScenarioError> {
        let sum: u64 = keys.iter().map(|key| u64::from(key.gpus)).sum();
        if !keys.is_empty() && sum != u64::from(gpus) {
            return Err(ScenarioError::SubclusterGpus { sum, gpus });
        }
        let mut names: Vec<&str> = keys.iter().map(|key| key.name.as_str()).collect();
        names.sort_unstable();
        if let Some(twice) = names.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(ScenarioError::SubclusterTwice { name: twice[0].to_owned() });
        }
        let sizes: Vec<u32> = keys.iter().map(|key| key.gpus).collect();
        Ok(Self::of_sizes(&sizes))
    }

    /// With this many slots each, in this order.
    pub(crate) fn of_sizes(gpus: &[u32]) -> Self {
        let ends = gpus.iter().scan(0, |end, gpus| {
            *end += gpus;
            Some(*end)
        });
        Self { boundaries: ends.take(gpus.len().saturating_sub(1)).collect() }
    }

    /// How many there are; at least one.
    pub fn count(&self) -> u32 {
        self.boundaries.len() as u32 + 1
    }

    /// The sub-cluster of a slot.
    pub fn of_slot(&self, gpu: u32) -> SubclusterId {
        SubclusterId(self.boundaries.partition_point(|&first| first <= gpu) as u32)
    }
}

/// The sub-cluster that a model names; without a name the first.
pub(crate) fn named(
    keys: &[SubclusterKey],
    model: &str,
    name: Option<&String>,
) -> Result<SubclusterId, ScenarioError> {
    let Some(name) = name else { return Ok(SubclusterId::default()) };
    let at = keys.iter().position(|key| key.name == *name);
    let unknown = || ScenarioError::Subcluster { model: model.to_owned(), name: name.clone() };
    at.map(|at| SubclusterId(at as u32)).ok_or_else(unknown)
}
