//! `baton sim`.

mod bound;
mod cluster;
mod fuzz;
mod fuzz_text;
mod run_text;
mod served_text;
mod sweep;
mod zoo;

use std::fmt::Write as _;
use std::fs::File;
use std::io::{BufWriter, Write as _};
use std::process::ExitCode;

use baton_sim::{
    Functions, Goodput, Run, Scenario, ScenarioError, ScenarioSource, Subject, write_functions,
};
use baton_topo::Clock;

use crate::CommandResult;
use crate::args::{
    ExplainSubject, SimCommand, SimExplainArgs, SimFunctionsArgs, SimGoodputArgs, SimRunArgs,
};
use crate::live::Paced;
use crate::output::say;

pub(crate) fn run(command: &SimCommand) -> CommandResult {
    match command {
        SimCommand::Run(args) => run_once(args),
        SimCommand::Goodput(args) => search(args),
        SimCommand::Sweep(args) => sweep::run(args),
        SimCommand::Zoo(args) => zoo::run(args),
        SimCommand::Functions(args) => functions(args),
        SimCommand::Fuzz(args) => fuzz::run(args),
        SimCommand::Bound(args) => bound::run(args),
        SimCommand::Explain(args) => explain(args),
        SimCommand::Cluster(args) => cluster::run(args),
    }
}

fn functions(args: &SimFunctionsArgs) -> CommandResult {
    let &SimFunctionsArgs { functions: count, rate: rate_rps, minutes, seed, .. } = args;
    let named = |error| format!("{}: {error}", args.out.display());
    let mut file = BufWriter::new(File::create(&args.out).map_err(named)?);
    let drawn = Functions { count, rate_rps, minutes, seed };
    let written = write_functions(&drawn, &mut file).and_then(|()| file.flush());
    written.map_err(named)?;
    Ok(ExitCode::SUCCESS)
}

/// Of a scenario in which no arrival has a rate.
const NO_RATE_RPS: f64 = 1.0;

/// More than these take a core half a minute or so.
const MANY_TASKS: f64 = 1e8;

/// With a word on stderr about what is hardly meant.
fn load(source: &ScenarioSource) -> Result<Scenario, ScenarioError> {
    let scenario = source.load()?;
    scenario.doubts().iter().for_each(|doubt| tracing::warn!("{doubt}"));
    Ok(scenario)
}

fn run_once(args: &SimRunArgs) -> CommandResult {
    let scenario = load(&args.source.source())?;
    let seed = args.seed.unwrap_or(scenario.seed);
    let rate_rps = rate_rps(&scenario, args)?;
    let run = Run { policy: args.policy, rate_rps, seed };
    tell_if_many(rate_rps * scenario.end().as_millis_f64() / 1e3);
    let clock = Clock::start();
    let before = clock.now();
    let report = match &args.trace {
        None => baton_sim::run(&scenario, run)?,
        Some(path) => {
            let (report, trace) = baton_sim::run_traced(&scenario, run)?;
            std::fs::write(path, trace).map_err(|e| format!("{}: {e}", path.display()))?;
            report
        }
    };
    let took_ns = (clock.now() - before).0;
    let submitted: u64 = report.models.iter().map(|model| model.submitted).sum();
    let simulated =
        submitted as f64 * scenario.end().as_millis_f64() / scenario.duration.as_millis_f64();
    let ns_per_request = (took_ns as f64 / simulated).round() as u64;
    tracing::info!(ns_per_request, "simulated");
    say(&if args.json { serde_json::to_string(&report)? } else { run_text::table(&report) })?;
    Ok(ExitCode::SUCCESS)
}

/// A rate that is a slip of the hand would keep a core for hours without a word.
fn tell_if_many(tasks: f64) {
    if tasks > MANY_TASKS {
        let fix = "lower --rate, or the scenario's duration_s";
        tracing::warn!("{tasks:.0} tasks are simulated; a core does some millions a second; {fix}");
    }
}

fn rate_rps(scenario: &Scenario, args: &SimRunArgs) -> Result<f64, &'static str> {
    let replayed = || scenario.replay.as_ref().map(|replay| replay.rate_rps());
    match (args.rate, args.speed) {
        (Some(rate_rps), _) => Ok(rate_rps),
        (None, Some(speed)) => {
            replayed().map(|rate_rps| speed * rate_rps).ok_or("--speed is of a replay; give --rate")
        }
        (None, None) if is_closed(scenario) => Ok(NO_RATE_RPS),
        (None, None) if scenario.replay.is_some() => {
            Err("give --rate, the tasks per second in total, or --speed 1, which is the file's own")
        }
        (None, None) => Err("give --rate, the tasks per second in total"),
    }
}

/// All tasks come from clients in closed loops.
fn is_closed(scenario: &Scenario) -> bool {
    scenario.models.iter().all(|model| model.clients > 0)
}

fn search(args: &SimGoodputArgs) -> CommandResult {
    let scenario = load(&args.source.source())?;
    let paced = Paced::new();
    let tell = |tried| paced.progress(tried);
    let goodput = baton_sim::goodput_told(&scenario, args.policy, args.seeds, tell)?;
    drop(paced);
    say(&if args.json { serde_json::to_string(&goodput)? } else { summary(&goodput) })?;
    Ok(ExitCode::SUCCESS)
}

fn explain(args: &SimExplainArgs) -> CommandResult {
    let scenario = load(&args.source.source())?;
    let seed = args.seed.unwrap_or(scenario.seed);
    let run = Run { policy: args.policy, rate_rps: args.rate, seed };
    let explanation = baton_sim::explain(&scenario, run, subject(&args.subject)?)?;
    let text = || explanation.to_string();
    say(&if args.json { serde_json::to_string(&explanation)? } else { text() })?;
    Ok(ExitCode::SUCCESS)
}

fn subject(args: &ExplainSubject) -> Result<Subject, &'static str> {
    let at = args.at.map(|at_ms| Subject::At { at_ms });
    let (task, batch) = (args.task.map(Subject::Task), args.batch.map(Subject::Batch));
    let (dropped, late) = (args.dropped.map(Subject::Dropped), args.late.map(Subject::Late));
    task.or(batch)
        .or(at)
        .or(dropped)
        .or(late)
        .ok_or("give one of --task, --batch, --at, --dropped, --late")
}

fn milliseconds(ms: Option<f64>) -> String {
    ms.map_or_else(|| "-".to_owned(), |ms| format!("{ms:.2}"))
}

fn summary(goodput: &Goodput) -> String {
    let mut text = format!(
        "{}: {:.0} tasks/s with every model's bad rate at most 1 %, {:.3} of the analytic bound \
         {:.0}; batches of {:.1}, GPUs busy {:.1} %\n",
        goodput.policy,
        goodput.goodput_rps,
        goodput.ratio,
        goodput.analytic_bound_rps,
        goodput.mean_batch,
        goodput.gpu_utilization * 100.0,
    );
    for seed in &goodput.seeds {
        let _infallible = writeln!(text, "  seed {}: {:.0} tasks/s", seed.seed, seed.goodput_rps);
    }
    text
}
