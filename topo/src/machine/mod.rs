//! The host Baton runs on: cores, NUMA nodes, network cards, GPUs, how far apart they are, and the
//! pinning that follows. Everything is read through a [`Sysroot`].

mod cpus;
mod draw;
pub mod gid;
mod gpu;
mod nic;
mod pci;
mod plan;
mod sysroot;

use serde::Serialize;

pub use cpus::{CpuSet, Cpus, Node};
pub use draw::{Drawing, Pair};
pub use gpu::Gpu;
pub use nic::{Nic, Port, gid_table};
pub use pci::{PciPlace, Relation};
pub use plan::{BackendPlan, GpuPlan, Plan, SchedulerPlan};
pub use sysroot::{Sysroot, SysrootError, Unread};

/// What a host is made of.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Machine {
    /// CPUs, cores and NUMA nodes.
    #[serde(flatten)]
    pub cpus: Cpus,
    /// RDMA devices, then other network interfaces on PCIe.
    pub nics: Vec<Nic>,
    /// NVIDIA GPUs.
    pub gpus: Vec<Gpu>,
}

impl Machine {
    /// Reads all of it.
    ///
    /// # Errors
    /// Something is there and cannot be read; nothing is made up in its place.
    pub fn read(root: &Sysroot) -> Result<Self, Unread> {
        let cpus = Cpus::read(root)?;
        let only_node = cpus.only_node();
        Ok(Self { nics: nic::read(root, only_node)?, gpus: gpu::read(root, only_node)?, cpus })
    }

    /// How a card and a GPU reach each other.
    pub fn relation(&self, nic: &Nic, gpu: &Gpu) -> Relation {
        let nodes = (nic.node, gpu.node);
        nic.pci.as_ref().map_or(Relation::Unknown, |pci| pci.relation(&gpu.pci, nodes))
    }

    /// The card nearest to a GPU among those that can READ, the first of equals.
    pub fn nearest_nic(&self, gpu: &Gpu) -> Option<(&Nic, Relation)> {
        let able = self.nics.iter().filter(|nic| nic.is_rdma());
        able.map(|nic| (nic, self.relation(nic, gpu))).min_by_key(|(_, relation)| *relation)
    }
}

/// The node a PCIe device is on: the kernel's answer, or the only node there is.
fn node_of(root: &Sysroot, pci: &PciPlace, only_node: Option<u32>) -> Result<Option<u32>, Unread> {
    let node: Option<i64> =
        root.value(&format!("/sys/bus/pci/devices/{}/numa_node", pci.address()))?;
    Ok(node.and_then(|node| u32::try_from(node).ok()).or(only_node))
}
