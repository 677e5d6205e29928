//! Real processes on loopback, and everything done to them that can be done to processes: killed,
//! stopped, cut off, their disks filled, their port taken. A seed decides what and when.
//!
//! What must hold: every ticket of a process that lives has one outcome; no answer is another input's; a
//! task is answered twice only where a backend was taken for dead that was not; a while after each
//! fault the cluster serves again; and in the end everybody leaves in order, with nothing held.

mod cluster;
mod links;
mod plan;
mod probe;
mod report;

use std::sync::atomic::{AtomicBool, Ordering};

use baton_client::{ConnectError, Nanos};
use baton_topo::{Clock, park_thread};
use rustix::process::Signal;

use crate::processes::{ChildConfig, Folder, Note, ProcessError};

use cluster::Cluster;
use links::{Relay, Thief};
use plan::{Fault, Plan, Who};
use probe::ProbeClient;

pub use report::{ChaosReport, Recovery};

/// What to do.
#[derive(Clone, Debug)]
pub struct ChaosConfig {
    /// How its processes are started.
    pub children: ChildConfig,
    /// Processes of the cluster, 3 to 10: a scheduler, backends and frontends.
    pub processes: usize,
    /// For how long things go wrong. The fault under way is seen through.
    pub seconds: f64,
    /// Same seed, same faults in the same order.
    pub seed: u64,
    /// It goes on until this many faults have happened, however long that takes.
    pub faults_min: usize,
    /// From the end of a fault to an answer to a task submitted since.
    pub recovery_bound: Nanos,
    /// Keep the cluster file and the logs.
    pub keep_dir: bool,
}

impl ChaosConfig {
    /// How many backends and frontends.
    fn members(&self) -> (usize, usize) {
        let backends = self.processes / 2;
        (backends, self.processes - 1 - backends)
    }
}

/// For a process to come up, on a busy machine.
const UP_TIMEOUT: Nanos = Nanos::from_millis(20_000);
/// When waiting for a recovery is given up, if it has failed before.
const RECOVERY_TIMEOUT: Nanos = Nanos::from_millis(20_000);
/// Between two looks at what has happened.
const STEP: Nanos = Nanos::from_millis(2);

/// Why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum ChaosError {
    /// A process or a folder.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// The client here could not join an undisturbed cluster.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// A socket of the test's own.
    #[error("cannot {what}: {source}")]
    Socket {
        /// What was tried.
        what: &'static str,
        /// The system's answer.
        source: std::io::Error,
    },
    /// A process died while it came up although nothing disturbed it.
    #[error("{0}")]
    Died(String),
    /// A process did not come up although nothing disturbed it.
    #[error("{who} is not up after {seconds} s")]
    NotUp {
        /// Which.
        who: String,
        /// The bound.
        seconds: u64,
    },
}

/// Runs it; `stop` ends it after the fault under way. It reports each to `note`.
///
/// # Errors
/// There was no cluster, or the test could not do what it wanted; see [`ChaosError`].
pub fn run(
    config: &ChaosConfig,
    clock: Clock,
    stop: &AtomicBool,
    mut note: impl FnMut(Note<'_>),
) -> Result<ChaosReport, ChaosError> {
    let folder = Folder::create(config.keep_dir)?;
    let mut chaos = Chaos::come_up(config, clock, &folder)?;
    let (backends, frontends) = config.members();
    note(Note::Step(&format!(
        "seed {}: a scheduler, {backends} backends, {frontends} frontends, and a client here",
        config.seed
    )));
    let mut plan = Plan::new(config.seed, backends, frontends);
    let end = clock.now() + Nanos::from_millis_f64(config.seconds * 1e3);
    let wanted =
        |chaos: &Chaos<'_>| clock.now() < end || chaos.recoveries.len() < config.faults_min;
    while wanted(&chaos) && !stop.load(Ordering::Relaxed) {
        let (gap, fault) = plan.draw();
        chaos.pass(gap);
        let recovery = chaos.suffer(fault)?;
        note(Note::Step(&recovery.to_string()));
        chaos.recoveries.push(recovery);
        chaos.revive()?;
    }
    chaos.wind_up(config)
}

struct Chaos<'a> {
    clock: Clock,
    cluster: Cluster<'a>,
    probe: ProbeClient,
    recoveries: Vec<Recovery>,
    /// Outcomes for tasks that had theirs, while no backend was in doubt.
    doubled: u64,
    /// The fault before may still have such effects.
    in_doubt: bool,
    /// Frontends killed: what became of their tasks is unknown.
    frontends_gone: u64,
    recovery_bound: Nanos,
}

