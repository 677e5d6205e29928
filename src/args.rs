//! The command line.

use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::PathBuf;

use baton_bench::reproduce;
use baton_sim::{PolicyName, Rates, Vary};
use baton_topo::{Idle, TransportChoice};
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand};

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

#[derive(Subcommand, Debug)]
pub(crate) enum Command {
    /// Run the scheduler of a cluster file
    Scheduler(SchedulerArgs),
    /// Run one backend of a cluster file
    Backend(BackendArgs),
    /// Offer load: Poisson arrivals, every answer checked
    Load(LoadArgs),
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
    /// Measure the Symphony paper's tables and figures again, in virtual time
    ///
    /// Writes reproduction/NAME.json and reproduction/NAME.svg and prints NAME's section of the
    /// page. After `all`, about an hour on two cores, also writes the page,
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

#[derive(Subcommand, Debug)]
pub(crate) enum BenchCommand {
    /// The scheduler's agents on pinned threads, without a network: CPU time per request and batch
    Sched(BenchSchedArgs),
    /// A real cluster of processes under many times what it can serve, and how it recovers
    ///
    /// Starts a scheduler and two backends with an emulated GPU each, looks for the highest rate that
    /// is served, floods with a multiple of it, and goes back. Exit status 0 if every task had its
    /// one outcome and no process died.
    Overload(BenchOverloadArgs),
    /// Time of one READ of one object: `perftest`'s ib_read_lat, over the pull protocol
    ReadLat(BenchPullArgs),
    /// Objects kept under way from one sender: `perftest`'s ib_read_bw
    ReadBw(BenchPullArgs),
    /// All senders' objects at once: rounds of senders × objects
    Incast(BenchPullArgs),
    /// Control messages per second over a TCP connection, each sent and answered: `perftest`'s
    /// ib_send_bw for the messages Baton sends
    SendRate(BenchSendRateArgs),
    /// READs between every two hosts of a cluster, on each of which `baton bench responder` runs
    ///
    /// Listens where the scheduler of the cluster file would, which must not run meanwhile. Exit
    /// status 1 if a pair failed.
    Matrix(BenchMatrixArgs),
    /// One host of `baton bench matrix`: offers objects, and pulls others' when told to
    ///
    /// Anybody who reaches the driver's address may take part, and anybody who reaches this one's
    /// may read its objects, which hold nothing: run it on a network you trust.
    Responder(BenchResponderArgs),
}

#[derive(clap::Args, Debug)]
pub(crate) struct BenchMatrixArgs {
    /// The cluster file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Responders to wait for [default: as many as the file has backends]
    #[arg(long)]
    pub(crate) hosts: Option<usize>,
    /// How long to wait for them
    #[arg(long, default_value_t = 60.0, value_parser = seconds)]
    pub(crate) wait_seconds: f64,
    /// Objects under way when bandwidth is measured
    #[arg(long, default_value_t = 64)]
    pub(crate) objects: u32,
    /// Bytes of an object, at most 64 MiB
    #[arg(long, default_value_t = 150_528)]
    pub(crate) bytes: u32,
    /// Length of each measurement; a pair takes two
    #[arg(long, default_value_t = 1.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Rate of the links, Gb/s, to tell the efficiency
    #[arg(long, value_parser = gbps)]
    pub(crate) link_gbps: Option<f64>,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(clap::Args, Debug)]
pub(crate) struct BenchResponderArgs {
    /// The cluster file: where the driver is, and which transport and device
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// What the driver is to call this host
    #[arg(long)]
    pub(crate) name: String,
    /// The driver's address, if not the scheduler's in the cluster file
    #[arg(long, value_name = "ADDR")]
    pub(crate) scheduler: Option<SocketAddr>,
    /// Where to offer objects [default: on any address and port]
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,
    /// How long to wait for the driver
    #[arg(long, default_value_t = 60.0, value_parser = seconds)]
    pub(crate) wait_seconds: f64,
    /// What the puller does without work: spin, yield or park
    #[arg(long, default_value = "spin", value_parser = idle)]
    pub(crate) idle: Idle,
}

#[derive(clap::Args, Debug)]
pub(crate) struct BenchSendRateArgs {
    /// Messages under way
    #[arg(long, default_value_t = 32)]
    pub(crate) depth: u32,
    /// Bytes of a message on the wire: a plan, 40 bytes and 8 for each task in it
    #[arg(long, default_value_t = 64)]
    pub(crate) bytes: u32,
    /// Length of the measurement, the floor's part included
    #[arg(long, default_value_t = 5.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// What either side does without work: spin, yield or park
    #[arg(long, default_value = "spin", value_parser = idle)]
    pub(crate) idle: Idle,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(clap::Args, Debug)]
pub(crate) struct BenchPullArgs {
    /// rdma or tcp
    #[arg(long, default_value_t = TransportChoice::Tcp, value_parser = one_transport)]
    pub(crate) transport: TransportChoice,
    /// Senders [default: 1; incast: 8]
    #[arg(long)]
    pub(crate) senders: Option<u32>,
    /// Objects of each sender under way at a time [default: read-lat 1, read-bw 64, incast 8]
    #[arg(long)]
    pub(crate) objects: Option<u32>,
    /// Bytes of an object, at most 64 MiB
    #[arg(long, default_value_t = 150_528)]
    pub(crate) bytes: u32,
    /// Length of the measurement
    #[arg(long, default_value_t = 5.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// What the puller does without work: spin, yield or park
    #[arg(long, default_value = "spin", value_parser = idle)]
    pub(crate) idle: Idle,
    /// Compute the floor from this link rate, Gb/s, instead of measuring bare sockets
    #[arg(long, value_parser = gbps)]
    pub(crate) link_gbps: Option<f64>,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(clap::Args, Debug)]
pub(crate) struct BenchOverloadArgs {
    /// Offer this many times the highest rate that is served
    #[arg(long, default_value_t = 10.0, value_parser = factor)]
    pub(crate) factor: f64,
    /// Length of the flood
    #[arg(long, default_value_t = 60.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Length of one step of the search for that rate; the normal load takes two, before and after
    #[arg(long, default_value_t = 3.0, value_parser = seconds)]
    pub(crate) step: f64,
    /// Give each of the two models a quota: max_rps in the cluster file
    #[arg(long, value_name = "RPS", value_parser = requests_per_s)]
    pub(crate) quota: Option<f64>,
    /// Flood one model only: the other is the neighbour
    #[arg(long)]
    pub(crate) one: bool,
    /// Same seed, same arrivals
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(clap::Args, Debug)]
pub(crate) struct BenchSchedArgs {
    /// How the scheduler batches
    #[arg(long, default_value = "baton", value_parser = production_policy())]
    pub(crate) policy: baton_topo::PolicyName,
    /// ModelThreads
    #[arg(long, default_value_t = 1)]
    pub(crate) model_threads: u32,
    /// Models, dealt to the ModelThreads in turn
    #[arg(long, default_value_t = 32)]
    pub(crate) models: u32,
    /// Emulated GPU slots
    #[arg(long, default_value_t = 64)]
    pub(crate) gpus: u32,
    /// Length of the measurement
    #[arg(long, default_value_t = 5.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Requests per second in total, Poisson; without it as many as the ModelThreads take
    #[arg(long, value_parser = requests_per_s)]
    pub(crate) rate: Option<f64>,
    /// Find the highest rate that is served, offer this many times as much, and tell what is left
    #[arg(long, value_name = "FACTOR", value_parser = factor, conflicts_with_all = ["rate", "soak"])]
    pub(crate) overload: Option<f64>,
    /// Follow every task to its outcome, and watch the process's memory
    #[arg(long)]
    pub(crate) soak: bool,
    /// Requests arrive over TCP, from a thread for each ModelThread
    #[arg(long, conflicts_with_all = ["soak", "overload"])]
    pub(crate) tcp: bool,
    /// How the costs grow with models, GPUs and ModelThreads; writes sweep.svg and sweep.json
    #[arg(long, conflicts_with_all = ["rate", "soak", "overload", "tcp"])]
    pub(crate) sweep: bool,
    /// Where a sweep writes its files
    #[arg(long, value_name = "DIR", default_value = "docs/performance")]
    pub(crate) out: PathBuf,
    /// Same seed, same requests
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Subcommand, Debug)]
pub(crate) enum SimCommand {
    /// One run at a given rate
    Run(SimRunArgs),
    /// Search for the highest rate at which every model's bad rate is at most 1 %
    Goodput(SimGoodputArgs),
    /// A table of runs over offered rates, or of goodput, for several policies
    ///
    /// With --rates every line is a run at that rate, without it a search for the goodput; with
    /// --vary there is one of each for every value of the key. Two runs at a time.
    Sweep(SimSweepArgs),
    /// How much load any scheduler could carry: the analytic bound, and for one model what foresight
    /// could reach and what not even foresight could
    Bound(SimBoundArgs),
    /// Say why tasks or batches of a run were scheduled, delayed or dropped
    Explain(SimExplainArgs),
    /// Run whole clusters under faults on a simulated network: the real processes' code, every byte of
    /// their messages, one seed or thousands
    ///
    /// Exit status 0 only if everything held in every seed. A seed that fails is printed with what
    /// was wrong and the command that runs it again; docs/swarm.md.
    Cluster(SimClusterArgs),
}

