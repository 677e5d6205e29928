//! Counters of a port: losses and errors, congestion, pauses. They count since the driver was loaded.

use crate::doctor::line::{Advice, Check, Status, looked};
use crate::machine::{Nic, Port, Sysroot, Unread};

/// Packets lost, damaged or refused. The first half every device has; names of the second are the
/// drivers' (mlx5, then rxe).
const ERRORS: [&str; 19] = [
    "counters/symbol_error",
    "counters/link_error_recovery",
    "counters/local_link_integrity_errors",
    "counters/port_rcv_errors",
    "counters/port_xmit_discards",
    "counters/excessive_buffer_overrun_errors",
    "hw_counters/out_of_sequence",
    "hw_counters/packet_seq_err",
    "hw_counters/implied_nak_seq_err",
    "hw_counters/local_ack_timeout_err",
    "hw_counters/rnr_nak_retry_err",
    "hw_counters/out_of_buffer",
    "hw_counters/rx_icrc_encapsulated",
    "hw_counters/req_remote_access_errors",
    "hw_counters/resp_remote_access_errors",
    "hw_counters/out_of_seq_request",
    "hw_counters/rcvd_seq_err",
    "hw_counters/retry_exceeded_err",
    "hw_counters/retry_rnr_exceeded_err",
];
/// Signs of a full link or switch: no errors by themselves.
const CONGESTION: [&str; 4] = [
    "counters/port_xmit_wait",
    "hw_counters/np_cnp_sent",
    "hw_counters/rp_cnp_handled",
    "hw_counters/np_ecn_marked_roce_packets",
];

pub(super) fn checks(root: &Sysroot, nic: &Nic, port: &Port) -> Vec<Check> {
    let of = format!("{} port {}", nic.name, port.number);
    vec![
        errors(root, nic, port).of(&of),
        congestion(root, nic, port).of(&of),
        pauses(nic, port).of(&of),
    ]
}

fn errors(root: &Sysroot, nic: &Nic, port: &Port) -> Check {
    let fix = "if they rise under load: check the cable, and on RoCE that ECN or PFC covers the traffic \
               class of [rdma]";
    looked(Advice::new("error counters", "0, or at least not rising", fix), |advice| {
        let counted = read(root, nic, port, &ERRORS)?;
        if counted.is_empty() {
            return Ok(advice.unread("could not read them: the driver offers none that are known"));
        }
        let seen = risen(&counted);
        let none = format!("none in {} counters", counted.len());
        let good = seen.is_empty();
        Ok(advice.judged(good, Status::Warning, if good { none } else { seen }))
    })
}

fn congestion(root: &Sysroot, nic: &Nic, port: &Port) -> Check {
    looked(Advice::new("congestion", "rising under load only", ""), |advice| {
        let counted = read(root, nic, port, &CONGESTION)?;
        if counted.is_empty() {
            return Ok(
                advice.unread("could not read it: the driver offers no counter that is known")
            );
        }
        let seen = risen(&counted);
        let seen = if seen.is_empty() { "none".to_owned() } else { seen };
        Ok(advice.found(Status::Ok, seen))
    })
}

/// InfiniBand does not lose packets to full buffers; on Ethernet the settings are not in `/sys`.
fn pauses(nic: &Nic, port: &Port) -> Check {
    if !port.is_ethernet() {
        return Check::not_applicable("pause frames", "InfiniBand links have credits instead");
    }
    let netdev = nic.netdevs.first().map_or("ETH", String::as_str);
    let fix = format!("look yourself: ethtool -S {netdev} | grep pause; dcb pfc show dev {netdev}");
    let expected = "few, and priority flow control or ECN on the traffic class of [rdma]";
    let why = "could not read them: they are not in /sys";
    Advice::new("pause frames", expected, fix).unread(why)
}

/// The counters of `names` that there are.
fn read<'a>(
    root: &Sysroot,
    nic: &Nic,
    port: &Port,
    names: &[&'a str],
) -> Result<Vec<(&'a str, u64)>, Unread> {
    let port = format!("/sys/class/infiniband/{}/ports/{}", nic.name, port.number);
    let mut counted = Vec::new();
    for name in names {
        if let Some(count) = root.value(&format!("{port}/{name}"))? {
            counted.push((name.rsplit('/').next().unwrap_or(name), count));
        }
    }
    Ok(counted)
}

fn risen(counted: &[(&str, u64)]) -> String {
    let risen = counted.iter().filter(|(_, count)| *count > 0);
    risen.map(|(name, count)| format!("{name} {count}")).collect::<Vec<_>>().join(", ")
}
