//! Scheduler, backends and clients — the real agents, the real transport, the real bytes — in one
//! thread, under a clock that is moved by hand and in an order that a seed decides.
//!
//! An agent is polled when it would be in production: when its timer is due, when something woke
//! it, and a few microseconds after a pass that had work.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use baton_backend::execute::checksum;
use baton_client::{Client, Deadline, Ticket};
use baton_core::Nanos;
use baton_rdma::TcpTransport;
use baton_rdma::wire::{Role, VERSION_MAX, VERSION_MIN, Versions};
use baton_topo::{Cluster, ModelSpec, per_cent};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::changes::{Changes, OperatorProcess};
use crate::hostile::{Attack, Attacker, Hostility, Targets};
use crate::ledger::{Ledger, NUMBER_BYTES, Task};
use crate::network::{HostId, Link, Network, Port, addr_of};
use crate::passes::AgentName;
use crate::plan::{Engines, Transport};
use crate::process::{BackendProcess, FrontendProcess, SchedulerProcess};
use crate::trace::Trace;
use crate::variants;

/// The transport of every process here: the production one, over the simulated network.
pub type SimTransport = TcpTransport<Port>;

/// Where the scheduler listens, whichever life it is in.
pub(crate) const CONTROL_PORT: u16 = 7700;

/// How a world differs from the cluster file.
#[derive(Clone, Copy, Debug)]
pub struct Conditions {
    /// The network.
    pub link: Link,
    /// Bounds of the transports.
    pub transport: Transport,
    /// What executions take.
    pub engines: Engines,
    /// How far clocks drift, parts per million either way.
    pub drift_ppm: i64,
    /// Which protocol versions the processes speak.
    pub speaks: Speaks,
    /// Keep the event log's text.
    pub log: bool,
}

/// Which protocol versions the processes speak.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Speaks {
    /// This build's.
    Own,
    /// Each life of each process draws one: the cluster is being upgraded.
    Drawn,
    /// The scheduler's, the backends', the frontends'.
    Fixed([Versions; 3]),
}

/// This build, and ones that are ahead of it.
const BUILDS: [Versions; 3] = [
    Versions::SPOKEN,
    Versions { min: VERSION_MIN, max: VERSION_MAX + 1 },
    Versions { min: VERSION_MIN, max: VERSION_MAX + 2 },
];

impl Conditions {
    /// Nothing unusual: a fast network, executions as in the profiles, one clock's pace.
    pub fn quiet() -> Self {
        let transport = Transport {
            send_queue_bytes: 1 << 20,
            member_queue_bytes: [1 << 20; 2],
            handshake_timeout: Nanos::from_millis(200),
        };
        let engines =
            Engines { percent: 100, jitter_percent: 0, failures: 0, measured_percent: None };
        let (link, speaks) = (Link::QUIET, Speaks::Own);
        Self { link, transport, engines, drift_ppm: 0, speaks, log: false }
    }
}

/// A submitted task.
#[derive(Debug)]
pub struct Submitted {
    /// The claim to its outcome.
    pub ticket: Ticket,
    /// Its number in the [`Ledger`].
    pub number: u64,
    /// Of its input; what its answer must be follows from it.
    pub checksum: [u8; 8],
    /// The end of its lease, on its frontend's clock.
    pub lease_ends: Nanos,
}

/// A cluster.
pub struct World {
    /// True time.
    pub now: Nanos,
    /// What connects the processes.
    pub network: Network,
    /// `None`: dead.
    pub scheduler: Option<SchedulerProcess>,
    /// Every life of every backend; `None`: over.
    pub backends: Vec<Option<BackendProcess>>,
    /// Every life of every frontend; `None`: over.
    pub frontends: Vec<Option<FrontendProcess>>,
    /// What became of the tasks.
    pub ledger: Rc<RefCell<Ledger>>,
    /// The event log.
    pub trace: Trace,
    /// Decides whatever the run leaves to chance.
    pub rng: StdRng,
    /// Those of the cluster file, and after them all that were ever to be added.
    pub models: Vec<ModelSpec>,
    /// An operator has asked for a removal.
    pub may_remove: bool,
    /// Who asks for changes of the catalogue, and has no answer yet.
    pub(crate) operators: Vec<OperatorProcess>,
    /// What operators were answered.
    pub changes: Changes,
    pub(crate) cluster: Cluster,
    pub(crate) conditions: Conditions,
    pub(crate) control: SocketAddr,
    pub(crate) hosts: u32,
    /// Decides which versions are spoken; apart, so that everything else is drawn as without.
    builds: StdRng,
    /// Hosts whose process was killed: what it had not sent yet stays unsent.
    pub(crate) killed: BTreeSet<HostId>,
    pub(crate) shared_now: Rc<Cell<Nanos>>,
    pub(crate) attackers: Vec<Attacker<Port>>,
    /// What attackers that are gone have done.
    pub(crate) hostility: Hostility,
    targets: Targets,
    pub(crate) due: Vec<AgentName>,
}

