//! `baton profile`.

use std::path::PathBuf;

use baton_topo::Device;
use clap::value_parser;

use super::model::{all, key};
use super::values::seconds;

#[derive(clap::Args, Debug)]
pub(crate) struct ProfileArgs {
    /// The ONNX file
    #[arg(required_unless_present = "config", conflicts_with = "config")]
    pub(crate) file: Option<PathBuf>,
    /// Other keys of the model's table, such as dims={seq=128}
    #[arg(value_name = "KEY=VALUE", value_parser = key, conflicts_with = "config")]
    keys: Vec<(String, String)>,
    /// Measure a model of this cluster file instead, of any engine
    #[arg(long, value_name = "FILE", requires = "model")]
    pub(crate) config: Option<PathBuf>,
    /// Which model of the cluster file
    #[arg(long, value_name = "NAME", requires = "config")]
    pub(crate) model: Option<String>,
    /// What to execute it on: cpu or cuda:N [default: cpu; for engine = "cuda" cuda:0]
    #[arg(long)]
    pub(crate) device: Option<Device>,
    /// The largest batch [default: 16, or what the file fixes]
    #[arg(long, value_name = "ROWS", value_parser = value_parser!(u32).range(1..=1_024))]
    #[arg(conflicts_with = "config")]
    pub(crate) batch_max: Option<u32>,
    /// As KEY=VALUE without it
    #[arg(long = "key", value_name = "KEY=VALUE", value_parser = key, conflicts_with = "config", hide = true)]
    more_keys: Vec<(String, String)>,
    /// Executions of each batch size, if the time is enough
    #[arg(long, default_value_t = 200, value_parser = value_parser!(u32).range(5..=1_000_000))]
    pub(crate) runs: u32,
    /// The time for each batch size; at least 5 executions are made
    #[arg(long, default_value_t = 2.0, value_parser = seconds)]
    pub(crate) seconds_per_size: f64,
    /// Where to write it [default: NAME.profile.toml here; of a supernet NAME.variants.toml]
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

impl ProfileArgs {
    pub(crate) fn keys(&self) -> Vec<(String, String)> {
        all(&self.keys, &self.more_keys).collect()
    }
}
