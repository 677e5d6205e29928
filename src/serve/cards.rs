//! A backend's GPUs besides what executes on them: which ones it sees, their clocks, and what they show to Prometheus.

use std::error::Error;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::Arc;

use baton_cuda::{GpuState, Library, LockedClocks, Nvml};
use baton_metrics::{Metric, Value};
use baton_topo::CardsSpec;

/// What the CUDA driver reads when it starts, and ONNX Runtime with it.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";
const DEVICE: &[&str] = &["device"];

/// This process sees the devices that its cluster file names: it starts itself anew, once, with what the driver reads.
pub(super) fn see(cards: &CardsSpec) -> Result<(), Box<dyn Error>> {
    let wanted = cards.devices.join(",");
    if wanted.is_empty() || std::env::var(VISIBLE).is_ok_and(|seen| seen == wanted) {
        return Ok(());
    }
    let mut again = Command::new(std::env::current_exe()?);
    let error = again.args(std::env::args_os().skip(1)).env(VISIBLE, wanted).exec();
    Err(format!("cannot start anew with {VISIBLE}: {error}").into())
}

/// The GPUs of a backend.
#[derive(Debug)]
pub(super) struct Cards {
    nvml: Arc<Nvml>,
    /// PCI addresses, by GPU slot.
    pci: Vec<String>,
}

impl Cards {
    /// Of the first `gpus` devices.
    ///
    /// # Errors
    /// There is no driver or no NVML.
    pub(super) fn find(gpus: u32) -> Result<Self, Box<dyn Error>> {
        let library = Library::open()?;
        let nvml = Nvml::open(&library)?;
        let devices = library.devices()?;
        let pci = devices.into_iter().take(gpus as usize).map(|device| device.pci).collect();
        Ok(Self { nvml, pci })
    }

    /// Holds the clocks at their highest until what this returns is dropped.
    pub(super) fn lock(&self) -> Result<Vec<LockedClocks>, Box<dyn Error>> {
        let lock = |pci: &String| {
            self.nvml.lock_clocks(pci).map_err(|error| {
                let fix = if error.is_no_permission() { "run as root, or " } else { "" };
                format!("lock_clocks: {error}; {fix}remove the key")
            })
        };
        let locked = self.pci.iter().map(lock).collect::<Result<Vec<_>, _>>()?;
        let mhz: Vec<u32> = locked.iter().map(LockedClocks::mhz).collect();
        tracing::info!(?mhz, "clocks are locked; if this process is killed: nvidia-smi -rgc");
        Ok(locked)
    }

    /// As Prometheus scrapes them.
    pub(super) fn metrics(&self) -> Vec<Metric> {
        let states = self.pci.iter().map(|pci| self.nvml.look(pci).unwrap_or_default());
        metrics(&states.collect::<Vec<_>>())
    }
}

/// What NVML tells of the devices, by GPU slot.
pub(super) fn metrics(states: &[GpuState]) -> Vec<Metric> {
    let gauge = |name: &str, help, of: fn(&GpuState) -> Option<f64>| {
        let mut metric = Metric::gauges(format!("baton_gpu_{name}"), help, DEVICE);
        let levels = states
            .iter()
            .enumerate()
            .filter_map(|(slot, state)| Some((vec![slot.to_string()], Value::Level(of(state)?))));
        metric.series.extend(levels);
        metric
    };
    vec![
        gauge("clock_hertz", "Clock of the device's multiprocessors", |state| {
            state.sm_clock_mhz.map(|mhz| f64::from(mhz) * 1e6)
        }),
        gauge("held_down", "1 while heat or power holds the device's clock down", |state| {
            state.sm_clock_mhz.map(|_| f64::from(u8::from(!state.held_down_by.is_empty())))
        }),
        gauge("other_processes", "Other processes that compute on the device", |state| {
            state.others.map(f64::from)
        }),
        gauge("temperature_celsius", "Temperature of the device", |state| {
            state.temperature_c.map(f64::from)
        }),
    ]
}