impl World {
    /// What the next life of a process in this role speaks.
    pub(crate) fn versions(&mut self, role: Role) -> Versions {
        let versions = match self.conditions.speaks {
            Speaks::Own => Versions::SPOKEN,
            Speaks::Drawn => BUILDS[self.builds.random_range(0..BUILDS.len())],
            Speaks::Fixed([scheduler, backend, frontend]) => match role {
                Role::Control | Role::ModelThread | Role::Operator => scheduler,
                Role::Backend => backend,
                Role::Frontend => frontend,
            },
        };
        if versions != Versions::SPOKEN {
            self.trace.event(self.now, format_args!("{role:?} speaks {versions:?}"));
        }
        versions
    }

    /// No process lives yet. `seed` decides the agents' order and everything the network draws.
    pub fn new(cluster: Cluster, conditions: Conditions, seed: u64) -> Self {
        let network = Network::new(conditions.link, seed ^ 0x6e65_7477, conditions.log);
        Self {
            now: Nanos::ZERO,
            network,
            scheduler: None,
            backends: Vec::new(),
            frontends: Vec::new(),
            ledger: Rc::default(),
            trace: Trace::new(conditions.log),
            rng: StdRng::seed_from_u64(seed),
            models: cluster.models.clone(),
            may_remove: false,
            operators: Vec::new(),
            changes: Changes::default(),
            cluster,
            conditions,
            control: addr_of(HostId(0), CONTROL_PORT),
            hosts: 0,
            builds: StdRng::seed_from_u64(seed ^ 0x7665_7273),
            killed: BTreeSet::new(),
            shared_now: Rc::default(),
            attackers: Vec::new(),
            hostility: Hostility::default(),
            targets: Targets::default(),
            due: Vec::new(),
        }
    }

    /// The cluster file.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Submits an input of the `model`-th model, with the task's number in it; `None` while the
    /// frontend has not joined, is dead, has lost its scheduler, or has no free slot.
    pub fn submit(&mut self, frontend: usize, model: usize, within: Nanos) -> Option<Submitted> {
        let process = self.frontends[frontend].as_ref()?;
        let spec = &self.models[model];
        let handle = process.client()?.model(&spec.name).ok()?;
        // Another model of that name may be served by now.
        let row_bytes = [spec.input_bytes, spec.output_bytes].map(|bytes| bytes as usize);
        if [handle.input_bytes(), handle.output_bytes()] != row_bytes {
            return None;
        }
        let mut input = handle.input().ok()?;
        let number = self.ledger.borrow().next_number();
        self.rng.fill(&mut input[..]);
        input[..NUMBER_BYTES].copy_from_slice(&number.to_le_bytes());
        let (checksum, name) = (checksum(&input), spec.name.clone());
        let local = process.clock.at(self.now);
        let deadline = Deadline::Within(Duration::from_nanos(within.0));
        let accuracy_min = variants::asked(spec, number);
        let input = input.with_accuracy_min(per_cent(accuracy_min));
        let ticket = input.submit_at(local, deadline).ok()?;
        let (id, host, life) = (ticket.task(), process.host, process.life);
        self.trace.event(
            self.now,
            format_args!(
                "task {number} submitted by {host:?} to model {model}, {:.3} ms to go",
                within.as_millis_f64()
            ),
        );
        self.ledger.borrow_mut().submitted(Task {
            id,
            model: model as u32,
            name,
            host,
            checksum,
            accuracy_min,
            submitted: self.now,
            deadline: self.now + within,
            life,
            admitted: false,
            missed: false,
            refused: false,
            ended: false,
            answered: false,
            in_time: false,
            runs: Vec::new(),
        });
        let lease_ends = local + within + self.cluster.frontend.lease_grace;
        Some(Submitted { ticket, number, checksum, lease_ends })
    }

