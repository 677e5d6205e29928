//! The demo's processes: started, watched, and ended in order.
//!
//! Every step waits for the process concerned to say so on its stdout, with a bound. A process that
//! dies under load is named, with the end of its log, and the others go on: that is what the system
//! is for.

use std::ops::Range;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use baton_core::Nanos;
use baton_topo::Clock;

use crate::demo::{DemoConfig, DemoError, Note};
use crate::demo_cluster::DemoCluster;
use crate::load::{Finished, Message, Progress};
use crate::process::{Child, ChildEvent};
use crate::soak::Vitals;

/// Frontend processes, each with an equal share of the load.
pub(crate) const FRONTENDS: usize = 2;
/// Loading ONNX Runtime on a busy machine takes seconds.
const UP_TIMEOUT: Nanos = Nanos::from_millis(60_000);
/// Beyond the load itself: outstanding tasks, leaving, a busy machine.
const END_TIMEOUT: Nanos = Nanos::from_millis(60_000);
/// A drained backend and a scheduler without members end at once.
const EXIT_TIMEOUT: Duration = Duration::from_secs(20);
/// How often to look whether the user wants an end.
const STOP_INTERVAL: Duration = Duration::from_millis(100);
/// How often the state of affairs is shown.
const SHOW_INTERVAL: Nanos = Nanos::from_millis(1_000);
/// Lines of stdout that may wait to be read; beyond that the children wait.
const EVENTS_MAX: usize = 1024;

/// The scheduler's number: children are numbered in the order they are started.
const SCHEDULER: usize = 0;

/// The running processes. Dropped, they are killed.
pub(crate) struct Processes<'a> {
    config: &'a DemoConfig,
    clock: Clock,
    stop: &'a AtomicBool,
    note: &'a mut dyn FnMut(Note<'_>),
    folder: &'a Path,
    children: Vec<Child>,
    /// Names of those that died before they were asked to end.
    lost: Vec<String>,
    sender: SyncSender<ChildEvent>,
    events: Receiver<ChildEvent>,
}

