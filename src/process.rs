//! This process towards the operating system: log, signals, parent.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use baton_bench::processes::ChildConfig;
use rustix::process::{Signal, set_parent_process_death_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::flag;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::LevelFilter;

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
    let stop = Arc::new(AtomicBool::new(false));
    let ends =
        if is_ignored(SIGHUP)? { &[SIGINT, SIGTERM][..] } else { &[SIGINT, SIGTERM, SIGHUP] };
    for &signal in ends {
        // In this order: on the first signal the flag is not set yet.
        flag::register_conditional_shutdown(signal, 1, Arc::clone(&stop))?;
        flag::register(signal, Arc::clone(&stop))?;
    }
    Ok(stop)
}

/// A flag that SIGUSR1 sets: the counters are to be logged.
pub(crate) fn report_flag() -> io::Result<Arc<AtomicBool>> {
    let report = Arc::new(AtomicBool::new(false));
    flag::register(SIGUSR1, Arc::clone(&report))?;
    Ok(report)
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
    Ok(ChildConfig { exe: std::env::current_exe()?, common_args })
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
