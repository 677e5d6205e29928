//! Backends whose GPU slots have not room for every model: what they announce, and what is checked.

use baton_core::{ModelId, SubclusterId, Weights};
use baton_rdma::wire::{RefuseCode, Role, SlotMemory as WireMemory};
use baton_rdma::{ConnId, Transport};
use baton_topo::{GPUS_PER_BACKEND_MAX, ModelSpec, WeightsCacheSpec};
use zerocopy::little_endian::U32;

use super::{ControlThread, Handled, refuse};
use crate::cache::weights;
use crate::catalog::Known;
use crate::commands::SlotMemory;

/// The caches of a cluster, as joins are checked against them.
#[derive(Clone, Debug)]
pub(crate) struct CachedSubclusters {
    /// By sub-cluster: the smallest cache; `None`: its backends hold every model. All have pages of the same size.
    pub(crate) smallest: Vec<Option<WeightsCacheSpec>>,
    /// Slots with caches have numbers below this.
    pub(crate) slots: u32,
}

impl CachedSubclusters {
    fn page_bytes(&self, subcluster: SubclusterId) -> Option<u64> {
        self.smallest(subcluster).map(|cache| cache.page_bytes)
    }

    fn smallest(&self, subcluster: SubclusterId) -> Option<WeightsCacheSpec> {
        self.smallest.get(subcluster.0 as usize).copied().flatten()
    }
}

impl<T: Transport> ControlThread<T> {
    pub(super) fn on_memory(
        &mut self,
        conn: ConnId,
        memory: &WireMemory,
        models: &[U32],
    ) -> Handled {
        let number = |id: &U32| match self.parts.catalog.known(id.get()) {
            Known::Now(model) => Some(model),
            Known::Before | Known::Never => None,
        };
        let models = models.iter().map(number).collect::<Option<Vec<_>>>();
        let page_bytes = memory.page_bytes.get();
        let conversation = self.announcing(conn, Role::Backend)?;
        let Some(models) = models else {
            return refuse(RefuseCode::BadRequest, "a slot holds a model that does not exist");
        };
        let next = conversation.memory.len();
        if memory.slot.get() as usize != next || next >= GPUS_PER_BACKEND_MAX as usize {
            let detail = format!("memory of slot {} is announced, not of {next}", memory.slot);
            return refuse(RefuseCode::BadRequest, detail);
        }
        let memory = SlotMemory { pages: memory.pages.get(), models };
        conversation.memory.push((page_bytes, memory));
        Ok(())
    }

    /// Either every slot has a cache, with the pages that the scheduler counts in, or none has.
    pub(super) fn check_memory(
        &self,
        subcluster: SubclusterId,
        gpus: u32,
        memory: &[(u64, SlotMemory)],
    ) -> Handled {
        let expected = self.parts.cached.page_bytes(subcluster);
        let slots = expected.map_or(0, |_| gpus as usize);
        let fits = memory.len() == slots && memory.iter().all(|(page, _)| Some(*page) == expected);
        if fits {
            return Ok(());
        }
        let name = self.parts.catalog.subcluster_name(subcluster);
        let says = |page: Option<u64>| match page {
            Some(page) => format!("weights caches with pages of {} MiB", page >> 20),
            None => String::from("no weights caches"),
        };
        let (theirs, ours) = (says(memory.first().map(|(page, _)| *page)), says(expected));
        let detail = format!(
            "sub-cluster `{name}` has {ours} at the scheduler, and this backend has {theirs}; start both with the same cluster file"
        );
        refuse(RefuseCode::BadRequest, detail)
    }

    /// A LOAD takes pages at both ends, so both must count the same. A backend without caches is refused when it joins.
    pub(super) fn check_pages(&self, model: ModelId, theirs: u32) -> Handled {
        let spec = self.parts.catalog.entry(model).map(|entry| &entry.spec);
        let page_bytes = spec.and_then(|spec| self.parts.cached.page_bytes(spec.subcluster));
        let (Some(spec), Some(page_bytes)) = (spec, page_bytes.filter(|_| theirs > 0)) else {
            return Ok(());
        };
        let page = WeightsCacheSpec { pages: 1, page_bytes };
        let ours = spec.weights.map_or(0, |weights| page.pages_of(weights));
        if ours == theirs {
            return Ok(());
        }
        let detail = format!(
            "model `{}` takes {ours} pages at the scheduler and {theirs} at this backend; start both with the same weights_mib, or the same model file",
            spec.name
        );
        refuse(RefuseCode::BadRequest, detail)
    }

    /// Whether slots with these numbers may have caches.
    pub(super) fn has_cache_room(&self, first: u32, memory: &[SlotMemory]) -> bool {
        memory.is_empty() || first as usize + memory.len() <= self.parts.cached.slots as usize
    }

    /// Whether slots of the sub-cluster have not room for every model.
    pub(super) fn has_cache(&self, subcluster: SubclusterId) -> bool {
        self.parts.cached.page_bytes(subcluster).is_some()
    }

    /// Whether the sub-cluster's caches, if it has any, can serve a model that is to be added.
    pub(super) fn check_weights(&self, spec: &ModelSpec) -> Result<(), String> {
        let Some(cache) = self.parts.cached.smallest(spec.subcluster) else { return Ok(()) };
        let subcluster = self.parts.catalog.subcluster_name(spec.subcluster);
        let refused =
            |what: &str| Err(format!("sub-cluster `{subcluster}` has weights caches, {what}"));
        match spec.weights {
            _ if spec.engine.is_on_gpu() => refused(
                "which serve emulated models and ONNX models on the CPU alone; add the model to another sub-cluster",
            ),
            None => {
                refused("and the model does not say how large its weights are: give weights_mib")
            }
            Some(weights) if cache.pages_of(weights) > cache.pages => refused(
                "and the model's weights are larger than one of them; give that backend more weights_cache_mib",
            ),
            Some(_) => Ok(()),
        }
    }

    /// What the model takes, if slots of its sub-cluster have not room for every model.
    pub(super) fn weights_of(&self, model: ModelId) -> Option<Weights> {
        let entry = self.parts.catalog.entry(model)?;
        let cache = self.parts.cached.smallest(entry.spec.subcluster)?;
        Some(weights(cache, entry.spec.weights?, &entry.spec))
    }
}
