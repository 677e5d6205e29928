//! The options of `baton load`.

use std::net::SocketAddr;
use std::path::PathBuf;

use baton_bench::oip::{Token, Url};
use baton_sim::Minutes;
use baton_topo::Idle;
use clap::{ArgGroup, value_parser};

use super::values::{
    deadline_ms, expect, goodput_share, outstanding, rate, requests_per_s, resolution, scale,
    seconds, shape, span, spin_or_park, token,
};

/// How a request says its deadline.
#[derive(clap::ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SendDeadlineArg {
    /// baton-timeout-us over HTTP, grpc-timeout over gRPC
    Header,
    /// The protocol's parameter timeout
    Parameter,
}

#[derive(clap::Args, Debug)]
#[command(group(ArgGroup::new("server").args(["config", "url"]).required(true).multiple(true)))]
pub(crate) struct LoadArgs {
    /// The cluster file; with --url it only says more of its models: objectives and right answers
    #[arg(long, value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// A server of the Open Inference Protocol instead of the cluster: http://HOST:PORT or grpc://HOST:PORT, with TLS https://
    /// or grpcs://
    #[arg(long, value_name = "URL", conflicts_with_all = ["scheduler", "outcomes", "metrics"])]
    pub(crate) url: Option<Url>,
    /// With --url and TLS: the certificate (PEM) of the authority that has signed the server's
    #[arg(long, value_name = "FILE", requires = "url")]
    pub(crate) ca: Option<PathBuf>,
    /// With --url: a bearer token, or @ and the file whose only line it is, where other users do not see it
    #[arg(long, value_name = "TOKEN|@FILE", value_parser = token, requires = "url")]
    pub(crate) token: Option<Token>,
    /// With --url: send numbers as JSON instead of bytes
    #[arg(long, requires = "url")]
    pub(crate) json_tensors: bool,
    /// With --url: how long a task may take, if the scenario or the replay does not say [default: slo_ms of --config]
    #[arg(long, value_name = "MS", value_parser = deadline_ms, requires = "url")]
    pub(crate) deadline_ms: Option<f64>,
    /// With --url: tell the server of it, by a header (baton-timeout-us, grpc-timeout) or by the parameter timeout
    #[arg(long, value_enum, value_name = "HOW", requires = "url")]
    pub(crate) send_deadline: Option<SendDeadlineArg>,
    /// With --url: connections. Over HTTP as many requests are under way at a time, over gRPC 100 for each [default: 128, gRPC 4]
    #[arg(long, value_parser = value_parser!(u32).range(1..=4_096), requires = "url")]
    pub(crate) connections: Option<u32>,
    /// With --url: extents that the server leaves open, without the batch; repeat for several inputs
    #[arg(long = "shape", value_name = "INPUT:N,N", value_parser = shape, requires = "url")]
    pub(crate) shapes: Vec<(String, Vec<u32>)>,
    /// The scheduler's address, if not the one in the cluster file
    #[arg(long, value_name = "ADDR")]
    pub(crate) scheduler: Option<SocketAddr>,
    /// For how long [default: 10, or as long as the scenario lasts]
    #[arg(long, value_parser = seconds)]
    pub(crate) seconds: Option<f64>,
    /// Tasks per second of a model; repeat for several. Without any: 10 of every model
    #[arg(long = "rate", value_name = "MODEL=RATE", value_parser = rate)]
    pub(crate) rates: Vec<(String, f64)>,
    /// Offer a scenario's load: its bursts, popularity, courses or replay, for its models
    #[arg(long, value_name = "FILE", conflicts_with = "rates")]
    pub(crate) scenario: Option<PathBuf>,
    /// Replay a file of arrivals, lap after lap: lines timestamp_s[,model[,slo_ms]], or functions and their counts per minute
    #[arg(long, value_name = "FILE", conflicts_with_all = ["rates", "scenario"])]
    pub(crate) replay: Option<PathBuf>,
    /// Which minutes of such counts, FIRST:COUNT, counted from 0 [default: all]
    #[arg(long, value_name = "FIRST:COUNT", requires = "replay")]
    pub(crate) minutes: Option<Minutes>,
    /// How many times as fast as its file says the replay is, instead of --rps
    #[arg(long, value_name = "TIMES", value_parser = scale, requires = "replay", conflicts_with = "rps")]
    pub(crate) speed: Option<f64>,
    /// A model, where no --rate names it: of the file with --replay, of the closed loop with --outstanding; repeat for several
    /// [default: those of --config]
    #[arg(long = "model", value_name = "MODEL", conflicts_with_all = ["rates", "scenario"])]
    pub(crate) models: Vec<String>,
    /// Tasks per second of the scenario's models together [default: 10 for each], or of a replay [default: the file's]
    #[arg(long, value_parser = requests_per_s)]
    pub(crate) rps: Option<f64>,
    /// Keep this number of tasks of every model under way instead of a rate: a closed loop
    #[arg(long, value_name = "TASKS", value_parser = outstanding(), conflicts_with_all = ["rates", "scenario", "replay"])]
    pub(crate) outstanding: Option<u32>,
    /// Inputs and their answers: perf_analyzer's JSON with validation_data, or held-out images; repeat for several models
    #[arg(long, value_name = "[MODEL=]FILE", value_parser = expect)]
    pub(crate) expect: Vec<(Option<String>, PathBuf)>,
    /// Search the highest rate at which this share of each model's tasks is answered in time, in trials of --seconds [5]
    #[arg(long, value_name = "SHARE", value_parser = goodput_share, conflicts_with_all = ["outstanding", "outcomes", "progress_json"])]
    pub(crate) goodput: Option<f64>,
    /// How closely to know that rate
    #[arg(long, value_name = "SHARE", default_value_t = 0.02, value_parser = resolution, requires = "goodput")]
    pub(crate) resolution: f64,
    /// What the generator does while nothing is due and nothing comes: spin, which takes a core, or park
    #[arg(long, value_name = "spin|park", default_value = "park", value_parser = spin_or_park, conflicts_with = "url")]
    pub(crate) idle: Idle,
    /// Same seed, same arrivals and inputs
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// Write what became of each task that was not answered in time, one JSON object a line
    #[arg(long, value_name = "FILE")]
    pub(crate) outcomes: Option<PathBuf>,
    /// Let Prometheus scrape the client's counters and latencies at http://ADDR/metrics
    #[arg(long, value_name = "ADDR")]
    pub(crate) metrics: Option<SocketAddr>,
    /// Print one JSON object instead of a table
    #[arg(long)]
    pub(crate) json: bool,
    /// Write a line for each run, in perf_analyzer's columns
    #[arg(long, value_name = "FILE")]
    pub(crate) csv: Option<PathBuf>,
    /// Draw rates and latencies over time: a page if FILE ends in .html, otherwise an SVG
    #[arg(long, value_name = "FILE")]
    pub(crate) report: Option<PathBuf>,
    /// Print one JSON object per second and a last one with mergeable counts
    #[arg(long, hide = true, conflicts_with = "json")]
    pub(crate) progress_json: bool,
    /// Seconds between two of those
    #[arg(long, hide = true, default_value_t = 1.0, value_parser = span)]
    pub(crate) progress_every: f64,
}
