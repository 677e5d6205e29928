//! `baton gateway`.

use std::net::SocketAddr;
use std::path::PathBuf;

/// MiB of a body: inputs have at most 64, and JSON writes them longer.
const BODY_MIB: std::ops::RangeInclusive<i64> = 1..=4_096;

#[derive(clap::Args, Debug)]
pub(crate) struct GatewayArgs {
    /// The cluster file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Where clients connect, over HTTP or gRPC; port 0 takes a free one
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8000")]
    pub(crate) http: SocketAddr,
    /// Another address, for gRPC clients that expect one of their own
    #[arg(long, value_name = "ADDR")]
    pub(crate) grpc: Option<SocketAddr>,
    /// The scheduler's address, if not the one in the cluster file
    #[arg(long, value_name = "ADDR")]
    pub(crate) scheduler: Option<SocketAddr>,
    /// Let Prometheus scrape it at http://ADDR/metrics
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Let clients load and unload the models of the cluster file; where there are tokens, those with `operator = true`
    #[arg(long)]
    pub(crate) model_control: bool,
    /// Threads that serve connections; a request costs least with one [default: one for each core]
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=64))]
    pub(crate) threads: Option<u32>,
    /// Longest body of a request, MiB
    #[arg(long, value_name = "MIB", default_value_t = 64, value_parser = clap::value_parser!(u32).range(BODY_MIB))]
    pub(crate) body_mib: u32,
    /// Most connections at a time
    #[arg(long, value_name = "COUNT", default_value_t = 1_024, value_parser = clap::value_parser!(u32).range(1..=65_536))]
    pub(crate) connections: u32,
}
