//! This process towards the operating system: log, signals, parent.

use std::io::{self, Read};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use baton_bench::processes::ChildConfig;
use baton_core::Nanos;
use baton_metrics::counted;
use baton_topo::wait_readable;
use rustix::process::{Signal, set_parent_process_death_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;
use signal_hook::low_level::pipe;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

/// The file of the fake CUDA driver.
const FAKE_DRIVER: &str = "libbaton_cuda_fake.so";

/// The fake driver, which lies beside this executable, where cargo puts it.
pub(crate) fn fake_driver() -> Result<PathBuf, String> {
    let exe = std::env::current_exe().map_err(|error| error.to_string())?;
    let folder = exe.parent().unwrap_or_else(|| Path::new("."));
    let places = [folder.join(FAKE_DRIVER), folder.join("deps").join(FAKE_DRIVER)];
    let missing = || {
        let build = "build it: cargo build -p baton-cuda-fake, with this executable's profile";
        format!("no {FAKE_DRIVER} in {}; {build}", folder.display())
    };
    places.into_iter().find(|path| path.is_file()).ok_or_else(missing)
}

/// The log goes to stderr, filtered by `RUST_LOG` (default `info`).
pub(crate) fn prepare(die_with_parent: bool) {
    // A directive that makes no sense is reported on stderr and left out.
    let filter =
        EnvFilter::builder().with_default_directive(LevelFilter::INFO.into()).from_env_lossy();
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        // They would go to stderr, with a panic where stderr is what fails: a full disk must not
        // end a scheduler.
        .log_internal_errors(false)
        .with_ansi(io::IsTerminal::is_terminal(&io::stderr()))
        .init();
    if die_with_parent && let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        tracing::warn!(%error, "will not be killed with the parent process");
    }
}

/// A flag that SIGINT, SIGTERM and SIGHUP set. The second one ends the process at once. A process that was started without a
/// terminal of its own (`nohup`) goes on when the terminal closes.
pub(crate) fn stop_flag() -> io::Result<Arc<AtomicBool>> {
    stop_flag_behind(&Arc::default(), 1)
}

/// Like [`stop_flag`]; as long as `starting` is set, there is nothing to end in order, and the first signal ends the process with
/// `status`.
pub(crate) fn stop_flag_behind(
    starting: &Arc<AtomicBool>,
    status: i32,
) -> io::Result<Arc<AtomicBool>> {
    let stop = Arc::new(AtomicBool::new(false));
    for signal in stop_signals()? {
        flag::register_conditional_shutdown(signal, status, Arc::clone(starting))?;
        // In this order: on the first signal the flag is not set yet.
        flag::register_conditional_shutdown(signal, 1, Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

fn stop_signals() -> io::Result<Vec<i32>> {
    let ends = [SIGINT, SIGTERM].into_iter().chain((!is_ignored(SIGHUP)?).then_some(SIGHUP));
    Ok(ends.collect())
}

/// A flag that SIGUSR1 sets: the counters are to be logged.
pub(crate) fn report_flag() -> io::Result<Arc<AtomicBool>> {
    let report = Arc::new(AtomicBool::new(false));
    flag::register(SIGUSR1, Arc::clone(&report))?;
    Ok(report)
}

/// The signals of a process that serves until one ends it. Its main thread sleeps until one comes.
#[derive(Debug)]
pub(crate) struct Signals {
    starting: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    report: Arc<AtomicBool>,
    /// Each signal writes a byte there, behind its flag.
    arrived: UnixStream,
}

impl Signals {
    pub(crate) fn new() -> io::Result<Self> {
        Self::of(false)
    }

    /// Until [`Self::started`] the first signal ends the process: it may look for a scheduler for long.
    pub(crate) fn starting() -> io::Result<Self> {
        Self::of(true)
    }

    fn of(is_starting: bool) -> io::Result<Self> {
        let starting = Arc::new(AtomicBool::new(is_starting));
        let (stop, report) = (stop_flag_behind(&starting, 0)?, report_flag()?);
        let (arrived, arrives) = UnixStream::pair()?;
        arrived.set_nonblocking(true)?;
        for signal in stop_signals()?.into_iter().chain([SIGUSR1]) {
            pipe::register(signal, arrives.try_clone()?)?;
        }
        Ok(Self { starting, stop, report, arrived })
    }

    /// From now on there is something to end in order.
    pub(crate) fn started(&self) {
        self.starting.store(false, Ordering::Relaxed);
    }

    /// Sleeps until a signal comes, at most `timeout`. False once one has asked for the end.
    pub(crate) fn wait(&mut self, timeout: Duration) -> bool {
        if !self.has_stop() {
            wait_readable(&self.arrived, Some(Nanos(timeout.as_nanos() as u64)));
            let mut bytes = [0; 64];
            while self.arrived.read(&mut bytes).is_ok_and(|read| read == bytes.len()) {}
        }
        !self.has_stop()
    }

    /// Whether a signal has asked for the end.
    pub(crate) fn has_stop(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Logs the counters if SIGUSR1 has come.
    pub(crate) fn log_if_asked(&self, counters: impl FnOnce() -> Vec<(&'static str, u64)>) {
        if self.report.swap(false, Ordering::Relaxed) {
            tracing::info!("counted so far: {}", counted(&counters()));
        }
    }
}

/// Whether the process that started this one has it ignore a signal.
fn is_ignored(signal: i32) -> io::Result<bool> {
    Ok(ignores(&std::fs::read_to_string("/proc/self/status")?, signal))
}

/// As `/proc/PID/status` says.
fn ignores(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// How `baton` starts itself again for children, which end with it.
pub(crate) fn children() -> io::Result<ChildConfig> {
    let common_args = vec!["--die-with-parent".to_owned()];
    Ok(ChildConfig { exe: std::env::current_exe()?, common_args, variables: Vec::new() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ignored_signal_is_seen() {
        let status = "Name:\tbaton\nSigBlk:\tffffffffffffffff\nSigIgn:\t0000000000001001\n";
        assert!(ignores(status, SIGHUP));
        assert!(!ignores(status, SIGTERM) && !ignores("", SIGHUP));
    }
}
