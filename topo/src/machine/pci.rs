//! Where devices sit on PCIe, and how far apart two of them are. Pure but for reading one path.

use std::fmt;

use serde::{Serialize, Serializer};

use super::sysroot::Sysroot;

/// A device's way from its host bridge, as the kernel's device tree has it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PciPlace {
    /// The host bridge: `pci0000:16`.
    host_bridge: String,
    /// Addresses of the bridges on the way and, last, the device.
    way: Vec<String>,
}

/// How two devices reach each other, nearest first. The letters are those of `nvidia-smi topo`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Relation {
    /// The same device.
    Same,
    /// Over at most one PCIe switch.
    Pix,
    /// Over several PCIe bridges, below one host bridge.
    Pxb,
    /// Over the host bridge.
    Phb,
    /// Over several host bridges of one NUMA node.
    Node,
    /// Between NUMA nodes.
    Sys,
    /// The host does not tell.
    Unknown,
}

impl PciPlace {
    /// From a path with all links followed: `/sys/devices/pci0000:16/0000:16:01.0/0000:17:00.0/…`.
    pub fn parse(path: &str) -> Option<Self> {
        let mut parts = path.split('/').skip_while(|part| !is_host_bridge(part));
        let host_bridge = parts.next()?.to_owned();
        let way: Vec<String> =
            parts.take_while(|part| is_address(part)).map(str::to_owned).collect();
        (!way.is_empty()).then_some(Self { host_bridge, way })
    }

    /// Of what `path` links to; `None` for a device that is not on PCIe.
    pub(super) fn of(root: &Sysroot, path: &str) -> Option<Self> {
        Self::parse(&root.resolved(path)?)
    }

    /// The device's address: `0000:17:00.0`.
    pub fn address(&self) -> &str {
        self.way.last().map_or("", String::as_str)
    }

    /// How two devices reach each other; `nodes` are the NUMA nodes they are on, if known.
    pub fn relation(&self, other: &Self, nodes: (Option<u32>, Option<u32>)) -> Relation {
        if self == other {
            return Relation::Same;
        }
        if self.host_bridge != other.host_bridge {
            return match nodes {
                (Some(a), Some(b)) if a == b => Relation::Node,
                (Some(_), Some(_)) => Relation::Sys,
                _ => Relation::Unknown,
            };
        }
        let shared = self.way.iter().zip(&other.way).take_while(|(a, b)| a == b).count();
        // A switch is its upstream port and one downstream port for each device: beyond the shared
        // part there is one bridge, or none.
        let beyond = self.way.len().max(other.way.len()).saturating_sub(shared + 1);
        match (shared, beyond) {
            (0, _) => Relation::Phb,
            (_, 0 | 1) => Relation::Pix,
            _ => Relation::Pxb,
        }
    }
}

fn is_host_bridge(part: &str) -> bool {
    part.strip_prefix("pci").and_then(|rest| rest.split_once(':')).is_some_and(|(domain, bus)| {
        domain.len() >= 4 && bus.len() == 2 && is_hex(domain) && is_hex(bus)
    })
}

fn is_address(part: &str) -> bool {
    let fields: Vec<&str> = part.split([':', '.']).collect();
    let [domain, bus, device, function] = fields.as_slice() else { return false };
    domain.len() >= 4
        && (bus.len(), device.len(), function.len()) == (2, 2, 1)
        && fields.iter().all(|field| is_hex(field))
}

fn is_hex(text: &str) -> bool {
    text.chars().all(|c| c.is_ascii_hexdigit())
}

impl Relation {
    /// As `nvidia-smi topo` writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Same => "X",
            Self::Pix => "PIX",
            Self::Pxb => "PXB",
            Self::Phb => "PHB",
            Self::Node => "NODE",
            Self::Sys => "SYS",
            Self::Unknown => "?",
        }
    }
}

impl fmt::Display for Relation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl Serialize for Relation {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.as_str())
    }
}

impl Serialize for PciPlace {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.address())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE: (Option<u32>, Option<u32>) = (Some(0), Some(0));

    fn place(way: &str) -> PciPlace {
        PciPlace::parse(&format!("/sys/devices/{way}")).unwrap()
    }

    fn relation(a: &str, b: &str) -> Relation {
        let (a, b) = (place(a), place(b));
        assert_eq!(a.relation(&b, ONE), b.relation(&a, ONE), "it has no direction");
        a.relation(&b, ONE)
    }

    #[test]
    fn below_one_switch_or_one_port_is_pix() {
        let up = "pci0000:16/0000:16:01.0/0000:17:00.0";
        let (nic, gpu) =
            (format!("{up}/0000:18:00.0/0000:19:00.0"), format!("{up}/0000:18:04.0/0000:1a:00.0"));
        assert_eq!(relation(&nic, &gpu), Relation::Pix);
        let port = "pci0000:16/0000:16:01.0";
        let (a, b) = (format!("{port}/0000:17:00.0"), format!("{port}/0000:17:00.1"));
        assert_eq!(relation(&a, &b), Relation::Pix);
    }

    #[test]
    fn cascaded_switches_are_pxb() {
        let up = "pci0000:16/0000:16:01.0/0000:17:00.0";
        let nic = format!("{up}/0000:18:00.0/0000:19:00.0");
        let gpu = format!("{up}/0000:18:04.0/0000:1a:00.0/0000:1b:00.0/0000:1c:00.0");
        assert_eq!(relation(&nic, &gpu), Relation::Pxb);
    }

    #[test]
    fn the_host_bridge_is_phb_and_nodes_decide_beyond_it() {
        let (a, b) = ("pci0000:16/0000:16:01.0/0000:17:00.0", "pci0000:16/0000:16:02.0");
        assert_eq!(relation(a, b), Relation::Phb);
        let (a, b) = (place(a), place("pci0000:97/0000:97:01.0"));
        assert_eq!(a.relation(&b, ONE), Relation::Node);
        assert_eq!(a.relation(&b, (Some(0), Some(1))), Relation::Sys);
        assert_eq!(a.relation(&b, (Some(0), None)), Relation::Unknown);
        assert_eq!(a.relation(&a.clone(), ONE), Relation::Same);
    }

    #[test]
    fn only_addresses_belong_to_the_way() {
        let eth = place("pci0000:00/0000:00:03.0/virtio2/net/eth0");
        assert_eq!(eth.address(), "0000:00:03.0");
        assert_eq!(PciPlace::parse("/sys/devices/virtual/net/lo"), None);
        assert_eq!(PciPlace::parse("/sys/devices/pci0000:00"), None);
        for other in ["pci000:00", "pci0000:0", "pci000g:00", "pci0000:0g"] {
            assert_eq!(PciPlace::parse(&format!("/sys/devices/{other}/0000:00:03.0")), None);
        }
        for other in ["000:00:03.1", "0000:00:3.1", "0000:00:0g.1"] {
            let way = place(&format!("pci0000:00/0000:00:03.0/{other}"));
            assert_eq!(way, place("pci0000:00/0000:00:03.0"), "{other}");
        }
    }
}
