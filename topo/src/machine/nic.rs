//! Network interfaces: RDMA devices with their ports, and network interfaces of PCIe devices.

use std::collections::BTreeSet;
use std::net::Ipv6Addr;

use serde::Serialize;

use super::gid::{Gid, GidKind};
use super::pci::PciPlace;
use super::sysroot::{Sysroot, Unread};

/// Entries of a port's GID table that are read: verbs number them with one byte here.
const GIDS_MAX: usize = 256;

/// A card, or one function of it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Nic {
    /// The RDMA device's name, else the network interface's.
    pub name: String,
    /// Its ports, if it is an RDMA device; otherwise empty.
    pub ports: Vec<Port>,
    /// The network interfaces on it; those its addresses belong to first.
    pub netdevs: Vec<String>,
    /// Where it sits; `None` for Soft-RoCE and the like on a virtual interface.
    pub pci: Option<PciPlace>,
    /// Its NUMA node, if known.
    pub node: Option<u32>,
}

/// A port of an RDMA device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Port {
    /// From 1.
    pub number: u8,
    /// The kernel's words: `4: ACTIVE`.
    pub state: String,
    /// The kernel's words: `5: LinkUp`.
    pub phys_state: String,
    /// `InfiniBand` or `Ethernet`.
    pub link_layer: String,
    /// The kernel's words: `200 Gb/sec (4X HDR)`.
    pub rate: String,
}

impl Nic {
    /// True if READs can go over it.
    pub fn is_rdma(&self) -> bool {
        !self.ports.is_empty()
    }

    /// The port with this number.
    pub fn port(&self, number: u8) -> Option<&Port> {
        self.ports.iter().find(|port| port.number == number)
    }
}

impl Port {
    /// True if it carries traffic.
    pub fn is_active(&self) -> bool {
        self.state.ends_with("ACTIVE")
    }

    /// True if peers are reached by GID.
    pub fn is_ethernet(&self) -> bool {
        self.link_layer == "Ethernet"
    }
}

/// RDMA devices first, then the network interfaces of other PCIe devices.
pub(super) fn read(root: &Sysroot, only_node: Option<u32>) -> Result<Vec<Nic>, Unread> {
    let mut nics = Vec::new();
    for name in root.names("/sys/class/infiniband")? {
        nics.push(rdma_device(root, name, only_node)?);
    }
    for name in root.names("/sys/class/net")? {
        let taken = nics.iter().any(|nic| nic.netdevs.contains(&name));
        let pci = PciPlace::of(root, &format!("/sys/class/net/{name}"));
        if let (false, Some(pci)) = (taken, pci) {
            let node = super::node_of(root, &pci, only_node)?;
            let netdevs = vec![name.clone()];
            nics.push(Nic { name, ports: Vec::new(), netdevs, pci: Some(pci), node });
        }
    }
    Ok(nics)
}

fn rdma_device(root: &Sysroot, name: String, only_node: Option<u32>) -> Result<Nic, Unread> {
    let device = format!("/sys/class/infiniband/{name}");
    let mut ports = Vec::new();
    for number in root.names(&format!("{device}/ports"))? {
        let Ok(number) = number.parse() else { continue };
        ports.push(port(root, &device, number)?);
    }
    let netdevs = netdevs(root, &device, &ports)?;
    // Soft-RoCE has no card of its own: it is where its interface is.
    let lower = netdevs.iter().find_map(|dev| PciPlace::of(root, &format!("/sys/class/net/{dev}")));
    let pci = PciPlace::of(root, &device).or(lower);
    let node = pci.as_ref().map(|pci| super::node_of(root, pci, only_node)).transpose()?.flatten();
    Ok(Nic { name, ports, netdevs, pci, node })
}

/// Those of the addresses first: with a bond the card's own interfaces have none.
fn netdevs(root: &Sysroot, device: &str, ports: &[Port]) -> Result<Vec<String>, Unread> {
    let mut netdevs: Vec<String> = Vec::new();
    for number in ports.iter().map(|port| port.number) {
        for entry in root.names(&format!("{device}/ports/{number}/gid_attrs/ndevs"))? {
            // Entries that are not in use have no interface, and reading them fails.
            netdevs.extend(netdev_of(root, device, number, &entry));
        }
    }
    netdevs.extend(root.names(&format!("{device}/device/net"))?);
    let mut seen = BTreeSet::new();
    netdevs.retain(|name| seen.insert(name.clone()));
    Ok(netdevs)
}

fn port(root: &Sysroot, device: &str, number: u8) -> Result<Port, Unread> {
    let read = |name: &str| root.needed(&format!("{device}/ports/{number}/{name}"));
    let (state, phys_state) = (read("state")?, read("phys_state")?);
    Ok(Port { number, state, phys_state, link_layer: read("link_layer")?, rate: read("rate")? })
}

fn netdev_of(root: &Sysroot, device: &str, port: u8, entry: &str) -> Option<String> {
    let path = format!("{device}/ports/{port}/gid_attrs/ndevs/{entry}");
    root.text(&path).ok().flatten().filter(|name| !name.is_empty())
}

/// The entries in use of a port's table, each with its network interface, if it has one.
///
/// # Errors
/// The table cannot be listed.
pub fn gid_table(
    root: &Sysroot,
    nic: &Nic,
    port: &Port,
) -> Result<Vec<(Gid, Option<String>)>, Unread> {
    let device = format!("/sys/class/infiniband/{}", nic.name);
    let table = format!("{device}/ports/{}", port.number);
    let mut entries = Vec::new();
    for entry in root.names(&format!("{table}/gids"))?.iter().take(GIDS_MAX) {
        // What cannot be read is not in use: the kernel refuses to read an empty entry's kind.
        let read = |file: &str| root.text(&format!("{table}/{file}/{entry}")).ok().flatten();
        let (Ok(index), Some(raw)) = (entry.parse(), read("gids").and_then(|text| address(&text)))
        else {
            continue;
        };
        let Some(kind) = read("gid_attrs/types").and_then(|text| kind(&text, port)) else {
            continue;
        };
        let netdev = netdev_of(root, &device, port.number, entry);
        entries.push((Gid { index, kind, raw }, netdev));
    }
    Ok(entries)
}

fn address(text: &str) -> Option<[u8; 16]> {
    let addr: Ipv6Addr = text.parse().ok()?;
    (!addr.is_unspecified()).then_some(addr.octets())
}

fn kind(text: &str, port: &Port) -> Option<GidKind> {
    match text {
        "RoCE v2" => Some(GidKind::RoceV2),
        "IB/RoCE v1" if port.is_ethernet() => Some(GidKind::RoceV1),
        "IB/RoCE v1" => Some(GidKind::Infiniband),
        _ => None,
    }
}
