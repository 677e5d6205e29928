//! `baton bench gpu`.

use clap::value_parser;

#[derive(clap::Args, Debug)]
pub(crate) struct BenchGpuArgs {
    /// The number of the device
    #[arg(long, default_value_t = 0)]
    pub(crate) device: u32,
    /// Batches of each length, in turns with as many of the bare loop
    #[arg(long, default_value_t = 20_000, value_parser = value_parser!(u32).range(8..=10_000_000))]
    pub(crate) batches: u32,
    /// On Baton's own driver without a GPU: shows that everything works
    #[arg(long, conflicts_with = "simulated")]
    pub(crate) fake: bool,
    /// On the simulated device, in virtual time: exact
    #[arg(long)]
    pub(crate) simulated: bool,
    /// Print a JSON object for each goal instead of text
    #[arg(long)]
    pub(crate) json: bool,
}
