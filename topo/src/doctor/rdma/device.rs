//! Ports, access from user space, and what the device can do.

use crate::doctor::line::{Advice, Check, Status, looked};
use crate::doctor::need::Need;
use crate::doctor::{Verbs, VerbsLimits, counted};
use crate::machine::{Nic, Port, Sysroot};

/// A port that is used must be active; another port that is down is a warning.
pub(super) fn port(nic: &Nic, port: &Port, used: bool, another_used: bool) -> Check {
    let (state, phys, layer, rate) = (&port.state, &port.phys_state, &port.link_layer, &port.rate);
    let seen = format!("{state}, {phys}, {layer}, {rate}");
    let fix = match (port.is_ethernet(), nic.netdevs.first()) {
        (true, Some(netdev)) => {
            format!("ip link set {netdev} up; then check cable and switch port")
        }
        (true, None) => "bring its network interface up; then check cable and switch port".into(),
        (false, _) => "check the cable, and that a subnet manager runs (sminfo)".into(),
    };
    let bad = if used || !another_used { Status::Failure } else { Status::Warning };
    let advice = Advice::new("rdma port", "ACTIVE, LinkUp", fix);
    advice.judged(port.is_active(), bad, seen).of(format!("{} port {}", nic.name, port.number))
}

/// Without its character device no program reaches the card.
pub(super) fn user_access(root: &Sysroot, nic: &Nic) -> Check {
    let fix = "modprobe ib_uverbs; in a container pass /dev/infiniband in";
    let advice = Advice::new("rdma user access", "a device file for the device", fix);
    let check = looked(advice, |advice| {
        let names = root.names("/sys/class/infiniband_verbs")?;
        // Beside the devices there is a file of the kernel's own.
        for name in names.iter().filter(|name| name.starts_with("uverbs")) {
            let of = root.text(&format!("/sys/class/infiniband_verbs/{name}/ibdev"))?;
            if of.as_deref() == Some(&nic.name) {
                let file = format!("/dev/infiniband/{name}");
                let seen = if root.has(&file) { file.clone() } else { format!("no {file}") };
                return Ok(advice.judged(root.has(&file), Status::Failure, seen));
            }
        }
        Ok(advice.found(Status::Failure, "the kernel offers none"))
    });
    check.of(&nic.name)
}

/// What only libibverbs reports.
pub(super) fn limits(verbs: &Verbs, need: &Need) -> Vec<Check> {
    let opened = Advice::new(
        "rdma library",
        "one that opens the device, and an address of it that works",
        "",
    );
    let told = match verbs {
        Verbs::Told(told) => told,
        Verbs::NotAsked(why) => {
            let silent = |check| Advice::new(check, "what libibverbs tells", "").unread(*why);
            return vec![silent("rdma library"), silent("device limits"), silent("read depth")];
        }
        Verbs::Refused(words) => {
            let (seen, fix) = words.rsplit_once("; ").unwrap_or((words, "see docs/rdma.md"));
            let fix = fix.to_owned();
            return vec![Advice { fix, ..opened }.found(Status::Failure, seen)];
        }
    };
    let at = format!("{} port {}", told.device, told.port);
    let gid = opened.found(Status::Ok, format!("proved {}", told.gid)).of(&at);
    vec![gid, queues(told, need).of(&told.device), read_depth(told, need).of(&told.device)]
}

fn queues(told: &VerbsLimits, need: &Need) -> Check {
    let peers = need.fabric.verbs.peers;
    let fix = "lower [rdma] peers, or spread the peers over several devices";
    let advice = Advice::new("device limits", format!("queue pairs for {peers} peers"), fix);
    let (pairs, requests, completions) = (told.queue_pairs, told.requests, told.completions);
    let seen = format!("{pairs} queue pairs, {requests} requests each, {completions} completions");
    advice.judged(pairs > peers, Status::Failure, seen)
}

/// As initiator a queue pair has the device's depth to itself; as target the device's budget is divided.
fn read_depth(told: &VerbsLimits, need: &Need) -> Check {
    let verbs = &need.fabric.verbs;
    let wanted = u32::from(verbs.read_depth);
    let share = told.responder_budget / verbs.peers.max(1);
    let (asks, answers) = (told.initiator_depth, told.responder_depth.min(share));
    let expected =
        format!("{wanted} READs under way per peer, with {}", counted_peers(verbs.peers));
    let fix = "lower [rdma] peers to as many as there are, or accept smaller READs under way; some cards \
               have a firmware setting";
    let seen = format!(
        "asks {asks}, answers {answers} ({} per queue pair, {} in all)",
        told.responder_depth, told.responder_budget
    );
    let good = asks >= wanted && answers >= wanted;
    Advice::new("read depth", expected, fix).judged(good, Status::Warning, seen)
}

fn counted_peers(peers: u32) -> String {
    counted(peers as usize, "peer")
}
