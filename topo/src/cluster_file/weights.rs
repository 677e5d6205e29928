//! Memory for weights that not all models fit into: `weights_cache_mib` and `page_mib` of a backend, `weights_mib` and
//! `load_ms` of a model.
//!
//! A sub-cluster has caches, or it has none: then its backends hold every model.

use baton_types::{Nanos, SubclusterId};

use crate::cluster_file::cluster::{BackendSpec, EngineSpec, ModelSpec};
use crate::cluster_file::model::MS_MAX;
use crate::cluster_file::section::Section;
use crate::cluster_file::tables::Entry;

/// A page, if the file does not say, MiB (Clockwork §5.2).
const PAGE_MIB: u32 = 16;
/// What copies weights to a GPU, if the file does not say how long that takes: what Table 1 of Clockwork comes to.
const LOAD_GB_PER_S: f64 = 12.3;
/// How long a LOAD from a file takes until one is measured: a session's beginning, and what ONNX Runtime gets done with the
/// file. Measured with small models on one core.
const SESSION: Nanos = Nanos::from_millis(5);
const SESSION_GB_PER_S: f64 = 0.5;
/// Model files that a backend with caches keeps in memory, if the file does not say, MiB.
const HOST_WEIGHTS_MIB: u32 = 1024;
/// One model's weights, MiB.
const WEIGHTS_MIB_MAX: f64 = (1 << 20) as f64;
/// Memory for weights of one GPU slot, MiB: a million pages of the usual size.
const CACHE_MIB_MAX: u32 = 1 << 24;

const MIB: u64 = 1 << 20;

/// A model's weights.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WeightsSpec {
    /// Their size.
    pub bytes: u64,
    /// How long a LOAD takes until one is measured; the emulated engine takes that long.
    pub load: Nanos,
    /// The file does not say that, and the first LOAD will: a session's making depends on more than its size.
    pub is_guess: bool,
}

/// The memory for weights of each GPU slot of a backend.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WeightsCacheSpec {
    /// How many pages there are, at least 1.
    pub pages: u32,
    /// Bytes of a page.
    pub page_bytes: u64,
}

impl WeightsCacheSpec {
    /// Pages that the weights take, at least 1.
    pub fn pages_of(&self, weights: WeightsSpec) -> u32 {
        u32::try_from(weights.bytes.div_ceil(self.page_bytes)).unwrap_or(u32::MAX).max(1)
    }
}

/// Reads what a model says. Weights in files are as large as these if it does not.
pub(crate) fn of_model(section: &Section<'_>, files_bytes: Option<u64>) -> Option<WeightsSpec> {
    let mib = section.number("weights_mib", 0.001..=WEIGHTS_MIB_MAX);
    let load = section.millis("load_ms", 0.001..=MS_MAX);
    let has_size = section.has("weights_mib") || files_bytes.is_some();
    if section.has("load_ms") && !has_size {
        section.refuse("load_ms", "says nothing without weights_mib", "give weights_mib as well");
    }
    let stated = mib.map(|mib| (mib * MIB as f64).ceil() as u64);
    let of_files = files_bytes.filter(|_| !section.has("weights_mib"));
    let bytes = stated.or(of_files)?;
    let at = |gb_per_s: f64| Nanos::from_millis_f64(bytes as f64 / (gb_per_s * 1e6));
    let guess = match files_bytes {
        Some(_) => SESSION + at(SESSION_GB_PER_S),
        None => at(LOAD_GB_PER_S),
    };
    let is_guess = load.is_none() && files_bytes.is_some();
    Some(WeightsSpec { bytes, load: load.unwrap_or(guess), is_guess })
}

/// Reads what a backend says.
pub(crate) fn of_backend(section: &Section<'_>) -> Option<WeightsCacheSpec> {
    let page_mib = section.integer("page_mib", 1..=1024);
    let mib = section.integer("weights_cache_mib", 1..=CACHE_MIB_MAX);
    if page_mib.is_some() && !section.has("weights_cache_mib") {
        section.refuse("page_mib", "says nothing without weights_cache_mib", "remove it");
    }
    let page_mib = page_mib.unwrap_or(PAGE_MIB);
    let pages = mib? / page_mib;
    if pages == 0 {
        let fix = format!("give at least {page_mib}, or a smaller page_mib");
        section.refuse("weights_cache_mib", "is less than a page", fix);
    }
    Some(WeightsCacheSpec { pages: pages.max(1), page_bytes: u64::from(page_mib) * MIB })
}

