//! Processes for the tests: `baton` started as a user would, watched through its stdout.
//!
//! Nothing here sleeps: every wait is for a line or for the end of a process, and bounded.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]
#![allow(dead_code, reason = "every test file uses another part")]

pub(crate) mod application;
pub(crate) mod etcd;
pub(crate) mod files;
pub(crate) mod gateway;
pub(crate) mod http;
pub(crate) mod operator;
pub(crate) mod prometheus;

use std::fs;
use std::io::{BufRead as _, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::Duration;

use baton_client::{Clock, Nanos};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fd::OwnedFd;
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use serde_json::Value;

/// Far more than anything here takes, even on a busy machine.
const BOUND: Duration = Duration::from_secs(60);

/// Says how long something took. BATON_QUIET says that nothing else runs: then it must be within
/// what is promised (`SPECIFICATION.md`); elsewhere it says something about the machine.
pub(crate) fn in_time(what: &str, took: Nanos, bound: Nanos) {
    eprintln!("{what} after {:.0} ms", took.as_millis_f64());
    let is_quiet = std::env::var_os("BATON_QUIET").is_some();
    assert!(!is_quiet || took <= bound, "{what} only after {} ms", took.as_millis_f64());
}

/// Whether models of ONNX files can be served here; says so if not.
pub(crate) fn has_onnx_runtime() -> bool {
    let is_set = std::env::var_os("ORT_DYLIB_PATH").is_some_and(|path| !path.is_empty());
    if !is_set {
        eprintln!("SKIPPED: ORT_DYLIB_PATH is not set; export it: $(./x onnxruntime)");
    }
    is_set
}

/// The command under test.
pub(crate) fn baton() -> Command {
    Command::new(env!("CARGO_BIN_EXE_baton"))
}

/// Runs a command that ends by itself.
pub(crate) fn run(args: &[&str]) -> Output {
    baton().args(args).output().unwrap()
}

/// A running `baton`; killed when dropped.
pub(crate) struct Process {
    child: Child,
    stdout: Receiver<String>,
    stderr: Receiver<String>,
}

impl Process {
    /// Starts `baton ARGS`.
    pub(crate) fn start(args: &[&str]) -> Self {
        let mut command = baton();
        let mut child =
            command.args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = lines(child.stdout.take().unwrap(), |_| {});
        let stderr = lines(child.stderr.take().unwrap(), |line| eprintln!("{line}"));
        Self { child, stdout, stderr }
    }

    /// The next line of stdout that starts with `prefix`, without the prefix.
    pub(crate) fn line(&self, prefix: &str) -> String {
        next(&self.stdout, |line| line.strip_prefix(prefix).map(str::to_owned))
    }

    /// Waits for a line of stderr that contains `text`.
    pub(crate) fn await_stderr(&self, text: &str) {
        next(&self.stderr, |line| line.contains(text).then_some(()));
    }

    /// What stands on the next line of stderr behind `text`.
    pub(crate) fn behind(&self, text: &str) -> String {
        next(&self.stderr, |line| line.split_once(text).map(|(_, rest)| rest.to_owned()))
    }

    /// Where it says that it can be scraped.
    pub(crate) fn metrics_addr(&self) -> String {
        let addr = self.behind("metrics at http://");
        addr.strip_suffix("/metrics").unwrap().to_owned()
    }

    /// What it has written to stderr until it ended, less what the test has waited for.
    pub(crate) fn rest_of_stderr(&self) -> Vec<String> {
        self.stderr.iter().collect()
    }

    /// Bytes of memory it uses.
    pub(crate) fn resident_bytes(&self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        let kib: u64 = line.trim().strip_suffix(" kB").unwrap().parse().unwrap();
        kib * 1024
    }

    /// Threads whose names begin like this.
    pub(crate) fn threads(&self, prefix: &str) -> usize {
        let tasks = fs::read_dir(format!("/proc/{}/task", self.child.id())).unwrap();
        let names =
            tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.filter(|name| name.starts_with(prefix)).count()
    }

    /// Files and connections it has open.
    pub(crate) fn handles(&self) -> usize {
        fs::read_dir(format!("/proc/{}/fd", self.child.id())).unwrap().count()
    }

    /// Waits until it has at most this many files and connections open.
    pub(crate) fn await_handles(&self, most: usize) {
        let clock = Clock::start();
        while self.handles() > most {
            assert!(
                clock.now().0 < BOUND.as_nanos() as u64,
                "{} handles, not {most}",
                self.handles()
            );
            thread::park_timeout(Duration::from_millis(20));
        }
    }

    /// Sends a signal.
    pub(crate) fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// Waits for the end.
    pub(crate) fn await_end(&self) {
        await_end(&pidfd(Pid::from_child(&self.child)));
    }

    /// Asks it to end in order, and sees that it does.
    pub(crate) fn terminate(&mut self) {
        self.signal(Signal::TERM);
        self.await_end();
        let status = self.child.wait().unwrap();
        assert!(status.success(), "{status}");
    }

    /// Waits for the end: status and the lines that the test has not read.
    pub(crate) fn finish(mut self) -> (ExitStatus, Vec<String>) {
        self.await_end();
        (self.child.wait().unwrap(), self.stdout.iter().collect())
    }

    /// Processes this one has started and that still run.
    pub(crate) fn children(&self) -> Vec<Descendant> {
        let id = self.child.id();
        let list = fs::read_to_string(format!("/proc/{id}/task/{id}/children")).unwrap();
        list.split_whitespace().map(|pid| Descendant::new(pid.parse().unwrap())).collect()
    }
}

/// A process that another one has started.
pub(crate) struct Descendant {
    /// Its arguments, separated by spaces.
    pub(crate) command: String,
    handle: OwnedFd,
}

impl Descendant {
    fn new(pid: i32) -> Self {
        let command = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap();
        let handle = pidfd(Pid::from_raw(pid).unwrap());
        Self { command: command.replace('\0', " "), handle }
    }

    pub(crate) fn kill(&self) {
        pidfd_send_signal(&self.handle, Signal::KILL).unwrap();
    }

    pub(crate) fn await_end(&self) {
        await_end(&self.handle);
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn lines(
    from: impl Read + Send + 'static,
    each: impl Fn(&str) + Send + 'static,
) -> Receiver<String> {
    let (sender, lines) = channel();
    thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            each(&line);
            // Lines that no test waits for any more are still read: the process must not block.
            let _ = sender.send(line);
        }
    });
    lines
}

