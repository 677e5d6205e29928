//! `baton demo`.

use std::ffi::OsStr;
use std::process::ExitCode;

use baton_bench::demo::{self, CudaDriver, DemoConfig, Story};
use baton_bench::load::Report;
use baton_bench::processes::ChildConfig;
use baton_topo::Clock;

use crate::CommandResult;
use crate::args::{DemoArgs, DemoEngine};
use crate::live::Live;
use crate::output::{say, say_table};
use crate::process::{children, fake_driver, stop_flag};

/// How long load is offered when nothing says so.
const SECONDS: f64 = 10.0;
/// The same of a supernet: calm, burst, calm.
const SUPERNET_SECONDS: f64 = 30.0;
/// The same of caches, which are empty at first.
const COLD_SECONDS: f64 = 20.0;
/// Until a signal comes: the longest span that the demo takes.
const SECONDS_MAX: f64 = 1e6;

/// Exit status 0 if every task had its outcome and no answer was wrong.
pub(crate) fn run(args: &DemoArgs) -> CommandResult {
    let with_onnx =
        std::env::var_os("ORT_DYLIB_PATH").as_deref().is_some_and(|p| p != OsStr::new(""));
    let mut live = Live::new();
    let story = story(args);
    introduce(story, with_onnx, &mut live);
    let cuda = cuda(args)?;
    let config = DemoConfig {
        children: ChildConfig { variables: variables(cuda)?, ..children()? },
        cuda,
        seconds: args.seconds.unwrap_or(match (args.gateway, story) {
            (true, _) => SECONDS_MAX,
            (false, Story::Supernet) => SUPERNET_SECONDS,
            (false, Story::Cold) => COLD_SECONDS,
            (false, Story::Usual) => SECONDS,
        }),
        with_gateway: args.gateway,
        story,
        rate_scale: args.rate_scale,
        transport: args.transport,
        with_onnx,
        keep_dir: args.keep_dir,
    };
    let report = demo::run(&config, Clock::start(), &*stop_flag()?, |note| live.note(&note));
    live.finish();
    let report = report?;
    if args.json {
        say(&serde_json::to_string(&report)?)?;
    } else {
        say_table(&report.to_string())?;
        say(&remarks(&report))?;
    }
    Ok(if report.is_good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn story(args: &DemoArgs) -> Story {
    match (args.supernet, args.cold) {
        (true, _) => Story::Supernet,
        (false, true) => Story::Cold,
        (false, false) => Story::Usual,
    }
}

fn introduce(story: Story, with_onnx: bool, live: &mut Live) {
    match story {
        Story::Supernet => {
            let on = if with_onnx { "the CPU, by ONNX Runtime" } else { "emulated GPUs" };
            live.line(format_args!(
                "a supernet on {on}: a burst, and a backend that dies in the middle of it"
            ));
        }
        Story::Cold => live.line("200 models on emulated GPUs whose memory holds 20 of them"),
        Story::Usual if with_onnx => {}
        Story::Usual => {
            live.line("ORT_DYLIB_PATH is not set: NO REAL MODEL, emulated engines only");
            live.line(
                "  (`./x demo` fetches ONNX Runtime and sets it; or name your libonnxruntime.so)",
            );
        }
    }
}

fn cuda(args: &DemoArgs) -> Result<Option<CudaDriver>, String> {
    match (args.engine, args.fake_gpu) {
        (DemoEngine::Emulated, true) => Err("--fake-gpu needs --engine cuda".into()),
        (DemoEngine::Emulated, false) => Ok(None),
        (DemoEngine::Cuda, true) => Ok(Some(CudaDriver::Fake)),
        (DemoEngine::Cuda, false) => Ok(Some(CudaDriver::Real)),
    }
}

fn variables(cuda: Option<CudaDriver>) -> Result<Vec<(&'static str, String)>, String> {
    if cuda != Some(CudaDriver::Fake) {
        return Ok(Vec::new());
    }
    Ok(vec![("BATON_CUDA_DRIVER", fake_driver()?.display().to_string())])
}

/// A demo at this load keeps the bad rate below this on two quiet cores.
const BAD_RATE_MAX: f64 = 0.01;

/// Why more tasks were lost than should be, and where to go on.
fn remarks(report: &Report) -> String {
    let mut text = String::from("\n");
    let (bad, steal) = (report.totals.bad_rate, report.circumstances.steal_fraction.unwrap_or(0.0));
    if bad > BAD_RATE_MAX {
        let why = if steal > BAD_RATE_MAX {
            "other machines took this one's CPU time meanwhile"
        } else {
            "eight processes shared this machine's cores with whatever else runs here"
        };
        text += &format!(
            "A bad rate above 1 % says more about this machine than about Baton: {why}.\n"
        );
    }
    text + "Next: docs/client.md to submit tasks from a program, docs/operating.md for your\n\
            own models and machines, `baton bench sched` for the scheduler at line rate.\n"
}

#[cfg(test)]
mod tests {
    use baton_bench::load::Circumstances;

    use super::*;

    #[test]
    fn a_bad_rate_is_explained_only_where_it_is_high() {
        let mut report = Report::new(&[], Circumstances::default());
        assert!(!remarks(&report).contains("bad rate") && remarks(&report).contains("Next"));
        report.totals.bad_rate = 0.02;
        assert!(remarks(&report).contains("shared this machine's cores"));
        report.circumstances.steal_fraction = Some(0.3);
        assert!(remarks(&report).contains("took this one's CPU time"));
    }
}
