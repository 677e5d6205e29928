//! The processes of a cluster as children of this one: started, watched, and ended in order.
//!
//! Every step waits for the process concerned to say so on its stdout, with a bound. A process that
//! dies under load is named, with the end of its log, and the others go on: that is what the system
//! is for.

mod child;
mod error;
mod folder;
mod usage;

use std::net::SocketAddr;
use std::ops::Range;
use std::process::ExitStatus;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use baton_core::Nanos;
use baton_topo::Clock;
use rustix::process::Signal;

pub use child::ChildConfig;
pub(crate) use child::{Child, ChildEvent};
pub use error::ProcessError;
pub(crate) use folder::{ClusterFile, Folder, ONE_HOST};
pub use usage::ProcessUsage;

use crate::machine::ThreadUsage;

/// What there is to tell while processes run.
#[derive(Debug)]
pub enum Note<'a> {
    /// A step is done or a folder is to be kept in mind.
    Step(&'a str),
    /// The load so far.
    Progress(&'a str),
    /// Something died.
    Trouble(&'a str),
}

/// Loading ONNX Runtime on a busy machine takes seconds.
const UP_TIMEOUT: Nanos = Nanos::from_millis(60_000);
/// A drained backend and a scheduler without members end at once.
const EXIT_TIMEOUT: Duration = Duration::from_secs(20);
/// How often to look whether the user wants an end.
const STOP_INTERVAL: Duration = Duration::from_millis(100);
/// Lines of stdout that may wait to be read; beyond that the children wait.
pub(crate) const EVENTS_MAX: usize = 1024;

/// The scheduler's number: children are numbered in the order they are started.
const SCHEDULER: usize = 0;

/// The running processes. Dropped, they are killed.
pub(crate) struct Processes<'a> {
    config: &'a ChildConfig,
    clock: Clock,
    stop: &'a AtomicBool,
    note: &'a mut dyn FnMut(Note<'_>),
    children: Vec<Child>,
    /// Names of those that died before they were asked to end.
    lost: Vec<String>,
    /// Numbers of those that were killed.
    killed: Vec<usize>,
    sender: SyncSender<ChildEvent>,
    events: Receiver<ChildEvent>,
    /// Removed once the children are gone.
    folder: Folder,
}

