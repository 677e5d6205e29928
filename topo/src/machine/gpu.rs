//! NVIDIA GPUs, as the PCI bus and the driver report them.

use serde::Serialize;

use super::pci::PciPlace;
use super::sysroot::{Sysroot, Unread};

const NVIDIA: &str = "0x10de";
/// PCI class of display controllers; the lower digits distinguish VGA from 3D.
const DISPLAY: &str = "0x03";

/// One GPU.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Gpu {
    /// `GPU0`, `GPU1`, …: in the order of PCI addresses, as with `CUDA_DEVICE_ORDER=PCI_BUS_ID`.
    pub name: String,
    /// What the driver calls it; `None` if the driver is not loaded.
    pub model: Option<String>,
    /// Where it sits.
    pub pci: PciPlace,
    /// Its NUMA node, if known.
    pub node: Option<u32>,
}

pub(super) fn read(root: &Sysroot, only_node: Option<u32>) -> Result<Vec<Gpu>, Unread> {
    let mut gpus = Vec::new();
    for address in root.names("/sys/bus/pci/devices")? {
        let device = format!("/sys/bus/pci/devices/{address}");
        let is = |file: &str, what: &str| -> Result<bool, Unread> {
            let text = root.text(&format!("{device}/{file}"))?;
            Ok(text.is_some_and(|text| text.starts_with(what)))
        };
        if !is("vendor", NVIDIA)? || !is("class", DISPLAY)? {
            continue;
        }
        let Some(pci) = PciPlace::of(root, &device) else { continue };
        let (name, node) = (format!("GPU{}", gpus.len()), super::node_of(root, &pci, only_node)?);
        gpus.push(Gpu { name, model: model(root, &address)?, pci, node });
    }
    Ok(gpus)
}

fn model(root: &Sysroot, address: &str) -> Result<Option<String>, Unread> {
    let text = root.text(&format!("/proc/driver/nvidia/gpus/{address}/information"))?;
    let line = text.as_deref().unwrap_or("").lines().find_map(|line| line.strip_prefix("Model:"));
    Ok(line.map(|model| model.trim().to_owned()))
}
