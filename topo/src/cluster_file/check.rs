//! What only makes sense together: names against names, objectives against latencies, sizes
//! against memory. Everything here runs after the whole file has been read.

use std::collections::HashMap;
use std::path::Path;

use baton_types::{RateLimit, SubclusterId, TaskId};

use crate::cluster_file::cluster::{
    BATCH_MEMORY_MAX, BATCH_SLOTS, BackendSpec, FrontendSpec, MODELS_MAX, ModelSpec, NetworkSpec,
    SchedulerSpec,
};
use crate::cluster_file::section::Section;
use crate::cluster_file::tables::Entry;

/// Inputs of one batch slot of a backend.
const BATCH_BYTES_MAX: u64 = 1 << 30;
/// One model's slots in one frontend.
const SLAB_BYTES_MAX: u64 = 4 << 30;

/// Every model by itself, their names, and how many there are.
pub(crate) fn models(root: &Section<'_>, models: &[Entry<'_, ModelSpec>], network: &NetworkSpec) {
    if models.is_empty() {
        root.refuse("model", "there is no model", "add a [[model]] table");
    }
    if models.len() > MODELS_MAX as usize {
        let what = format!("{} models are too many", models.len());
        root.refuse("model", what, format!("keep to {MODELS_MAX}; split them over schedulers"));
    }
    unique_names(models, |model| &model.name);
    for entry in models {
        if let Some(model) = &entry.spec {
            objective(&entry.section, model, network);
            batch_memory(&entry.section, model);
            quotas(&entry.section, model);
        }
    }
}

/// Addresses at which members cannot connect, or that two sockets of one process would share.
pub(crate) fn addresses(section: &Section<'_>, scheduler: &SchedulerSpec) {
    let listen = scheduler.listen;
    let is_vague = listen.port() == 0 || listen.ip().is_unspecified();
    if scheduler.etcd.is_some() && is_vague {
        let what = format!("a leader at {listen} cannot tell members through etcd where it is");
        section.warn("listen", what, "start each scheduler with --listen ADDR, a port included");
    } else if listen.port() == 0 {
        let what = "the system chooses the port, and members that read this file look for port 0";
        section.warn("listen", what, "give a port, or tell members with --scheduler ADDR");
    } else if listen.ip().is_unspecified() {
        let what =
            format!("{listen} names no host, so members that read this file look on their own");
        let fix = "give the address that they connect to, or tell them with --scheduler ADDR";
        section.warn("listen", what, fix);
    }
    if scheduler.metrics == Some(listen) && listen.port() != 0 {
        section.refuse("metrics", "is the address of listen", "give another port");
    }
}

/// Room for every model of the file.
pub(crate) fn room(section: &Section<'_>, scheduler: &SchedulerSpec, models: usize) {
    if let Some(max) = scheduler.models_max.filter(|&max| (max as usize) < models) {
        let what = format!("{max} is less than the {models} models of this file");
        section.refuse("models_max", what, format!("give at least {models}, or remove the key"));
    }
}

/// Limits that cannot mean what they say.
fn quotas(section: &Section<'_>, model: &ModelSpec) {
    let Some(max) = model.quota.model.map(RateLimit::rps) else { return };
    if let Some(each) = model.quota.frontend.map(RateLimit::rps).filter(|&each| each > max) {
        let what = format!("{each}/s of each frontend is more than max_rps lets all of them have");
        section.warn("frontend_max_rps", what, format!("give at most {max}"));
    }
    if let Some(expected) = model.expected_rps.filter(|&expected| expected > max) {
        let what = format!("of the {expected}/s expected, what is above {max}/s will be dropped");
        section.warn("max_rps", what, format!("give at least {expected}"));
    }
}

