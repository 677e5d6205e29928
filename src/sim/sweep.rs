//! `baton sim sweep`.

use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use baton_bench::machine::in_parallel;
use baton_sim::{Sweep, SweepPoint};
use serde_json::json;

use super::milliseconds;
use crate::CommandResult;
use crate::args::SimSweepArgs;
use crate::live::Paced;
use crate::output::say;

pub(crate) fn run(args: &SimSweepArgs) -> CommandResult {
    let sweep = Sweep {
        scenario: args.source.source(),
        policies: args.policies.clone(),
        rates: args.rates.clone(),
        vary: args.vary.clone(),
        seeds: args.seeds,
    };
    let (jobs, done, paced) = (sweep.jobs()?, AtomicUsize::new(0), Paced::new());
    let points: Result<Vec<_>, _> = in_parallel(&jobs, |job| {
        let point = job.run();
        let ended = done.fetch_add(1, Relaxed) + 1;
        paced.progress(format_args!("{ended} of {} lines", jobs.len()));
        point
    })
    .into_iter()
    .collect();
    let points = points?;
    drop(paced);
    let key = args.vary.as_ref().map(baton_sim::Vary::key);
    let text = || table(key, args.rates.is_none(), &points);
    say(&if args.json { json!({ "vary": key, "points": points }).to_string() } else { text() })?;
    Ok(ExitCode::SUCCESS)
}

fn table(key: Option<&str>, is_search: bool, points: &[SweepPoint]) -> String {
    let mut text = String::new();
    let key = key.unwrap_or_default();
    let value = |text: &str| if key.is_empty() { String::new() } else { format!("{text:<20} ") };
    let rates = if is_search { "" } else { "   offered      bad    worst  mean ms   p99 ms " };
    let is_super = points.iter().any(|point| point.mean_accuracy.is_some());
    let accuracy = if is_super { "  accuracy" } else { "" };
    let head = value(key);
    let _infallible = writeln!(
        text,
        "{head}{:<16}{rates}{:>9} {:>9} {:>7} {:>7}{accuracy}",
        "policy", "in time/s", "of bound", "GPUs", "batch",
    );
    for point in points {
        let rates = match (point.bad_rate, point.worst_model_bad_rate) {
            (Some(bad), Some(worst)) => {
                let (bad, worst) = (bad * 100.0, worst * 100.0);
                let (mean, p99) = (milliseconds(point.mean_ms), milliseconds(point.p99_ms));
                format!("{:>10.0} {bad:>7.2}% {worst:>7.2}% {mean:>8} {p99:>8} ", point.offered_rps)
            }
            _ => String::new(),
        };
        let accuracy = point.mean_accuracy.map_or_else(String::new, |of| format!(" {of:>8.2}%"));
        let _infallible = writeln!(
            text,
            "{}{:<16}{rates}{:>9.0} {:>9.3} {:>6.1}% {:>7.1}{accuracy}",
            value(point.value.as_deref().unwrap_or_default()),
            point.policy,
            point.goodput_rps,
            point.goodput_rps / point.analytic_bound_rps,
            point.gpu_utilization * 100.0,
            point.mean_batch,
        );
    }
    text
}
