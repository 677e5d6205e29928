//! The command line.

mod bench;
#[cfg(test)]
mod documented;
mod examples;
mod gateway;
mod gateway_bench;
mod gpu;
mod load;
mod model;
mod path;
mod profile;
mod refusal;
mod sim;
mod supernet;
mod values;

use std::net::SocketAddr;
use std::path::PathBuf;

use baton_bench::reproduce;
use baton_topo::TransportChoice;
use clap::builder::PossibleValuesParser;
use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

pub(crate) use bench::{
    BenchChaosArgs, BenchCommand, BenchMatrixArgs, BenchOverloadArgs, BenchPullArgs,
    BenchResponderArgs, BenchSchedArgs, BenchSendRateArgs, BenchSoakArgs, BenchTlsCostArgs,
};
pub(crate) use gateway::GatewayArgs;
pub(crate) use gateway_bench::BenchGatewayArgs;
pub(crate) use gpu::BenchGpuArgs;
pub(crate) use load::{LoadArgs, SendDeadlineArg};
pub(crate) use model::{
    ImportTritonArgs, ModelAddArgs, ModelCommand, ModelListArgs, ModelSetArgs, SchedulerOf,
    StatusArgs,
};
pub(crate) use path::{BenchPathArgs, BenchPathEndArgs, PathMode};
pub(crate) use profile::ProfileArgs;
pub(crate) use sim::{
    ExplainSubject, SimBoundArgs, SimClusterArgs, SimCommand, SimExplainArgs, SimFunctionsArgs,
    SimFuzzArgs, SimGoodputArgs, SimRunArgs, SimSweepArgs, SimZooArgs, fuzz_policies,
};
pub(crate) use supernet::{SupernetCommand, SupernetExportArgs, SupernetParetoArgs};
use values::{scale, seconds, transport};

/// Deadline-aware DNN inference serving for GPU clusters.
#[derive(Parser, Debug)]
#[command(name = "baton", version, arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) command: Command,
    /// Be killed when the process that started this one ends.
    #[arg(long, hide = true)]
    pub(crate) die_with_parent: bool,
}

/// The command line of this process; a wrong one ends it.
pub(crate) fn parse() -> Args {
    let matches = command().try_get_matches().unwrap_or_else(|error| refuse(error));
    Args::from_arg_matches(&matches).unwrap_or_else(|error| refuse(error))
}

fn refuse(error: clap::Error) -> ! {
    let words = std::env::args_os().skip(1).map(|word| word.to_string_lossy().into_owned());
    refusal::with_fix(error, &command(), &words.collect::<Vec<_>>()).exit()
}

fn command() -> clap::Command {
    examples::shown(taking_negative_numbers(Args::command()), "")
}

/// `--seconds -1` is a value out of range, with our words, and no unknown option `-1`.
fn taking_negative_numbers(command: clap::Command) -> clap::Command {
    command.allow_negative_numbers(true).mut_subcommands(taking_negative_numbers)
}

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Run the scheduler of a cluster file
    Scheduler(SchedulerArgs),
    /// Run one backend of a cluster file
    Backend(BackendArgs),
    /// Serve HTTP and gRPC clients of the Open Inference Protocol v2, which need no library of Baton's
    Gateway(GatewayArgs),
    /// Say how a running cluster fares: members, models, GPUs, what happened last
    Status(StatusArgs),
    /// Add, change, remove or list the models of a running scheduler
    Model {
        #[command(subcommand)]
        command: ModelCommand,
    },
    /// Measure how long batches of a model take, and write a profile that a cluster file can name
    ///
    /// Executes batches of zeros of each size and prints the times, the line α·b + β through them and what throws doubt on
    /// them. Nothing else should use the device or the cores meanwhile.
    Profile(ProfileArgs),
    /// Make models of several variants: from a checkpoint to an ONNX file
    Supernet {
        #[command(subcommand)]
        command: SupernetCommand,
    },
    /// Offer load to a cluster or to another server, and say what became of every task
    ///
    /// Arrivals do not wait for answers, errors are results, and latencies count from when a task was due. The server is the
    /// cluster of --config by the client library, or with --url any server of the Open Inference Protocol.
    Load(Box<LoadArgs>),
    /// Say what happened to a task of a load, and when
    ///
    /// Tasks that were not answered in time are in the file that `baton load --outcomes` wrote.
    Explain(ExplainArgs),
    /// Run a whole cluster on this machine and serve real models under load
    ///
    /// Starts 1 scheduler, 3 backends (2 with two emulated GPUs each, 1 with ONNX Runtime on the
    /// CPU) and 2 frontends as processes of their own. Exit status 0 only if every task had its
    /// outcome and no answer was wrong. Without ORT_DYLIB_PATH, the path of an ONNX Runtime
    /// library, the ONNX backend is left out.
    Demo(DemoArgs),
    /// Simulate a scheduling policy in virtual time
    Sim {
        #[command(subcommand)]
        command: SimCommand,
    },
    /// Measure the tables and figures of the Symphony, Clockwork and SuperServe papers again, in virtual time
    ///
    /// Writes reproduction/NAME.json and reproduction/NAME.svg and prints NAME's section of the
    /// page. After `all`, many hours on two cores, also writes the page,
    /// reproduction.md.
    Reproduce(ReproduceArgs),
    /// Measure what a part of Baton costs
    Bench {
        #[command(subcommand)]
        command: BenchCommand,
    },
    /// Say whether this host is fit for Baton: what is seen, what is expected, what to do
    ///
    /// Exit status 0 if nothing keeps Baton from working as configured, 1 otherwise.
    Doctor(DoctorArgs),
    /// Look at the machine
    Topo {
        #[command(subcommand)]
        command: TopoCommand,
    },
    /// Look at cluster files
    Config {
        #[command(subcommand)]
        command: ConfigCommand,
    },
}

