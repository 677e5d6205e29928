//! The conversation of a member, a client or a backend, with the scheduler: joining, staying, leaving, joining again.
//!
//! | | module |
//! |---|---|
//! | where the conversation stands, and what moves it on | [`Membership`], [`Stage`] |
//! | what the scheduler has: ModelThreads, sub-clusters, models | [`Catalogue`] |
//! | signs of life, and the scheduler's clock against ours | [`Heartbeat`], [`ClockSync`] |
//! | when to try again | [`Backoff`] |
//!
//! A member's agent owns a [`Membership`] beside its transport. It passes on what happens on the scheduler's
//! connections, and it adds what is its own: the slabs that a client announces, the profiles and GPUs of a backend.
//! Nothing here has a clock, a thread or a socket of its own.
#![forbid(unsafe_code)]

mod backoff;
mod catalogue;
mod clock_sync;
mod error;
mod heartbeat;
mod machine;
mod member;
mod stage;

pub use backoff::Backoff;
pub use catalogue::{Catalogue, DescribedModel, DescribedVariant, MODELS_MAX};
pub use clock_sync::ClockSync;
pub use error::MembershipError;
pub use heartbeat::{Beat, Heartbeat};
pub use machine::Membership;
pub use member::{Member, Received, Step};
pub use stage::Stage;
