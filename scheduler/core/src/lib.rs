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

mod admission;
mod autoscale;
mod candidate;
mod containers;
mod execution;
mod loads;
mod model;
mod policy;
mod rank;
mod trial;

pub use baton_types::{
    BATCH_MAX, BackendId, CostHint, DropReason, FailReason, FrontendId, GpuId, ModelId, Nanos,
    Policy, Prefer, Profile, ProfileError, QuotaLimits, RateLimit, Request, SplitMix64,
    SubclusterId, TaskId, UnknownName, Unserved, VARIANTS_MAX, Variant, Variants, VariantsError,
};

pub use admission::quota::Quota;
pub use autoscale::gpus_needed;
pub use candidate::{Candidate, Gpu, GpuUpdate, Grant};
pub use containers::heap::IndexedHeap;
pub use execution::latency::Latency;
pub use execution::network::NetworkDelay;
pub use execution::prediction::{BatchShape, ExecutionModel, ExecutionModelError};
pub use execution::slowdown::{Pace, Slowdown};
pub use loads::{
    Demand, Load, LoadCounters, LoadDone, LoadLimits, LoadOutcome, LoadReason, LoadRule, LoadSink,
    LoadState, Readiness, Weights,
};
pub use model::batch::Batch;
pub use model::rate::{Rate, RateMeter};
pub use model::sink::ModelSink;
pub use model::variant::Choice;
pub use model::{ModelConfig, ModelCounters, ModelState};
pub use policy::patience::Patience;
pub use policy::{Alternative, Deferral, Floor, Order, Rules, WORTH_DROPPING, WORTH_WAITING};
pub use rank::gpus::PIPELINE_DEPTH;
pub use rank::{RankCounters, RankLimits, RankSink, RankState, SlotPart};
pub use trial::{
    Enough, Look, Recent, Record, Recorded, Recording, Replica, Trial, Trials, Verdict,
};
