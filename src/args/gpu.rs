//! `baton bench gpu`.

use std::path::PathBuf;

use clap::value_parser;

use super::model::key;

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
    /// The CUDA graphs of this ONNX file, beside a bare loop of the same graphs
    #[arg(long, value_name = "FILE", conflicts_with_all = ["fake", "simulated"])]
    pub(crate) model: Option<PathBuf>,
    /// Another key of the model's table, such as tf32=true; repeat for several
    #[arg(long = "key", value_name = "KEY=VALUE", value_parser = key, requires = "model")]
    pub(crate) keys: Vec<(String, String)>,
    /// Print a JSON object for each goal instead of text
    #[arg(long)]
    pub(crate) json: bool,
}