impl<'a> Chaos<'a> {
    fn come_up(
        config: &'a ChaosConfig,
        clock: Clock,
        folder: &'a Folder,
    ) -> Result<Self, ChaosError> {
        let mut cluster = Cluster::new(config, folder)?;
        cluster.start(Who::Scheduler, false)?;
        await_up(&mut cluster, Who::Scheduler, clock, || ())?;
        let relay = Relay::start(cluster.scheduler())
            .map_err(|source| ChaosError::Socket { what: "start the relay", source })?;
        cluster.relay = Some(relay);
        for who in cluster.members() {
            cluster.start(who, false)?;
            await_up(&mut cluster, who, clock, || ())?;
        }
        let probe = ProbeClient::connect(cluster.door(), clock)?;
        let (recoveries, doubled, in_doubt, frontends_gone) = (Vec::new(), 0, false, 0);
        let recovery_bound = config.recovery_bound;
        Ok(Self {
            clock,
            cluster,
            probe,
            recoveries,
            doubled,
            in_doubt,
            frontends_gone,
            recovery_bound,
        })
    }

    /// Load goes on for a while.
    fn pass(&mut self, span: Nanos) {
        let until = self.clock.now() + span;
        while self.clock.now() < until {
            self.step();
        }
    }

    fn step(&mut self) {
        self.probe.step();
        self.cluster.listen();
        park_thread(Some(STEP));
    }

    /// A fault, its end, and the recovery.
    fn suffer(&mut self, fault: Fault) -> Result<Recovery, ChaosError> {
        let doubled_before = self.probe.counters().duplicates;
        match fault {
            Fault::Kill(who, down) => {
                self.kill(who)?;
                self.pass(down);
                self.start(who, false)?;
            }
            Fault::Stop(who, long) => {
                self.cluster.signal(who, Signal::STOP);
                self.pass(long);
                self.cluster.signal(who, Signal::CONT);
            }
            Fault::Cut => self.cluster.relay.iter().for_each(Relay::cut),
            Fault::FullDisk(who) => {
                self.kill(who)?;
                self.start(who, true)?;
            }
            Fault::Thief(long) => {
                self.kill(Who::Scheduler)?;
                let thief =
                    Thief::start(self.cluster.scheduler(), self.recoveries.len() as u64).map_err(
                        |source| ChaosError::Socket { what: "take the scheduler's port", source },
                    )?;
                self.pass(long);
                drop(thief);
                self.start(Who::Scheduler, false)?;
            }
        }
        let recovered = self.await_service();
        let in_doubt = fault.may_double();
        if !in_doubt && !self.in_doubt {
            self.doubled += self.probe.counters().duplicates - doubled_before;
        }
        self.in_doubt = in_doubt;
        Ok(Recovery::new(fault, recovered))
    }

    fn kill(&mut self, who: Who) -> Result<(), ProcessError> {
        self.frontends_gone += u64::from(matches!(who, Who::Frontend(_)));
        self.cluster.kill(who)
    }

    /// The next life; returns once it says that it serves.
    fn start(&mut self, who: Who, full_disk: bool) -> Result<(), ChaosError> {
        self.cluster.start(who, full_disk)?;
        let probe = &mut self.probe;
        await_up(&mut self.cluster, who, self.clock, || probe.step())
    }

    /// From now until a task submitted from now on is answered.
    fn await_service(&mut self) -> Option<Nanos> {
        self.probe.look_out();
        let give_up = self.clock.now() + RECOVERY_TIMEOUT.max(self.recovery_bound);
        while self.clock.now() < give_up {
            self.step();
            if let Some(after) = self.probe.answered_after() {
                return Some(after);
            }
        }
        None
    }

    /// Who died by itself, which is noted, is started again: the others are not done.
    fn revive(&mut self) -> Result<(), ChaosError> {
        for who in self.cluster.dead() {
            self.start(who, false)?;
        }
        Ok(())
    }

    /// Everybody leaves in order: frontends, backends, the scheduler.
    fn wind_up(mut self, config: &ChaosConfig) -> Result<ChaosReport, ChaosError> {
        let (_, frontends) = config.members();
        let members = self.cluster.members();
        let is_frontend = |who: &&Who| matches!(who, Who::Frontend(_));
        for &who in members.iter().filter(is_frontend) {
            self.cluster.end(who)?;
        }
        self.cluster.await_reports(frontends);
        let probe_report = self.probe.leave();
        for &who in members.iter().filter(|who| !is_frontend(who)) {
            self.cluster.end(who)?;
        }
        self.cluster.end(Who::Scheduler)?;
        let mut report = ChaosReport::new(config, self.recoveries);
        report.take_probe(probe_report, self.doubled);
        report.take_frontends(&self.cluster.finished, frontends, self.frontends_gone);
        report.failures.append(&mut self.cluster.trouble);
        Ok(report)
    }
}

/// Waits until a process says that it is there; `meanwhile` is done again and again.
fn await_up(
    cluster: &mut Cluster<'_>,
    who: Who,
    clock: Clock,
    mut meanwhile: impl FnMut(),
) -> Result<(), ChaosError> {
    let give_up = clock.now() + UP_TIMEOUT;
    loop {
        meanwhile();
        cluster.listen();
        if cluster.is_up(who) {
            return Ok(());
        }
        if cluster.dead().contains(&who) {
            return Err(ChaosError::Died(cluster.trouble.join("\n")));
        }
        if clock.now() >= give_up {
            return Err(ChaosError::NotUp {
                who: who.to_string(),
                seconds: UP_TIMEOUT.0 / 1_000_000_000,
            });
        }
        park_thread(Some(STEP));
    }
}