/// The memory of a frontend that uses every model.
pub(crate) fn slabs(
    frontend_section: &Section<'_>,
    models: &[Entry<'_, ModelSpec>],
    frontend: &FrontendSpec,
) {
    let slots = u64::from(frontend.slots_per_model);
    for (entry, model) in models.iter().filter_map(|e| Some((e, e.spec.as_ref()?))) {
        let slot_bytes = u64::from(model.input_bytes) + u64::from(model.output_bytes);
        if slot_bytes * slots > SLAB_BYTES_MAX {
            let what = format!(
                "{slots} slots of {slot_bytes} bytes need more than 4 GiB in every frontend"
            );
            let fix = format!(
                "set slots_per_model in [frontend] to at most {}",
                SLAB_BYTES_MAX / slot_bytes
            );
            entry.section.refuse("input_bytes", what, fix);
        }
    }
    let ids = u64::from(TaskId::SLOTS_MAX);
    if slots * models.len() as u64 > ids {
        let what = format!(
            "a frontend cannot use all {} models: a task id names {ids} slots",
            models.len()
        );
        frontend_section.warn(
            "slots_per_model",
            what,
            format!("lower it to {}", ids / models.len() as u64),
        );
    }
}

/// Backends' names, and whether one input fits through each one's credit window.
pub(crate) fn backends(backends: &[Entry<'_, BackendSpec>], models: &[Entry<'_, ModelSpec>]) {
    unique_names(backends, |backend| &backend.name);
    for (entry, backend) in backends.iter().filter_map(|e| Some((e, e.spec.as_ref()?))) {
        let needed = largest_input(backend.subcluster, models);
        if backend.credit_bytes != 0 && backend.credit_bytes < needed {
            let what = format!("is less than one input of its sub-cluster ({needed} bytes)");
            entry.section.refuse(
                "credit_bytes",
                what,
                format!("give at least {needed}, or 0 for no limit"),
            );
        }
        batch_buffers(&entry.section, backend, models);
        model_memory(&entry.section, backend, models);
    }
}

/// The memory of one backend's batch slots: each has room for the largest batch of any model.
fn batch_buffers(section: &Section<'_>, backend: &BackendSpec, models: &[Entry<'_, ModelSpec>]) {
    let specs = models.iter().filter_map(|entry| entry.spec.as_ref());
    let served = || specs.clone().filter(|model| model.subcluster == backend.subcluster);
    let bytes = |model: &ModelSpec, row: u32| row as usize * model.profile.batch_max() as usize;
    let Some(largest) = served().max_by_key(|model| bytes(model, model.input_bytes)) else {
        return;
    };
    let outputs = served().map(|model| bytes(model, model.output_bytes)).max().unwrap_or(0);
    let slots = backend.gpus as usize * BATCH_SLOTS;
    let total = (bytes(largest, largest.input_bytes) + outputs).saturating_mul(slots);
    if total > BATCH_MEMORY_MAX {
        let (gib, most, name) = (total >> 30, BATCH_MEMORY_MAX >> 30, &largest.name);
        let what = format!(
            "the batch buffers of {} GPU slots take {gib} GiB of {most} GiB at most, because of model {name}",
            backend.gpus
        );
        section.refuse("gpus", what, "lower it, or that model's batch_max");
    }
}

/// The files of a backend's models against what its GPU slots may hold; loading counts the same.
fn model_memory(section: &Section<'_>, backend: &BackendSpec, models: &[Entry<'_, ModelSpec>]) {
    let Some(most) = backend.model_memory else { return };
    let specs = models.iter().filter_map(|entry| entry.spec.as_ref());
    let served = specs.filter(|model| model.subcluster == backend.subcluster);
    let bytes_of = |file: &Path| std::fs::metadata(file).map_or(0, |file| file.len());
    // Of files on servers the table says how large they are.
    let bytes = |model: &ModelSpec| match model.remote_files()[..] {
        [] => model.files().into_iter().map(bytes_of).sum::<u64>(),
        [_, ..] => model.weights.map_or(0, |weights| weights.bytes),
    };
    let needed: u64 = served.map(bytes).sum();
    if needed > most {
        let needed = needed.div_ceil(1 << 20);
        let what = format!("the files of its models take {needed} MiB, and it has {}", most >> 20);
        let fix = format!("give at least {needed}, or put models into another sub-cluster");
        section.refuse("model_memory_mib", what, fix);
    }
}

