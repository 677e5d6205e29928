//! Load and judgement. Holds no product logic; everything goes through the public crates.
//!
//! ```text
//!  what a user runs     load ◀─ demo
//!                        ▲       │
//!  what they need       machine  ▼  plot    processes
//!                        ▲          ▲        ▲
//!  what we measure with sched · dataplane · reproduce · overload · soak · chaos
//! ```
#![forbid(unsafe_code)]

pub mod chaos;
pub mod dataplane;
pub mod demo;
pub mod load;
pub mod machine;
pub mod overload;
pub mod plot;
pub mod processes;
pub mod reproduce;
pub mod sched;
pub mod soak;
pub mod two_models;
