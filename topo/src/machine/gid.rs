//! Which address of a port to speak from. Pure.
//!
//! A RoCE port has a table of addresses, several per network interface. A wrong choice fails only
//! when the first packet is lost. So the choice is by rank here, and the code that opens the device
//! proves it.

use std::fmt;
use std::net::Ipv6Addr;

/// How an entry travels.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum GidKind {
    /// InfiniBand.
    Infiniband,
    /// RoCE v1: Ethernet only, not routed.
    RoceV1,
    /// RoCE v2: UDP.
    RoceV2,
}

impl GidKind {
    /// The kind with libibverbs' number.
    pub const fn from_code(code: u32) -> Option<Self> {
        match code {
            0 => Some(Self::Infiniband),
            1 => Some(Self::RoceV1),
            2 => Some(Self::RoceV2),
            _ => None,
        }
    }
}

/// One usable entry of a port's table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Gid {
    /// Its place in the table.
    pub index: u32,
    /// How it travels.
    pub kind: GidKind,
    /// The address.
    pub raw: [u8; 16],
}

impl Gid {
    /// Lower is better: RoCE v2 over IPv4, over global IPv6, over link-local IPv6, then RoCE v1. On
    /// InfiniBand all are of one kind and the first serves.
    pub fn rank(&self) -> u8 {
        let addr = Ipv6Addr::from(self.raw);
        match self.kind {
            GidKind::Infiniband => 0,
            GidKind::RoceV2 if addr.to_ipv4_mapped().is_some() => 0,
            GidKind::RoceV2 if !addr.is_unicast_link_local() => 1,
            GidKind::RoceV2 => 2,
            GidKind::RoceV1 => 3,
        }
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            GidKind::Infiniband => "InfiniBand",
            GidKind::RoceV1 => "RoCE v1",
            GidKind::RoceV2 => "RoCE v2",
        };
        write!(f, "gid {} ({}, {kind})", self.index, Ipv6Addr::from(self.raw).to_canonical())
    }
}

/// Best first; entries of equal rank in the order of the table. Empty entries are left out.
pub fn ranked(mut table: Vec<Gid>) -> Vec<Gid> {
    table.retain(|gid| gid.raw != [0; 16]);
    table.sort_by_key(|gid| (gid.rank(), gid.index));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gid(index: u32, kind: GidKind, addr: &str) -> Gid {
        let addr: std::net::IpAddr = addr.parse().unwrap();
        let raw = match addr {
            std::net::IpAddr::V4(v4) => v4.to_ipv6_mapped().octets(),
            std::net::IpAddr::V6(v6) => v6.octets(),
        };
        Gid { index, kind, raw }
    }

    #[test]
    fn routable_ipv4_first_and_v1_last() {
        use GidKind::{RoceV1, RoceV2};
        let table = vec![
            gid(0, RoceV1, "fe80::1"),
            gid(1, RoceV2, "fe80::1"),
            gid(2, RoceV1, "10.0.0.1"),
            gid(3, RoceV2, "2001:db8::1"),
            gid(4, RoceV2, "10.0.0.1"),
            gid(5, RoceV2, "10.0.0.2"),
            gid(6, RoceV2, "::"),
        ];
        let order: Vec<_> = ranked(table).iter().map(|gid| gid.index).collect();
        assert_eq!(order, [4, 5, 3, 1, 0, 2]);
    }

    #[test]
    fn infiniband_keeps_the_order_of_the_table() {
        let table =
            vec![gid(1, GidKind::Infiniband, "fe80::2"), gid(0, GidKind::Infiniband, "fe80::1")];
        assert_eq!(ranked(table)[0].index, 0);
    }
}
