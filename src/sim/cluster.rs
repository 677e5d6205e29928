//! `baton sim cluster`.

use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::process::ExitCode;

use baton_core::Nanos;
use baton_swarm::{Changes, Kind, Report, Summary};
use baton_topo::Clock;

use crate::CommandResult;
use crate::args::SimClusterArgs;
use crate::output::{complain, say};

/// Seeds that a swarm runs unless told otherwise.
const SEEDS: u64 = 1_000;

pub(crate) fn run(args: &SimClusterArgs) -> CommandResult {
    match args.seed {
        Some(seed) => one(seed, args),
        None => swarm(args),
    }
}

fn kind(args: &SimClusterArgs) -> Kind {
    if args.hostile { Kind::Hostile } else { Kind::Faults }
}

fn one(seed: u64, args: &SimClusterArgs) -> CommandResult {
    let mut summary = Summary::new(kind(args), seed);
    let report = if args.trace {
        let (report, lines) = baton_swarm::run_traced(kind(args), seed);
        say(&lines.join("\n"))?;
        report
    } else {
        baton_swarm::run_seed(kind(args), seed)
    };
    summary.add(&report);
    say(&if args.json { serde_json::to_string(&summary)? } else { outcome(&report, args) })?;
    Ok(status(&summary))
}

fn outcome(report: &Report, args: &SimClusterArgs) -> String {
    let tally = &report.tally;
    let mut text = format!(
        "seed {}: {} tasks, {} completed, {} dropped, {} failed, {} unobserved; {} faults in \
         {:.3} s of its time; trace hash {:016x}\n",
        report.seed,
        report.tasks,
        tally.completed,
        tally.dropped(),
        tally.failed(),
        tally.abandoned + tally.gone,
        report.faults,
        report.virtual_us as f64 / 1e6,
        report.hash,
    );
    if let Some(failure) = &report.failure {
        let _infallible = writeln!(text, "{}", failed(report, failure, args));
    }
    text
}

/// What was wrong, when, and how to see it again.
fn failed(report: &Report, failure: &baton_swarm::Failure, args: &SimClusterArgs) -> String {
    format!(
        "FAILED at {:.3} ms: {}\nreplay: {}",
        failure.at_us as f64 / 1e3,
        failure.what,
        baton_swarm::replay(kind(args), report.seed)
    )
}

fn swarm(args: &SimClusterArgs) -> CommandResult {
    let cores = std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
    let threads = args.threads.unwrap_or(cores);
    let clock = Clock::start();
    let start = clock.now();
    let bound = args.seconds.map(|seconds| Nanos::from_millis_f64(seconds * 1e3));
    let seeds = args.seeds.unwrap_or(SEEDS);
    let go_on = |begun: u64| match bound {
        Some(bound) => clock.now() - start < bound,
        None => begun < seeds,
    };
    let summary = baton_swarm::swarm(kind(args), args.from, threads, go_on, |report| {
        if let Some(failure) = &report.failure {
            complain(&format!("seed {} failed: {}", report.seed, failure.what));
        }
    });
    let took_s = (clock.now() - start).as_millis_f64() / 1e3;
    say(&if args.json { serde_json::to_string(&summary)? } else { table(&summary, took_s) })?;
    Ok(status(&summary))
}

fn of_operators(changes: &Changes) -> String {
    let Changes { added, changed, exchanged, removed, refused } = changes;
    format!(
        "catalogue: {added} models added, {changed} changed, {exchanged} exchanged, {removed} removed; {refused} changes refused"
    )
}

fn of_attackers(summary: &Summary) -> String {
    let done = &summary.hostility;
    format!(
        "attackers: {} messages, {} MB, on {} connections, of which {} were refused with a reason; \
         {} joins; {} of their rows executed",
        done.messages,
        done.bytes / 1_000_000,
        done.connections,
        done.refused,
        done.joins,
        summary.hostile_rows
    )
}

fn table(summary: &Summary, took_s: f64) -> String {
    let mut text = format!(
        "{} seeds from {} in {took_s:.1} s ({:.1} ms each): {} failed\n\
         {} tasks: {} completed ({} late), {} dropped, {} failed, {} unobserved\n\
         {} rows executed, {} of them again after a backend was lost; {} faults; {} frames, {} said \
         twice; {:.0} s of simulated time\n",
        summary.seeds,
        summary.from,
        took_s * 1e3 / summary.seeds.max(1) as f64,
        summary.failed_seeds,
        summary.submitted,
        summary.completed,
        summary.late,
        summary.dropped,
        summary.failed,
        summary.unobserved,
        summary.executed,
        summary.executed_again,
        summary.faults,
        summary.frames,
        summary.repeated,
        summary.virtual_s,
    );
    let _infallible = writeln!(text, "{}", of_operators(&summary.changes));
    if summary.hostile {
        let _infallible = writeln!(text, "{}", of_attackers(summary));
    }
    let (marks, reached) = summary.marks.count();
    let _infallible = writeln!(text, "{reached} of {marks} marks reached");
    let missed = summary.missed();
    if !missed.is_empty() {
        let _infallible = writeln!(text, "FAILED: never reached: {}", missed.join(", "));
    }
    for seed in &summary.failures {
        let _infallible = writeln!(
            text,
            "seed {} at {:.3} ms: {}\n  {}",
            seed.seed, seed.at_ms, seed.what, seed.replay
        );
    }
    text
}

fn status(summary: &Summary) -> ExitCode {
    if summary.conserved && summary.missed().is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
