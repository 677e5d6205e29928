//! The tables of the cluster file, except `[[model]]`: keys, defaults and ranges.
//!
//! The reader replaces a refused value by its default and continues. The caller never gets such a
//! cluster, because the refusal is among the findings.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::ops::RangeInclusive;
use std::path::Path;

use baton_types::{Nanos, Policy, Prefer, SubclusterId};

use crate::cluster_file::check;
use crate::cluster_file::cluster::{
    BackendSpec, CardsSpec, Cluster, FrontendSpec, GPUS_PER_BACKEND_MAX, MODEL_THREADS_MAX,
    MODELS_MAX, ModelSpec, NetworkSpec, ReconnectSpec, SchedulerSpec,
};
use crate::cluster_file::etcd;
use crate::cluster_file::fabric::{FabricSpec, VerbsConfig};
use crate::cluster_file::gateway;
use crate::cluster_file::model;
use crate::cluster_file::model_folder;
use crate::cluster_file::section::{Section, shorten};
use crate::cluster_file::tls;
use crate::cluster_file::weights;
use crate::runtime::Idle;

/// The default address of a scheduler.
const LISTEN: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 7700);
/// Core numbers beyond this exist nowhere.
const CORE_MAX: u32 = 4095;
/// Memory for models of one GPU slot: 16 TiB.
const MODEL_MEMORY_MIB_MAX: u32 = 1 << 24;
/// `credit_bytes` where the file does not say, unless one input is larger: enough to keep a fast
/// link busy, little enough that a switch can buffer it.
pub(crate) const CREDIT_BYTES: u32 = 1 << 20;
/// Members ping every 100 ms; silence for less than two pings says nothing.
const MEMBER_TIMEOUT_MS: RangeInclusive<f64> = 200.0..=60_000.0;
/// A network delay of more than a second is a mistake of unit.
const DELAY_US: RangeInclusive<f64> = 0.0..=1e6;

/// One `[[model]]` or `[[backend]]`: the section, and its content unless that was refused.
#[derive(Debug)]
pub(crate) struct Entry<'a, T> {
    pub(crate) section: Section<'a>,
    pub(crate) spec: Option<T>,
}

/// Reads and checks everything. `None` if a part could not be built; then there are problems.
pub(crate) fn cluster(root: &Section<'_>, folder: &Path) -> Option<Cluster> {
    let scheduler_section = root.table("scheduler");
    let scheduler = scheduler(&scheduler_section, folder);
    let network_section = root.table("network");
    let network = network(&network_section);
    let fabric = fabric(&network_section, root, folder);
    network_section.refuse_unread();
    let frontend_section = root.table("frontend");
    let frontend = frontend(&frontend_section);
    let reconnect = reconnect(&root.table("reconnect"));
    let mut subclusters = Subclusters::default();
    let models = models(root, &mut subclusters, folder);
    let backends = backends(root, &mut subclusters, &models, folder);
    let names: Vec<&str> =
        models.iter().flat_map(|entry| &entry.spec).map(|spec| &*spec.name).collect();
    let gateway = gateway::gateway(root, &names, folder);
    root.refuse_unread();

    let subclusters = subclusters.into_names();
    check::models(root, &models, &network);
    check::addresses(&scheduler_section, &scheduler);
    check::room(&scheduler_section, &scheduler, models.len());
    check::slabs(&frontend_section, &models, &frontend);
    check::backends(&backends, &models);
    check::served(&subclusters, &models, &backends);
    check::accuracy(&models, &backends);
    weights::check(&models, &backends);
    Some(Cluster {
        scheduler,
        network,
        fabric,
        subclusters,
        models: models.into_iter().map(|entry| entry.spec).collect::<Option<_>>()?,
        backends: backends.into_iter().map(|entry| entry.spec).collect::<Option<_>>()?,
        frontend,
        gateway,
        reconnect,
    })
}

/// The sub-clusters named so far. A model brings its sub-cluster into being; a backend joins one.
#[derive(Default)]
pub(crate) struct Subclusters {
    names: Vec<String>,
}

impl Subclusters {
    /// The sub-cluster a model names, else the first.
    pub(crate) fn of_model(&mut self, section: &Section<'_>) -> SubclusterId {
        let Some(name) = section.name("subcluster") else { return SubclusterId(0) };
        let index = self.names.iter().position(|known| known == name).unwrap_or_else(|| {
            self.names.push(name.to_owned());
            self.names.len() - 1
        });
        SubclusterId(index as u32)
    }

    /// The sub-cluster a backend names, else the first. Where no model named any, the first
    /// backend to do so names the one there is.
    fn of_backend(&mut self, section: &Section<'_>) -> SubclusterId {
        let Some(name) = section.name("subcluster") else { return SubclusterId(0) };
        if self.names.is_empty() {
            self.names.push(name.to_owned());
        }
        let index = self.names.iter().position(|known| known == name).unwrap_or_else(|| {
            let what = format!("no model is served by sub-cluster \"{}\"", shorten(name));
            section.refuse("subcluster", what, format!("use one of: {}", self.names.join(", ")));
            0
        });
        SubclusterId(index as u32)
    }

