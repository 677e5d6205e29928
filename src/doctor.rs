//! `baton doctor`.

use std::os::fd::AsFd;
use std::process::ExitCode;
use std::sync::Arc;

use baton_cuda::{DeviceExport, DeviceFacts, Library, Nvml};
use baton_topo::doctor::{Cuda, CudaDevice, CudaState, Need, Verbs, examine};
use baton_topo::machine::Sysroot;
use baton_topo::{TransportChoice, VerbsConfig};

use crate::CommandResult;
use crate::args::DoctorArgs;
use crate::output::{load_cluster, say};

/// Of a device's memory, given out for a moment.
const EXPORTED_BYTES: usize = 2 << 20;

pub(crate) fn run(args: &DoctorArgs) -> CommandResult {
    let need = match &args.config {
        Some(file) => Need::of(&load_cluster(file)?),
        None => Need::by_default(),
    };
    let root = Sysroot::open(&args.sysroot)?;
    let report = examine(&root, &need, &verbs(&root, &need), &cuda(&root, &need));
    say(&if args.json { serde_json::to_string(&report)? } else { report.to_string() })?;
    Ok(if report.passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The library speaks of the host it runs on, and is not even loaded where TCP is asked for or the
/// kernel has no device.
fn verbs(root: &Sysroot, need: &Need) -> Verbs {
    if !root.is_this_host() {
        return Verbs::NotAsked(
            "could not read it: libibverbs looks at this host, not at --sysroot",
        );
    }
    if need.fabric.transport == TransportChoice::Tcp {
        return Verbs::NotAsked("transport = \"tcp\": libibverbs is not loaded");
    }
    if !root.names("/sys/class/infiniband").is_ok_and(|devices| !devices.is_empty()) {
        return Verbs::NotAsked("there is no RDMA device to ask");
    }
    match baton_rdma::probe(&need.fabric.verbs) {
        Ok(told) => Verbs::Told(told),
        Err(error) => Verbs::Refused(error.to_string()),
    }
}

fn cuda(root: &Sysroot, need: &Need) -> Cuda {
    if !root.is_this_host() {
        return Cuda::NotAsked(
            "could not read it: the CUDA driver looks at this host, not at --sysroot",
        );
    }
    let library = match Library::open() {
        Ok(library) => library,
        Err(error) => return Cuda::Refused(error.to_string()),
    };
    let version = library.version();
    let fake = if library.is_fake() { " (FAKE: no GPU)" } else { "" };
    let (path, major, minor) = (library.path().display(), version / 1000, version % 1000 / 10);
    let driver = format!("{path}, for CUDA {major}.{minor}{fake}");
    match library.devices() {
        Ok(devices) => {
            let nvml = Nvml::open(&library).map_err(|error| error.to_string());
            let cards = cards(root, need);
            let devices = (0..).zip(devices).map(|(number, facts)| {
                // NVML first: it would count this process among the device's users.
                let state = state(&facts, &nvml);
                described((number, facts), state, &library, &cards)
            });
            Cuda::Told { driver, devices: devices.collect() }
        }
        Err(error) => Cuda::Refused(format!("{error}; see docs/gpu.md")),
    }
}

/// The RDMA devices that might write a GPU's memory.
fn cards(root: &Sysroot, need: &Need) -> Vec<VerbsConfig> {
    if need.fabric.transport == TransportChoice::Tcp {
        return Vec::new();
    }
    let names = root.names("/sys/class/infiniband").unwrap_or_default();
    let config = |name| VerbsConfig { device: Some(name), ..need.fabric.verbs.clone() };
    names.into_iter().map(config).collect()
}

fn state(device: &DeviceFacts, nvml: &Result<Arc<Nvml>, String>) -> Result<CudaState, String> {
    let look = |nvml: &Arc<Nvml>| nvml.look(&device.pci).map_err(|error| error.to_string());
    nvml.as_ref().map_err(Clone::clone).and_then(look).map(|state| CudaState {
        clock_mhz: state.sm_clock_mhz.zip(state.sm_clock_max_mhz),
        held_down_by: state.held_down_by,
        temperature_c: state.temperature_c,
        others: state.others,
        is_persistent: state.is_persistent,
        link_width: state.link_width,
        is_mig: state.is_mig,
    })
}

/// With what becomes of an attempt to give its memory to network cards, of which nothing is left afterwards.
fn described(
    (number, facts): (u32, DeviceFacts),
    state: Result<CudaState, String>,
    library: &Arc<Library>,
    cards: &[VerbsConfig],
) -> CudaDevice {
    let exported = library.export(number, EXPORTED_BYTES);
    let registered = match &exported {
        Ok(memory) => cards.iter().map(|card| registered(memory, card)).collect(),
        Err(_) => Vec::new(),
    };
    let export = exported.map(|memory| memory.bytes() as u64).map_err(|error| error.to_string());
    let DeviceFacts { name, memory_bytes, capability, direct, .. } = facts;
    CudaDevice { name, memory_bytes, capability, direct, export, registered, state }
}

fn registered(memory: &DeviceExport, card: &VerbsConfig) -> (String, Result<(), String>) {
    let tried = baton_rdma::probe_device_memory(card, memory.as_fd(), memory.bytes());
    (card.device.clone().unwrap_or_default(), tried.map_err(|error| error.to_string()))
}
