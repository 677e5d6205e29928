//! `baton demo`.

use std::ffi::OsStr;
use std::process::ExitCode;

use baton_bench::demo::{self, DemoConfig};
use baton_topo::Clock;

use crate::CommandResult;
use crate::args::DemoArgs;
use crate::live::Live;
use crate::output::say;
use crate::process::{children, stop_flag};

/// Exit status 0 if every task had its outcome and no answer was wrong.
pub(crate) fn run(args: &DemoArgs) -> CommandResult {
    let with_onnx =
        std::env::var_os("ORT_DYLIB_PATH").as_deref().is_some_and(|p| p != OsStr::new(""));
    let mut live = Live::new();
    if !with_onnx {
        live.line("ORT_DYLIB_PATH is not set: NO REAL MODEL, emulated engines only");
        live.line(
            "  (`./x demo` fetches ONNX Runtime and sets it; or name your libonnxruntime.so)",
        );
    }
    let config = DemoConfig {
        children: children()?,
        seconds: args.seconds,
        rate_scale: args.rate_scale,
        transport: args.transport,
        with_onnx,
        keep_dir: args.keep_dir,
    };
    let report = demo::run(&config, Clock::start(), &*stop_flag()?, |note| live.note(&note));
    live.finish();
    let report = report?;
    let text = if args.json { serde_json::to_string(&report)? } else { report.to_string() };
    say(&text)?;
    Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
