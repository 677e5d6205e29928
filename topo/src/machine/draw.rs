//! The machine and the plan as text.

use std::fmt;

use serde::Serialize;

use super::{BackendPlan, Gpu, Machine, Nic, Plan, Relation};

const LEGEND: &str = "\
PIX  over at most one PCIe switch          PXB  over several PCIe bridges
PHB  over a PCIe host bridge               NODE over host bridges of one NUMA node
SYS  between NUMA nodes                    ?    the host does not tell
";

/// A machine, the distances in it, and the plan: what `baton topo show` prints.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Drawing<'a> {
    /// The machine.
    #[serde(flatten)]
    pub machine: &'a Machine,
    /// Every pair of cards and GPUs, once.
    pub relations: Vec<Pair>,
    /// The pinning that follows.
    pub plan: Plan,
}

/// Two devices and how they reach each other.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Pair {
    /// One.
    pub a: String,
    /// The other.
    pub b: String,
    /// How they reach each other.
    pub relation: Relation,
}

impl fmt::Display for Drawing<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.machine, self.plan)
    }
}

impl fmt::Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for node in &self.cpus.nodes {
            let memory = node.memory_bytes.map_or_else(String::new, |bytes| {
                format!(", {:.0} GiB", bytes as f64 / (1_u64 << 30) as f64)
            });
            let (cores, cpus) = (node.cores.len(), &node.cpus);
            writeln!(f, "node {}: CPUs {cpus} ({cores} cores){memory}", node.id)?;
            self.devices(f, Some(node.id))?;
        }
        if self.nics.iter().any(|nic| nic.node.is_none())
            || self.gpus.iter().any(|gpu| gpu.node.is_none())
        {
            writeln!(f, "on no node the host tells:")?;
            self.devices(f, None)?;
        }
        let cpus = &self.cpus;
        if cpus.allowed != cpus.online {
            writeln!(f, "this process may run on CPUs {}", cpus.allowed)?;
        }
        if !cpus.isolated.is_empty() {
            writeln!(f, "isolated CPUs {}", cpus.isolated)?;
        }
        self.matrix(f)
    }
}

impl Machine {
    fn devices(&self, f: &mut fmt::Formatter<'_>, node: Option<u32>) -> fmt::Result {
        for nic in self.nics.iter().filter(|nic| nic.node == node) {
            writeln!(f, "  {}", describe_nic(nic))?;
        }
        for gpu in self.gpus.iter().filter(|gpu| gpu.node == node) {
            writeln!(f, "  {}", describe_gpu(gpu))?;
        }
        Ok(())
    }

    fn matrix(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ends = self.ends();
        if ends.len() < 2 {
            return Ok(());
        }
        let width = ends.iter().map(|end| end.name.len()).max().unwrap_or(0).max(4);
        write!(f, "\n{:width$}", "")?;
        for end in &ends {
            write!(f, "  {:width$}", end.name)?;
        }
        writeln!(f, "  node")?;
        for a in &ends {
            write!(f, "{:width$}", a.name)?;
            for b in &ends {
                write!(f, "  {:width$}", a.relation(b))?;
            }
            writeln!(f, "  {}", a.node.map_or_else(|| "?".to_owned(), |node| node.to_string()))?;
        }
        write!(f, "\n{LEGEND}")
    }

    /// All there is to show.
    pub fn drawing(&self) -> Drawing<'_> {
        let ends = self.ends();
        let mut relations = Vec::new();
        for (at, a) in ends.iter().enumerate() {
            relations.extend(ends[at + 1..].iter().map(|b| Pair {
                a: a.name.to_owned(),
                b: b.name.to_owned(),
                relation: a.relation(b),
            }));
        }
        Drawing { machine: self, relations, plan: self.plan() }
    }

    fn ends(&self) -> Vec<End<'_>> {
        let nics = self.nics.iter().map(|nic| End {
            name: &nic.name,
            pci: nic.pci.as_ref(),
            node: nic.node,
        });
        let gpus = self.gpus.iter().map(|gpu| End {
            name: &gpu.name,
            pci: Some(&gpu.pci),
            node: gpu.node,
        });
        nics.chain(gpus).collect()
    }
}

/// A card or a GPU in the matrix.
struct End<'a> {
    name: &'a str,
    pci: Option<&'a super::PciPlace>,
    node: Option<u32>,
}

impl End<'_> {
    fn relation(&self, other: &Self) -> Relation {
        match (self.pci, other.pci) {
            _ if self.name == other.name => Relation::Same,
            (Some(a), Some(b)) => a.relation(b, (self.node, other.node)),
            _ => Relation::Unknown,
        }
    }
}

fn describe_nic(nic: &Nic) -> String {
    let address = nic.pci.as_ref().map_or("virtual", |pci| pci.address());
    let mut text = format!("NIC {:<10} {address}", nic.name);
    for port in &nic.ports {
        let (number, layer, rate, state) = (port.number, &port.link_layer, &port.rate, &port.state);
        text.push_str(&format!("  port {number}: {layer}, {rate}, {state}"));
    }
    if nic.is_rdma() && !nic.netdevs.is_empty() {
        text.push_str(&format!("  ({})", nic.netdevs.join(", ")));
    }
    text
}

fn describe_gpu(gpu: &Gpu) -> String {
    let model = gpu.model.as_deref().unwrap_or("(driver not loaded)");
    format!("GPU {:<10} {}  {model}", gpu.name, gpu.pci.address())
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "pinning plan, each role as if it had the machine to itself")?;
        if self.backends.is_empty() {
            writeln!(f, "  backend: no GPU, nothing to pin to")?;
        }
        for backend in &self.backends {
            write!(f, "{backend}")?;
        }
        let scheduler = &self.scheduler;
        writeln!(f, "  scheduler: {}", scheduler.reason)?;
        writeln!(f, "    [scheduler]  model_threads = {}", scheduler.model_threads)?;
        pinned(f, &scheduler.cores, "RankThread, ModelThreads, ControlThread")
    }
}

impl fmt::Display for BackendPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let node = self.node.map_or_else(|| "?".to_owned(), |node| node.to_string());
        writeln!(f, "  backend of node {node}: {}", self.reason)?;
        for gpu in &self.gpus {
            match (&gpu.nic, gpu.relation) {
                (Some(nic), Some(relation)) => {
                    writeln!(f, "    {} is nearest to {nic} ({relation})", gpu.gpu)?;
                }
                _ => writeln!(f, "    {} has no card that can READ", gpu.gpu)?,
            }
        }
        if let Some(device) = &self.device {
            writeln!(f, "    [rdma]       device = \"{device}\"")?;
        }
        writeln!(f, "    [[backend]]  gpus = {}", self.gpus.len())?;
        pinned(f, &self.cores, "I/O thread, one per GPU")
    }
}

fn pinned(f: &mut fmt::Formatter<'_>, cores: &[usize], threads: &str) -> fmt::Result {
    if cores.is_empty() {
        Ok(())
    } else {
        writeln!(f, "                 cores = {cores:?}  # {threads}")
    }
}
