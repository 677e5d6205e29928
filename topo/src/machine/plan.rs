//! Which cores Baton's threads belong on. Pure: from the machine alone.
//!
//! A backend's I/O thread goes next to the card through which its inputs arrive, a GPU's thread next to
//! its GPU, a scheduler's threads next to a card. Each thread has a physical core to itself. The plan
//! leaves core 0 to the kernel where there are others, and takes isolated cores first. Where that is not
//! possible the plan pins nothing and gives the reason.

use serde::Serialize;

use super::{CpuSet, Gpu, Machine, Nic, Node, Relation};

/// ModelThreads of a planned scheduler at most: more cores are better spent elsewhere.
const MODEL_THREADS_MAX: usize = 8;

/// Both roles, each as if it had the machine to itself.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Plan {
    /// One backend per NUMA node with GPUs; empty without GPUs.
    pub backends: Vec<BackendPlan>,
    /// A scheduler.
    pub scheduler: SchedulerPlan,
}

/// A backend process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct BackendPlan {
    /// The node of its GPUs; `None` if the host does not tell.
    pub node: Option<u32>,
    /// Its GPUs, in the order of its slots, each with the card nearest to it.
    pub gpus: Vec<GpuPlan>,
    /// `[rdma] device`: the card nearest to all its GPUs together.
    pub device: Option<String>,
    /// `[[backend]] cores`: I/O thread first, then one per GPU. Empty: no pinning.
    pub cores: Vec<usize>,
    /// Why these cores, or why none.
    pub reason: String,
}

/// A GPU and its card.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct GpuPlan {
    /// The GPU.
    pub gpu: String,
    /// The nearest card that can READ.
    pub nic: Option<String>,
    /// How they reach each other.
    pub relation: Option<Relation>,
}

/// A scheduler process.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct SchedulerPlan {
    /// The node it runs on.
    pub node: Option<u32>,
    /// `[scheduler] model_threads`.
    pub model_threads: usize,
    /// `[scheduler] cores`: RankThread, ModelThreads, ControlThread. Empty: no pinning.
    pub cores: Vec<usize>,
    /// Why these cores, or why none.
    pub reason: String,
}

impl Machine {
    /// The pinning that follows from the machine.
    pub fn plan(&self) -> Plan {
        let mut nodes: Vec<Option<u32>> = self.gpus.iter().map(|gpu| gpu.node).collect();
        nodes.sort_unstable();
        nodes.dedup();
        let backends = nodes.into_iter().map(|node| self.backend(node)).collect();
        Plan { backends, scheduler: self.scheduler() }
    }

    fn backend(&self, node: Option<u32>) -> BackendPlan {
        let gpus: Vec<&Gpu> = self.gpus.iter().filter(|gpu| gpu.node == node).collect();
        let device = self.device_for(&gpus);
        let (cores, reason) = self.backend_cores(node, device, gpus.len());
        let gpus = gpus.iter().map(|gpu| self.gpu(gpu)).collect();
        BackendPlan { node, gpus, device: device.map(|nic| nic.name.clone()), cores, reason }
    }

    fn gpu(&self, gpu: &Gpu) -> GpuPlan {
        let nearest = self.nearest_nic(gpu);
        GpuPlan {
            gpu: gpu.name.clone(),
            nic: nearest.map(|(nic, _)| nic.name.clone()),
            relation: nearest.map(|(_, relation)| relation),
        }
    }

    /// A backend READs over one card: the one whose farthest GPU is nearest, then that with the
    /// nearest GPU, with an active port before others.
    fn device_for(&self, gpus: &[&Gpu]) -> Option<&Nic> {
        self.nics.iter().filter(|nic| nic.is_rdma()).min_by_key(|nic| {
            let mut relations: Vec<Relation> =
                gpus.iter().map(|gpu| self.relation(nic, gpu)).collect();
            relations.sort_unstable_by(|a, b| b.cmp(a));
            (!nic.ports.iter().any(super::Port::is_active), relations)
        })
    }

    fn backend_cores(
        &self,
        node: Option<u32>,
        device: Option<&Nic>,
        gpus: usize,
    ) -> (Vec<usize>, String) {
        let Some(gpu_node) = self.node(node) else {
            return (Vec::new(), "the GPUs' NUMA node is not known: left to the kernel".into());
        };
        let Some(nic_node) = device.map_or(Some(gpu_node), |nic| self.node(nic.node)) else {
            return (Vec::new(), "the card's NUMA node is not known: left to the kernel".into());
        };
        let io = self.free_cores(nic_node);
        let slots = self.free_cores(gpu_node);
        let first = io.iter().next();
        let rest: Vec<usize> =
            slots.iter().filter(|core| Some(*core) != first).take(gpus).collect();
        let Some(first) = first.filter(|_| rest.len() == gpus) else {
            let of = if first.is_none() { nic_node.id } else { gpu_node.id };
            let reason = format!("node {of} has too few free cores: left to the kernel");
            return (Vec::new(), reason);
        };
        let reason = match device {
            Some(nic) => format!(
                "I/O thread on node {} with {}, GPU threads on node {}",
                nic_node.id, nic.name, gpu_node.id
            ),
            None => format!("all on node {} with the GPUs", gpu_node.id),
        };
        (std::iter::once(first).chain(rest).collect(), reason)
    }

