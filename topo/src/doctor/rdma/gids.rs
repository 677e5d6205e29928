//! Addresses and packet size.

use crate::doctor::Verbs;
use crate::doctor::line::{Advice, Check, Status, looked};
use crate::doctor::need::Need;
use crate::machine::gid::{Gid, ranked};
use crate::machine::{Nic, Port, Sysroot, gid_table};

/// What a RoCE packet spends on headers, as the kernel reckons when it derives the packet size from a
/// network interface's MTU: GRH 40, UDP 8, BTH 12, XRC 4, atomic 28, ICRC 4.
const ROCE_HEADER_BYTES: u32 = 96;
const PACKET_BYTES_MAX: u32 = 4096;

pub(super) fn check(root: &Sysroot, nic: &Nic, port: &Port, need: &Need) -> Check {
    let netdev = nic.netdevs.first().map_or("ETH", String::as_str);
    let (expected, fix) = if port.is_ethernet() {
        let fix = format!("ip addr add ADDRESS/PREFIX dev {netdev}");
        ("RoCE v2 over IPv4".to_owned(), fix)
    } else {
        ("an address".to_owned(), "check that a subnet manager runs (sminfo)".to_owned())
    };
    let check = looked(Advice::new("gid", expected, fix), |advice| {
        let table = gid_table(root, nic, port)?;
        // On Ethernet an entry without an interface of ours is a leftover.
        let local = table.iter().filter(|(_, netdev)| !port.is_ethernet() || netdev.is_some());
        let usable: Vec<Gid> = local.map(|(gid, _)| *gid).collect();
        Ok(match need.fabric.verbs.gid_index {
            Some(index) => asked_for(advice, &usable, index),
            None => by_rank(advice, usable),
        })
    });
    check.of(format!("{} port {}", nic.name, port.number))
}

fn by_rank(advice: Advice, usable: Vec<Gid>) -> Check {
    let entries = usable.len();
    let Some(best) = ranked(usable).first().copied() else {
        return advice.found(Status::Failure, "no address of the table can be used");
    };
    let seen = format!("{best}, the best of {entries} that can be used");
    advice.judged(best.rank() == 0, Status::Warning, seen)
}

fn asked_for(mut advice: Advice, usable: &[Gid], index: u32) -> Check {
    advice.expected = format!("entry {index}, as [rdma] gid_index asks");
    match usable.iter().find(|gid| gid.index == index) {
        Some(gid) => advice.found(Status::Ok, gid.to_string()),
        None => {
            advice.fix = "leave [rdma] gid_index out to have it chosen".to_owned();
            advice.found(Status::Failure, format!("entry {index} cannot be used"))
        }
    }
}

pub(super) fn mtu(root: &Sysroot, nic: &Nic, port: &Port, verbs: &Verbs) -> Check {
    let told = match verbs {
        Verbs::Told(told) => Some(told.mtu_bytes),
        Verbs::NotAsked(_) | Verbs::Refused(_) => None,
    };
    let expected = format!("packets of {PACKET_BYTES_MAX} bytes");
    let check = if port.is_ethernet() {
        ethernet_mtu(root, nic, expected, told)
    } else {
        let fix = "raise the MTU of the fabric in the subnet manager's partition file";
        let advice = Advice::new("mtu", expected, fix);
        match told {
            Some(packet) => judged_packet(advice, packet, ""),
            None => advice.unread("could not read it: on InfiniBand only libibverbs tells"),
        }
    };
    check.of(format!("{} port {}", nic.name, port.number))
}

/// The packet size follows from the network interface's MTU; peers agree on the smaller of theirs.
fn ethernet_mtu(root: &Sysroot, nic: &Nic, expected: String, told: Option<u32>) -> Check {
    let Some(netdev) = nic.netdevs.first() else {
        return Advice::new("mtu", expected, "").unread("could not read it: no network interface");
    };
    let fix = format!("ip link set {netdev} mtu 4200 (or 9000) on all hosts, and on the switches");
    looked(Advice::new("mtu", expected, fix), |advice| {
        let path = format!("/sys/class/net/{netdev}/mtu");
        let Some(mtu) = root.value::<u32>(&path)? else {
            return Ok(advice.unread(format!("could not read {path}: there is no such file")));
        };
        let room = mtu.saturating_sub(ROCE_HEADER_BYTES);
        let derived = [4096, 2048, 1024, 512, 256].into_iter().find(|packet| *packet <= room);
        Ok(match told.or(derived) {
            Some(packet) => judged_packet(advice, packet, &format!(", as {netdev} has {mtu}")),
            None => advice.found(Status::Failure, format!("no packet fits: {netdev} has {mtu}")),
        })
    })
}

fn judged_packet(advice: Advice, packet_bytes: u32, why: &str) -> Check {
    let seen = format!("packets of {packet_bytes} bytes{why}");
    advice.judged(packet_bytes >= PACKET_BYTES_MAX, Status::Warning, seen)
}
