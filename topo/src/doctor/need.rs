//! What a host must provide, as far as a cluster file determines it. Pure.

use crate::cluster_file::{BATCH_SLOTS, CREDIT_BYTES, Cluster, FabricSpec, ModelSpec};

/// The slab of one model as clients make it by default: 256 slots of 224 × 224 × 3 bytes.
const ONE_SLAB_BYTES: u64 = 256 * 150_528;

/// What the host must provide.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Need {
    /// Transport, device and bounds.
    pub fabric: FabricSpec,
    /// Memory a process locks at least, bytes.
    pub locked_bytes: u64,
    /// Whose memory that is.
    pub locked_by: String,
    /// Models that a client may use.
    pub models: u32,
    /// Bytes of inputs that may be on their way to one backend.
    pub credit_bytes: u64,
    /// CUDA devices of the backend with most of them; 0: no model needs one.
    pub cuda_devices: u32,
}

impl Need {
    /// Without a cluster file: its defaults.
    pub fn by_default() -> Self {
        Self {
            fabric: FabricSpec::default(),
            locked_bytes: ONE_SLAB_BYTES,
            locked_by: "the default slab of one model".to_owned(),
            models: 1,
            credit_bytes: u64::from(CREDIT_BYTES),
            cuda_devices: 0,
        }
    }

    /// What the members of `cluster` need, at most: this does not distinguish hosts.
    pub fn of(cluster: &Cluster) -> Self {
        let (locked_bytes, locked_by) = largest(cluster);
        let credits = cluster.backends.iter().map(|backend| u64::from(backend.credit_bytes));
        Self {
            fabric: cluster.fabric.clone(),
            locked_bytes,
            locked_by,
            models: cluster.models.len() as u32,
            credit_bytes: credits.max().unwrap_or_else(|| u64::from(CREDIT_BYTES)),
            cuda_devices: cuda_devices(cluster),
        }
    }
}

fn cuda_devices(cluster: &Cluster) -> u32 {
    let on_device = |model: &&ModelSpec| model.engine.is_on_gpu();
    let served = cluster.models.iter().filter(on_device).map(|model| model.subcluster);
    let subclusters: Vec<_> = served.collect();
    let backends = cluster.backends.iter();
    let with_device = backends.filter(|backend| subclusters.contains(&backend.subcluster));
    with_device.map(|backend| backend.gpus).max().unwrap_or(0)
}

/// The process with the most payload to register. Trailers and rounding come on top.
fn largest(cluster: &Cluster) -> (u64, String) {
    let slots = u64::from(cluster.frontend.slots_per_model);
    let inputs: u64 = cluster.models.iter().map(|model| u64::from(model.input_bytes)).sum();
    let frontend = (slots * inputs, "a frontend of all models".to_owned());
    let backends = cluster.backends.iter().map(|backend| {
        let served = cluster.models.iter().filter(|model| model.subcluster == backend.subcluster);
        let batch = served.map(batch_bytes).max().unwrap_or(0);
        let slots = u64::from(backend.gpus) * BATCH_SLOTS as u64;
        (slots * batch, format!("backend {}", backend.name))
    });
    backends.chain([frontend]).max_by_key(|(bytes, _)| *bytes).unwrap_or_default()
}

fn batch_bytes(model: &ModelSpec) -> u64 {
    u64::from(model.profile.batch_max()) * u64::from(model.input_bytes)
}
