//! `baton bench`.

use std::net::SocketAddr;
use std::path::PathBuf;

use baton_topo::{Idle, TransportChoice};
use clap::builder::RangedI64ValueParser;
use clap::{Subcommand, value_parser};

use super::gateway_bench::BenchGatewayArgs;
use super::gpu::BenchGpuArgs;
use super::path::{BenchPathArgs, BenchPathEndArgs};
use super::values::{
    factor, gbps, idle, one_transport, processes, production_policy, requests_per_s, seconds, share,
};

/// Where commands write files unless told otherwise: a folder that nothing else is in.
pub(crate) const OUT: &str = "baton-out";

/// Bytes of an object: one payload at most.
fn object_bytes() -> RangedI64ValueParser<u32> {
    value_parser!(u32).range(1..=64 << 20)
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
    /// The same cluster under half of what it can serve, for hours: memory, handles, latency
    ///
    /// Writes soak.svg and soak.json. Exit status 0 if every task had its one outcome and no process
    /// died.
    Soak(BenchSoakArgs),
    /// The whole path from client to scheduler to backend, a process each: CPU time per task
    ///
    /// Starts a scheduler, a backend with emulated GPUs and a client, over loopback, and compares
    /// what they carry with what bare sockets carry. Exit status 0 if every task had its one
    /// outcome and no process died.
    Path(BenchPathArgs),
    /// The GPU pipeline beside a bare loop of the same kernel: rate, gaps, copies, tails, memory
    ///
    /// With --json a line for each goal. Exit status 0 if every goal is met; on the fake driver, whose times mean nothing, if
    /// everything works.
    Gpu(BenchGpuArgs),
    /// The gateway beside bare hyper and bare tonic: CPU time per request, over HTTP and gRPC
    ///
    /// Starts a scheduler, a backend that answers at once, a gateway of one thread and a bare server, which take turns.
    Gateway(BenchGatewayArgs),
    /// The bare server that `baton bench gateway` compares with
    #[command(hide = true)]
    GatewayEnd,
    /// The far end of the bare sockets that `baton bench path` compares with
    #[command(hide = true)]
    PathEnd(BenchPathEndArgs),
    /// A real cluster of processes that are killed, stopped, cut off, robbed of disk and port
    ///
    /// Exit status 0 only if every task had its one outcome, no answer was wrong, the cluster served again
    /// within 2 s of each fault and everybody left in order; docs/chaos.md.
    Chaos(BenchChaosArgs),
    /// Time of one READ of one object: `perftest`'s ib_read_lat, over the pull protocol
    ReadLat(BenchPullArgs),
    /// Objects kept under way from one sender: `perftest`'s ib_read_bw
    #[command(mut_arg("objects", |objects| objects.default_value("64")))]
    ReadBw(BenchPullArgs),
    /// All senders' objects at once: rounds of senders × objects
    #[command(mut_arg("senders", |senders| senders.default_value("8")))]
    #[command(mut_arg("objects", |objects| objects.default_value("8")))]
    Incast(BenchPullArgs),
    /// Control messages per second over a TCP connection, each sent and answered: `perftest`'s
    /// ib_send_bw for the messages Baton sends
    SendRate(BenchSendRateArgs),
    /// Processor time of a READ and of a handshake, over plain TCP and with TLS, in turns
    TlsCost(BenchTlsCostArgs),
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
    #[arg(long, default_value_t = 150_528, value_parser = object_bytes())]
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
    /// rdma or tcp
    #[arg(long, default_value_t = TransportChoice::Tcp, value_parser = one_transport)]
    pub(crate) transport: TransportChoice,
    /// Messages under way
    #[arg(long, default_value_t = 32)]
    pub(crate) depth: u32,
    /// Bytes of a message on the wire, at least 40
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
pub(crate) struct BenchTlsCostArgs {
    /// PEM file of the authority that has issued the certificate
    #[arg(long, value_name = "FILE")]
    pub(crate) ca: PathBuf,
    /// PEM file of the certificate that both ends show
    #[arg(long, value_name = "FILE")]
    pub(crate) cert: PathBuf,
    /// PEM file of its key
    #[arg(long, value_name = "FILE")]
    pub(crate) key: PathBuf,
    /// Objects under way at a time
    #[arg(long, default_value_t = 1)]
    pub(crate) objects: u32,
    /// Bytes of an object, at most 64 MiB
    #[arg(long, default_value_t = 150_528, value_parser = object_bytes())]
    pub(crate) bytes: u32,
    /// Length of the measurement
    #[arg(long, default_value_t = 5.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(clap::Args, Debug)]
pub(crate) struct BenchPullArgs {
    /// rdma or tcp
    #[arg(long, default_value_t = TransportChoice::Tcp, value_parser = one_transport)]
    pub(crate) transport: TransportChoice,
    /// Senders
    #[arg(long, default_value_t = 1)]
    pub(crate) senders: u32,
    /// Objects of each sender under way at a time
    #[arg(long, default_value_t = 1)]
    pub(crate) objects: u32,
    /// Bytes of an object, at most 64 MiB
    #[arg(long, default_value_t = 150_528, value_parser = object_bytes())]
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
pub(crate) struct BenchChaosArgs {
    /// Same seed, same faults in the same order
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// For how long things go wrong
    #[arg(long, default_value_t = 30.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Go on until at least this many faults have happened
    #[arg(long, default_value_t = 0)]
    pub(crate) faults: usize,
    /// Seconds from the end of a fault in which a task must be answered
    #[arg(long, default_value_t = 2.0, value_parser = seconds)]
    pub(crate) within: f64,
    /// Processes of the cluster: a scheduler, backends and frontends
    #[arg(long, default_value_t = 6, value_parser = processes)]
    pub(crate) processes: usize,
    /// Keep the cluster file and the logs
    #[arg(long)]
    pub(crate) keep_dir: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(clap::Args, Debug)]
pub(crate) struct BenchSoakArgs {
    /// Share of what the GPUs do at best
    #[arg(long, default_value_t = 0.5, value_parser = share)]
    pub(crate) load: f64,
    /// How long
    #[arg(long, default_value_t = 7200.0, value_parser = seconds)]
    pub(crate) seconds: f64,
    /// Look at memory, handles and latency this often
    #[arg(long, default_value_t = 60.0, value_parser = seconds)]
    pub(crate) every: f64,
    /// Where to write its files
    #[arg(long, value_name = "DIR", default_value = OUT)]
    pub(crate) out: PathBuf,
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
    pub(crate) policy: baton_core::Policy,
    /// ModelThreads
    #[arg(long, default_value_t = 1)]
    pub(crate) model_threads: u32,
    /// Models, dealt to the ModelThreads in turn
    #[arg(long, default_value_t = 32)]
    pub(crate) models: u32,
    /// Emulated GPU slots
    #[arg(long, default_value_t = 64)]
    pub(crate) gpus: u32,
    /// Variants of each model: with more than one, each model is a supernet
    #[arg(long, default_value_t = 1)]
    pub(crate) variants: u32,
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
    #[arg(long, value_name = "DIR", default_value = OUT)]
    pub(crate) out: PathBuf,
    /// Same seed, same requests
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}
