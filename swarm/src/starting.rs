//! How the processes of a world come to life, and how backends leave.

use std::net::SocketAddr;
use std::rc::Rc;
use std::time::Duration;

use baton_backend::execute::Measured;
use baton_backend::{BackendConfig, BackendError, Worker};
use baton_client::ClientConfig;
use baton_client::io::ClientIo;
use baton_core::{Nanos, Profile};
use baton_rdma::wire::{Role, Versions};
use baton_rdma::{Identity, TcpConfig, TcpTransport};
use baton_scheduler::Assembly;
use baton_topo::{Clock, ModelSpec};
use rand::RngExt;

use crate::clock::SkewedClock;
use crate::gpu::{Machine, SimGpu};
use crate::network::{HostId, addr_of};
use crate::process::{BackendProcess, FrontendProcess, Line, SchedulerProcess};
use crate::world::{CONTROL_PORT, SimTransport, World};

impl World {
    pub(crate) fn host(&mut self) -> (HostId, SkewedClock) {
        self.hosts += 1;
        let drift = self.conditions.drift_ppm;
        let ppm = self.rng.random_range(-drift..=drift);
        let offset = Nanos(self.rng.random_range(1_000_000_000..=1 << 50));
        (HostId(self.hosts), SkewedClock::new(offset, ppm))
    }

    pub(crate) fn transport(
        &self,
        host: HostId,
        addr: SocketAddr,
        role: Role,
        member: u32,
        credit_bytes: u64,
        versions: Versions,
    ) -> (SimTransport, Line) {
        let mut line = Line::new(self.now);
        let port = self.network.open(host, addr, line.bell());
        let bounds = self.conditions.transport;
        let cfg = TcpConfig {
            connections_max: 64,
            host_connections_max: 32,
            send_queue_bytes: match role {
                Role::Backend => bounds.member_queue_bytes[0],
                Role::Frontend => bounds.member_queue_bytes[1],
                Role::Control | Role::ModelThread | Role::Operator => bounds.send_queue_bytes,
            },
            credit_bytes,
            handshake_timeout: bounds.handshake_timeout,
        };
        let transport = TcpTransport::over(port, Identity { role, member }, cfg);
        (transport.claiming(versions), line)
    }

    /// Starts the scheduler, which must not live.
    pub fn start_scheduler(&mut self) {
        assert!(self.scheduler.is_none(), "one scheduler at a time");
        let (host, clock) = self.host();
        let window = TcpConfig::default().credit_bytes;
        let versions = self.versions(Role::Control);
        let (control, line) =
            self.transport(host, self.control, Role::Control, 0, window, versions);
        let (mut threads, mut lines) = (Vec::new(), Vec::new());
        for number in 0..self.cluster.scheduler.model_threads {
            let addr = addr_of(host, CONTROL_PORT + 1 + number as u16);
            let (transport, line) =
                self.transport(host, addr, Role::ModelThread, number, window, versions);
            threads.push(transport);
            lines.push(line);
        }
        let assembly = Assembly::new(&self.cluster, control, threads);
        self.ledger.borrow_mut().schedulers.push(host);
        self.network.know_clock(host, clock);
        self.trace.event(self.now, format_args!("scheduler starts as {host:?}"));
        let process = SchedulerProcess::new(assembly, host, clock, line, lines, self.now);
        self.scheduler = Some(process);
    }

