//! A client's I/O side, stepped by hand between a scheduler, its ModelThreads and a backend that do
//! exactly what the test tells them.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use baton_rdma::wire::{
    CatalogEnd, Hello, JoinAck, LeaveAck, Message, ModelDesc, ModelDown, Pong, RefuseCode, Role,
    SlabKnown, SubclusterDesc, TaskEnd, TaskResult, ThreadDesc, WireAddr,
};
use baton_rdma::{
    BatchBuffer, CloseReason, ConnId, Event, Events, Identity, InprocNetwork, InprocTransport,
    Read, ReadStatus, Transport,
};
use baton_topo::{Agent, Clock};
use baton_types::{CostHint, Nanos, TaskId};

use crate::config::ClientConfig;
use crate::io::{ClientIo, Joining};
use crate::{Client, ConnectError, Deadline, Input, ModelHandle, Ticket};

/// The first scheduler's clock is ahead of the client's by this.
pub(super) const AHEAD: Nanos = Nanos::from_millis(3_600_000);
pub(super) const STEP: Nanos = Nanos::from_micros(10);
pub(super) const TOKEN: u64 = 0xfeed;
pub(super) const MEMBER: u32 = 5;
pub(super) const SLOTS: u32 = 4;
pub(super) const INPUT: usize = 16;
pub(super) const OUTPUT: usize = 4;
pub(super) const SLO: Nanos = Nanos::from_millis(25);
/// Models by id: alpha lives on ModelThread 0, beta on ModelThread 1.
pub(super) const MODELS: [&str; 2] = ["alpha", "beta"];

/// The address of the first endpoint after those of [`World::new`].
pub(super) const LATER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 6);

/// What one of the scripted peers has heard.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Heard {
    Opened { role: Role, token: u64 },
    Slab { model: u32, first_slot: u32, slots: u32, input_bytes: u32 },
    Join { slabs: u32 },
    Ready,
    Submit { task: TaskId, deadline: Nanos, model: u32, input_bytes: u32, cost: CostHint },
    Cancel { task: TaskId, model: u32 },
    Leave,
    Read { status: ReadStatus, bytes: Vec<u8> },
    Closed(CloseReason),
}

/// One scripted peer and its only connection.
pub(super) struct Peer {
    pub(super) transport: InprocTransport,
    pub(super) conn: Option<ConnId>,
    pub(super) heard: Vec<Heard>,
    pings: Vec<u64>,
}

impl Peer {
    fn new(network: &InprocNetwork, role: Role, member: u32) -> Self {
        let transport = network.endpoint(Identity { role, member });
        Self { transport, conn: None, heard: Vec::new(), pings: Vec::new() }
    }

    fn step(&mut self, now: Nanos) {
        let mut events = Events::new();
        self.transport.poll(now, &mut events);
        for event in events.drain() {
            self.hear(event);
        }
        self.transport.flush();
    }

    fn hear(&mut self, event: Event<'_>) {
        self.heard.push(match event {
            Event::Opened { conn, peer } => {
                self.conn = Some(conn);
                Heard::Opened { role: peer.role, token: peer.token }
            }
            Event::Closed { conn, reason } => {
                self.conn = self.conn.filter(|&open| open != conn);
                Heard::Closed(reason)
            }
            Event::Read(done) => Heard::Read { status: done.status, bytes: done.row.to_vec() },
            Event::Message { message: Message::Ping(ping), .. } => {
                return self.pings.push(ping.sent_ns.get());
            }
            Event::Message { message: Message::Pace(_), .. } => return,
            Event::Message { message, .. } => heard(message),
            Event::Result { .. } => panic!("a scripted peer gets no answers"),
        });
    }

    pub(super) fn send<B: baton_rdma::wire::Body>(&mut self, body: &B, tail: &[u8]) {
        self.transport.send(self.conn.expect("connected"), body, tail).unwrap();
    }

    pub(super) fn close(&mut self, code: RefuseCode) {
        let conn = self.conn.take().expect("connected");
        self.transport.close(conn, code, "as the test wants it");
        self.transport.flush();
    }

    pub(super) fn take(&mut self) -> Vec<Heard> {
        std::mem::take(&mut self.heard)
    }
}