fn next<T>(lines: &Receiver<String>, pick: impl Fn(&str) -> Option<T>) -> T {
    loop {
        let line = lines.recv_timeout(BOUND).expect("the line awaited, in time");
        if let Some(found) = pick(&line) {
            return found;
        }
    }
}

fn pidfd(pid: Pid) -> OwnedFd {
    pidfd_open(pid, PidfdFlags::empty()).unwrap()
}

/// Waits until a process has ended.
fn await_end(process: &OwnedFd) {
    let timeout = Timespec::try_from(BOUND).unwrap();
    let ready = poll(&mut [PollFd::new(process, PollFlags::IN)], Some(&timeout)).unwrap();
    assert_eq!(ready, 1, "the process did not end in time");
}

/// A folder of the test's own, removed at the end.
pub(crate) struct Folder(PathBuf);

impl Folder {
    pub(crate) fn new(test: &str) -> Self {
        let path = std::env::temp_dir().join(format!("baton-test-{}-{test}", std::process::id()));
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Writes a file into it and returns its path.
    pub(crate) fn write(&self, name: &str, text: &str) -> String {
        let path = self.0.join(name);
        fs::write(&path, text).unwrap();
        path.display().to_string()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// One model, three backends `a`, `b` and `c` with one GPU slot each, on a machine with too much to do: it
/// is planned with threads that wait long for a core.
pub(crate) const CLUSTER: &str = r#"
[network]
ctrl_us = 60000
response_us = 60000
jitter_us = 40000
[[model]]
name = "m"
alpha_ms = 1
beta_ms = 10
slo_ms = 400
input_bytes = 4096
[[backend]]
name = "a"
[[backend]]
name = "b"
[[backend]]
name = "c"
"#;

/// A scheduler on a port of its own, and what is needed to start members of its cluster.
pub(crate) struct Cluster {
    pub(crate) scheduler: Process,
    addr: String,
    file: String,
    folder: Folder,
}

impl Cluster {
    pub(crate) fn start(test: &str) -> Self {
        Self::of(Folder::new(test), CLUSTER)
    }

    /// Of this cluster file, beside what the folder has.
    pub(crate) fn of(folder: Folder, text: &str) -> Self {
        let file = folder.write("cluster.toml", text);
        let scheduler =
            Process::start(&["scheduler", "--config", &file, "--listen", "127.0.0.1:0"]);
        let addr = scheduler.line("listening ");
        Self { scheduler, addr, file, folder }
    }

    /// Where members join.
    pub(crate) fn addr(&self) -> &str {
        &self.addr
    }

    /// The cluster file.
    pub(crate) fn file(&self) -> &str {
        &self.file
    }

    /// Where it lies.
    pub(crate) fn folder(&self) -> &Folder {
        &self.folder
    }

    /// Kills the scheduler; returns once another one listens at its address.
    pub(crate) fn kill_and_restart_scheduler(&mut self) {
        self.scheduler.signal(Signal::KILL);
        self.scheduler.await_end();
        self.start_scheduler();
    }

    /// Stops the scheduler in order; returns once another one listens at its address.
    pub(crate) fn restart_scheduler(&mut self) {
        self.scheduler.terminate();
        self.start_scheduler();
    }

    fn start_scheduler(&mut self) {
        let args = ["scheduler", "--config", &self.file, "--listen", &self.addr];
        self.scheduler = Process::start(&args);
        assert_eq!(self.scheduler.line("listening "), self.addr);
    }

    /// A backend that is ready for plans.
    pub(crate) fn backend(&self, name: &str) -> Process {
        let args = ["backend", "--config", &self.file, "--scheduler", &self.addr, "--name", name];
        let backend = Process::start(&args);
        backend.line("ready");
        backend
    }

    /// A frontend under load that the test stops.
    pub(crate) fn load(&self, seed: u64) -> Load {
        self.load_with(seed, &[])
    }

    /// As [`Cluster::load`], with more arguments.
    pub(crate) fn load_with(&self, seed: u64, more: &[&str]) -> Load {
        let seed = seed.to_string();
        let args = [
            "load",
            "--config",
            &self.file,
            "--scheduler",
            &self.addr,
            "--seconds",
            "600",
            "--rate",
            "m=100",
            "--seed",
            &seed,
            "--progress-json",
        ];
        Load { process: Process::start(&[&args[..], more].concat()) }
    }
}

/// A running load generator.
pub(crate) struct Load {
    pub(crate) process: Process,
}

impl Load {
    /// Tasks completed so far, at the next progress line.
    pub(crate) fn completed(&self) -> u64 {
        let line = self.process.line("{\"progress\":");
        let progress: Value = serde_json::from_str(line.strip_suffix('}').unwrap()).unwrap();
        progress["completed"].as_u64().unwrap()
    }

    /// Waits until `count` more tasks have been completed.
    pub(crate) fn await_completed(&self, count: u64) {
        let from = self.completed();
        while self.completed() < from + count {}
    }

    /// Ends the load and returns its final counts, checked for conservation and wrong answers.
    pub(crate) fn stop(self) -> Counts {
        self.process.signal(Signal::TERM);
        let (status, lines) = self.process.finish();
        let last: Value = serde_json::from_str(lines.last().expect("a last line")).unwrap();
        let counts = Counts::new(&last["finished"]["tallies"][0]);
        assert_eq!(counts.submitted, counts.completed + counts.dropped + counts.failed, "{last}");
        assert_eq!(last["finished"]["tallies"][0]["wrong_answers"], 0);
        assert!(status.success(), "{status}: {last}");
        counts
    }
}

/// What became of a load's tasks.
#[derive(Debug)]
pub(crate) struct Counts {
    pub(crate) submitted: u64,
    pub(crate) completed: u64,
    pub(crate) dropped: u64,
    pub(crate) failed: u64,
    /// Reasons of the failures.
    pub(crate) failures: Vec<String>,
    /// Reasons of the drops.
    pub(crate) drops: Vec<String>,
}

impl Counts {
    /// No task failed but for these reasons, or because its input was late: on a machine with too much to
    /// do that is no fault of Baton's. Where nothing delays a process, none is (`swarm/tests/whole_path.rs`).
    pub(crate) fn failed_only(&self, reasons: &[&str]) {
        let known = |reason: &String| reason == "fetch_timeout" || reasons.contains(&&reason[..]);
        assert!(self.failures.iter().all(known), "{self:?}");
    }

    /// No task failed, and none was dropped but by its own deadline or for want of room.
    pub(crate) fn nothing_failed(&self) {
        self.failed_only(&[]);
        let unfit = |reason: &String| reason == "shutdown" || reason == "no_backend";
        assert!(!self.drops.iter().any(unfit), "{self:?}");
    }

    fn new(tally: &Value) -> Self {
        let reasons = |key: &str| tally[key].as_object().unwrap().clone();
        let sum = |key: &str| reasons(key).values().map(|n| n.as_u64().unwrap()).sum();
        Self {
            submitted: tally["submitted"].as_u64().unwrap(),
            completed: tally["completed"].as_u64().unwrap(),
            dropped: sum("dropped"),
            failed: sum("failed"),
            failures: reasons("failed").keys().cloned().collect(),
            drops: reasons("dropped").keys().cloned().collect(),
        }
    }
}
