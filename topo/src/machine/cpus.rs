//! CPUs, cores and NUMA nodes.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

use super::sysroot::{Sysroot, Unread};

/// Linux numbers no CPU higher.
const CPU_MAX: usize = 8192;

/// CPUs by the kernel's numbers; written as `0-3,8`.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct CpuSet(BTreeSet<usize>);

impl CpuSet {
    /// The numbers, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        self.0.iter().copied()
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if it holds none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The lowest.
    pub fn first(&self) -> Option<usize> {
        self.0.first().copied()
    }

    /// True if `cpu` is in it.
    pub fn contains(&self, cpu: usize) -> bool {
        self.0.contains(&cpu)
    }

    /// What is in both.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0).copied().collect())
    }
}

impl FromIterator<usize> for CpuSet {
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl FromStr for CpuSet {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut set = BTreeSet::new();
        for part in text.split(',').map(str::trim).filter(|part| !part.is_empty()) {
            let (low, high) = part.split_once('-').unwrap_or((part, part));
            let (low, high): (usize, usize) =
                (low.parse().map_err(drop)?, high.parse().map_err(drop)?);
            if low > high || high > CPU_MAX {
                return Err(());
            }
            set.extend(low..=high);
        }
        Ok(Self(set))
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        let (mut comma, mut cpus) = ("", self.iter().peekable());
        while let Some(low) = cpus.next() {
            let mut high = low;
            while cpus.next_if(|next| *next == high + 1).is_some() {
                high += 1;
            }
            let range = if low == high { low.to_string() } else { format!("{low}-{high}") };
            write!(f, "{comma}{range}")?;
            comma = ",";
        }
        Ok(())
    }
}

impl Serialize for CpuSet {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_seq(self.iter())
    }
}

/// A NUMA node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Node {
    /// The kernel's number.
    pub id: u32,
    /// Its CPUs that are online.
    pub cpus: CpuSet,
    /// Its physical cores, by their first CPU.
    pub cores: CpuSet,
    /// Its memory, bytes, where the kernel reports it.
    pub memory_bytes: Option<u64>,
}

/// All CPUs of a host.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Cpus {
    /// Those that are online.
    pub online: CpuSet,
    /// Those this process may run on.
    pub allowed: CpuSet,
    /// Those the scheduler of the kernel leaves alone (`isolcpus`).
    pub isolated: CpuSet,
    /// NUMA nodes with their CPUs; a kernel without NUMA has node 0 only.
    pub nodes: Vec<Node>,
}

impl Cpus {
    /// Reads them.
    ///
    /// # Errors
    /// What is there cannot be read, or the list of CPUs online is missing.
    pub fn read(root: &Sysroot) -> Result<Self, Unread> {
        let list = "/sys/devices/system/cpu/online";
        let online: CpuSet = root.value(list)?.ok_or_else(|| absent(list))?;
        let isolated = root.value("/sys/devices/system/cpu/isolated")?.unwrap_or_default();
        let allowed = allowed(root)?.map_or_else(|| online.clone(), |set| set.and(&online));
        let first_of = first_siblings(root, &online)?;
        let mut nodes = Vec::new();
        for (id, cpus) in node_lists(root, &online)? {
            let cores = cpus.iter().filter(|cpu| first_of.get(cpu) == Some(cpu)).collect();
            nodes.push(Node { id, cores, memory_bytes: memory(root, id)?, cpus });
        }
        Ok(Self { online, allowed, isolated, nodes })
    }

    /// The node a CPU is on.
    pub fn node_of(&self, cpu: usize) -> Option<u32> {
        self.nodes.iter().find(|node| node.cpus.contains(cpu)).map(|node| node.id)
    }

    /// The only node there is.
    pub fn only_node(&self) -> Option<u32> {
        let [node] = self.nodes.as_slice() else { return None };
        Some(node.id)
    }
}

fn absent(path: &str) -> Unread {
    Unread { path: path.to_owned(), why: "there is no such file".to_owned() }
}

fn allowed(root: &Sysroot) -> Result<Option<CpuSet>, Unread> {
    let status = root.text("/proc/self/status")?.unwrap_or_default();
    let list = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    Ok(list.and_then(|list| list.trim().parse().ok()))
}

/// Each CPU's core, named by the core's first CPU. Where the kernel reports no siblings, a CPU is a
/// core.
fn first_siblings(root: &Sysroot, online: &CpuSet) -> Result<BTreeMap<usize, usize>, Unread> {
    let mut first_of = BTreeMap::new();
    for cpu in online.iter() {
        let path = format!("/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list");
        let siblings: Option<CpuSet> = root.value(&path)?;
        first_of.insert(cpu, siblings.and_then(|set| set.and(online).first()).unwrap_or(cpu));
    }
    Ok(first_of)
}

fn node_lists(root: &Sysroot, online: &CpuSet) -> Result<Vec<(u32, CpuSet)>, Unread> {
    let mut nodes = Vec::new();
    for name in root.names("/sys/devices/system/node")? {
        let Some(id) = name.strip_prefix("node").and_then(|id| id.parse().ok()) else { continue };
        let cpus: Option<CpuSet> =
            root.value(&format!("/sys/devices/system/node/{name}/cpulist"))?;
        nodes.push((id, cpus.unwrap_or_default().and(online)));
    }
    Ok(if nodes.is_empty() { vec![(0, online.clone())] } else { nodes })
}

fn memory(root: &Sysroot, node: u32) -> Result<Option<u64>, Unread> {
    let text = root.text(&format!("/sys/devices/system/node/node{node}/meminfo"))?;
    let kib: Option<u64> = text.and_then(|text| {
        let line = text.lines().find(|line| line.contains("MemTotal:"))?;
        line.split_whitespace().rev().nth(1)?.parse().ok()
    });
    Ok(kib.map(|kib| kib * 1024))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written_as_the_kernel_does() {
        for text in ["0", "0-3", "0-1,4,6-8"] {
            assert_eq!(text.parse::<CpuSet>().unwrap().to_string(), text);
        }
        assert_eq!("".parse::<CpuSet>().unwrap().to_string(), "none");
    }

    #[test]
    fn nonsense_is_refused() {
        for text in ["3-1", "a", "0-99999999999", "0-9000", "1-2-3", "-1"] {
            assert_eq!(text.parse::<CpuSet>(), Err(()), "{text}");
        }
    }
}