fn heard(message: Message<'_>) -> Heard {
    match message {
        Message::SlabDesc(slab) => Heard::Slab {
            model: slab.model.get(),
            first_slot: slab.first_slot.get(),
            slots: slab.slots.get(),
            input_bytes: slab.input_bytes.get(),
        },
        Message::JoinFrontend(join) => Heard::Join { slabs: join.slabs.get() },
        Message::Ready(_) => Heard::Ready,
        Message::Leave(_) => Heard::Leave,
        Message::Submit(submit) => Heard::Submit {
            task: TaskId(submit.task.get()),
            deadline: Nanos(submit.deadline_ns.get()),
            model: submit.model.get(),
            input_bytes: submit.input_bytes.get(),
            cost: CostHint::from_bits(submit.cost.get()),
        },
        Message::Cancel(cancel) => {
            Heard::Cancel { task: TaskId(cancel.task.get()), model: cancel.model.get() }
        }
        other => panic!("a frontend does not send {other:?}"),
    }
}

pub(super) struct World {
    network: InprocNetwork,
    pub(super) now: Nanos,
    /// `None` once it has ended or was killed.
    pub(super) io: Option<ClientIo<InprocTransport>>,
    pub(super) joining: Joining,
    pub(super) control: Peer,
    pub(super) threads: [Peer; 2],
    pub(super) backend: Peer,
    pub(super) frontend_addr: SocketAddr,
    /// The scheduler answers pings and leaves.
    pub(super) alive: bool,
    /// The present scheduler's clock is ahead of the client's by this.
    pub(super) ahead: Nanos,
    /// For tests with real threads; the others move `now` by hand.
    pub(super) clock: Clock,
    batch: Arc<BatchBuffer>,
}

impl World {
    /// Nothing has happened yet.
    pub(super) fn new(configure: impl FnOnce(ClientConfig) -> ClientConfig) -> Self {
        let network = InprocNetwork::new();
        let control = Peer::new(&network, Role::Control, 0);
        let threads = [0, 1].map(|number| Peer::new(&network, Role::ModelThread, number));
        let config = ClientConfig::new(control.transport.local_addr()).slots_per_model(SLOTS);
        let config = configure(config);
        let identity = Identity { role: Role::Frontend, member: 0 };
        let transport = network.endpoint_with(identity, config.tcp);
        let frontend_addr = transport.local_addr();
        let clock = Clock::start();
        let (io, joining) = ClientIo::new(config, transport, clock).unwrap();
        Self {
            backend: Peer::new(&network, Role::Backend, 0),
            network,
            now: Nanos::from_millis(1_000),
            io: Some(io),
            joining,
            control,
            threads,
            frontend_addr,
            alive: true,
            ahead: AHEAD,
            clock,
            batch: BatchBuffer::new(INPUT).unwrap(),
        }
    }

    /// Nothing has happened yet, and no scheduler is where the client looks for it.
    pub(super) fn without_scheduler() -> Self {
        Self::new(|config| ClientConfig { scheduler: LATER.into(), ..config })
    }

    /// Now a scheduler is there.
    pub(super) fn start_scheduler(&mut self) {
        self.control = Peer::new(&self.network, Role::Control, 0);
        assert_eq!(self.control.transport.local_addr(), LATER);
    }

    /// A joined client and a connected backend.
    pub(super) fn open() -> (Self, Client) {
        Self::open_with(|config| config)
    }

    pub(super) fn open_with(
        configure: impl FnOnce(ClientConfig) -> ClientConfig,
    ) -> (Self, Client) {
        let mut world = Self::new(configure);
        world.announce();
        world.admit();
        world.steps(40);
        let client = world.joining.poll().expect("40 steps suffice").unwrap();
        world.connect_backend(Role::Backend, TOKEN);
        world.control.take();
        world.backend.take();
        world.threads.iter_mut().for_each(|thread| drop(thread.take()));
        (world, client)
    }

