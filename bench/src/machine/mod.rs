//! What this machine tells of itself, and its cores: CPU time, also of other processes' threads, stolen time,
//! resident memory, work on every core.

mod memory;
mod parallel;
mod steal;
mod thread_time;
mod threads;
mod unusable;

pub(crate) use memory::{own_resident_kib, resident_kib};
pub use parallel::in_parallel;
pub use steal::StealMeter;
pub(crate) use steal::percent;
pub(crate) use thread_time::thread_time;
pub(crate) use threads::{ThreadUsage, thread_usage};
pub use unusable::Unusable;
pub(crate) use unusable::{stolen, too_good};
