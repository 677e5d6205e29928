//! `baton bench`.

use std::process::ExitCode;

use baton_bench::dataplane::{self, Pull};
use baton_bench::sched::{self, Shape};
use baton_topo::Clock;

use crate::CommandResult;
use crate::args::{BenchPullArgs, BenchSchedArgs};
use crate::output::say;

/// Which of the three, and its defaults: senders and objects.
pub(crate) fn pull(bench: &'static str, shape: (u32, u32), args: &BenchPullArgs) -> CommandResult {
    let pull = Pull {
        bench,
        transport: args.transport,
        senders: args.senders.unwrap_or(shape.0),
        objects: args.objects.unwrap_or(shape.1),
        bytes: args.bytes,
        stream: bench == "read-bw",
        seconds: args.seconds,
        idle: args.idle,
        link_gbps: args.link_gbps,
    };
    let report = dataplane::run(&pull, Clock::start())?;
    say(&if args.json { serde_json::to_string(&report)? } else { report.to_string() })?;
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn sched(args: &BenchSchedArgs) -> CommandResult {
    let shape = Shape {
        policy: args.policy,
        model_threads: args.model_threads,
        models: args.models,
        gpus: args.gpus,
        seconds: args.seconds,
        rate: args.rate,
        seed: args.seed,
    };
    let text = match args.overload {
        Some(factor) => {
            let report = sched::overload(shape, factor)?;
            if args.json { serde_json::to_string(&report)? } else { report.to_string() }
        }
        None if args.soak => {
            let report = sched::soak(shape)?;
            if args.json { serde_json::to_string(&report)? } else { report.to_string() }
        }
        None => {
            let report = sched::run(shape)?;
            if args.json { serde_json::to_string(&report)? } else { report.to_string() }
        }
    };
    say(&text)?;
    Ok(ExitCode::SUCCESS)
}
