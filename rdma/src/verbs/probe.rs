//! What the library and a device say of themselves, for `baton doctor`.

use baton_topo::VerbsConfig;
use baton_topo::doctor::VerbsLimits;

use super::device::Device;
use super::error::VerbsError;
use super::memory::ProtectionDomain;

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
