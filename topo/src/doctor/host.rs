//! Memory and CPU: what every process of Baton runs on.

use std::collections::BTreeMap;

use super::line::{Advice, Check, Status, looked};
use super::need::Need;
use super::{bytes, counted};
use crate::cluster_file::TransportChoice;
use crate::machine::{Machine, Sysroot, Unread};

/// Clock sources that are read without entering the kernel.
const FAST_CLOCKS: [&str; 4] =
    ["tsc", "kvm-clock", "arch_sys_counter", "hyperv_clocksource_tsc_page"];
/// The bit of CAP_IPC_LOCK, which lifts the limit on locked memory.
const IPC_LOCK: u32 = 14;
/// Connections and what else a process of Baton has open: a generous guess.
const OTHER_FILES: u64 = 128;
/// Time that other guests of the hypervisor took, per cent of all since it was started.
const STEAL_PERCENT_MAX: f64 = 1.0;

pub(super) fn checks(root: &Sysroot, machine: Option<&Machine>, need: &Need) -> Vec<Check> {
    let mut checks = vec![memlock(root, machine, need), inputs_of_one_host(root, machine, need)];
    checks.extend(machine.map(|machine| huge_pages(root, machine)));
    checks.push(clock_source(root));
    checks.extend(machine.map(|machine| governor(root, machine)));
    checks.extend(machine.map(cores));
    checks.push(steal(root));
    checks
}

fn memlock(root: &Sysroot, machine: Option<&Machine>, need: &Need) -> Check {
    let name = "memlock";
    if need.fabric.transport == TransportChoice::Tcp {
        return Check::not_applicable(name, "TCP locks no memory");
    }
    if machine.is_some_and(|machine| !has_rdma(machine)) {
        return Check::not_applicable(name, "there is no RDMA device to lock memory for");
    }
    let expected =
        format!("unlimited, at the least {} for {}", bytes(need.locked_bytes), need.locked_by);
    let fix = "ulimit -l unlimited; for a service or a container runtime LimitMEMLOCK=infinity";
    looked(Advice::new(name, expected, fix), |advice| {
        let limit = soft_limit(root, "Max locked memory")?;
        let Some(limit) = limit else { return Ok(advice.found(Status::Ok, "unlimited")) };
        if may_lock_anyway(root)? {
            let seen = format!("{}, which CAP_IPC_LOCK of this process lifts", bytes(limit));
            return Ok(advice.found(Status::Ok, seen));
        }
        let status = if limit < need.locked_bytes { Status::Failure } else { Status::Warning };
        Ok(advice.found(status, bytes(limit)))
    })
}

fn has_rdma(machine: &Machine) -> bool {
    machine.nics.iter().any(|nic| nic.is_rdma())
}

/// Clients share the memory of their inputs with backends of their host, a file for each model.
fn inputs_of_one_host(root: &Sysroot, machine: Option<&Machine>, need: &Need) -> Check {
    let name = "inputs of one host";
    if need.fabric.transport != TransportChoice::Auto {
        return Check::not_applicable(
            name,
            "only transport = \"auto\" takes them out of shared memory",
        );
    }
    if machine.is_some_and(has_rdma) {
        return Check::not_applicable(name, "they come over RDMA, as those of other hosts");
    }
    let files = u64::from(need.models) + OTHER_FILES;
    let expected = format!(
        "shared memory: an open file for each of {}, and {OTHER_FILES} others",
        counted(need.models as usize, "model")
    );
    let fix = "ulimit -n 65536; for a service or a container runtime LimitNOFILE=65536; without, inputs of some models come over TCP";
    looked(Advice::new(name, expected, fix), |advice| {
        let Some(limit) = soft_limit(root, "Max open files")? else {
            return Ok(advice.found(Status::Ok, "open files without limit"));
        };
        Ok(advice.judged(limit >= files, Status::Warning, format!("at most {limit} open files")))
    })
}

/// Of this process. `None`: unlimited.
fn soft_limit(root: &Sysroot, name: &str) -> Result<Option<u64>, Unread> {
    let path = "/proc/self/limits";
    let text = root.needed(path)?;
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    let soft = line.and_then(|line| line.split_whitespace().next());
    match soft {
        Some("unlimited") => Ok(None),
        soft => soft.and_then(|soft| soft.parse().ok()).map(Some).ok_or_else(|| Unread {
            path: path.to_owned(),
            why: format!("it has no line `{name}`"),
        }),
    }
}

/// The capability counts in the first user namespace only: there all users are themselves.
fn may_lock_anyway(root: &Sysroot) -> Result<bool, Unread> {
    let status = root.text("/proc/self/status")?.unwrap_or_default();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
    let effective = effective.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0);
    let map = root.text("/proc/self/uid_map")?.unwrap_or_default();
    let first = map.split_whitespace().eq(["0", "0", "4294967295"]);
    Ok(first && effective >> IPC_LOCK & 1 == 1)
}