#[derive(clap::Args, Debug)]
pub(crate) struct SimClusterArgs {
    /// Run this seed
    #[arg(long, value_name = "N", required_unless_present = "swarm")]
    pub(crate) seed: Option<u64>,
    /// Print the seed's event log
    #[arg(long, requires = "seed")]
    pub(crate) trace: bool,
    /// Run many seeds
    #[arg(long, conflicts_with = "seed")]
    pub(crate) swarm: bool,
    /// How many [default: 1000]
    #[arg(long, value_name = "N", requires = "swarm", conflicts_with = "seconds")]
    pub(crate) seeds: Option<u64>,
    /// As many as can be begun in this time
    #[arg(long, value_name = "S", requires = "swarm", value_parser = seconds)]
    pub(crate) seconds: Option<f64>,
    /// The first of them
    #[arg(long, value_name = "SEED", requires = "swarm", default_value_t = 0)]
    pub(crate) from: u64,
    /// How many at a time [default: one per core]
    #[arg(long, value_name = "N", requires = "swarm")]
    pub(crate) threads: Option<NonZeroUsize>,
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
    /// One short seed for every point: a quarter of an hour
    #[arg(long, conflicts_with = "quick")]
    pub(crate) brief: bool,
    /// Where to write
    #[arg(long, value_name = "DIR", default_value = "docs")]
    pub(crate) out: PathBuf,
    /// Print the data as one JSON object instead of Markdown
    #[arg(long)]
    pub(crate) json: bool,
}

