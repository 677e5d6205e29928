//! `baton sim fuzz`.

use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

use baton_bench::machine::in_parallel;
use baton_core::Nanos;
use baton_sim::Scenario;
use baton_sim::fuzz::{Contest, DrawnScenario, Limits, Row, Summary, draw_scenario};
use baton_topo::Clock;
use serde_json::json;

use super::fuzz_text;
use crate::CommandResult;
use crate::args::{FUZZ_POLICIES, SimFuzzArgs};
use crate::output::{complain, say};

pub(crate) fn run(args: &SimFuzzArgs) -> CommandResult {
    let drawn = draw(args);
    if let Some(folder) = &args.write {
        drawn.iter().try_for_each(|drawn| write(folder, args.seed, drawn))?;
    }
    if args.dry_run {
        return dry(args, &drawn);
    }
    let rows = measure(args, &drawn)?;
    let summary = Summary::new(&rows, |index| replay(args, index));
    let object = || {
        json!({
            "seed": args.seed,
            "policies": args.policies.iter().map(ToString::to_string).collect::<Vec<_>>(),
            "seconds": args.seconds,
            "tasks": args.tasks,
            "seeds": args.seeds,
            "summary": summary,
            "rows": rows,
        })
    };
    say(&if args.json { object().to_string() } else { fuzz_text::text(&rows, &summary) })?;
    Ok(ExitCode::SUCCESS)
}

fn draw(args: &SimFuzzArgs) -> Vec<DrawnScenario> {
    let indices = match args.only {
        Some(index) => index..index.saturating_add(1),
        None => args.from..args.from.saturating_add(args.count),
    };
    let SimFuzzArgs { seconds, tasks, seeds, .. } = *args;
    let limits = Limits { seconds, tasks, seeds, ..Limits::default() };
    indices.map(|index| draw_scenario(args.seed, index, &limits)).collect()
}

fn write(folder: &Path, seed: u64, drawn: &DrawnScenario) -> Result<(), String> {
    let file = folder.join(format!("fuzz-{seed}-{}.toml", drawn.index));
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&file, &drawn.text))
        .map_err(|error| format!("{}: {error}", file.display()))
}

fn dry(args: &SimFuzzArgs, drawn: &[DrawnScenario]) -> CommandResult {
    let line = |drawn: &DrawnScenario| format!("{}: {}\n", drawn.index, drawn.description);
    let object = |drawn: &DrawnScenario| json!({ "index": drawn.index, "description": drawn.description, "scenario": drawn.text });
    let json = || json!({ "scenarios": drawn.iter().map(object).collect::<Vec<_>>() }).to_string();
    say(&if args.json { json() } else { drawn.iter().map(line).collect() })?;
    Ok(ExitCode::SUCCESS)
}

fn measure(
    args: &SimFuzzArgs,
    drawn: &[DrawnScenario],
) -> Result<Vec<Row>, Box<dyn std::error::Error>> {
    let (policy, others) = args.policies.split_first().ok_or("give at least one policy")?;
    let all = args.all || args.only.is_some();
    let contest = Contest { policy: *policy, others: others.to_vec(), seeds: args.seeds, all };
    let count = drawn.len();
    let (done, clock) = (AtomicUsize::new(0), Clock::start());
    let start = clock.now();
    let rows = in_parallel(drawn, |drawn| {
        let row = row(&contest, drawn);
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        match &row {
            Ok(row) => progress(row, (done, count), clock.now() - start),
            Err(error) => complain(error),
        }
        row
    });
    Ok(rows.into_iter().collect::<Result<Vec<Row>, String>>()?)
}

fn row(contest: &Contest, drawn: &DrawnScenario) -> Result<Row, String> {
    let wrong = |error: String| format!("scenario {}: {error}", drawn.index);
    let scenario = Scenario::parse(&drawn.text).map_err(|error| wrong(error.to_string()))?;
    let row = contest.row(&scenario, drawn.index, &drawn.description);
    row.map_err(|error| wrong(error.to_string()))
}

fn progress(row: &Row, (done, count): (usize, usize), took: Nanos) {
    let left_min = took.as_millis_f64() / done as f64 * count.saturating_sub(done) as f64 / 6e4;
    complain(&format!("{done}/{count}, {left_min:.0} min left; {}", fuzz_text::line(row)));
}

/// The command that measures a scenario again.
fn replay(args: &SimFuzzArgs, index: u32) -> String {
    let mut command = format!("baton sim fuzz --seed {} --only {index}", args.seed);
    for (flag, value, default) in [
        ("seconds", args.seconds, Limits::default().seconds),
        ("tasks", args.tasks, Limits::default().tasks),
        ("seeds", f64::from(args.seeds), f64::from(Limits::default().seeds)),
    ] {
        if value.to_bits() != default.to_bits() {
            command += &format!(" --{flag} {value}");
        }
    }
    let policies = args.policies.iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    if policies != FUZZ_POLICIES {
        command += &format!(" --policies {policies}");
    }
    command
}