    /// One pass of everybody, ten microseconds later.
    pub(super) fn step(&mut self) {
        self.now = self.now + STEP;
        if let Some(io) = &mut self.io {
            io.poll(self.now);
            if io.finished() {
                self.io = None;
            }
        }
        let peers = [&mut self.control, &mut self.backend].into_iter().chain(&mut self.threads);
        peers.for_each(|peer| peer.step(self.now));
        if self.alive {
            self.answer_pings();
        }
    }

    pub(super) fn steps(&mut self, count: u32) {
        (0..count).for_each(|_| self.step());
    }

    /// Jumps close to `span` later, with heartbeats on the way, so that no peer falls silent.
    pub(super) fn pass(&mut self, span: Nanos) {
        let until = self.now + span;
        while self.now + Nanos::from_millis(50) < until {
            self.now = self.now + Nanos::from_millis(50);
            self.steps(2);
        }
        self.now = self.now.max(until);
        self.steps(3);
    }

    /// The scheduler's catalogue: two ModelThreads, two models.
    pub(super) fn announce(&mut self) {
        self.announce_models(&MODELS);
    }

    /// As [`World::announce`], with these models, numbered in this order.
    pub(super) fn announce_models(&mut self, names: &[&str]) {
        let descs: Vec<_> = (0..).zip(names).map(|(id, name)| (model_desc(id), *name)).collect();
        self.announce_descs(&descs);
    }

    /// As [`World::announce`], with these models.
    pub(super) fn announce_descs(&mut self, models: &[(ModelDesc, &str)]) {
        self.steps(3);
        for (number, thread) in self.threads.iter().enumerate() {
            let addr = WireAddr::new(thread.transport.local_addr());
            self.control.send(&ThreadDesc { thread: (number as u32).into(), addr }, &[]);
        }
        self.control.send(&SubclusterDesc { subcluster: 0.into() }, b"main");
        for (desc, name) in models {
            self.control.send(desc, name.as_bytes());
        }
        self.control.send(&CatalogEnd { scheduler_epoch: 1.into() }, &[]);
        self.steps(3);
    }

    /// The scheduler adds a model.
    pub(super) fn add_model(&mut self, desc: ModelDesc, name: &str) {
        self.control.send(&desc, name.as_bytes());
        self.control.send(&CatalogEnd { scheduler_epoch: 1.into() }, &[]);
        self.steps(3);
    }

    /// Every backend knows the slab that the client called `number` has there.
    pub(super) fn slab_known(&mut self, number: u32, first_slot: u32) {
        let known = SlabKnown { frontend: number.into(), first_slot: first_slot.into() };
        self.control.send(&known, &[]);
        self.steps(3);
    }

    pub(super) fn remove_model(&mut self, id: u32) {
        self.control.send(&ModelDown { model: id.into() }, &[]);
        self.steps(3);
    }

    pub(super) fn admit(&mut self) {
        self.admit_as(MEMBER, TOKEN);
    }

    pub(super) fn admit_as(&mut self, member: u32, token: u64) {
        let ack = JoinAck { member: member.into(), first_gpu: 0.into(), token: token.into() };
        self.control.send(&ack, &[]);
        self.steps(3);
    }

    /// The scheduler dies; its connections break.
    pub(super) fn lose_scheduler(&mut self) {
        self.end_scheduler(RefuseCode::Limit);
    }

    /// The scheduler stops in order.
    pub(super) fn stop_scheduler(&mut self) {
        self.end_scheduler(RefuseCode::Shutdown);
    }

    pub(super) fn end_scheduler(&mut self, code: RefuseCode) {
        for peer in self.threads.iter_mut().chain([&mut self.control]) {
            if peer.conn.is_some() {
                peer.close(code);
            }
        }
        self.steps(2);
    }

    /// Waits until the client looks for a scheduler, and finds one.
    pub(super) fn await_client(&mut self) {
        for _ in 0..100 {
            self.steps(2);
            if self.control.conn.is_some() {
                return;
            }
            self.now = self.now + Nanos::from_millis(5);
        }
        panic!("the client does not come back");
    }

    /// A scheduler is there again and takes the client in, under another number.
    pub(super) fn take_back(&mut self, member: u32) {
        self.await_client();
        self.announce();
        self.admit_as(member, TOKEN + u64::from(member));
        self.steps(40);
    }

