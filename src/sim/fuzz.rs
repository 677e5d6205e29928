//! `baton sim fuzz`.

use std::path::Path;
use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};

use baton_bench::machine::in_parallel;
use baton_sim::fuzz::served::{ServedContest, ServedRow, ServedSummary, draw_at_rate};
use baton_sim::fuzz::{Contest, DrawnScenario, Limits, Summary, draw_scenario};
use baton_sim::{Scenario, SimError};
use baton_topo::Clock;
use serde_json::{Value, json};

use super::{fuzz_text, served_text};
use crate::CommandResult;
use crate::args::{SimFuzzArgs, fuzz_policies};
use crate::output::{complain, say};

/// Most tasks of a second measurement at a rate, over those of the first.
const AGAIN_TASKS: f64 = 2.0;

pub(crate) fn run(args: &SimFuzzArgs) -> CommandResult {
    let drawn = draw(args);
    if let Some(folder) = &args.write {
        drawn.iter().try_for_each(|drawn| write(folder, args, drawn))?;
    }
    if args.dry_run {
        return dry(args, &drawn);
    }
    let policies = args.policies();
    let (&policy, others) = policies.split_first().ok_or("give at least one policy")?;
    let (others, seeds) = (others.to_vec(), args.seeds);
    if args.draw.is_some() {
        let contest = ServedContest { policy, others, seeds };
        let rows = measure(&drawn, |scenario, drawn| served(&contest, scenario, drawn))?;
        let summary = ServedSummary::new(&rows, |index| replay(args, index));
        return tell(args, &json!(rows), &json!(summary), || served_text::text(&rows, &summary));
    }
    let all = args.all || args.only.is_some();
    let again_tasks = (args.tasks * f64::from(seeds) * AGAIN_TASKS) as u64;
    let contest = Contest { policy, others, seeds, again_tasks, all };
    let rows = measure(&drawn, |scenario, drawn| {
        let row = contest.row(scenario, drawn.index, &drawn.description)?;
        Ok((fuzz_text::line(&row), row))
    })?;
    let summary = Summary::new(&rows, |index| replay(args, index));
    tell(args, &json!(rows), &json!(summary), || fuzz_text::text(&rows, &summary))
}

fn draw(args: &SimFuzzArgs) -> Vec<DrawnScenario> {
    let indices = match args.only {
        Some(index) => index..index.saturating_add(1),
        None => args.from..args.from.saturating_add(args.count),
    };
    let SimFuzzArgs { seconds, tasks, seeds, .. } = *args;
    let limits = Limits { seconds, tasks, seeds, ..Limits::default() };
    let one = |index| match args.draw {
        None => draw_scenario(args.seed, index, &limits),
        Some(family) => draw_at_rate(family, args.seed, index, &limits),
    };
    indices.map(one).collect()
}

fn write(folder: &Path, args: &SimFuzzArgs, drawn: &DrawnScenario) -> Result<(), String> {
    let family = args.draw.map_or_else(String::new, |family| format!("{}-", family.name()));
    let file = folder.join(format!("fuzz-{family}{}-{}.toml", args.seed, drawn.index));
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&file, &drawn.text))
        .map_err(|error| format!("{}: {error}", file.display()))
}

fn dry(args: &SimFuzzArgs, drawn: &[DrawnScenario]) -> CommandResult {
    let line = |drawn: &DrawnScenario| format!("{}: {}\n", drawn.index, drawn.description);
    let object = |drawn: &DrawnScenario| {
        let DrawnScenario { index, description, text, rate_rps } = drawn;
        let mut object = json!({ "index": index, "description": description, "scenario": text });
        if let Some(rate_rps) = rate_rps {
            object["rate_rps"] = json!(rate_rps);
        }
        object
    };
    let json = || json!({ "scenarios": drawn.iter().map(object).collect::<Vec<_>>() }).to_string();
    say(&if args.json { json() } else { drawn.iter().map(line).collect() })?;
    Ok(ExitCode::SUCCESS)
}

/// A scenario's line of progress and its row.
type Measured<R> = Result<(String, R), SimError>;

/// A scenario at a time on every core. Each line goes to stderr as soon as it is known.
fn measure<R: Send>(
    drawn: &[DrawnScenario],
    row: impl Fn(&Scenario, &DrawnScenario) -> Measured<R> + Sync,
) -> Result<Vec<R>, String> {
    let (count, done, clock) = (drawn.len(), AtomicUsize::new(0), Clock::start());
    let start = clock.now();
    let rows = in_parallel(drawn, |drawn| {
        let wrong = |error: String| format!("scenario {}: {error}", drawn.index);
        let scenario = Scenario::parse(&drawn.text).map_err(|error| wrong(error.to_string()))?;
        let row = row(&scenario, drawn).map_err(|error| wrong(error.to_string()));
        let done = done.fetch_add(1, Ordering::Relaxed) + 1;
        let took_min = (clock.now() - start).as_millis_f64() / 6e4;
        let left_min = took_min / done as f64 * count.saturating_sub(done) as f64;
        match row {
            Ok((line, row)) => {
                complain(&format!("{done}/{count}, {left_min:.0} min left; {line}"));
                Ok(row)
            }
            Err(error) => {
                complain(&error);
                Err(error)
            }
        }
    });
    rows.into_iter().collect()
}

fn served(
    contest: &ServedContest,
    scenario: &Scenario,
    drawn: &DrawnScenario,
) -> Measured<ServedRow> {
    let rate_rps = drawn.rate_rps.unwrap_or_default();
    let row = contest.row(scenario, rate_rps, drawn.index, &drawn.description)?;
    Ok((served_text::line(&row), row))
}

fn tell(
    args: &SimFuzzArgs,
    rows: &Value,
    summary: &Value,
    text: impl FnOnce() -> String,
) -> CommandResult {
    let object = json!({
        "seed": args.seed,
        "policies": args.policies().iter().map(ToString::to_string).collect::<Vec<_>>(),
        "seconds": args.seconds,
        "tasks": args.tasks,
        "seeds": args.seeds,
        "summary": summary,
        "rows": rows,
    });
    say(&if args.json { object.to_string() } else { text() })?;
    Ok(ExitCode::SUCCESS)
}

/// The command that measures a scenario again.
fn replay(args: &SimFuzzArgs, index: u32) -> String {
    let family = args.draw.map_or_else(String::new, |family| format!(" --draw {}", family.name()));
    let mut command = format!("baton sim fuzz{family} --seed {} --only {index}", args.seed);
    for (flag, value, default) in [
        ("seconds", args.seconds, Limits::default().seconds),
        ("tasks", args.tasks, Limits::default().tasks),
        ("seeds", f64::from(args.seeds), f64::from(Limits::default().seeds)),
    ] {
        if value.to_bits() != default.to_bits() {
            command += &format!(" --{flag} {value}");
        }
    }
    let policies = args.policies().iter().map(ToString::to_string).collect::<Vec<_>>().join(",");
    if policies != fuzz_policies(args.draw) {
        command += &format!(" --policies {policies}");
    }
    command
}
