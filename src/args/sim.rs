//! `baton sim`.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use baton_core::Nanos;
use baton_sim::fuzz::served::Family;
use baton_sim::{ClusterRun, Minutes, PolicyName, Rates, ReplayFile, ScenarioSource, Vary};
use clap::Subcommand;

use super::values::{functions_per_s, moment, scale, seconds, tasks};

#[derive(Subcommand, Debug)]
pub(crate) enum SimCommand {
    /// One run at a given rate
    Run(SimRunArgs),
    /// Search for the highest rate at which every model's bad rate is at most 1 %
    Goodput(SimGoodputArgs),
    /// A table of runs over offered rates, or of goodput, for several policies
    ///
    /// With --rates every line is a run at that rate, without it a search for the goodput; with
    /// --vary there is one of each for every value of the key. As many runs at a time as there are cores.
    Sweep(SimSweepArgs),
    /// Print the model tables that a scenario file names with `zoo`: α, β and objective of each model
    Zoo(SimZooArgs),
    /// Draw scenarios at random and compare a policy's goodput on each with the best of the others'
    ///
    /// docs/simulator.md says what is drawn and what is found. A scenario at a time on every core;
    /// how each came out goes to stderr as soon as it is known.
    Fuzz(SimFuzzArgs),
    /// Draw functions and their counts per minute, in the format of the public Azure Functions trace, for --replay
    Functions(SimFunctionsArgs),
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
    /// With attackers: peers that speak the protocol nearly right, flood, and break off
    #[arg(long)]
    pub(crate) hostile: bool,
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

/// The help of an option for policies.
fn policies(what: &str) -> String {
    format!("{what}: {}; see docs/simulator.md", PolicyName::SYNTAX)
}

/// What is simulated.
#[derive(clap::Args, Debug)]
pub(crate) struct ScenarioArgs {
    #[command(flatten)]
    file: ScenarioFile,
    /// Measured span with --cluster [default: 30]
    #[arg(long, value_name = "S", value_parser = seconds, requires = "cluster", conflicts_with = "scenario")]
    seconds: Option<f64>,
    /// Span before it, of which nothing is counted, with --cluster [default: 5]
    #[arg(long, value_name = "S", value_parser = moment, requires = "cluster", conflicts_with = "scenario")]
    warmup: Option<f64>,
    /// A model to leave out with --cluster, such as one whose backends measure ℓ(b); may be given several times
    #[arg(long, value_name = "MODEL", requires = "cluster", conflicts_with = "scenario")]
    without: Vec<String>,
    /// With --cluster: replay a file of arrivals instead, lines timestamp_s[,model[,slo_ms]], or functions and their counts per minute
    #[arg(long, value_name = "FILE", requires = "cluster", conflicts_with = "scenario")]
    replay: Option<PathBuf>,
    /// Which minutes of such counts, FIRST:COUNT, counted from 0 [default: all]
    #[arg(long, value_name = "FIRST:COUNT", requires = "replay")]
    minutes: Option<Minutes>,
}

#[derive(clap::Args, Debug)]
#[group(required = true, multiple = false)]
struct ScenarioFile {
    /// The scenario file
    #[arg(long, value_name = "FILE")]
    scenario: Option<PathBuf>,
    /// A cluster file instead: its models on its GPU slots, under Poisson arrivals
    #[arg(long, value_name = "FILE")]
    cluster: Option<PathBuf>,
}

impl ScenarioArgs {
    pub(crate) fn source(&self) -> ScenarioSource {
        match (&self.file.scenario, &self.file.cluster) {
            (Some(file), _) => ScenarioSource::Scenario(file.clone()),
            (None, file) => {
                let span = |given: Option<f64>, usual: f64| {
                    Nanos::from_millis_f64(given.unwrap_or(usual) * 1e3)
                };
                let (duration, warmup) = (span(self.seconds, 30.0), span(self.warmup, 5.0));
                let replay = self.replay.clone();
                let replay = replay.map(|path| ReplayFile { path, minutes: self.minutes });
                let run = ClusterRun { duration, warmup, without: self.without.clone(), replay };
                ScenarioSource::Cluster(file.clone().unwrap_or_default(), run)
            }
        }
    }
}

#[derive(clap::Args, Debug)]
pub(crate) struct SimFunctionsArgs {
    /// How many functions
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub(crate) functions: u32,
    /// Tasks per second of all of them together
    #[arg(long, value_parser = functions_per_s)]
    pub(crate) rate: f64,
    /// Minutes that are drawn
    #[arg(long, default_value_t = 1440, value_parser = clap::value_parser!(u32).range(1..=1440))]
    pub(crate) minutes: u32,
    /// Same seed, same file
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// The file to write
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
}

#[derive(clap::Args, Debug)]
pub(crate) struct SimZooArgs {
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(clap::Args, Debug)]
pub(crate) struct SimRunArgs {
    #[command(flatten)]
    pub(crate) source: ScenarioArgs,
    #[arg(long, help = policies("A policy"))]
    pub(crate) policy: PolicyName,
    /// Tasks per second in total; of no use if all tasks come from clients in closed loops
    #[arg(long)]
    pub(crate) rate: Option<f64>,
    /// Instead: how many times as fast as its file says a replay is
    #[arg(long, value_name = "TIMES", value_parser = scale, conflicts_with = "rate")]
    pub(crate) speed: Option<f64>,
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
    #[command(flatten)]
    pub(crate) source: ScenarioArgs,
    #[arg(long, help = policies("A policy"))]
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
    #[command(flatten)]
    pub(crate) source: ScenarioArgs,
    #[arg(long = "policy", value_name = "POLICY", required = true, help = policies("A policy; repeat for several"))]
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

/// What `baton sim fuzz` compares unless told otherwise, by the family that it draws.
pub(crate) fn fuzz_policies(family: Option<Family>) -> &'static str {
    match family {
        None => {
            "baton,clockwork:0,eager,timeout:0.2,symphony,frontrun,timeout:0.1,timeout:0.4,clockwork:5"
        }
        Some(Family::Caches) => "baton,clockwork:5,clockwork:0,symphony,eager",
        Some(Family::Supernets) => "baton,slackfit:2,maxacc,maxbatch,eager",
    }
}

#[derive(clap::Args, Debug)]
pub(crate) struct SimFuzzArgs {
    /// How many scenarios
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub(crate) count: u32,
    /// What they are drawn by
    #[arg(long, default_value_t = 1)]
    pub(crate) seed: u64,
    /// The number of the first
    #[arg(long, value_name = "K", default_value_t = 0)]
    pub(crate) from: u32,
    /// This one alone, with every policy's goodput
    #[arg(long, value_name = "K", conflicts_with_all = ["count", "from"])]
    pub(crate) only: Option<u32>,
    /// Draw models whose weights do not fit (`caches`) or that have variants (`supernets`), at a rate, and compare what is
    /// served in time; otherwise compare goodputs
    #[arg(long, value_name = "FAMILY")]
    pub(crate) draw: Option<Family>,
    /// The policies, see docs/simulator.md; the first is compared with the best of the others. The default depends on --draw:
    /// baton beside those of the papers that have a rule for what is drawn
    #[arg(long, value_delimiter = ',', num_args = 1..)]
    policies: Vec<PolicyName>,
    /// Search for the goodput of every policy, even where another's is higher
    #[arg(long, conflicts_with = "draw")]
    pub(crate) all: bool,
    /// Measured span of a run, unless --tasks makes it shorter or few tasks of some model longer
    #[arg(long, value_name = "S", value_parser = seconds, default_value_t = 60.0)]
    pub(crate) seconds: f64,
    /// Most tasks of a run at the analytic bound
    #[arg(long, value_name = "N", value_parser = tasks, default_value_t = 1e6)]
    pub(crate) tasks: f64,
    /// Seeds whose bad tasks are counted together
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) seeds: u32,
    /// Write each scenario's file into this folder
    #[arg(long, value_name = "DIR")]
    pub(crate) write: Option<PathBuf>,
    /// Draw, and write, but do not measure
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

impl SimFuzzArgs {
    /// Those that are named, or else the family's.
    pub(crate) fn policies(&self) -> Vec<PolicyName> {
        if !self.policies.is_empty() {
            return self.policies.clone();
        }
        let names = fuzz_policies(self.draw).split(',');
        names.map(|name| name.parse().expect("a test reads the names")).collect()
    }
}

#[derive(clap::Args, Debug)]
pub(crate) struct SimBoundArgs {
    #[command(flatten)]
    pub(crate) source: ScenarioArgs,
    /// How many seeds to take the mean over, from the scenario's own on; one on every core at a time
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    pub(crate) seeds: u32,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(clap::Args, Debug)]
pub(crate) struct SimExplainArgs {
    #[command(flatten)]
    pub(crate) source: ScenarioArgs,
    /// A policy of the production scheduler: baton, symphony or eager
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_family_has_policies_of_which_ours_is_the_first() {
        for family in [None, Some(Family::Caches), Some(Family::Supernets)] {
            let names = fuzz_policies(family).split(',');
            let policies: Vec<PolicyName> = names.map(|name| name.parse().unwrap()).collect();
            assert_eq!((policies[0].to_string().as_str(), policies.len() > 3), ("baton", true));
            let written: Vec<String> = policies.iter().map(ToString::to_string).collect();
            assert_eq!(
                written.join(","),
                fuzz_policies(family),
                "a replay leaves out what is usual"
            );
        }
    }
}