    /// Lets `span` pass.
    pub fn run(&mut self, span: Nanos) {
        let end = self.now + span;
        while self.now < end {
            self.step(end);
        }
    }

    /// Polls the due agents, and moves on to the next moment, at most to `end`. Stops if the
    /// ledger has a failure: time stands still then.
    pub fn step(&mut self, end: Nanos) {
        self.network.advance(self.now);
        self.shared_now.set(self.now);
        self.gather_due();
        let mut due = std::mem::take(&mut self.due);
        while !due.is_empty() {
            let next = self.rng.random_range(0..due.len());
            self.poll(due.swap_remove(next));
        }
        self.due = due;
        self.dismiss_operators();
        self.let_attackers_act();
        self.log_frames();
        self.now = self.next_moment().max(self.now + Nanos(1)).min(end);
    }

    fn log_frames(&mut self) {
        if !self.trace.is_kept() {
            return;
        }
        for sent in self.network.take_sent() {
            tracing_line(&mut self.trace, self.now, &sent);
        }
    }

    /// An attacker takes part from now on.
    pub fn start_attacker(&mut self, attack: Attack) {
        let (host, _) = self.host();
        let port = self.network.open_hostile(host, addr_of(host, 1));
        let seed = self.rng.random();
        self.trace.event(self.now, format_args!("ATTACKER {host:?}: {attack:?}"));
        self.attackers.push(Attacker::new(attack, host.0, port, seed, self.now));
    }

    /// The attackers are gone; their kernels close their connections.
    pub fn stop_attackers(&mut self) {
        for attacker in std::mem::take(&mut self.attackers) {
            self.hostility.add(&attacker.done);
        }
    }

    /// What attackers have done so far.
    pub fn hostility(&self) -> Hostility {
        let mut all = self.hostility;
        self.attackers.iter().for_each(|attacker| all.add(&attacker.done));
        all
    }

    fn let_attackers_act(&mut self) {
        if self.attackers.iter().all(|attacker| attacker.next > self.now) {
            return;
        }
        self.find_targets();
        let Self { attackers, targets, now, .. } = self;
        for attacker in attackers.iter_mut().filter(|attacker| attacker.next <= *now) {
            attacker.act(*now, targets);
        }
    }

    fn find_targets(&mut self) {
        let Self { targets, scheduler, backends, frontends, control, .. } = self;
        targets.control = scheduler.as_ref().map(|_| *control);
        targets.others.clear();
        if let Some(process) = scheduler {
            let threads = 1..=process.assembly.model_threads.len() as u16;
            let addr = |number| addr_of(process.host, CONTROL_PORT + number);
            targets.others.extend(threads.map(addr));
        }
        let backends = backends.iter().flatten().map(|process| process.host);
        let frontends = frontends.iter().flatten().map(|process| process.host);
        targets.others.extend(backends.chain(frontends).map(|host| addr_of(host, 1)));
    }

    /// Notes that something is wrong.
    pub fn fail(&self, what: String) {
        self.ledger.borrow_mut().fail(what);
    }

    /// True once every started process serves.
    pub fn all_joined(&self) -> bool {
        let ready = |b: &BackendProcess| b.worker.stage() == baton_backend::Stage::Ready;
        self.frontends.iter().flatten().all(FrontendProcess::is_settled)
            && self.backends.iter().flatten().all(ready)
    }

    /// Slots of the frontend's slabs that are not free; 0 for a dead one.
    pub fn slots_in_use(&self, frontend: usize) -> u32 {
        let process = self.frontends[frontend].as_ref();
        process.and_then(FrontendProcess::client).map_or(0, Client::slots_in_use)
    }

    /// Outcomes that came to a living frontend for tasks that had theirs already.
    pub fn duplicates(&self) -> u64 {
        let clients = self.frontends.iter().flatten().filter_map(FrontendProcess::client);
        let second = |c: baton_client::Counters| c.duplicates + c.transport.results_stale;
        clients.map(|client| second(client.counters())).sum()
    }
}

fn tracing_line(trace: &mut Trace, now: Nanos, sent: &crate::network::Sent) {
    let crate::network::Sent { from, to, kind, bytes } = sent;
    trace.note(now, format_args!("    {from:?} -> {to:?}: {kind:?}, {bytes} bytes"));
}
