//! Where cards, GPUs and cores are to each other.

use super::line::{Advice, Check, Status, looked};
use crate::machine::{Gpu, Machine, Nic, PciPlace, Relation, Sysroot};

pub(super) fn checks(root: &Sysroot, machine: &Machine) -> Vec<Check> {
    let mut checks = Vec::new();
    for nic in &machine.nics {
        if let Some(pci) = &nic.pci {
            checks.push(pci_link(root, pci, true).of(&nic.name));
        }
        checks.push(near_cores(machine, nic).of(&nic.name));
    }
    for gpu in &machine.gpus {
        checks.push(pci_link(root, &gpu.pci, false).of(&gpu.name));
        checks.push(near_card(machine, gpu).of(&gpu.name));
    }
    checks.push(gpudirect(root, machine));
    checks
}

/// `with_speed`: idle GPUs slow their link down on purpose, so only their width is significant.
fn pci_link(root: &Sysroot, pci: &PciPlace, with_speed: bool) -> Check {
    let name = "pcie link";
    let fix = "reseat the card, or move it to a slot that is as wide and as fast";
    looked(Advice::new(name, "", fix), |mut advice| {
        let read = |file: &str| {
            let text = root.text(&format!("/sys/bus/pci/devices/{}/{file}", pci.address()))?;
            // Devices without a link of their own, as those of hypervisors, say so in these words.
            Ok(text.filter(|text| !text.starts_with("Unknown") && text != "0" && text != "255"))
        };
        let (width, width_max) = (read("current_link_width")?, read("max_link_width")?);
        let (speed, speed_max) = (read("current_link_speed")?, read("max_link_speed")?);
        let (Some(width), Some(width_max), Some(speed), Some(speed_max)) =
            (width, width_max, speed, speed_max)
        else {
            return Ok(Check::not_applicable(name, "the device has no PCIe link of its own"));
        };
        advice.expected = format!("x{width_max} at {speed_max}");
        if !with_speed {
            advice.expected.push_str(" under load");
        }
        let good = width == width_max && (!with_speed || speed == speed_max);
        Ok(advice.judged(good, Status::Warning, format!("x{width} at {speed}")))
    })
}

/// The thread that polls a card belongs on its node.
fn near_cores(machine: &Machine, nic: &Nic) -> Check {
    let name = "cores near the card";
    if nic.pci.is_none() {
        return Check::not_applicable(name, "it is on no PCIe bus");
    }
    let fix = "widen the cpuset of this process to the card's NUMA node (`baton topo show`)";
    let advice = Advice::new(name, "CPUs of its NUMA node to run on", fix);
    let node = machine.cpus.nodes.iter().find(|node| Some(node.id) == nic.node);
    let Some(node) = node else { return advice.unread("could not read it: NUMA node unknown") };
    let near = node.cpus.and(&machine.cpus.allowed);
    let seen = format!("node {}: CPUs {near}", node.id);
    advice.judged(!near.is_empty(), Status::Warning, seen)
}

/// Batches cross from the card's memory to the GPU: the shorter the way, the better.
fn near_card(machine: &Machine, gpu: &Gpu) -> Check {
    let name = "nearest card";
    let fix = "move the card or the GPU to the other's NUMA node";
    let advice = Advice::new(name, "an RDMA card on the GPU's NUMA node", fix);
    match machine.nearest_nic(gpu) {
        None => Check::not_applicable(name, "there is no RDMA card"),
        Some((nic, Relation::Unknown)) => {
            advice.unread(format!("could not read the way to {}", nic.name))
        }
        Some((nic, relation)) => {
            let seen = format!("{} ({relation})", nic.name);
            advice.judged(relation != Relation::Sys, Status::Warning, seen)
        }
    }
}

/// Baton reads inputs into host memory, so this is for information; and proof takes CUDA.
fn gpudirect(root: &Sysroot, machine: &Machine) -> Check {
    let name = "gpudirect";
    if machine.gpus.is_empty() {
        return Check::not_applicable(name, "there is no NVIDIA GPU");
    }
    let advice = Advice::new(name, "any: inputs are read into host memory", "");
    looked(advice, |advice| {
        let peer = root.has("/sys/module/nvidia_peermem");
        let module = if peer { "nvidia_peermem is loaded" } else { "nvidia_peermem is not loaded" };
        let driver = root.text("/proc/driver/nvidia/version")?;
        let driver = match driver {
            None => "no NVIDIA driver",
            Some(text) if text.contains("Open Kernel Module") => "open driver (dma-buf possible)",
            Some(_) => "proprietary driver",
        };
        Ok(advice.found(Status::Ok, format!("{module}, {driver}; `cuda direct` says what works")))
    })
}
