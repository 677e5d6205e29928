//! `baton bench gateway`.

use clap::value_parser;

use super::values::seconds;

#[derive(clap::Args, Debug)]
pub(crate) struct BenchGatewayArgs {
    /// Bytes of an input; several are measured one after the other
    #[arg(long, value_name = "BYTES,…", value_delimiter = ',', default_values_t = [256, 150_528])]
    #[arg(value_parser = value_parser!(u32).range(1..=1_048_576))]
    pub(crate) bytes: Vec<u32>,
    /// Requests under way
    #[arg(long, default_value_t = 16, value_parser = value_parser!(u32).range(1..=256))]
    pub(crate) outstanding: u32,
    /// Length of each turn of the bare server and of the gateway
    #[arg(long, default_value_t = 2.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Turns of both; the middle one counts
    #[arg(long, default_value_t = 5, value_parser = value_parser!(u32).range(1..=99))]
    pub(crate) rounds: u32,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}