    fn into_names(mut self) -> Vec<String> {
        if self.names.is_empty() {
            self.names.push("default".to_owned());
        }
        self.names
    }
}

fn scheduler(section: &Section<'_>, folder: &Path) -> SchedulerSpec {
    let spec = SchedulerSpec {
        listen: section.text("listen").map_or(LISTEN, |text| listen_addr(section, text)),
        model_threads: section.integer("model_threads", 1..=MODEL_THREADS_MAX).unwrap_or(1),
        models_max: section.integer("models_max", 1..=MODELS_MAX),
        journal: section.text("journal").map(|file| folder.join(file)),
        idle: section.word("idle").unwrap_or(Idle::Park),
        cores: cores(section),
        policy: section.choice("policy", &Policy::ALL).unwrap_or_default(),
        prefer: section.choice("prefer", &Prefer::ALL).unwrap_or_default(),
        member_timeout: section
            .millis("member_timeout_ms", MEMBER_TIMEOUT_MS)
            .unwrap_or(Nanos::from_millis(1_000)),
        metrics: metrics(section),
        etcd: etcd::etcd(section, folder),
    };
    section.refuse_unread();
    spec
}

fn listen_addr(section: &Section<'_>, text: &str) -> SocketAddr {
    text.parse().unwrap_or_else(|_| {
        let what = format!("\"{}\" is not an address and port", shorten(text));
        section.refuse("listen", what, format!("write \"{LISTEN}\" or \"[::1]:7700\""));
        LISTEN
    })
}

/// Where a process answers scrapes.
fn metrics(section: &Section<'_>) -> Option<SocketAddr> {
    let text = section.text("metrics")?;
    let addr = text.parse().ok();
    if addr.is_none() {
        let what = format!("\"{}\" is not an address and port", shorten(text));
        section.refuse("metrics", what, "write \"127.0.0.1:8002\", or leave it out");
    }
    addr
}

fn network(section: &Section<'_>) -> NetworkSpec {
    let micros = |key, default_us| {
        let us = section.number(key, DELAY_US).unwrap_or(default_us);
        Nanos::from_millis_f64(us / 1e3)
    };
    NetworkSpec {
        ctrl: micros("ctrl_us", 300.0),
        data_per_task: micros("data_us_per_task", 20.0),
        response: micros("response_us", 500.0),
        jitter: micros("jitter_us", 500.0),
    }
}

/// `transport` stands with the network; everything about the card has a table of its own, and so has
/// TLS.
fn fabric(network: &Section<'_>, root: &Section<'_>, folder: &Path) -> FabricSpec {
    let rdma = root.table("rdma");
    let transport = network.word("transport").unwrap_or_default();
    let default = VerbsConfig::default();
    let small = |key, range, or: u8| rdma.integer(key, range).map_or(or, |n| n as u8);
    let mtu = rdma.integer("mtu", 256..=4096);
    if mtu.is_some_and(|bytes| !bytes.is_power_of_two()) {
        rdma.refuse("mtu", "is no packet size of verbs", "give 256, 512, 1024, 2048 or 4096");
    }
    let verbs = VerbsConfig {
        device: rdma.name("device").map(str::to_owned),
        port: small("port", 1..=255, default.port),
        gid_index: rdma.integer("gid_index", 0..=255),
        mtu,
        traffic_class: small("traffic_class", 0..=255, default.traffic_class),
        service_level: small("service_level", 0..=15, default.service_level),
        read_depth: small("read_depth", 1..=128, default.read_depth),
        peers: rdma.integer("peers", 1..=65_536).unwrap_or(default.peers),
        slice_bytes: rdma.integer("slice_bytes", 4_096..=1 << 30).unwrap_or(default.slice_bytes),
        read_timeout: rdma
            .millis("read_timeout_ms", 1.0..=60_000.0)
            .unwrap_or(default.read_timeout),
        ack_timeout: small("ack_timeout", 1..=31, default.ack_timeout),
        retries: small("retries", 0..=6, default.retries),
    };
    rdma.refuse_unread();
    FabricSpec { transport, verbs, tls: tls::tls(root, folder) }
}

fn frontend(section: &Section<'_>) -> FrontendSpec {
    let spec = FrontendSpec {
        slots_per_model: section.integer("slots_per_model", 1..=65_536).unwrap_or(256),
        lease_grace: section
            .millis("lease_grace_ms", 10.0..=600_000.0)
            .unwrap_or(Nanos::from_millis(1_000)),
    };
    section.refuse_unread();
    spec
}

