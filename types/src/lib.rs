//! What every crate of Baton speaks of: ids, times, tasks and how they end, latency profiles, limits, and the names of
//! policies.
//!
//! No decision is made here. Clients, backends and the transport depend on these types and not on the scheduling
//! core, so a change of a policy rebuilds the scheduler and not them.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod ids;
mod limits;
mod outcome;
mod policy;
mod profile;
mod random;
mod task;
mod time;
mod variants;

pub use ids::{BackendId, FrontendId, GpuId, ModelId, SubclusterId, TaskId};
pub use limits::{QuotaLimits, RateLimit};
pub use outcome::{DropReason, FailReason, Unserved};
pub use policy::{Policy, Prefer, UnknownName};
pub use profile::{BATCH_MAX, Profile, ProfileError};
pub use random::SplitMix64;
pub use task::{CostHint, Request};
pub use time::Nanos;
pub use variants::{ACCURACY_MAX, VARIANTS_MAX, Variant, Variants, VariantsError};