fn production_policy() -> impl TypedValueParser<Value = baton_topo::PolicyName> {
    let all = baton_topo::PolicyName::ALL;
    let named = move |name: &str| all.into_iter().find(|policy| policy.name() == name);
    PossibleValuesParser::new(all.map(baton_topo::PolicyName::name))
        .map(move |name| named(&name).expect("the parser knows these names only"))
}

fn experiments() -> PossibleValuesParser {
    PossibleValuesParser::new([reproduce::ALL].into_iter().chain(reproduce::names()))
}

#[derive(clap::Args, Debug)]
pub(crate) struct SimRunArgs {
    /// The scenario file
    #[arg(long, value_name = "FILE")]
    pub(crate) scenario: PathBuf,
    /// A policy, see docs/simulator.md
    #[arg(long)]
    pub(crate) policy: PolicyName,
    /// Tasks per second in total
    #[arg(long)]
    pub(crate) rate: f64,
    /// The seed, if not the scenario's
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    /// Write one line for each batch and each dropped task
    #[arg(long, value_name = "FILE")]
    pub(crate) trace: Option<PathBuf>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(clap::Args, Debug)]
pub(crate) struct SimGoodputArgs {
    /// The scenario file
    #[arg(long, value_name = "FILE")]
    pub(crate) scenario: PathBuf,
    /// A policy, see docs/simulator.md
    #[arg(long)]
    pub(crate) policy: PolicyName,
    /// How many seeds to take the mean over, from the scenario's own on
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) seeds: u32,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(clap::Args, Debug)]
pub(crate) struct SimSweepArgs {
    /// The scenario file
    #[arg(long, value_name = "FILE")]
    pub(crate) scenario: PathBuf,
    /// A policy, see docs/simulator.md; repeat for several
    #[arg(long = "policy", value_name = "POLICY", required = true)]
    pub(crate) policies: Vec<PolicyName>,
    /// A:B:N, N rates from A to B tasks per second in total, or A,B,…; with x at the end multiples
    /// of the analytic bound
    #[arg(long)]
    pub(crate) rates: Option<Rates>,
    /// A key of the scenario file and its values, for example gpus=8,16 or slo_ms=20,50,100
    #[arg(long, value_name = "KEY=V,V,…")]
    pub(crate) vary: Option<Vary>,
    /// How many seeds to take the mean over, from the scenario's own on
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) seeds: u32,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(clap::Args, Debug)]
pub(crate) struct SimBoundArgs {
    /// The scenario file
    #[arg(long, value_name = "FILE")]
    pub(crate) scenario: PathBuf,
    /// How many seeds to take the mean over, from the scenario's own on; two at a time
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) seeds: u32,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(clap::Args, Debug)]
pub(crate) struct SimExplainArgs {
    /// The scenario file
    #[arg(long, value_name = "FILE")]
    pub(crate) scenario: PathBuf,
    /// A policy of the production scheduler, see docs/simulator.md
    #[arg(long)]
    pub(crate) policy: PolicyName,
    /// Tasks per second in total
    #[arg(long)]
    pub(crate) rate: f64,
    /// The seed, if not the scenario's
    #[arg(long)]
    pub(crate) seed: Option<u64>,
    #[command(flatten)]
    pub(crate) subject: ExplainSubject,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(clap::Args, Debug)]
