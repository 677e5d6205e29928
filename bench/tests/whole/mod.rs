//! Scheduler, backends and clients — the real agents, the real messages — in one thread, under a
//! clock that the test moves and in an order that a seed decides.

mod gpu;

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use baton_backend::{BackendConfig, Worker};
use baton_client::io::{Io, Joining};
use baton_client::{Client, ClientConfig, Counters, Deadline, FailReason, Outcome, Ticket};
use baton_core::Nanos;
use baton_rdma::wire::Role;
use baton_rdma::{Identity, InprocNetwork, InprocTransport, Transport};
use baton_scheduler::Assembly;
use baton_topo::{Agent, Clock, Cluster};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

pub use gpu::HandGpu;

/// A client process.
pub struct FrontendProcess {
    io: Io<InprocTransport>,
    joining: Option<Joining>,
    /// `None` until it has joined.
    client: Option<Client>,
}

/// A backend process.
pub struct BackendProcess {
    worker: Worker<InprocTransport, HandGpu>,
    gpus: Vec<HandGpu>,
}

/// A submitted task and what its answer must be.
pub struct Submitted {
    pub ticket: Ticket,
    pub checksum: [u8; 8],
}

pub struct Whole {
    pub now: Nanos,
    pub scheduler: Assembly<InprocTransport>,
    /// `None`: killed.
    pub frontends: Vec<Option<FrontendProcess>>,
    pub backends: Vec<Option<BackendProcess>>,
    cluster: Cluster,
    network: InprocNetwork,
    control: std::net::SocketAddr,
    /// What the executors see as now.
    shared_now: Rc<Cell<Nanos>>,
    pub rng: StdRng,
}

/// Every pass costs this much, so that time moves even while everybody is busy.
const PASS: Nanos = Nanos::from_micros(5);

impl Whole {
    /// A scheduler and nobody else. `seed` decides the order of the agents within each pass.
    pub fn new(cluster: Cluster, seed: u64) -> Self {
        let network = InprocNetwork::new();
        let endpoint = |role, member| network.endpoint(Identity { role, member });
        let control = endpoint(Role::Control, 0);
        let addr = control.local_addr();
        let threads = (0..cluster.scheduler.model_threads)
            .map(|number| endpoint(Role::ModelThread, number))
            .collect();
        let now = Nanos::from_millis(1_000);
        Self {
            now,
            scheduler: Assembly::new(&cluster, control, threads),
            frontends: Vec::new(),
            backends: Vec::new(),
            cluster,
            network,
            control: addr,
            shared_now: Rc::new(Cell::new(now)),
            rng: StdRng::seed_from_u64(seed),
        }
    }

    /// Starts a backend of the cluster file; it joins as time passes.
    pub fn start_backend(&mut self, name: &str) {
        let config = BackendConfig::from_cluster(&self.cluster, name, self.control)
            .expect("the cluster file describes it");
        let gpu = |_| HandGpu::new(&self.cluster, Rc::clone(&self.shared_now));
        let gpus: Vec<HandGpu> = (0..config.gpus).map(gpu).collect();
        let transport = self.network.endpoint(Identity { role: Role::Backend, member: 0 });
        let worker = Worker::new(config, Vec::new(), transport, gpus.clone());
        self.backends.push(Some(BackendProcess { worker, gpus }));
    }

    /// Starts a client; it joins as time passes.
    pub fn start_frontend(&mut self) {
        let config = ClientConfig::from_cluster(&self.cluster, self.control);
        let transport = self.network.endpoint(Identity { role: Role::Frontend, member: 0 });
        // Deadlines are counted from the moments the test names; this clock is never read.
        let clock = Clock::start();
        let (io, joining) = Io::new(config, transport, clock).expect("the settings can work");
        self.frontends.push(Some(FrontendProcess { io, joining: Some(joining), client: None }));
    }

    /// Submits a random input of `model`; `None` while the frontend has not joined, is dead, or
    /// has no free slot.
    pub fn submit(&mut self, frontend: usize, model: &str, within: Duration) -> Option<Submitted> {
        let client = self.frontends[frontend].as_ref()?.client.as_ref()?;
        let mut input = client.model(model).expect("in the cluster file").input().ok()?;
        self.rng.fill(&mut input[..]);
        let checksum = baton_backend::execute::checksum(&input);
        let ticket = input.submit_at(self.now, Deadline::Within(within)).ok()?;
        Some(Submitted { ticket, checksum })
    }

    /// Outcomes that came to a living frontend for tasks that had theirs already.
    pub fn duplicates(&self) -> u64 {
        let clients = self.frontends.iter().flatten().filter_map(|f| f.client.as_ref());
        let second = |c: Counters| c.duplicates + c.transport.results_stale;
        clients.map(|client| second(client.counters())).sum()
    }