/// Warns of models that no backend of this file can serve: others may join, but rarely will.
pub(crate) fn served(
    subclusters: &[String],
    models: &[Entry<'_, ModelSpec>],
    backends: &[Entry<'_, BackendSpec>],
) {
    let served: Vec<SubclusterId> =
        backends.iter().filter_map(|entry| entry.spec.as_ref()).map(|b| b.subcluster).collect();
    for (entry, model) in models.iter().filter_map(|e| Some((e, e.spec.as_ref()?))) {
        if !served.contains(&model.subcluster) {
            let name = &subclusters[model.subcluster.0 as usize];
            let what = format!("no backend of this file belongs to sub-cluster \"{name}\"");
            entry.section.warn(
                "subcluster",
                what,
                "add a [[backend]], or have one join under this name",
            );
        }
    }
}

/// The largest input row among the models of a sub-cluster, bytes.
pub(crate) fn largest_input(subcluster: SubclusterId, models: &[Entry<'_, ModelSpec>]) -> u32 {
    let specs = models.iter().filter_map(|entry| entry.spec.as_ref());
    specs.filter(|m| m.subcluster == subcluster).map(|m| m.input_bytes).max().unwrap_or(0)
}

fn unique_names<T>(entries: &[Entry<'_, T>], name: impl Fn(&T) -> &String) {
    let mut first = HashMap::new();
    for entry in entries {
        let Some(name) = entry.spec.as_ref().map(&name) else { continue };
        if let Some(line) = first.get(name) {
            let what = format!("\"{name}\" is taken (line {line})");
            entry.section.refuse("name", what, "give every one its own name");
        } else {
            first.insert(name, entry.section.line("name"));
        }
    }
}

/// An objective that even an idle cluster misses is a mistake; one without slack is a warning.
fn objective(section: &Section<'_>, model: &ModelSpec, network: &NetworkSpec) {
    let single = model.profile.latency(1);
    let needed = single + network.ctrl + network.data_per_task + network.response;
    let (slo_ms, needed_ms) = (model.slo.as_millis_f64(), needed.as_millis_f64());
    if model.slo < needed {
        let what =
            format!("{slo_ms} ms cannot be met: ℓ(1) and the network delays take {needed_ms} ms");
        section.refuse(
            "slo_ms",
            what,
            format!("give at least {needed_ms}, or lower ℓ(1) or [network]"),
        );
    } else if model.slo < single.times(2) {
        let what = format!("{slo_ms} ms is below 2·ℓ(1): a task that finds its GPU busy misses it");
        section.warn("slo_ms", what, format!("give at least {}", single.times(2).as_millis_f64()));
    } else if model.slo < needed + network.jitter {
        let left = model.slo - needed;
        let what = format!(
            "{slo_ms} ms less ℓ(1) and the network delays is {} ms, and jitter_us is longer: no task waits for others",
            left.as_millis_f64()
        );
        section.warn(
            "slo_ms",
            what,
            format!("set jitter_us in [network] to at most {}", left.0 / 1_000),
        );
    }
}

fn batch_memory(section: &Section<'_>, model: &ModelSpec) {
    let row = u64::from(model.input_bytes);
    let batch = u64::from(model.profile.batch_max());
    if row * batch > BATCH_BYTES_MAX {
        let what = format!("a batch of {batch} inputs of {row} bytes is over 1 GiB");
        section.refuse(
            "batch_max",
            what,
            format!("set batch_max to at most {}", BATCH_BYTES_MAX / row),
        );
    }
}
