//! `baton bench path`.

use std::path::PathBuf;

use baton_topo::{Idle, TransportChoice};
use clap::{ValueEnum, value_parser};

use super::DemoEngine;
use super::values::{outstanding, seconds, spin_or_park, tasks_per_s, transport};

/// How tasks come.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum PathMode {
    /// As fast as they are answered
    Closed,
    /// At a rate, whatever becomes of them
    Poisson,
}

#[derive(clap::Args, Debug)]
pub(crate) struct BenchPathArgs {
    /// Bytes of an input, and of a message of the bare sockets
    #[arg(long, default_value_t = 64, value_parser = value_parser!(u32).range(1..=1_048_576))]
    pub(crate) bytes: u32,
    /// Tasks in a batch at most
    #[arg(long, default_value_t = 256, value_parser = value_parser!(u32).range(1..=1_024))]
    pub(crate) batch: u32,
    /// How tasks come [default: poisson with a rate, closed without]
    #[arg(long, value_enum)]
    pub(crate) mode: Option<PathMode>,
    /// Tasks per second, Poisson; several rates are run one after the other
    #[arg(long, value_name = "RATE,…", value_delimiter = ',', value_parser = tasks_per_s)]
    #[arg(required_if_eq("mode", "poisson"))]
    pub(crate) rate: Vec<f64>,
    /// Tasks under way in a closed loop
    #[arg(long, value_name = "TASKS", default_value_t = 1024, value_parser = outstanding())]
    #[arg(conflicts_with = "rate")]
    pub(crate) outstanding: u32,
    /// Length of the measurement, of each rate; warm-up and bare sockets take half as long again
    #[arg(long, default_value_t = 5.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// What executes the batches, on all slots
    #[arg(long, value_enum, default_value_t = DemoEngine::Emulated)]
    pub(crate) engine: DemoEngine,
    /// How long a batch lasts beside 1 µs for each task, ms
    #[arg(long, value_name = "MS", default_value_t = 0.5, value_parser = seconds)]
    pub(crate) latency_ms: f64,
    /// GPU slots
    #[arg(long, default_value_t = 4, value_parser = value_parser!(u32).range(1..=256))]
    pub(crate) slots: u32,
    /// What the threads of client, scheduler and backend do without work. Spinning takes a core each, six with one slot and
    /// one more for each further slot
    #[arg(long, value_name = "spin|park", default_value = "park", value_parser = spin_or_park)]
    pub(crate) idle: Idle,
    /// How inputs get to the backend; auto: over RDMA where there is a device, otherwise out of memory that both share
    #[arg(long, default_value_t = TransportChoice::Auto, value_parser = transport)]
    pub(crate) transport: TransportChoice,
    /// Draw the CPU time per task over the rate into this file
    #[arg(long, value_name = "FILE.svg")]
    pub(crate) plot: Option<PathBuf>,
    /// Same seed, same arrivals
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print one JSON object instead of text; of several rates, an array of them
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(clap::Args, Debug)]
pub(crate) struct BenchPathEndArgs {
    /// Bytes of a message
    #[arg(long)]
    pub(crate) bytes: u32,
}
