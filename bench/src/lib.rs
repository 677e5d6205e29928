//! What offers load to a cluster, and what measures one. Holds no product logic: everything goes
//! through the public crates.
//!
//! A user runs [`load`], with [`oip`] for other servers, and [`demo`]. The benches are [`sched`], [`dataplane`], [`path`], [`gpu`], [`reproduce`],
//! [`overload`], [`soak`] and [`chaos`]; none of them uses another. What several need is in
//! [`machine`], [`plot`], [`processes`] and [`two_models`].
#![forbid(unsafe_code)]

pub mod chaos;
pub mod dataplane;
pub mod demo;
pub mod gpu;
pub mod load;
pub mod machine;
pub mod oip;
pub mod overload;
pub mod path;
pub mod plot;
pub mod processes;
pub mod reproduce;
pub mod sched;
pub mod soak;
pub mod two_models;
