//! Every scheduling decision of Baton, and nothing else.
//!
//! [`ModelState`] turns one model's waiting tasks into a candidate batch; [`RankState`] gives GPU
//! slots to candidates. Both take `now`, write effects into a sink and allocate only when they are
//! made. They run unchanged under virtual time, stepped by hand, and on pinned threads.
//!
//! ```text
//!  request ─▶ ModelState ──candidate──▶ RankState
//!                 ▲  │  ◀────grant──────   ▲
//!                 │  └─batch─▶ backend     │
//!                 └──────── measured ──────┘
//! ```
//!
//! The algorithm is that of *Symphony* (§4.3 and Appendix C), with what the paper leaves open
//! settled in `docs/scheduling.md`.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod autoscale;
mod batch;
mod candidate;
mod formation;
mod gpus;
mod heap;
mod ids;
mod idset;
mod latency;
mod lull;
mod model;
mod network;
mod outcome;
mod policy;
mod profile;
mod queue;
mod quota;
mod random;
mod rank;
mod rate;
mod reserve;
mod sink;
mod sizing;
mod slowdown;
mod standing;
mod time;

pub use autoscale::gpus_needed;
pub use batch::Batch;
pub use candidate::{Candidate, Gpu, GpuUpdate, Grant};
pub use gpus::PIPELINE_DEPTH;
pub use heap::IndexedHeap;
pub use ids::{BackendId, FrontendId, GpuId, ModelId, SubclusterId, TaskId};
pub use latency::Latency;
pub use model::{ModelConfig, ModelCounters, ModelState};
pub use network::NetworkDelay;
pub use outcome::{DropReason, FailReason, Unserved};
pub use policy::{Deferral, Floor, Order, Policy, Prefer, WORTH_DROPPING, WORTH_WAITING};
pub use profile::{BATCH_MAX, Profile, ProfileError};
pub use queue::Request;
pub use quota::{Quota, QuotaLimits, RateLimit};
pub use random::SplitMix64;
pub use rank::{RankCounters, RankLimits, RankSink, RankState};
pub use rate::{Rate, RateMeter};
pub use sink::ModelSink;
pub use slowdown::{Pace, Slowdown};
pub use time::Nanos;