impl<'a> Processes<'a> {
    pub(crate) fn new(
        config: &'a DemoConfig,
        clock: Clock,
        stop: &'a AtomicBool,
        note: &'a mut dyn FnMut(Note<'_>),
        folder: &'a Path,
    ) -> Self {
        let (sender, events) = sync_channel(EVENTS_MAX);
        let (children, lost) = (Vec::new(), Vec::new());
        Self { config, clock, stop, note, folder, children, lost, sender, events }
    }

    /// Starts the scheduler and the backends, and returns once all are up: the scheduler's address.
    pub(crate) fn start_cluster(&mut self, cluster: &DemoCluster) -> Result<String, DemoError> {
        let file = cluster.file.display().to_string();
        self.start("scheduler", &["scheduler", "--config", &file, "--listen", "127.0.0.1:0"])?;
        let scheduler = self.await_lines(SCHEDULER..1, "listening ")?.remove(0);
        for name in &cluster.backends {
            let args = ["backend", "--config", &file, "--name", name, "--scheduler", &scheduler];
            self.start(&format!("backend-{name}"), &args)?;
        }
        self.await_lines(1..self.children.len(), "ready")?;
        let backends = cluster.backends.join(", ");
        (self.note)(Note::Step(&format!("scheduler at {scheduler}; backends up: {backends}")));
        Ok(scheduler)
    }

    /// Starts the frontends, which share the load. Returns their numbers.
    pub(crate) fn start_load(
        &mut self,
        cluster: &DemoCluster,
        scheduler: &str,
    ) -> Result<Range<usize>, DemoError> {
        let file = cluster.file.display().to_string();
        let seconds = self.config.seconds.to_string();
        let share =
            |(name, rate): &(String, f64)| format!("--rate={name}={}", rate / FRONTENDS as f64);
        let rates: Vec<String> = cluster.rates.iter().map(share).collect();
        let first = self.children.len();
        for number in 1..=FRONTENDS {
            let seed = number.to_string();
            let mut args = vec!["load", "--config", &file, "--scheduler", scheduler];
            args.extend(["--seconds", &seconds, "--seed", &seed, "--progress-json"]);
            args.extend(rates.iter().map(String::as_str));
            self.start(&format!("frontend-{number}"), &args)?;
        }
        let total: f64 = cluster.rates.iter().map(|(_, rate)| rate).sum();
        (self.note)(Note::Step(&format!(
            "{FRONTENDS} frontends offer {total:.0} tasks/s of {} models for {seconds} s",
            cluster.rates.len()
        )));
        Ok(first..self.children.len())
    }

    /// Resident memory of each process that lives, KiB, with its name.
    pub(crate) fn resident_kib(&self) -> Vec<(String, u64)> {
        let of = |child: &Child| Some((child.name.clone(), child.resident_kib()?));
        self.children.iter().filter_map(of).collect()
    }

    /// What each process that lives holds.
    pub(crate) fn vitals(&self) -> Vec<Vitals> {
        self.children.iter().filter_map(Child::vitals).collect()
    }

    /// Passes word on to whoever watches.
    pub(crate) fn tell(&mut self, text: &str) {
        (self.note)(Note::Step(text));
    }

    /// Follows the load until every frontend has reported or died.
    pub(crate) fn watch(&mut self, frontends: Range<usize>) -> Result<Vec<Finished>, DemoError> {
        let load = Nanos::from_millis_f64(self.config.seconds * 1e3);
        let bound = self.clock.now() + load + END_TIMEOUT;
        let mut reports = Reports::new(frontends.clone());
        let mut next_show = self.clock.now() + SHOW_INTERVAL;
        let mut stopping = false;
        while reports.open > 0 {
            self.follow(&mut reports)?;
            if self.stop.load(Ordering::Relaxed) && !std::mem::replace(&mut stopping, true) {
                self.children[frontends.clone()].iter().for_each(Child::terminate);
            }
            let now = self.clock.now();
            if now > bound {
                return Err(self.too_slow(frontends.start, END_TIMEOUT));
            }
            if now >= next_show || reports.open == 0 {
                (self.note)(Note::Progress(&reports.progress()));
                next_show = now + SHOW_INTERVAL;
            }
        }
        Ok(reports.finished.into_iter().flatten().collect())
    }

    /// Takes in the next event under load.
    fn follow(&mut self, reports: &mut Reports) -> Result<(), DemoError> {
        match self.next_event() {
            Some(ChildEvent::Line { child, line }) if reports.frontends.contains(&child) => {
                reports.add(child, self.parse(child, line)?);
            }
            Some(ChildEvent::Closed { child }) => {
                if !reports.closed(child) {
                    self.died(child)?;
                }
            }
            Some(ChildEvent::Line { .. }) | None => {}
        }
        Ok(())
    }

    /// Ends what still runs: backends leave, then the scheduler stops. Returns who died on the way.
    pub(crate) fn shut_down(mut self) -> Result<Vec<String>, DemoError> {
        let scheduler_last = (1..self.children.len()).chain([SCHEDULER]);
        for number in scheduler_last {
            if !self.lost.contains(&self.children[number].name) {
                self.end(number)?;
            }
        }
        Ok(self.lost)
    }

    /// Frontends have ended already; the signal does nothing to them.
    fn end(&mut self, number: usize) -> Result<(), DemoError> {
        let child = &mut self.children[number];
        child.terminate();
        match wait(child, EXIT_TIMEOUT)? {
            Some(status) if status.success() => Ok(()),
            Some(_) => self.died(number),
            None => Err(self.too_slow(number, Nanos(EXIT_TIMEOUT.as_nanos() as u64))),
        }
    }

    fn start(&mut self, name: &str, args: &[&str]) -> Result<(), DemoError> {
        let mut command = Command::new(&self.config.exe);
        command.args(&self.config.common_args).args(args);
        let number = self.children.len();
        let child = Child::start(number, name, command, self.folder, self.sender.clone())
            .map_err(|source| DemoError::Process { name: name.to_owned(), source })?;
        self.children.push(child);
        Ok(())
    }

    /// Waits until each of `children` has written a line that starts with `prefix`; returns what
    /// follows it. If anyone dies meanwhile there will be no cluster.
    fn await_lines(
        &mut self,
        children: Range<usize>,
        prefix: &str,
    ) -> Result<Vec<String>, DemoError> {
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
            if self.stop.load(Ordering::Relaxed) {
                return Err(DemoError::Interrupted);
            }
            if self.clock.now() > bound {
                return Err(self.too_slow(children.start + missing, UP_TIMEOUT));
            }
        }
        Ok(found.into_iter().flatten().collect())
    }

    /// The next event, or `None` when it is time to look at the stop flag and the clock.
    fn next_event(&self) -> Option<ChildEvent> {
        // Never disconnected: this side holds a sender, too.
        self.events.recv_timeout(STOP_INTERVAL).ok()
    }

    fn parse(&self, child: usize, line: String) -> Result<Message, DemoError> {
        let name = &self.children[child].name;
        serde_json::from_str(&line).map_err(|_| DemoError::NoMessage { name: name.clone(), line })
    }

    /// Tells that a child is gone.
    fn died(&mut self, number: usize) -> Result<(), DemoError> {
        let child = &mut self.children[number];
        let status = describe(wait(child, EXIT_TIMEOUT)?);
        let text = format!("{} died ({status}); its log ends:\n{}", child.name, child.log_tail());
        self.lost.push(child.name.clone());
        (self.note)(Note::Trouble(&text));
        Ok(())
    }

    fn not_up(&mut self, number: usize) -> DemoError {
        let child = &mut self.children[number];
        match wait(child, EXIT_TIMEOUT) {
            Ok(status) => DemoError::NotUp {
                name: child.name.clone(),
                status: describe(status),
                log: child.log_tail(),
            },
            Err(error) => error,
        }
    }

    fn too_slow(&self, number: usize, bound: Nanos) -> DemoError {
        let child = &self.children[number];
        let seconds = bound.0 / 1_000_000_000;
        DemoError::Timeout { name: child.name.clone(), seconds, log: child.log_tail() }
    }
}

