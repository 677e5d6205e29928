//! `baton model` and `baton status`: what an operator asks of a running scheduler.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Subcommand;

use super::values::deadline_ms;

#[derive(Subcommand, Debug)]
pub(crate) enum ModelCommand {
    /// Serve one more model
    ///
    /// Returns once every backend of its sub-cluster has loaded it and clients can use it. FILE may be a URL: then each backend
    /// pulls it. Otherwise the scheduler and the backends must be able to read FILE under the same path. A model that is added is served until it is removed. The next
    /// scheduler knows it if the cluster file names a journal.
    Add(ModelAddArgs),
    /// Change a model: its objective, limits or profile at once, any other key by a model that takes its place
    ///
    /// With a key such as `file` the backends load another model while the former one serves. As soon as all have, clients
    /// use that one; it keeps the objective, the limits and the sub-cluster, and every other key is that of this command.
    Set(ModelSetArgs),
    /// Serve a model no more
    ///
    /// Tasks that wait are still served; new ones are dropped (`model_removed`). Returns once the last one has ended.
    Remove(ModelRemoveArgs),
    /// List the models that are served
    List(ModelListArgs),
    /// Write a cluster file that serves the ONNX models of a Triton model repository
    ///
    /// Says on stderr, by model and line, what is not carried over and what must be chosen. Models that cannot be served
    /// are left out.
    ImportTriton(ImportTritonArgs),
}

#[derive(clap::Args, Debug)]
pub(crate) struct ImportTritonArgs {
    /// The repository: a folder for each model, with config.pbtxt and 1/model.onnx
    pub(crate) dir: PathBuf,
    /// The latency objective of models whose configuration has no default_timeout_microseconds
    #[arg(long, value_name = "MS", default_value_t = 100.0, value_parser = deadline_ms)]
    pub(crate) slo_ms: f64,
    /// Serve every model on the CPU
    #[arg(long)]
    pub(crate) cpu: bool,
    /// Write to this new file instead of stdout
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

/// Which scheduler.
#[derive(clap::Args, Debug)]
#[group(required = true, multiple = true)]
pub(crate) struct SchedulerOf {
    /// The cluster file: where the scheduler is, and with which certificate to reach it
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// The scheduler's address, if there is no cluster file or it says another
    #[arg(long, value_name = "ADDR")]
    pub(crate) scheduler: Option<SocketAddr>,
}

#[derive(clap::Args, Debug)]
pub(crate) struct ModelAddArgs {
    /// The ONNX file, or its URL (http:// or https://); without one, the keys describe an emulated model
    pub(crate) file: Option<PathBuf>,
    /// Its name
    #[arg(long)]
    pub(crate) name: String,
    /// Its latency objective
    #[arg(long, value_name = "MS")]
    pub(crate) slo_ms: f64,
    /// Another key of a [[model]] table, such as batch_max=8 or dims={seq=128}; repeat for several
    #[arg(long = "key", value_name = "KEY=VALUE", value_parser = key)]
    pub(crate) keys: Vec<(String, String)>,
    /// The authorities of a server with https://, as PEM; otherwise the system's
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    /// Print the [[model]] table, with what a URL needs beside it, instead of adding the model. It needs no scheduler
    #[arg(long, group = "SchedulerOf")]
    pub(crate) print: bool,
    #[command(flatten)]
    pub(crate) of: SchedulerOf,
}

#[derive(clap::Args, Debug)]
pub(crate) struct ModelSetArgs {
    /// Which model
    pub(crate) name: String,
    /// Keys of a [[model]] table, such as slo_ms=30 or max_rps=0, which lifts the limit
    #[arg(value_name = "KEY=VALUE", value_parser = key, required = true)]
    pub(crate) keys: Vec<(String, String)>,
    /// The authorities of a server with https://, as PEM; otherwise the system's
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) of: SchedulerOf,
}

#[derive(clap::Args, Debug)]
pub(crate) struct ModelRemoveArgs {
    /// Which model
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) of: SchedulerOf,
}

#[derive(clap::Args, Debug)]
pub(crate) struct ModelListArgs {
    #[command(flatten)]
    pub(crate) of: SchedulerOf,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(clap::Args, Debug)]
pub(crate) struct StatusArgs {
    #[command(flatten)]
    pub(crate) of: SchedulerOf,
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub(crate) json: bool,
    /// Go on, about once a second, until a signal comes
    #[arg(long)]
    pub(crate) watch: bool,
}

pub(super) fn key(text: &str) -> Result<(String, String), String> {
    let pair = text.split_once('=').filter(|(key, value)| !key.is_empty() && !value.is_empty());
    let (key, value) = pair.ok_or_else(|| "give KEY=VALUE".to_owned())?;
    Ok((key.trim().to_owned(), value.trim().to_owned()))
}
