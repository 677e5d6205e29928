//! What the library and a device say of themselves, for `baton doctor`.

use std::os::fd::BorrowedFd;

use baton_topo::VerbsConfig;
use baton_topo::doctor::VerbsLimits;

use super::device::Device;
use super::error::VerbsError;
use super::memory::{DeviceRegion, ProtectionDomain};

/// Loads libibverbs, opens the device `config` asks for, proves an address of it, and closes it again.
///
/// # Errors
/// What would keep a transport from coming up with this `config`, memory apart.
pub fn probe(config: &VerbsConfig) -> Result<VerbsLimits, VerbsError> {
    let device = Device::open(config)?;
    let pd = ProtectionDomain::new(&device)?;
    let gid = device.choose_gid(&pd, config)?;
    let limits = device.limits();
    Ok(VerbsLimits {
        device: device.name().to_owned(),
        port: device.port(),
        gid: gid.to_string(),
        mtu_bytes: 128 << limits.mtu,
        queue_pairs: limits.queue_pairs,
        requests: limits.requests,
        completions: limits.completions,
        initiator_depth: limits.initiator_depth,
        responder_depth: limits.responder_depth,
        responder_budget: limits.responder_budget,
    })
}

/// Registers memory of another device with the one `config` asks for, and takes the registration back: this many bytes
/// from the beginning of `file`, the dma-buf that the other driver has given them out as.
///
/// # Errors
/// The device cannot be opened, the library is too old, or the driver refuses.
pub fn probe_device_memory(
    config: &VerbsConfig,
    file: BorrowedFd<'_>,
    bytes: usize,
) -> Result<(), VerbsError> {
    let device = Device::open(config)?;
    let pd = ProtectionDomain::new(&device)?;
    DeviceRegion::register(&pd, file, bytes).map(drop)
}