#[derive(Subcommand, Debug)]
pub(crate) enum ConfigCommand {
    /// List everything that is wrong with a cluster file, or say what was understood
    Check {
        /// The cluster file
        file: PathBuf,
    },
}

#[derive(Subcommand, Debug)]
pub(crate) enum TopoCommand {
    /// Draw NUMA nodes, cards and GPUs, how far apart they are, and the pinning that follows
    Show(TopoShowArgs),
}

#[derive(clap::Args, Debug)]
pub(crate) struct DoctorArgs {
    /// Check against what this cluster file asks for instead of the defaults
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Look at the sys and proc below DIR: a tree recorded on another host
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub(crate) sysroot: PathBuf,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(clap::Args, Debug)]
pub(crate) struct TopoShowArgs {
    /// Look at the sys and proc below DIR: a tree recorded on another host
    #[arg(long, value_name = "DIR", default_value = "/")]
    pub(crate) sysroot: PathBuf,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(clap::Args, Debug)]
pub(crate) struct ReproduceArgs {
    /// Which table or figure
    #[arg(value_name = "NAME", value_parser = experiments())]
    pub(crate) name: String,
    /// One seed, short spans and fewer points: minutes, and marked as such
    #[arg(long)]
    pub(crate) quick: bool,
    /// One short seed for every point: over an hour
    #[arg(long, conflicts_with = "quick")]
    pub(crate) brief: bool,
    /// Where to write
    #[arg(long, value_name = "DIR", default_value = bench::OUT)]
    pub(crate) out: PathBuf,
    /// Print the data as one JSON object instead of Markdown
    #[arg(long)]
    pub(crate) json: bool,
}

fn experiments() -> PossibleValuesParser {
    PossibleValuesParser::new([reproduce::ALL].into_iter().chain(reproduce::names()))
}

#[derive(clap::Args, Debug)]
pub(crate) struct SchedulerArgs {
    /// The cluster file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Listen here instead of where the cluster file says; port 0 takes a free one
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,
    /// Let Prometheus scrape it here instead of where the cluster file says
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<SocketAddr>,
}

#[derive(clap::Args, Debug)]
pub(crate) struct BackendArgs {
    /// The cluster file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Which [[backend]] of it to be
    #[arg(long)]
    pub(crate) name: String,
    /// Let Prometheus scrape it here instead of where the cluster file says
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<SocketAddr>,
    /// The scheduler's address, if not the one in the cluster file
    #[arg(long, value_name = "ADDR")]
    pub(crate) scheduler: Option<SocketAddr>,
}

#[derive(clap::Args, Debug)]
pub(crate) struct ExplainArgs {
    /// The task's id, as in the file and in logs
    #[arg(value_name = "TASK")]
    pub(crate) task: u64,
    /// The file that `baton load --outcomes` wrote
    #[arg(long, value_name = "FILE")]
    pub(crate) outcomes: PathBuf,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

/// What executes the demo's models that need no file.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum DemoEngine {
    /// Delays of the emulated GPU
    Emulated,
    /// A kernel that lasts as long, on one NVIDIA GPU
    Cuda,
}

#[derive(clap::Args, Debug)]
pub(crate) struct DemoArgs {
    /// For how long to offer load [default: 10; with --gateway until a signal comes]
    #[arg(long, value_parser = seconds)]
    pub(crate) seconds: Option<f64>,
    /// Start a gateway as well, and print a curl line that asks it for an inference
    #[arg(long)]
    pub(crate) gateway: bool,
    /// Serve a model with variants under a burst, kill a backend in the middle of it, and plot load and accuracy
    /// [30 seconds unless --seconds says otherwise]
    #[arg(long, conflicts_with_all = ["gateway", "engine", "rate_scale"])]
    pub(crate) supernet: bool,
    /// Serve 200 models on GPUs whose memory holds 20, and plot the tasks that come before their model, and the loads
    /// [20 seconds unless --seconds says otherwise]
    #[arg(long, conflicts_with_all = ["gateway", "engine", "supernet"])]
    pub(crate) cold: bool,
    /// What executes the models that need no file
    #[arg(long, value_enum, default_value_t = DemoEngine::Emulated)]
    pub(crate) engine: DemoEngine,
    /// With --engine cuda: a driver of Baton's own, without a GPU; the report says so
    #[arg(long)]
    pub(crate) fake_gpu: bool,
    /// Factor on every model's rate
    #[arg(long, default_value_t = 1.0, value_parser = scale)]
    pub(crate) rate_scale: f64,
    /// What backends read inputs over: rdma, tcp or auto. rdma fails where it is not to be had
    #[arg(long, default_value_t = TransportChoice::Auto, value_parser = transport)]
    pub(crate) transport: TransportChoice,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
    /// Keep the cluster file and the logs
    #[arg(long)]
    pub(crate) keep_dir: bool,
}