    fn scheduler(&self) -> SchedulerPlan {
        let nic = self.nics.iter().find(|nic| nic.node.is_some());
        let node = self.node(nic.and_then(|nic| nic.node)).or_else(|| self.cpus.nodes.first());
        let cores: Vec<usize> =
            node.map(|node| self.free_cores(node).iter().collect()).unwrap_or_default();
        let id = node.map(|node| node.id);
        // The RankThread and the ControlThread take two.
        let model_threads = cores.len().saturating_sub(2).min(MODEL_THREADS_MAX);
        if model_threads == 0 {
            let (of, free) = (id.unwrap_or_default(), cores.len());
            let reason =
                format!("node {of} lacks free cores (3 needed, {free} free): left to the kernel");
            return SchedulerPlan { node: id, model_threads: 1, cores: Vec::new(), reason };
        }
        let near = nic.map_or_else(String::new, |nic| format!(" with {}", nic.name));
        let reason = format!("all on node {}{near}", id.unwrap_or_default());
        let cores = cores.into_iter().take(model_threads + 2).collect();
        SchedulerPlan { node: id, model_threads, cores, reason }
    }

    fn node(&self, id: Option<u32>) -> Option<&Node> {
        self.cpus.nodes.iter().find(|node| Some(node.id) == id)
    }

    /// Cores of a node that Baton may take: isolated ones if there are any, else all but core 0.
    fn free_cores(&self, node: &Node) -> CpuSet {
        let allowed = node.cores.and(&self.cpus.allowed);
        let isolated = allowed.and(&self.cpus.isolated);
        if isolated.is_empty() {
            allowed.iter().filter(|core| *core != 0).collect()
        } else {
            isolated
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Cpus, PciPlace, Port};
    use super::*;

    const SWITCH: &str = "pci0000:16/0000:16:01.0/0000:17:00.0";

    fn pci(way: &str) -> PciPlace {
        PciPlace::parse(&format!("/sys/devices/{way}")).unwrap()
    }

    fn card(name: &str, way: &str, state: &str) -> Nic {
        let text = String::new;
        let (phys_state, link_layer, rate) = (text(), text(), text());
        let port = Port { number: 1, state: state.into(), phys_state, link_layer, rate };
        let (ports, netdevs, node) = (vec![port], Vec::new(), Some(0));
        Nic { name: name.into(), ports, netdevs, pci: Some(pci(way)), node }
    }

    /// The card for two GPUs of node 0, of which one is below `SWITCH` and the other at another host bridge.
    fn device(nics: Vec<Nic>) -> Option<String> {
        let gpu = |name: &str, way: &str| Gpu {
            name: name.into(),
            model: None,
            pci: pci(way),
            node: Some(0),
        };
        let near = gpu("GPU0", &format!("{SWITCH}/0000:18:00.0/0000:19:00.0"));
        let gpus = vec![near, gpu("GPU1", "pci0000:30/0000:30:01.0/0000:31:00.0")];
        let none = CpuSet::default;
        let cpus = Cpus { online: none(), allowed: none(), isolated: none(), nodes: Vec::new() };
        Machine { cpus, nics, gpus }.plan().backends.remove(0).device
    }

    #[test]
    fn a_backend_reads_over_the_card_whose_farthest_gpu_is_nearest() {
        let active = "4: ACTIVE";
        // Both are far from the second GPU. Only one is near the first.
        let beside = || card("beside", &format!("{SWITCH}/0000:18:04.0/0000:1a:00.0"), active);
        let apart = || card("apart", "pci0000:40/0000:40:01.0/0000:41:00.0", active);
        assert_eq!(device(vec![apart(), beside()]).as_deref(), Some("beside"));
        let far = Nic { node: Some(1), ..beside() };
        assert_eq!(
            device(vec![far.clone(), apart()]).as_deref(),
            Some("apart"),
            "node 1 is farther"
        );
        let down = card("down", &format!("{SWITCH}/0000:18:04.0/0000:1a:00.0"), "1: DOWN");
        assert_eq!(
            device(vec![down.clone(), far]).as_deref(),
            Some("beside"),
            "it carries traffic"
        );
        assert_eq!(device(vec![down]).as_deref(), Some("down"));
        assert_eq!(device(Vec::new()), None);
    }
}
