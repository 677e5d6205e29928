//! TCP: it carries all messages, and inputs where there is no RDMA.

use super::bytes;
use super::line::{Advice, Check, Status, looked};
use super::need::Need;
use crate::machine::{Sysroot, Unread};

/// A lost last segment is sent again after this much; a message that waits longer is a deadline missed.
const RTO_MIN_US_MAX: u64 = 5_000;
/// Outgoing connections a busy member may have at a time, and some to spare.
const PORTS_MIN: u64 = 1_024;

pub(super) fn checks(root: &Sysroot, need: &Need) -> Vec<Check> {
    vec![
        buffers(root, "tcp receive buffer", "tcp_rmem", need),
        buffers(root, "tcp send buffer", "tcp_wmem", need),
        congestion_control(root),
        minimum_rto(root),
        ports(root),
    ]
}

/// The kernel grows a connection's buffer up to the last of three numbers.
fn buffers(root: &Sysroot, check: &'static str, key: &str, need: &Need) -> Check {
    let window = need.credit_bytes;
    let expected = format!("at least {}, a backend's credit_bytes", bytes(window));
    looked(Advice::new(check, expected, ""), |mut advice| {
        let path = format!("/proc/sys/net/ipv4/{key}");
        let text = root.needed(&path)?;
        let max = last_number(&path, &text)?;
        let kept: Vec<&str> = text.split_whitespace().take(2).collect();
        advice.fix =
            format!("sysctl -w net.ipv4.{key}=\"{} {}\"", kept.join(" "), window.max(16 << 20));
        Ok(advice.judged(max >= window, Status::Warning, format!("up to {}", bytes(max))))
    })
}

fn congestion_control(root: &Sysroot) -> Check {
    let expected = "any; dctcp where the switches mark packets (ECN)";
    looked(Advice::new("tcp congestion control", expected, ""), |advice| {
        let seen = root.needed("/proc/sys/net/ipv4/tcp_congestion_control")?;
        Ok(advice.found(Status::Ok, seen))
    })
}

fn minimum_rto(root: &Sysroot) -> Check {
    let expected = format!("at most {} ms between hosts of one data centre", ms(RTO_MIN_US_MAX));
    let fix = format!(
        "sysctl -w net.ipv4.tcp_rto_min_us={RTO_MIN_US_MAX}, or on older kernels per route: \
         ip route change … rto_min 5ms"
    );
    looked(Advice::new("tcp minimum rto", expected, fix), |advice| {
        let us: Option<u64> = root.value("/proc/sys/net/ipv4/tcp_rto_min_us")?;
        let Some(us) = us else {
            let why = "could not read it: this kernel has no setting for all routes";
            return Ok(advice.unread(why));
        };
        Ok(advice.judged(us <= RTO_MIN_US_MAX, Status::Warning, format!("{} ms", ms(us))))
    })
}

fn ms(us: u64) -> f64 {
    us as f64 / 1e3
}

fn ports(root: &Sysroot) -> Check {
    let expected = format!("at least {PORTS_MIN} ports to connect from");
    let fix = "sysctl -w net.ipv4.ip_local_port_range=\"32768 60999\"";
    looked(Advice::new("tcp ports", expected, fix), |advice| {
        let path = "/proc/sys/net/ipv4/ip_local_port_range";
        let text = root.needed(path)?;
        let last = last_number(path, &text)?;
        let first = last_number(path, text.split_whitespace().next().unwrap_or(""))?;
        let count = last.saturating_add(1).saturating_sub(first);
        let seen = format!("{first} to {last}");
        Ok(advice.judged(count >= PORTS_MIN, Status::Warning, seen))
    })
}

fn last_number(path: &str, text: &str) -> Result<u64, Unread> {
    let number = text.split_whitespace().last().and_then(|last| last.parse().ok());
    let why = || format!("`{text}` does not end with a number");
    number.ok_or_else(|| Unread { path: path.to_owned(), why: why() })
}
