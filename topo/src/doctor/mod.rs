//! Is this host fit for Baton? One line per check: what is seen, what is expected, what to do.
//!
//! The doctor reads everything through a [`Sysroot`], so that the same code examines a recorded tree. The
//! caller supplies what only libibverbs knows ([`Verbs`]). A check that cannot be made reports that; none
//! guesses.

mod cuda;
mod host;
mod line;
mod need;
mod place;
mod rdma;
mod tcp;

use crate::cluster_file::TransportChoice;
use crate::machine::{Machine, Sysroot};

pub use line::{Check, Report, Status};
pub use need::Need;

/// What libibverbs reports about the device that would be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct VerbsLimits {
    /// Its name.
    pub device: String,
    /// The port.
    pub port: u8,
    /// The address chosen, and proved by an address handle.
    pub gid: String,
    /// Largest packet the port sends now, bytes.
    pub mtu_bytes: u32,
    /// Queue pairs.
    pub queue_pairs: u32,
    /// Work requests in a queue.
    pub requests: u32,
    /// Completions in a queue.
    pub completions: u32,
    /// READs one queue pair may have under way.
    pub initiator_depth: u32,
    /// READs one queue pair may be answering.
    pub responder_depth: u32,
    /// READs all queue pairs together may be answering.
    pub responder_budget: u32,
}

/// What is known through libibverbs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Verbs {
    /// The caller did not query it, for this reason.
    NotAsked(&'static str),
    /// It, or the device, refused; the words end with what to do, after a semicolon.
    Refused(String),
    /// Its answer.
    Told(VerbsLimits),
}

/// A device, as the CUDA driver describes it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CudaDevice {
    /// As its maker calls it.
    pub name: String,
    /// Its memory, bytes.
    pub memory_bytes: u64,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Whether its memory can be given to network cards at all.
    pub direct: bool,
    /// How many bytes of its memory were given out as a dma-buf, or why none.
    pub export: Result<u64, String>,
    /// What each RDMA device said to registering them.
    pub registered: Vec<(String, Result<(), String>)>,
    /// What NVML tells of it, or why it does not.
    pub state: Result<CudaState, String>,
}

/// A device as it is now, by NVML. What it does not tell is `None`.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct CudaState {
    /// The clock of its multiprocessors and the highest there is, MHz.
    pub clock_mhz: Option<(u32, u32)>,
    /// Why the clock is not higher.
    pub held_down_by: Vec<&'static str>,
    /// °C.
    pub temperature_c: Option<u32>,
    /// Other processes that compute there.
    pub others: Option<u32>,
    /// Whether the driver keeps it ready without a process.
    pub is_persistent: Option<bool>,
    /// Lanes of its PCI Express link, now and at most.
    pub link_width: Option<(u32, u32)>,
    /// Whether it is cut into MIG devices.
    pub is_mig: Option<bool>,
}

/// What is known through the CUDA driver.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cuda {
    /// The caller did not query it, for this reason.
    NotAsked(&'static str),
    /// There is none, or it refused; the words end with what to do, after a semicolon.
    Refused(String),
    /// What was opened, and its devices.
    Told {
        /// File and version.
        driver: String,
        /// In the driver's order.
        devices: Vec<CudaDevice>,
    },
}

/// Runs every check.
pub fn examine(root: &Sysroot, need: &Need, verbs: &Verbs, cuda: &Cuda) -> Report {
    let machine = Machine::read(root);
    let mut checks = host::checks(root, machine.as_ref().ok(), need);
    checks.extend(tcp::checks(root, need));
    checks.extend(cuda::checks(need, cuda));
    match &machine {
        Ok(machine) => {
            checks.extend(fabric(root, machine, need, verbs));
            checks.extend(place::checks(root, machine));
        }
        Err(unread) => {
            let advice = line::Advice::new("machine", "cores, cards and GPUs that can be read", "");
            checks.push(advice.unread(unread.to_string()));
        }
    }
    Report::of(checks)
}

fn fabric(root: &Sysroot, machine: &Machine, need: &Need, verbs: &Verbs) -> Vec<Check> {
    match need.fabric.transport {
        TransportChoice::Tcp => vec![Check::not_applicable(
            "rdma device",
            "transport = \"tcp\": no device is looked at",
        )],
        TransportChoice::Rdma | TransportChoice::Auto => rdma::checks(root, machine, need, verbs),
    }
}

/// `1 device`, `2 devices`.
fn counted(count: usize, what: &str) -> String {
    format!("{count} {what}{}", if count == 1 { "" } else { "s" })
}

/// A number of bytes for people, exact where it is a whole number of the unit.
fn bytes(count: u64) -> String {
    let units = [("GiB", 1_u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    let unit = units.into_iter().find(|(_, size)| count >= *size);
    match unit {
        Some((name, size)) if count.is_multiple_of(size) => format!("{} {name}", count / size),
        Some((name, size)) => format!("{:.1} {name}", count as f64 / size as f64),
        None => format!("{count} bytes"),
    }
}