/// What the frontends have said so far. Indexed from the first frontend.
struct Reports {
    /// Their numbers among the children.
    frontends: Range<usize>,
    latest: Vec<Progress>,
    finished: Vec<Option<Finished>>,
    /// Frontends that may still say something.
    open: usize,
}

impl Reports {
    fn new(frontends: Range<usize>) -> Self {
        let count = frontends.len();
        let latest = vec![Progress::default(); count];
        Self { frontends, latest, finished: vec![None; count], open: count }
    }

    fn add(&mut self, child: usize, message: Message) {
        let index = child - self.frontends.start;
        match message {
            Message::Progress(progress) => self.latest[index] = progress,
            Message::Finished(counts) => self.finished[index] = Some(counts),
        }
    }

    /// A child's stdout is closed. True if it was a frontend that had reported.
    fn closed(&mut self, child: usize) -> bool {
        if !self.frontends.contains(&child) {
            return false;
        }
        self.open -= 1;
        self.finished[child - self.frontends.start].is_some()
    }

    fn progress(&self) -> Progress {
        let mut all = Progress::default();
        self.latest.iter().for_each(|progress| all.merge(progress));
        all
    }
}

fn wait(child: &mut Child, timeout: Duration) -> Result<Option<ExitStatus>, DemoError> {
    let waited = child.wait(timeout);
    waited.map_err(|source| DemoError::Process { name: child.name.clone(), source })
}

fn describe(status: Option<ExitStatus>) -> String {
    status.map_or_else(|| "stdout closed, still running".to_owned(), |status| status.to_string())
}
