//! `baton load`.

use std::process::ExitCode;
use std::sync::Arc;

use baton_bench::load::{
    self, Circumstances, Finished, LoadConfig, Message, Offered, Progress, Report, outcomes,
};
use baton_bench::machine::StealMeter;
use baton_core::Nanos;
use baton_sim::Scenario;
use baton_topo::{Clock, Cluster};

use crate::CommandResult;
use crate::args::{ExplainArgs, LoadArgs};
use crate::live::Live;
use crate::output::{complain, load_cluster, locator, say, say_table};
use crate::process::{report_flag, stop_flag};

/// Tasks per second of every model when no rate is given.
const RATE: f64 = 10.0;
/// How long the load lasts when nothing says so.
const SECONDS: f64 = 10.0;

/// Exit status 0 if every task had its outcome and no answer was wrong.
pub(crate) fn run(args: &LoadArgs) -> CommandResult {
    let cluster = load_cluster(&args.config)?;
    let steal = StealMeter::start();
    let finished = offer(&cluster, args)?;
    let steal_fraction = steal.fraction();
    let circumstances = Circumstances { steal_fraction, ..Circumstances::default() };
    let report = Report::of_generators(std::slice::from_ref(&finished), circumstances);
    if args.progress_json {
        say(&serde_json::to_string(&Message::Finished(finished))?)?;
    } else if args.json {
        say(&serde_json::to_string(&report)?)?;
    } else {
        say_table(&report.to_string())?;
    }
    Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn offer(cluster: &Cluster, args: &LoadArgs) -> Result<Finished, Box<dyn std::error::Error>> {
    let offered = offered(cluster, args)?;
    let lasts = || offered.lasts().map_or(SECONDS, |lasts| lasts.as_millis_f64() / 1e3);
    let config = LoadConfig {
        scheduler: locator(cluster, args.scheduler)?,
        seconds: args.seconds.unwrap_or_else(lasts),
        offered,
        seed: args.seed,
        outcomes: args.outcomes.clone(),
        metrics: args.metrics,
        progress_every: Nanos::from_millis_f64(args.progress_every * 1e3),
        report: report_flag()?,
    };
    let mut live = Live::new();
    let progress = |progress: &Progress| {
        if !args.progress_json {
            live.progress(progress);
        } else if let Err(error) = tell(progress) {
            complain(&format!("progress could not be written: {error}"));
        }
    };
    let finished = load::run(cluster, &config, Clock::start(), &*stop_flag()?, progress);
    live.finish();
    Ok(finished?)
}

fn offered(cluster: &Cluster, args: &LoadArgs) -> Result<Offered, Box<dyn std::error::Error>> {
    if let Some(file) = &args.scenario {
        let scenario = Arc::new(Scenario::load(file)?);
        let rate = args.rps.unwrap_or(RATE * scenario.models.len() as f64);
        return Ok(Offered::Scenario(scenario, rate));
    }
    if let Some(outstanding) = args.outstanding {
        let models = cluster.models.iter().map(|model| model.name.clone()).collect();
        return Ok(Offered::Outstanding(models, outstanding));
    }
    let all = || cluster.models.iter().map(|model| (model.name.clone(), RATE)).collect();
    Ok(Offered::Rates(if args.rates.is_empty() { all() } else { args.rates.clone() }))
}

fn tell(progress: &Progress) -> Result<(), Box<dyn std::error::Error>> {
    Ok(say(&serde_json::to_string(&Message::Progress(*progress))?)?)
}

/// `baton explain`: what became of a task of a load that is over.
pub(crate) fn explain(args: &ExplainArgs) -> CommandResult {
    let record = outcomes::find(&args.outcomes, args.task)?;
    say(&if args.json { serde_json::to_string(&record)? } else { record.to_string() })?;
    Ok(ExitCode::SUCCESS)
}