fn huge_pages(root: &Sysroot, machine: &Machine) -> Check {
    let fix = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled";
    let expected = "transparent ones for who asks: madvise or always; Baton reserves none";
    let advice = Advice::new("huge pages", expected, fix);
    looked(advice, |advice| {
        let mut seen = Vec::new();
        for node in &machine.cpus.nodes {
            let folder = format!("/sys/devices/system/node/node{}/hugepages", node.id);
            for size in root.names(&folder)? {
                let (Some(total), Some(free)) = (
                    root.value::<u64>(&format!("{folder}/{size}/nr_hugepages"))?,
                    root.value::<u64>(&format!("{folder}/{size}/free_hugepages"))?,
                ) else {
                    continue;
                };
                let size = size.trim_start_matches("hugepages-");
                // Sizes without reserved pages are left out, but for the usual one.
                if total > 0 || size == "2048kB" {
                    seen.push(format!("node {}: {total} of {size}, {free} free", node.id));
                }
            }
        }
        if seen.is_empty() {
            seen.push("none".to_owned());
        }
        let transparent = root.text("/sys/kernel/mm/transparent_hugepage/enabled")?;
        let mode = transparent.as_deref().and_then(bracketed);
        let is_huge = matches!(mode, Some("madvise" | "always"));
        let whose = if is_huge { "huge" } else { "normal" };
        let seen = format!(
            "slabs and batch rows in {whose} pages; transparent: {}; reserved: {}",
            mode.unwrap_or("not built in"),
            seen.join(", ")
        );
        // What is not in the kernel cannot be switched on.
        let bad = if mode.is_some() { Status::Warning } else { Status::Ok };
        Ok(advice.judged(is_huge, bad, seen))
    })
}

/// `always [madvise] never`: the one in brackets.
fn bracketed(text: &str) -> Option<&str> {
    text.split_once('[')?.1.split_once(']').map(|(word, _)| word)
}

fn clock_source(root: &Sysroot) -> Check {
    let folder = "/sys/devices/system/clocksource/clocksource0";
    let expected = "one that is read without entering the kernel: tsc, or the hypervisor's";
    let fix = "boot with clocksource=tsc where the CPU's counter is stable";
    looked(Advice::new("clock source", expected, fix), |mut advice| {
        let current = root.needed(&format!("{folder}/current_clocksource"))?;
        if let Some(all) = root.text(&format!("{folder}/available_clocksource"))? {
            advice.fix = format!("{} (this host has: {all})", advice.fix);
        }
        let fast = FAST_CLOCKS.contains(&current.as_str());
        Ok(advice.judged(fast, Status::Warning, current))
    })
}

fn governor(root: &Sysroot, machine: &Machine) -> Check {
    let name = "governor";
    let fix = "cpupower frequency-set -g performance";
    looked(Advice::new(name, "performance on every CPU", fix), |advice| {
        let mut by_governor = BTreeMap::<String, usize>::new();
        for cpu in machine.cpus.online.iter() {
            let path = format!("/sys/devices/system/cpu/cpu{cpu}/cpufreq/scaling_governor");
            if let Some(governor) = root.text(&path)? {
                *by_governor.entry(governor).or_default() += 1;
            }
        }
        if by_governor.is_empty() {
            let why = "the kernel does not scale frequencies (a virtual machine, or firmware does)";
            return Ok(Check::not_applicable(name, why));
        }
        let good = by_governor.keys().all(|governor| governor == "performance");
        let seen: Vec<String> = by_governor
            .iter()
            .map(|(governor, cpus)| format!("{governor} on {}", counted(*cpus, "CPU")))
            .collect();
        Ok(advice.judged(good, Status::Warning, seen.join(", ")))
    })
}

fn cores(machine: &Machine) -> Check {
    let cpus = &machine.cpus;
    let fix = "start it without taskset, or widen its cpuset";
    let advice = Advice::new("cores", "all CPUs that are online", fix);
    let physical: usize = cpus.nodes.iter().map(|node| node.cores.len()).sum();
    let seen = format!(
        "CPUs {} of {} on {}, {}; isolated: {}",
        cpus.allowed,
        cpus.online,
        counted(physical, "core"),
        counted(cpus.nodes.len(), "NUMA node"),
        cpus.isolated
    );
    advice.judged(cpus.allowed == cpus.online, Status::Warning, seen)
}

fn steal(root: &Sysroot) -> Check {
    let expected = format!("at most {STEAL_PERCENT_MAX} %");
    let fix =
        "give the virtual machine CPUs of its own; until then its tail latencies are the host's";
    looked(Advice::new("steal", expected, fix), |advice| {
        let path = "/proc/stat";
        let text = root.needed(path)?;
        let line = text.lines().find_map(|line| line.strip_prefix("cpu "));
        let ticks: Vec<u64> =
            line.unwrap_or("").split_whitespace().filter_map(|n| n.parse().ok()).collect();
        // user, nice, system, idle, iowait, irq, softirq, steal; guests are counted in user.
        let (Some(steal), all) = (ticks.get(7), ticks.iter().take(8).sum::<u64>()) else {
            return Ok(advice.unread(format!("could not read {path}: it has no steal time")));
        };
        let percent = *steal as f64 * 100.0 / all.max(1) as f64;
        let seen = format!("{percent:.2} % of the time since boot");
        Ok(advice.judged(percent <= STEAL_PERCENT_MAX, Status::Warning, seen))
    })
}