impl<'a> Processes<'a> {
    pub(crate) fn new(
        config: &'a ChildConfig,
        folder: Folder,
        clock: Clock,
        stop: &'a AtomicBool,
        note: &'a mut dyn FnMut(Note<'_>),
    ) -> Self {
        let (sender, events) = sync_channel(EVENTS_MAX);
        let (children, lost, killed) = (Vec::new(), Vec::new(), Vec::new());
        Self { config, clock, stop, note, children, lost, killed, sender, events, folder }
    }

    /// Starts the scheduler and the backends, and returns once all are up: the scheduler's address.
    pub(crate) fn start_cluster(
        &mut self,
        cluster: &ClusterFile,
    ) -> Result<SocketAddr, ProcessError> {
        let file = cluster.path.display().to_string();
        let args = ["scheduler", "--config", &file, "--listen", "127.0.0.1:0"];
        let scheduler = self.start_listener("scheduler", &args)?;
        for name in &cluster.backends {
            let args = ["backend", "--config", &file, "--name", name, "--scheduler", &scheduler];
            self.start(&format!("backend-{name}"), &args)?;
        }
        self.await_lines(1..self.children.len(), "ready")?;
        let backends = cluster.backends.join(", ");
        (self.note)(Note::Step(&format!("scheduler at {scheduler}; backends up: {backends}")));
        Ok(scheduler.parse().expect("a scheduler says where it listens"))
    }

    /// Starts a child that says where it listens; returns what it says.
    pub(crate) fn start_listener(
        &mut self,
        name: &str,
        args: &[&str],
    ) -> Result<String, ProcessError> {
        self.start_speaker(name, args, "listening ")
    }

    /// Starts a child that writes a line with this prefix once it is up; returns what follows the prefix.
    pub(crate) fn start_speaker(
        &mut self,
        name: &str,
        args: &[&str],
        prefix: &str,
    ) -> Result<String, ProcessError> {
        let number = self.count();
        self.start(name, args)?;
        Ok(self.await_lines(number..number + 1, prefix)?.remove(0))
    }

    /// What each process that lives holds.
    pub(crate) fn usage(&self) -> Vec<ProcessUsage> {
        self.children.iter().filter_map(Child::usage).collect()
    }

    /// What each thread of a child has used.
    pub(crate) fn threads(&self, number: usize) -> Vec<ThreadUsage> {
        self.children[number].threads()
    }

    /// Passes word on to the caller's `note`.
    pub(crate) fn tell(&mut self, note: Note<'_>) {
        (self.note)(note);
    }

    /// The clock of the timeouts.
    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    /// Now, by the clock of the timeouts.
    pub(crate) fn now(&self) -> Nanos {
        self.clock.now()
    }

    /// The user wants an end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Children so far; the next one that starts has this number.
    pub(crate) fn count(&self) -> usize {
        self.children.len()
    }

    /// What people call a child.
    pub(crate) fn name(&self, number: usize) -> &str {
        &self.children[number].name
    }

    /// Asks some children to end.
    pub(crate) fn terminate(&self, numbers: Range<usize>) {
        self.children[numbers].iter().for_each(Child::terminate);
    }

    /// Kills a child, which has no time to say anything.
    pub(crate) fn kill(&mut self, number: usize) {
        self.killed.push(number);
        self.children[number].signal(Signal::KILL);
    }

    /// Ends what still runs: backends leave, then the scheduler stops. Returns who died on the way.
    pub(crate) fn shut_down(mut self) -> Result<Vec<String>, ProcessError> {
        let scheduler_last = (1..self.children.len()).chain([SCHEDULER]);
        for number in scheduler_last {
            if !self.lost.contains(&self.children[number].name) {
                self.end(number)?;
            }
        }
        Ok(self.lost)
    }

    /// Frontends have ended already; the signal does nothing to them.
    fn end(&mut self, number: usize) -> Result<(), ProcessError> {
        let child = &mut self.children[number];
        child.terminate();
        match child.wait(EXIT_TIMEOUT)? {
            Some(status) if status.success() => Ok(()),
            Some(_) => self.died(number),
            None => Err(self.too_slow(number, Nanos(EXIT_TIMEOUT.as_nanos() as u64))),
        }
    }

    /// Starts a child with arguments of its own.
    pub(crate) fn start(&mut self, name: &str, args: &[&str]) -> Result<(), ProcessError> {
        let (command, number) = (self.config.command(args), self.children.len());
        let sender = self.sender.clone();
        self.children.push(Child::start(number, name, command, self.folder.path(), sender)?);
        Ok(())
    }

    /// Waits until each of `children` has written a line that starts with `prefix`; returns what
    /// follows it. If anyone dies meanwhile there will be no cluster.
    pub(crate) fn await_lines(
        &mut self,
        children: Range<usize>,
        prefix: &str,
    ) -> Result<Vec<String>, ProcessError> {
        let bound = self.clock.now() + UP_TIMEOUT;
        let mut found: Vec<Option<String>> = vec![None; children.len()];
        while let Some(missing) = found.iter().position(Option::is_none) {
            match self.next_event() {
                Some(ChildEvent::Line { child, line }) if children.contains(&child) => {
                    if let Some(rest) = line.strip_prefix(prefix) {
                        found[child - children.start] = Some(rest.to_owned());
                    }
                }
                Some(ChildEvent::Closed { child }) => return Err(self.not_up(child)),
                Some(ChildEvent::Line { .. }) | None => {}
            }
            if self.is_stopping() {
                return Err(ProcessError::Interrupted);
            }
            if self.clock.now() > bound {
                return Err(self.too_slow(children.start + missing, UP_TIMEOUT));
            }
        }
        Ok(found.into_iter().flatten().collect())
    }

    /// The next event, or `None` when it is time to look at the stop flag and the clock.
    pub(crate) fn next_event(&self) -> Option<ChildEvent> {
        // Never disconnected: this side holds a sender, too.
        self.events.recv_timeout(STOP_INTERVAL).ok()
    }

    /// Tells that a child is gone, unless it was killed.
    pub(crate) fn died(&mut self, number: usize) -> Result<(), ProcessError> {
        let child = &mut self.children[number];
        let status = describe(child.wait(EXIT_TIMEOUT)?);
        self.lost.push(child.name.clone());
        if !self.killed.contains(&number) {
            let log = child.log_tail();
            let text = format!("{} died ({status}); its log ends:\n{log}", child.name);
            (self.note)(Note::Trouble(&text));
        }
        Ok(())
    }

    fn not_up(&mut self, number: usize) -> ProcessError {
        let child = &mut self.children[number];
        match child.wait(EXIT_TIMEOUT) {
            Ok(status) => ProcessError::NotUp {
                name: child.name.clone(),
                status: describe(status),
                log: child.log_tail(),
            },
            Err(error) => error,
        }
    }

    /// The child was not done within `bound`.
    pub(crate) fn too_slow(&self, number: usize, bound: Nanos) -> ProcessError {
        let child = &self.children[number];
        let seconds = bound.0 / 1_000_000_000;
        ProcessError::Timeout { name: child.name.clone(), seconds, log: child.log_tail() }
    }
}

fn describe(status: Option<ExitStatus>) -> String {
    status.map_or_else(|| "stdout closed, still running".to_owned(), |status| status.to_string())
}
