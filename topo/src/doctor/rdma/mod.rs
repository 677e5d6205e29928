//! RDMA devices: what would be used, and whether it is fit.

mod device;
mod gids;
mod traffic;

use super::line::{Advice, Check, Status};
use super::need::Need;
use super::{Verbs, counted};
use crate::cluster_file::TransportChoice;
use crate::machine::{Machine, Nic, Sysroot};

const CHECK: &str = "rdma device";
const GET_ONE: &str =
    "load the driver of your card, or for Soft-RoCE: rdma link add rxe0 type rxe netdev ETH";

pub(super) fn checks(root: &Sysroot, machine: &Machine, need: &Need, verbs: &Verbs) -> Vec<Check> {
    let able: Vec<&Nic> = machine.nics.iter().filter(|nic| nic.is_rdma()).collect();
    if able.is_empty() {
        return vec![no_device(need)];
    }
    let chosen = chosen(&able, need);
    let mut checks = vec![present(&able, chosen, need)];
    for nic in &able {
        let used = chosen.is_some_and(|chosen| chosen.name == nic.name);
        checks.extend(nic.ports.iter().map(|port| {
            let used = used && port.number == need.fabric.verbs.port;
            device::port(nic, port, used, chosen.is_some())
        }));
    }
    let Some(nic) = chosen else { return checks };
    checks.push(device::user_access(root, nic));
    checks.extend(device::limits(verbs, need));
    if let Some(port) = nic.port(need.fabric.verbs.port) {
        checks.push(gids::check(root, nic, port, need));
        checks.push(gids::mtu(root, nic, port, verbs));
    }
    // Counters of all devices: another one's errors may be the switch's.
    for nic in &able {
        for port in nic.ports.iter().filter(|port| port.is_active()) {
            checks.extend(traffic::checks(root, nic, port));
        }
    }
    checks
}

fn no_device(need: &Need) -> Check {
    if need.fabric.transport == TransportChoice::Rdma {
        let advice = Advice::new(CHECK, "one, as transport = \"rdma\" asks", GET_ONE);
        return advice.found(Status::Failure, "none");
    }
    Check::not_applicable(CHECK, "this host has none; inputs travel over TCP")
}

/// The device a transport would open: the one asked for, else the first whose port is active.
fn chosen<'a>(able: &[&'a Nic], need: &Need) -> Option<&'a Nic> {
    let verbs = &need.fabric.verbs;
    match &verbs.device {
        Some(name) => able.iter().find(|nic| nic.name == *name).copied(),
        None => {
            let active =
                |nic: &&&Nic| nic.port(verbs.port).is_some_and(crate::machine::Port::is_active);
            able.iter().find(active).copied()
        }
    }
}

fn present(able: &[&Nic], chosen: Option<&Nic>, need: &Need) -> Check {
    let names: Vec<&str> = able.iter().map(|nic| nic.name.as_str()).collect();
    let seen = format!("{}: {}", counted(able.len(), "device"), names.join(", "));
    let verbs = &need.fabric.verbs;
    let (expected, fix) = match &verbs.device {
        Some(name) => (
            format!("{name}, as [rdma] device asks"),
            "correct [rdma] device, or leave it out".to_owned(),
        ),
        None => (
            format!("one whose port {} is active", verbs.port),
            "check the cable, the switch port and `rdma link`".to_owned(),
        ),
    };
    let advice = Advice::new(CHECK, expected, fix);
    match chosen {
        Some(nic) => advice.found(Status::Ok, format!("{seen}; {} is used", nic.name)),
        None => advice.found(Status::Failure, seen),
    }
}