    pub(super) fn connect_backend(&mut self, role: Role, token: u64) {
        self.backend.transport.connect(self.frontend_addr, Hello::new(role, 1, token)).unwrap();
        self.steps(4);
    }

    /// The backend pulls an input; returns what it got.
    pub(super) fn pull(&mut self, task: TaskId) -> (ReadStatus, Vec<u8>) {
        let row = self.batch.lend(0, INPUT as u32).expect("one row at a time");
        let conn = self.backend.conn.expect("connected");
        self.backend.transport.post_reads(&mut vec![Read { conn, task, row, tag: 1 }]);
        self.backend.transport.flush();
        self.steps(4);
        match self.backend.take().pop() {
            Some(Heard::Read { status, bytes }) => (status, bytes),
            other => panic!("expected a completed READ, not {other:?}"),
        }
    }

    /// The backend answers a task: executed for a millisecond that ends now.
    pub(super) fn answer(&mut self, task: TaskId, output: &[u8]) {
        self.answer_as(task, 0, output);
    }

    /// As [`World::answer`], from this variant of the model.
    pub(super) fn answer_as(&mut self, task: TaskId, variant: u16, output: &[u8]) {
        self.answer_by(self.ahead, task, variant, output);
    }

    /// As [`World::answer_as`], dated by a clock that is ahead by this.
    pub(super) fn answer_by(&mut self, ahead: Nanos, task: TaskId, variant: u16, output: &[u8]) {
        let finished = self.now + ahead;
        let result = TaskResult {
            task: task.0.into(),
            started_ns: (finished - Nanos::from_millis(1)).0.into(),
            finished_ns: finished.0.into(),
            batch_size: 3.into(),
            variant: variant.into(),
            gpu: 9.into(),
        };
        let conn = self.backend.conn.expect("connected");
        self.backend.transport.reply(conn, &result, output).unwrap();
        self.backend.transport.flush();
        self.steps(2);
    }

    /// The ModelThread of `model` ends a task.
    pub(super) fn end(&mut self, model: usize, task: TaskId, kind: u8, reason: u8) {
        self.threads[model].send(&task_end(task, kind, reason), &[]);
        self.steps(2);
    }

    /// Fills an input of `model` with its slot's worth of `byte` and submits it.
    pub(super) fn submit(&mut self, model: &ModelHandle, byte: u8, deadline: Deadline) -> Ticket {
        let mut input = model.input().unwrap();
        input.fill(byte);
        let ticket = self.submit_input(input, deadline).unwrap();
        self.steps(2);
        ticket
    }

    pub(super) fn submit_input(
        &self,
        input: Input,
        deadline: Deadline,
    ) -> Result<Ticket, crate::SubmitError> {
        input.submit_at(self.now, deadline)
    }

    /// Of the slabs that are exposed.
    pub(super) fn memory_bytes(&self) -> u64 {
        self.io.as_ref().expect("it has not ended").transport.counters().memory_bytes
    }

    /// The error a join has come to.
    pub(super) fn join_error(&mut self) -> ConnectError {
        self.joining.poll().expect("the join has come to its end").unwrap_err()
    }

    fn answer_pings(&mut self) {
        for sent in std::mem::take(&mut self.control.pings) {
            if self.control.conn.is_some() {
                let scheduler_ns = (self.now + self.ahead).0.into();
                self.control.send(&Pong { sent_ns: sent.into(), scheduler_ns }, &[]);
            }
        }
        if self.control.heard.last() == Some(&Heard::Leave) && self.control.conn.is_some() {
            self.control.send(&LeaveAck { reserved: 0.into() }, &[]);
        }
        self.control.transport.flush();
    }
}

pub(super) fn task_end(task: TaskId, kind: u8, reason: u8) -> TaskEnd {
    TaskEnd { task: task.0.into(), kind, reason, retry_ms: 0.into() }
}

pub(super) fn model_desc(id: u32) -> ModelDesc {
    ModelDesc {
        model: id.into(),
        thread: (id % 2).into(),
        subcluster: 0.into(),
        batch_max: 8.into(),
        input_bytes: (INPUT as u32).into(),
        output_bytes: (OUTPUT as u32).into(),
        slo_ns: SLO.0.into(),
    }
}