fn reconnect(section: &Section<'_>) -> ReconnectSpec {
    let default = ReconnectSpec::default();
    let span = |key, default| section.millis(key, 1.0..=600_000.0).unwrap_or(default);
    let spec = ReconnectSpec {
        first: span("first_ms", default.first),
        longest: span("longest_ms", default.longest),
        start: span("start_ms", default.start),
        hold: span("hold_ms", default.hold),
    };
    if spec.longest < spec.first {
        section.refuse("longest_ms", "is below first_ms", "raise it, or lower first_ms");
    }
    section.refuse_unread();
    spec
}

fn models<'a>(
    root: &Section<'a>,
    subclusters: &mut Subclusters,
    folder: &Path,
) -> Vec<Entry<'a, ModelSpec>> {
    let read = |(index, section): (usize, Section<'a>)| {
        let spec = model::model(&section, index as u32, subclusters, folder);
        Entry { section, spec }
    };
    root.tables("model").into_iter().enumerate().map(read).collect()
}

fn backends<'a>(
    root: &Section<'a>,
    subclusters: &mut Subclusters,
    models: &[Entry<'_, ModelSpec>],
    folder: &Path,
) -> Vec<Entry<'a, BackendSpec>> {
    let read = |section: Section<'a>| {
        let spec = backend(&section, subclusters, models, folder);
        Entry { section, spec }
    };
    root.tables("backend").into_iter().map(read).collect()
}

fn backend(
    section: &Section<'_>,
    subclusters: &mut Subclusters,
    models: &[Entry<'_, ModelSpec>],
    folder: &Path,
) -> Option<BackendSpec> {
    section.require("name", "name the backend: name = \"gpu-a\"");
    let name = section.name("name");
    let subcluster = subclusters.of_backend(section);
    let cards = cards(section);
    let gpus = section.integer("gpus", 1..=GPUS_PER_BACKEND_MAX);
    let gpus = slots(section, &cards, gpus);
    let cores = cores(section);
    let idle = section.word("idle").unwrap_or(Idle::Park);
    let credit_bytes = section
        .integer("credit_bytes", 0..=u32::MAX)
        .unwrap_or_else(|| CREDIT_BYTES.max(check::largest_input(subcluster, models)));
    let model_memory = section.integer("model_memory_mib", 1..=MODEL_MEMORY_MIB_MAX);
    let model_memory = model_memory.map(|mib| u64::from(mib) << 20);
    let weights_cache = weights::of_backend(section);
    let host_weights = weights::host_bytes(section, weights_cache);
    let model_folder = model_folder::of_backend(section, folder);
    let metrics = metrics(section);
    section.refuse_unread();
    let name = name?.to_owned();
    Some(BackendSpec {
        name,
        subcluster,
        gpus,
        cores,
        idle,
        credit_bytes,
        metrics,
        model_memory,
        weights_cache,
        host_weights,
        model_folder,
        cards,
    })
}

fn cards(section: &Section<'_>) -> CardsSpec {
    let lock_clocks = section.truth("lock_clocks").unwrap_or(false);
    let devices = section.texts("devices").unwrap_or_default();
    let plain = |name: &String| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-');
    let kind = |kind: &str| devices.iter().filter(|name| name.starts_with(kind)).count();
    let (cards, slices) = (kind("GPU-"), kind("MIG-"));
    if cards + slices < devices.len() || !devices.iter().all(plain) {
        let fix = "write GPU-… or MIG-… as `nvidia-smi -L` lists them";
        section.refuse("devices", "has a name that is no UUID of a GPU", fix);
    } else if slices > 0 && devices.len() > 1 {
        let fix = "give each MIG device a [[backend]] of its own";
        section.refuse("devices", "has a MIG device among others, and a process sees one", fix);
    }
    CardsSpec { devices, lock_clocks }
}

/// As many as there are devices, where these are named.
fn slots(section: &Section<'_>, cards: &CardsSpec, gpus: Option<u32>) -> u32 {
    let devices = cards.devices.len() as u32;
    match gpus {
        Some(gpus) if devices > 0 && devices != gpus => {
            let what = format!("is {gpus}, and `devices` names {devices}");
            section.refuse("gpus", what, "leave it out, or name as many devices");
            gpus
        }
        Some(gpus) => gpus,
        None => devices.max(1),
    }
}

fn cores(section: &Section<'_>) -> Vec<usize> {
    let cores = section.integers("cores", 0..=CORE_MAX).unwrap_or_default();
    let cores: Vec<usize> = cores.into_iter().map(|core| core as usize).collect();
    let here = section.host_cpus();
    if let Some((core, cpus)) =
        here.and_then(|cpus| Some((cores.iter().find(|core| !cpus.contains(**core))?, cpus)))
    {
        let what = format!("this host has no CPU {core}: a thread here would run unpinned");
        let fix = format!("use CPUs of {cpus}, or check the file on the host that is meant");
        section.warn("cores", what, fix);
    }
    cores
}
