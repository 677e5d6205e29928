//! `baton bench`.

use std::process::ExitCode;

use baton_bench::dataplane::{self, Pull};
use baton_bench::sched::{self, Points, Shape};
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
        None if args.sweep => sweep(shape, args)?,
        None if args.tcp => {
            let report = sched::tcp(shape)?;
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

fn sweep(shape: Shape, args: &BenchSchedArgs) -> Result<String, Box<dyn std::error::Error>> {
    let report = sched::sweep(shape, Points::FULL)?;
    let json = serde_json::to_string(&report)?;
    std::fs::create_dir_all(&args.out)?;
    std::fs::write(args.out.join("sweep.svg"), report.svg(&Points::FULL)?)?;
    std::fs::write(args.out.join("sweep.json"), format!("{json}\n"))?;
    Ok(if args.json { json } else { report.to_string() })
}
