//! `baton bench`.

use std::process::ExitCode;

use baton_bench::sched::{self, Shape};

use crate::CommandResult;
use crate::args::BenchSchedArgs;
use crate::output::say;

pub(crate) fn sched(args: &BenchSchedArgs) -> CommandResult {
    let report = sched::run(Shape {
        model_threads: args.model_threads,
        models: args.models,
        gpus: args.gpus,
        seconds: args.seconds,
        rate: args.rate,
        seed: args.seed,
    })?;
    say(&if args.json { serde_json::to_string(&report)? } else { report.to_string() })?;
    Ok(ExitCode::SUCCESS)
}