/// Bytes of model files that a backend keeps in memory, to load from.
pub(crate) fn host_bytes(section: &Section<'_>, cache: Option<WeightsCacheSpec>) -> u64 {
    let mib = section.integer("host_weights_mib", 0..=CACHE_MIB_MAX);
    if cache.is_none() {
        if section.has("host_weights_mib") && !section.has("weights_cache_mib") {
            let what = "says nothing without weights_cache_mib";
            section.refuse("host_weights_mib", what, "remove it");
        }
        return 0;
    }
    u64::from(mib.unwrap_or(HOST_WEIGHTS_MIB)) * MIB
}

/// What the backends and models of each sub-cluster say together.
pub(crate) fn check(models: &[Entry<'_, ModelSpec>], backends: &[Entry<'_, BackendSpec>]) {
    for (entry, backend) in present(backends) {
        if let Some(first) = cache_of(backend.subcluster, backends) {
            check_backend(&entry.section, backend, first);
        }
    }
    let page_bytes =
        present(backends).find_map(|(_, backend)| Some(backend.weights_cache?.page_bytes));
    for (entry, backend) in present(backends) {
        let other = backend.weights_cache.filter(|cache| Some(cache.page_bytes) != page_bytes);
        if other.is_some() {
            let fix = format!("give all of them {}", page_bytes.unwrap_or(0) / MIB);
            entry.section.refuse("page_mib", "differs from that of another backend", fix);
        }
    }
    for (entry, model) in present(models) {
        match smallest_cache(model.subcluster, backends) {
            Some(cache) => check_model(&entry.section, model, cache),
            None if entry.section.has("weights_mib") => {
                let what = "changes nothing: no backend of its sub-cluster has weights_cache_mib, so all of them hold every model";
                entry.section.warn(
                    "weights_mib",
                    what,
                    "give the backends weights_cache_mib, or remove the key",
                );
            }
            None => {}
        }
    }
}

fn check_backend(
    section: &Section<'_>,
    backend: &BackendSpec,
    (name, cache): (&str, WeightsCacheSpec),
) {
    if backend.weights_cache.is_none() {
        let what = format!("is missing, and backend {name} of the same sub-cluster has it");
        let fix = format!(
            "give it: weights_cache_mib = {}",
            u64::from(cache.pages) * cache.page_bytes / MIB
        );
        section.refuse("weights_cache_mib", what, fix);
    }
    if backend.model_memory.is_some() {
        let fix = "remove it: weights_cache_mib bounds what a GPU slot holds";
        section.refuse("model_memory_mib", "does not go with weights_cache_mib", fix);
    }
}

fn check_model(section: &Section<'_>, model: &ModelSpec, cache: WeightsCacheSpec) {
    if model.engine.is_on_gpu() {
        let fix = "put the model into a sub-cluster whose backends have no weights_cache_mib";
        let what = "and weights caches serve emulated models and ONNX models on the CPU alone";
        match &model.engine {
            EngineSpec::Onnx { place, .. } => {
                section.refuse("device", format!("is \"{}\", {what}", place.device), fix);
            }
            other => section.refuse("engine", format!("is \"{}\", {what}", other.name()), fix),
        }
    }
    let Some(weights) = model.weights else {
        let what = "is missing, and the backends of its sub-cluster have weights_cache_mib";
        return section.refuse(
            "weights_mib",
            what,
            "say how large the model's weights are: weights_mib = 98",
        );
    };
    if cache.pages_of(weights) > cache.pages {
        let most = u64::from(cache.pages) * cache.page_bytes / MIB;
        let what = format!("is more than the {most} MiB of a backend's weights_cache_mib");
        section.refuse(
            "weights_mib",
            what,
            "give that backend more, or the model another sub-cluster",
        );
    }
}

/// The first cache of the sub-cluster, and whose it is.
fn cache_of<'a>(
    subcluster: SubclusterId,
    backends: &'a [Entry<'_, BackendSpec>],
) -> Option<(&'a str, WeightsCacheSpec)> {
    let of_it = |backend: &&BackendSpec| backend.subcluster == subcluster;
    let mut backends = present(backends).map(|(_, backend)| backend).filter(of_it);
    backends.find_map(|backend| Some((backend.name.as_str(), backend.weights_cache?)))
}

fn smallest_cache(
    subcluster: SubclusterId,
    backends: &[Entry<'_, BackendSpec>],
) -> Option<WeightsCacheSpec> {
    let of_it = present(backends).filter(|(_, backend)| backend.subcluster == subcluster);
    of_it.filter_map(|(_, backend)| backend.weights_cache).min_by_key(|cache| cache.pages)
}

fn present<'a, 'b, T>(
    entries: &'a [Entry<'b, T>],
) -> impl Iterator<Item = (&'a Entry<'b, T>, &'a T)> {
    entries.iter().filter_map(|entry| Some((entry, entry.spec.as_ref()?)))
}