#[group(required = true, multiple = false)]
pub(crate) struct ExplainSubject {
    /// The task that arrived at this nanosecond: the id it has in a trace
    #[arg(long, value_name = "ID")]
    pub(crate) task: Option<u64>,
    /// The batch that was sealed as the N-th of the run
    #[arg(long, value_name = "N")]
    pub(crate) batch: Option<u64>,
    /// The state at this moment of the run, and the batch that was sealed next
    #[arg(long, value_name = "MS", value_parser = moment)]
    pub(crate) at: Option<f64>,
    /// The first N tasks that were dropped
    #[arg(long, value_name = "N")]
    pub(crate) dropped: Option<usize>,
    /// The first N tasks that ended too late
    #[arg(long, value_name = "N")]
    pub(crate) late: Option<usize>,
}

#[derive(clap::Args, Debug)]
pub(crate) struct SchedulerArgs {
    /// The cluster file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Listen here instead of where the cluster file says; port 0 takes a free one
    #[arg(long, value_name = "ADDR")]
    pub(crate) listen: Option<SocketAddr>,
}

#[derive(clap::Args, Debug)]
pub(crate) struct BackendArgs {
    /// The cluster file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// Which [[backend]] of it to be
    #[arg(long)]
    pub(crate) name: String,
    /// The scheduler's address, if not the one in the cluster file
    #[arg(long, value_name = "ADDR")]
    pub(crate) scheduler: Option<SocketAddr>,
}

#[derive(clap::Args, Debug)]
pub(crate) struct LoadArgs {
    /// The cluster file
    #[arg(long, value_name = "FILE")]
    pub(crate) config: PathBuf,
    /// The scheduler's address, if not the one in the cluster file
    #[arg(long, value_name = "ADDR")]
    pub(crate) scheduler: Option<SocketAddr>,
    /// For how long
    #[arg(long, default_value_t = 10.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Tasks per second of a model; repeat for several. Without any: 10 of every model
    #[arg(long = "rate", value_name = "MODEL=RATE", value_parser = rate)]
    pub(crate) rates: Vec<(String, f64)>,
    /// Same seed, same arrivals and inputs
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
    /// Print one JSON object per second and a last one with mergeable counts
    #[arg(long, hide = true, conflicts_with = "json")]
    pub(crate) progress_json: bool,
}

#[derive(clap::Args, Debug)]
pub(crate) struct DemoArgs {
    /// For how long to offer load
    #[arg(long, default_value_t = 10.0, value_parser = seconds)]
    pub(crate) seconds: f64,
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

fn transport(text: &str) -> Result<TransportChoice, String> {
    use TransportChoice::{Auto, Rdma, Tcp};
    let choice = [Rdma, Tcp, Auto].into_iter().find(|choice| choice.as_str() == text);
    choice.ok_or_else(|| "give rdma, tcp or auto".to_owned())
}

fn one_transport(text: &str) -> Result<TransportChoice, String> {
    let choice = transport(text).ok().filter(|choice| *choice != TransportChoice::Auto);
    choice.ok_or_else(|| "give rdma or tcp".to_owned())
}

fn idle(text: &str) -> Result<Idle, String> {
    match text {
        "spin" => Ok(Idle::Spin),
        "yield" => Ok(Idle::Yield),
        "park" => Ok(Idle::Park),
        _ => Err("give spin, yield or park".to_owned()),
    }
}

fn gbps(text: &str) -> Result<f64, String> {
    number(text, 0.001, 1e5)
}

fn seconds(text: &str) -> Result<f64, String> {
    number(text, 0.1, 1e6)
}

fn moment(text: &str) -> Result<f64, String> {
    number(text, 0.0, 1e9)
}

fn scale(text: &str) -> Result<f64, String> {
    number(text, 0.0, 1e3)
}

fn requests_per_s(text: &str) -> Result<f64, String> {
    number(text, 1.0, 1e9)
}

fn factor(text: &str) -> Result<f64, String> {
    number(text, 1.0, 10.0)
}

fn rate(text: &str) -> Result<(String, f64), String> {
    let (model, rate) = text.rsplit_once('=').ok_or("write MODEL=RATE, for example resnet50=20")?;
    Ok((model.to_owned(), number(rate, 0.0, 1e6)?))
}

fn number(text: &str, min: f64, max: f64) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok();
    let within = number.filter(|number| (min..=max).contains(number));
    within.ok_or_else(|| format!("give a number from {min} to {max}"))
}
