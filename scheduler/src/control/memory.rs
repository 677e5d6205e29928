//! Backends whose GPU slots have not room for every model: what they announce, and what is checked.

use baton_core::{ModelId, SubclusterId};
use baton_rdma::wire::{RefuseCode, Role, SlotMemory as WireMemory};
use baton_rdma::{ConnId, Transport};
use baton_topo::{GPUS_PER_BACKEND_MAX, WeightsCacheSpec};
use zerocopy::little_endian::U32;

use super::{ControlThread, Handled, refuse};
use crate::catalog::Known;
use crate::commands::SlotMemory;

/// The caches of a cluster, as joins are checked against them.
#[derive(Clone, Debug)]
pub(crate) struct CachedSubclusters {
    /// By sub-cluster: bytes of a page; `None`: its backends hold every model.
    pub(crate) page_bytes: Vec<Option<u64>>,
    /// Slots with caches have numbers below this.
    pub(crate) slots: u32,
}

impl CachedSubclusters {
    fn page_bytes(&self, subcluster: SubclusterId) -> Option<u64> {
        self.page_bytes.get(subcluster.0 as usize).copied().flatten()
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

    /// A sub-cluster with caches keeps the models that it started with.
    pub(super) fn check_unchanged(&self, subcluster: SubclusterId) -> Result<(), String> {
        match self.has_cache(subcluster) {
            false => Ok(()),
            true => Err(format!(
                "sub-cluster `{}` has weights caches, and its models cannot be added, exchanged or removed while it serves; \
                 change the cluster file and restart scheduler and backends",
                self.parts.catalog.subcluster_name(subcluster)
            )),
        }
    }
}
