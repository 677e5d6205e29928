//! One child process: its start, its stdout line by line, its end.
//!
//! Invariant: no child outlives its [`Child`], nor this process, however either ends.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::SyncSender;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use super::error::ProcessError;
use super::usage::ProcessUsage;
use crate::machine::{ThreadUsage, thread_usage};

/// How children are started.
#[derive(Clone, Debug)]
pub struct ChildConfig {
    /// The `baton` executable.
    pub exe: PathBuf,
    /// Arguments every child gets before its own.
    pub common_args: Vec<String>,
    /// Variables every child gets beside ours.
    pub variables: Vec<(&'static str, String)>,
}

impl ChildConfig {
    /// What starts a child with these arguments of its own.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.exe);
        command.args(&self.common_args).args(args);
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command
    }
}

/// What happens on children's stdout. `child` is the number given at the start.
#[derive(Debug)]
pub(crate) enum ChildEvent {
    /// A line, without its end.
    Line { child: usize, line: String },
    /// No more lines: the child has ended, or soon will.
    Closed { child: usize },
}

/// A running child. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Child {
    /// What people call it.
    pub(crate) name: String,
    process: std::process::Child,
    log: PathBuf,
}

/// Bytes of a log that are shown when its child dies.
const LOG_TAIL_BYTES: u64 = 4096;
/// A killed process is gone in no time; this bounds the wait where the kernel disagrees.
const KILL_TIMEOUT: Duration = Duration::from_secs(5);

impl Child {
    /// Starts `command`. Its stdout goes to `events` line by line, its stderr to a file in `dir`.
    ///
    /// It gets its own process group, so that Ctrl-C reaches this process alone, which then ends
    /// the others in order.
    pub(crate) fn start(
        number: usize,
        name: &str,
        mut command: Command,
        dir: &Path,
        events: SyncSender<ChildEvent>,
    ) -> Result<Self, ProcessError> {
        use std::os::unix::process::CommandExt as _;
        let failed = |source| ProcessError::Process { name: name.to_owned(), source };
        let log = dir.join(format!("{name}.log"));
        let mut process = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(File::create(&log).map_err(failed)?)
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let stdout = process.stdout.take().expect("stdout was asked to be piped");
        thread::spawn(move || forward(number, BufReader::new(stdout), &events));
        Ok(Self { name: name.to_owned(), process, log })
    }

    /// Asks the child to end.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Sends the child a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        // The child is ours and not reaped, so its number cannot have become another's.
        if let Err(error) = kill_process(self.pid(), signal) {
            tracing::debug!(child = self.name, %error, "could not be signalled");
        }
    }

    /// Waits for the end; `None` if the child is still there after `timeout`.
    pub(crate) fn wait(&mut self, timeout: Duration) -> Result<Option<ExitStatus>, ProcessError> {
        let waited = self.wait_for_end(timeout);
        waited.map_err(|source| ProcessError::Process { name: self.name.clone(), source })
    }

    fn wait_for_end(&mut self, timeout: Duration) -> io::Result<Option<ExitStatus>> {
        if let Some(status) = self.process.try_wait()? {
            return Ok(Some(status));
        }
        let ended = pidfd_open(self.pid(), PidfdFlags::empty())?;
        let timeout = Timespec::try_from(timeout).ok();
        poll(&mut [PollFd::new(&ended, PollFlags::IN)], timeout.as_ref())?;
        self.process.try_wait()
    }

    /// The end of what the child wrote to stderr.
    pub(crate) fn log_tail(&self) -> String {
        read_tail(&self.log).unwrap_or_else(|error| format!("{}: {error}", self.log.display()))
    }

    /// What it holds; `None` once it has ended.
    pub(crate) fn usage(&self) -> Option<ProcessUsage> {
        ProcessUsage::of(&self.name, self.process.id())
    }

    /// What each of its threads has used; empty once it has ended.
    pub(crate) fn threads(&self) -> Vec<ThreadUsage> {
        thread_usage(self.process.id())
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if matches!(self.process.try_wait(), Ok(None)) {
            let killed = self.process.kill().and_then(|()| self.wait_for_end(KILL_TIMEOUT));
            if !matches!(killed, Ok(Some(_))) {
                tracing::error!(child = self.name, ?killed, "could not be killed");
            }
        }
    }
}

fn forward(child: usize, stdout: impl BufRead, events: &SyncSender<ChildEvent>) {
    for line in stdout.lines().map_while(Result::ok) {
        if events.send(ChildEvent::Line { child, line }).is_err() {
            return;
        }
    }
    // This fails only when the receiver is gone.
    let _ = events.send(ChildEvent::Closed { child });
}

fn read_tail(log: &Path) -> io::Result<String> {
    let mut file = File::open(log)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
    let mut bytes = Vec::new();
    // Bounded: a log may be a device that never ends.
    file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, sync_channel};

    use super::*;

    const BOUND: Duration = Duration::from_secs(10);

    fn start(script: &str) -> (Child, Receiver<ChildEvent>) {
        let (sender, events) = sync_channel(16);
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let name = format!("process-test-{}-{}", std::process::id(), script.len());
        let child = Child::start(7, &name, command, &std::env::temp_dir(), sender).unwrap();
        (child, events)
    }

    fn next(events: &Receiver<ChildEvent>) -> String {
        match events.recv_timeout(BOUND).unwrap() {
            ChildEvent::Line { child: 7, line } => line,
            ChildEvent::Closed { child: 7 } => "closed".to_owned(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn lines_the_end_the_status_and_the_log_arrive() {
        let (mut child, events) = start("echo one; echo two; echo oops >&2; exit 3");
        assert_eq!([next(&events), next(&events), next(&events)], ["one", "two", "closed"]);
        assert_eq!(child.wait(BOUND).unwrap().unwrap().code(), Some(3));
        assert_eq!(child.log_tail(), "oops\n");
        std::fs::remove_file(&child.log).unwrap();
    }

    #[test]
    fn waiting_is_bounded_and_a_signal_is_obeyed() {
        let (mut child, events) =
            start("trap 'echo bye; exit 0' TERM; echo up; while :; do read x < /dev/null; done");
        assert_eq!(next(&events), "up");
        assert!(child.wait(Duration::from_millis(1)).unwrap().is_none());
        child.terminate();
        assert_eq!(next(&events), "bye");
        assert_eq!(child.wait(BOUND).unwrap().unwrap().code(), Some(0));
        std::fs::remove_file(&child.log).unwrap();
    }

    #[test]
    fn a_dropped_child_is_dead() {
        let (child, events) = start("trap '' TERM; echo up; exec tail -f /dev/null");
        assert_eq!(next(&events), "up");
        let log = child.log.clone();
        drop(child);
        assert_eq!(next(&events), "closed");
        std::fs::remove_file(log).unwrap();
    }
}