    /// Starts the backend that is the `at`-th of the cluster file; it joins as time passes. Returns
    /// its place in [`World::backends`].
    pub fn start_backend(&mut self, at: usize) -> usize {
        let (host, clock) = self.host();
        let name = self.cluster.backends[at].name.clone();
        let mut config = BackendConfig::from_cluster(&self.cluster, &name, self.control)
            .expect("the cluster file describes it");
        config.join_timeout = Nanos::from_millis(1_000);
        let addr = addr_of(host, 1);
        let credit = u64::from(config.credit_bytes);
        let versions = self.versions(Role::Backend);
        let (transport, line) = self.transport(host, addr, Role::Backend, 0, credit, versions);
        let machine = self.machine(host, clock);
        let gpu = |_| SimGpu::new(machine.clone(), self.rng.random());
        let gpus: Vec<SimGpu> = (0..config.gpus).map(gpu).collect();
        let measured = self.measured(&config);
        let worker = Worker::new(config, measured, transport, gpus.clone());
        let worker = worker.expect("its batches are small");
        self.trace.event(self.now, format_args!("backend {name} starts as {host:?}"));
        self.backends.push(Some(BackendProcess {
            worker,
            gpus,
            at,
            host,
            clock,
            line,
            is_leaving: false,
        }));
        self.backends.len() - 1
    }

    fn machine(&self, host: HostId, clock: SkewedClock) -> Machine {
        Machine {
            host,
            clock,
            now: Rc::clone(&self.shared_now),
            models: self.cluster.models.clone().into(),
            ledger: Rc::clone(&self.ledger),
            network: self.network.clone(),
            engines: self.conditions.engines,
            overrun_max: Nanos(self.cluster.frontend.lease_grace.0 / 3),
        }
    }

    /// What a backend says that it has measured.
    fn measured(&self, config: &BackendConfig) -> Measured {
        let Some(percent) = self.conditions.engines.measured_percent else { return Vec::new() };
        let measured = |model: &ModelSpec| {
            let scaled = |variant| {
                let table = model.profile_of(variant).table().iter();
                let table: Vec<Nanos> = table.map(|l| Nanos(l.0 * percent / 100)).collect();
                Profile::from_table(&table).expect("it still rises")
            };
            (model.id, (0..model.variant_count()).map(scaled).collect())
        };
        config.models.iter().map(measured).collect()
    }

    /// Starts a client; it joins as time passes. `number` is what the application calls it. Returns
    /// its place in [`World::frontends`].
    pub fn start_frontend(&mut self, number: usize) -> usize {
        let (host, clock) = self.host();
        // Near the end of the generations as often as not: they wrap.
        let generation = self.rng.random::<u32>() | if self.rng.random() { 0xfff_fff0 } else { 0 };
        let config = ClientConfig::from_cluster(&self.cluster, self.control)
            .connect_timeout(Duration::from_millis(500))
            .leave_timeout(Duration::from_millis(500))
            .first_generation(generation);
        let window = TcpConfig::default().credit_bytes;
        let versions = self.versions(Role::Frontend);
        let addr = addr_of(host, 1);
        let (transport, line) = self.transport(host, addr, Role::Frontend, 0, window, versions);
        // Deadlines are counted from the moments the run names; this clock is never read.
        let (io, joining) =
            ClientIo::new(config, transport, Clock::start()).expect("sound settings");
        self.trace.event(self.now, format_args!("frontend {number} starts as {host:?}"));
        let process = FrontendProcess::new(io, joining, number, host, clock, line);
        self.frontends.push(Some(process));
        self.frontends.len() - 1
    }

    /// Asks a backend to leave.
    pub fn ask_to_leave(&mut self, backend: usize) {
        let now = self.now;
        if let Some(process) = &mut self.backends[backend] {
            let local = process.clock.at(now);
            process.worker.leave(local);
            process.is_leaving = true;
            process.line.wake(now);
        }
    }

    /// Asks a backend to leave; returns how it ended once its process would have, within `bound`.
    pub fn leave(&mut self, backend: usize, bound: Nanos) -> Option<Result<(), BackendError>> {
        self.ask_to_leave(backend);
        let end = self.now + bound;
        while self.now < end {
            self.run(Nanos::from_millis(1));
            let process = self.backends[backend].as_ref()?;
            if let Some(result) = process.worker.result() {
                let result = result.clone();
                self.backends[backend] = None;
                return Some(result);
            }
        }
        None
    }
}