    /// Slots of the frontend's slabs that are not free; 0 for a dead one.
    pub fn slots_in_use(&self, frontend: usize) -> u32 {
        let process = self.frontends[frontend].as_ref();
        process.and_then(|p| p.client.as_ref()).map_or(0, Client::slots_in_use)
    }

    /// Lets `span` pass: polls everybody whenever there is something to do, in seeded order.
    pub fn run(&mut self, span: Nanos) {
        let end = self.now + span;
        while self.now < end {
            let work = self.pass();
            self.admit_clients();
            self.now = if work > 0 { self.now + PASS } else { self.next_moment().min(end) };
            self.shared_now.set(self.now);
        }
    }

    /// True once every started process serves.
    pub fn all_joined(&self) -> bool {
        let client = |f: &FrontendProcess| f.client.is_some();
        let ready = |b: &BackendProcess| b.worker.stage() == baton_backend::Stage::Ready;
        self.frontends.iter().flatten().all(client) && self.backends.iter().flatten().all(ready)
    }

    /// Asks a backend to leave; returns once its process would have ended, within `bound`.
    pub fn leave(&mut self, backend: usize, bound: Nanos) -> bool {
        let now = self.now;
        let process = self.backends[backend].as_mut().expect("it lives");
        process.worker.leave(now);
        let end = now + bound;
        while self.now < end {
            self.run(Nanos::from_millis(1));
            let process = self.backends[backend].as_ref().expect("it lives");
            if let Some(result) = process.worker.result() {
                let left = result.is_ok();
                self.backends[backend] = None;
                return left;
            }
        }
        false
    }

    fn pass(&mut self) -> usize {
        let mut agents: Vec<&mut dyn Agent> = vec![&mut self.scheduler.control];
        agents.push(&mut self.scheduler.rank);
        agents.extend(self.scheduler.model_threads.iter_mut().map(|t| t as &mut dyn Agent));
        let workers = self.backends.iter_mut().flatten().map(|b| &mut b.worker as &mut dyn Agent);
        agents.extend(workers);
        let ios = self.frontends.iter_mut().flatten().map(|f| &mut f.io as &mut dyn Agent);
        agents.extend(ios);
        let mut work = 0;
        while !agents.is_empty() {
            let next = self.rng.random_range(0..agents.len());
            work += agents.swap_remove(next).poll(self.now);
        }
        work
    }

    fn admit_clients(&mut self) {
        for process in self.frontends.iter_mut().flatten() {
            if let Some(result) = process.joining.as_ref().and_then(Joining::poll) {
                process.client = Some(result.expect("the scheduler lets it in"));
                process.joining = None;
            }
        }
    }

    fn next_moment(&self) -> Nanos {
        let threads = self.scheduler.model_threads.iter().map(Agent::next_timer);
        let backends = self.backends.iter().flatten();
        let executions = backends.clone().flat_map(|b| b.gpus.iter().map(HandGpu::ends_at));
        let workers = backends.map(|b| b.worker.next_timer());
        let ios = self.frontends.iter().flatten().map(|f| f.io.next_timer());
        let core = [self.scheduler.control.next_timer(), self.scheduler.rank.next_timer()];
        let all = threads.chain(executions).chain(workers).chain(ios).chain(core);
        let next = all.flatten().min().unwrap_or(Nanos::MAX);
        next.max(self.now + PASS)
    }
}

/// What has become of the tickets, counted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tally {
    pub completed: u32,
    pub late: u32,
    pub dropped: u32,
    pub failed: u32,
}

impl Tally {
    /// Takes the outcomes that are there out of `tasks`; a wrong answer panics.
    pub fn collect(&mut self, tasks: &mut Vec<Submitted>) {
        tasks.retain_mut(|task| match task.ticket.poll() {
            None => true,
            Some(outcome) => {
                self.count(&outcome, task.checksum);
                false
            }
        });
    }

    pub fn total(&self) -> u32 {
        self.completed + self.dropped + self.failed
    }

    fn count(&mut self, outcome: &Outcome, checksum: [u8; 8]) {
        match outcome {
            Outcome::Completed(reply) => {
                assert_eq!(reply.bytes(), checksum, "a wrong answer");
                self.completed += 1;
                self.late += u32::from(reply.late());
            }
            Outcome::Dropped(_) => self.dropped += 1,
            // The client's own bound: that it was needed means that somebody forgot the task.
            Outcome::Failed(FailReason::LeaseExpired) => panic!("a task was forgotten"),
            Outcome::Failed(_) => self.failed += 1,
        }
    }
}
