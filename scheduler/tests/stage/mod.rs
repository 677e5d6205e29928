//! The scheduler's real agents on an in-process network, stepped by hand; members are scripted.
#![allow(dead_code, unreachable_pub, reason = "each test file uses its own part of the stage")]
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

use baton_core::{ModelId, Nanos, Policy, Profile, QuotaLimits, SubclusterId, TaskId};
use baton_rdma::wire::{
    ActionDone, ActionStatus, Cancel, Hello, JoinBackend, JoinFrontend, Leave, Message, ModelDesc,
    Ping, ProfileDesc, Ready, RefuseCode, Role, SlabDesc, Submit, VERSION_MAX, VariantDesc,
    WireAddr, WireFetch,
};
use baton_rdma::{
    CloseReason, ConnId, Event, Events, Identity, InprocNetwork, InprocTransport, TcpConfig,
    Transport,
};
use baton_scheduler::Assembly;
use baton_topo::{
    Agent, Cluster, EngineSpec, FrontendSpec, Idle, ModelSpec, NetworkSpec, PARK_MAX,
    ReconnectSpec, SchedulerSpec,
};
use std::net::SocketAddr;
use submitted::{as_submitted, cost, input_bytes};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U16;

pub mod asking;
mod bounded;
pub mod cached;
pub mod caches;
pub mod changes;
pub mod passing;
mod submitted;

pub fn ms(value: u64) -> Nanos {
    Nanos::from_millis(value)
}

/// Two models, ℓ(b) = b + 4 ms, SLO 30 ms, in one sub-cluster of their own each.
pub fn cluster(policy: Policy, model_threads: u32) -> Cluster {
    let model = |id: u32| ModelSpec {
        id: ModelId(id),
        name: format!("model-{id}"),
        subcluster: SubclusterId(id),
        profile: Profile::linear(ms(1), ms(4), 8).unwrap(),
        slo: ms(30),
        input_bytes: 16,
        output_bytes: 8,
        queue_capacity: 16,
        quota: QuotaLimits::default(),
        expected_rps: None,
        engine: EngineSpec::Emulated { jitter: 0.0 },
        variants: Vec::new(),
        weights: None,
    };
    Cluster {
        scheduler: SchedulerSpec {
            models_max: Some(4),
            journal: None,
            listen: "127.0.0.1:0".parse().unwrap(),
            model_threads,
            idle: Idle::Park,
            cores: Vec::new(),
            policy,
            prefer: baton_core::Prefer::default(),
            member_timeout: ms(1_000),
            metrics: None,
            etcd: None,
        },
        network: NetworkSpec {
            ctrl: Nanos::ZERO,
            data_per_task: Nanos::ZERO,
            response: Nanos::ZERO,
            jitter: Nanos::ZERO,
        },
        fabric: baton_topo::FabricSpec::default(),
        subclusters: vec!["a".into(), "b".into()],
        models: vec![model(0), model(1)],
        backends: Vec::new(),
        frontend: FrontendSpec { slots_per_model: 4, lease_grace: ms(1_000) },
        gateway: baton_topo::GatewaySpec::default(),
        reconnect: ReconnectSpec::default(),
    }
}

/// What a scripted member has heard, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Told {
    Joined { member: u32, first_gpu: u32, token: u64 },
    PeerUp { frontend: u32 },
    PeerDown { frontend: u32 },
    LeaveAck,
    Pong { scheduler: Nanos },
    Action { batch: u64, gpu: u32, model: u32, exec_at: Nanos, variants: [u16; 2], tasks: Vec<u64> },
    Load { load: u64, gpu: u32, model: u32, latest: Nanos, victims: Vec<u32> },
    Table { model: u32, text: String },
    ModelDown { model: u32 },
    SlabKnown { first_slot: u32 },
    Changed { done: bool, text: String },
    Status { next: u64, text: String },
    Ended { task: u64, kind: u8, reason: u8, retry_ms: u16 },
    Refused { code: Option<RefuseCode>, detail: String },
    Closed,
    Other,
}

pub struct Stage {
    pub network: InprocNetwork,
    pub scheduler: Assembly<InprocTransport>,
    pub now: Nanos,
    /// The newest protocol version of members to come.
    pub speaks: u16,
    control: SocketAddr,
}

impl Stage {
    pub fn new(cluster: &Cluster) -> Self {
        Self::bounded(cluster, TcpConfig::default())
    }

    pub fn control_addr(&self) -> SocketAddr {
        self.control
    }

    /// Polls every agent until none has anything to do.
    pub fn settle(&mut self) {
        for _ in 0..1_000 {
            let mut work = self.scheduler.control.poll(self.now);
            for thread in &mut self.scheduler.model_threads {
                work += thread.poll(self.now);
            }
            work += self.scheduler.rank.poll(self.now);
            if work == 0 {
                return;
            }
        }
        panic!("the agents do not come to rest");
    }

    /// Moves time and lets everything that is due happen, timer by timer.
    pub fn advance(&mut self, by: Nanos) {
        let end = self.now + by;
        self.settle();
        while let Some(due) = self.next_timer().filter(|&due| due <= end) {
            self.now = self.now.max(due);
            self.settle();
        }
        self.now = end;
        self.settle();
    }

    /// A thread that waits looks up now and then, as in production.
    fn next_timer(&self) -> Option<Nanos> {
        let Self { scheduler, now, .. } = self;
        let threads = scheduler.model_threads.iter().map(Agent::next_timer);
        let timers = threads.chain([scheduler.rank.next_timer(), scheduler.control.next_timer()]);
        timers.chain([Some(*now + PARK_MAX)]).flatten().filter(|due| due > now).min()
    }

    /// A member that has connected and read the catalogue.
    pub fn member(&mut self, role: Role) -> Member {
        let transport = self.network.endpoint(Identity { role, member: 0 });
        let mut member = Member::new(transport, role, self.control);
        let mut told = self.exchange(&mut member).into_iter();
        assert!(told.all(|told| matches!(told, Told::Table { .. })), "the catalogue comes first");
        member.version_max = self.speaks;
        member
    }

    /// A frontend that has joined and connected to every ModelThread.
    pub fn frontend(&mut self) -> Member {
        self.frontend_speaking(VERSION_MAX)
    }

    /// The same, of a build whose newest protocol version is this.
    pub fn frontend_speaking(&mut self, version: u16) -> Member {
        let mut member = self.member(Role::Frontend);
        member.version_max = version;
        let addr = WireAddr::new(member.transport.local_addr());
        member.send(&JoinFrontend { addr, slabs: 0.into() }, &[]);
        self.connect(&mut member);
        member
    }

    /// A backend that has joined, connected and is ready.
    pub fn backend(&mut self, name: &str, subcluster: u32, gpus: u32) -> Member {
        let mut member = self.member(Role::Backend);
        member.send(&ProfileDesc { model: subcluster.into(), pages: 0.into() }, &[]);
        member.send(
            &JoinBackend { subcluster: subcluster.into(), gpus: gpus.into() },
            name.as_bytes(),
        );
        self.connect(&mut member);
        member.send(&Ready { reserved: 0.into() }, &[]);
        self.exchange(&mut member);
        member
    }

    /// Takes in the answer to a join, and connects to every ModelThread.
    pub fn connect(&mut self, member: &mut Member) {
        let told = self.exchange(member);
        member.joined(&told);
        self.exchange(member);
    }

    /// Lets messages flow both ways until nothing moves; what the member heard.
    pub fn exchange(&mut self, member: &mut Member) -> Vec<Told> {
        let mut told = Vec::new();
        for _ in 0..3 {
            member.transport.flush();
            self.settle();
            told.extend(member.listen(self.now));
        }
        told
    }
}

pub struct Member<T = InprocTransport> {
    pub transport: T,
    pub role: Role,
    version_max: u16,
    pub control: ConnId,
    /// Connections to the ModelThreads, by number.
    pub threads: Vec<ConnId>,
    addrs: Vec<SocketAddr>,
    pub id: u32,
    pub token: u64,
    /// Names and ModelThreads of the models in the catalogue.
    pub models: Vec<(String, u32)>,
    /// Every description of a model, in order.
    pub described: Vec<ModelDesc>,
    /// Model, accuracy and name of every variant that was described, in order.
    pub variants: Vec<(u32, u32, String)>,
    /// Every slab it heard of, in order.
    pub slabs: Vec<SlabDesc>,
    /// What its tasks ask for, in 1/100,000.
    pub accuracy_min: u32,
    /// Of the tasks in actions, those that were called cold.
    pub cold: Vec<u64>,
    /// How often the scheduler has confirmed that it serves.
    pub confirmed: usize,
    /// Connections that came up.
    pub opened: usize,
}

impl<T: Transport> Member<T> {
    /// One that connects to the ControlThread at `control` and has heard nothing yet.
    pub fn new(mut transport: T, role: Role, control: SocketAddr) -> Self {
        let control = transport.connect(control, Hello::new(role, 0, 0)).unwrap();
        Self {
            transport,
            role,
            version_max: VERSION_MAX,
            control,
            threads: Vec::new(),
            addrs: Vec::new(),
            id: 0,
            token: 0,
            models: Vec::new(),
            described: Vec::new(),
            variants: Vec::new(),
            slabs: Vec::new(),
            accuracy_min: 0,
            cold: Vec::new(),
            confirmed: 0,
            opened: 0,
        }
    }

    /// The answer to its join: goes by its number, and connects to every ModelThread.
    pub fn joined(&mut self, told: &[Told]) {
        let Some(Told::Joined { member: id, token, .. }) = told.first() else {
            panic!("not joined: {told:?}");
        };
        (self.id, self.token) = (*id, *token);
        for addr in self.addrs.clone() {
            let hello = Hello {
                version_max: self.version_max.into(),
                ..Hello::new(self.role, self.id, self.token)
            };
            let conn = self.transport.connect(addr, hello).unwrap();
            self.threads.push(conn);
        }
    }

    pub fn send<B: baton_rdma::wire::Body>(&mut self, body: &B, tail: &[u8]) {
        self.transport.send(self.control, body, tail).unwrap();
    }

    /// Where a ModelThread listens, by the catalogue.
    pub fn thread_addr(&self, thread: usize) -> SocketAddr {
        self.addrs[thread]
    }

    /// A task of this frontend: slot and generation.
    pub fn task(&self, slot: u32, generation: u32) -> u64 {
        TaskId::new(baton_core::FrontendId(self.id as u16), slot, generation).0
    }

    pub fn submit(&mut self, model: u32, task: u64, deadline: Nanos) {
        let thread = self.models[model as usize].1 as usize;
        self.submit_to(thread, model, task, deadline);
    }

    /// Submits a task of the model with this id to a ModelThread.
    pub fn submit_to(&mut self, thread: usize, model: u32, task: u64, deadline: Nanos) {
        let conn = self.threads[thread];
        let submit = Submit {
            task: task.into(),
            deadline_ns: deadline.0.into(),
            model: model.into(),
            input_bytes: input_bytes(task).into(),
            cost: cost(task).into(),
            accuracy_min: self.accuracy_min.into(),
        };
        self.transport.send(conn, &submit, &[]).unwrap();
    }

    pub fn cancel(&mut self, model: u32, task: u64) {
        let conn = self.threads[self.models[model as usize].1 as usize];
        let cancel = Cancel { task: task.into(), model: model.into() };
        self.transport.send(conn, &cancel, &[]).unwrap();
    }

    /// Reports a batch on the first ModelThread's connection.
    pub fn report(&mut self, batch: u64, gpu: u32, status: ActionStatus, ran: (Nanos, Nanos)) {
        self.report_rows(batch, gpu, (status, 1, &[]), ran);
    }

    pub fn report_rows(
        &mut self,
        batch: u64,
        gpu: u32,
        (status, rows, stale): (ActionStatus, u16, &[u16]),
        ran: (Nanos, Nanos),
    ) {
        let done = ActionDone {
            action: batch.into(),
            started_ns: ran.0.0.into(),
            finished_ns: ran.1.0.into(),
            gpu: gpu.into(),
            rows: rows.into(),
            status: status as u8,
            variant: 0,
            fetch: WireFetch::NOT_MEASURED,
        };
        let stale: Vec<U16> = stale.iter().copied().map(U16::new).collect();
        self.transport.send(self.threads[0], &done, stale.as_bytes()).unwrap();
    }

    pub fn ping(&mut self) {
        self.send(&Ping { sent_ns: 1.into() }, &[]);
    }

    pub fn leave(&mut self) {
        self.send(&Leave { reserved: 0.into() }, &[]);
    }

    /// What has come since.
    pub fn listen(&mut self, now: Nanos) -> Vec<Told> {
        let mut events = Events::new();
        self.transport.poll(now, &mut events);
        let mut told = Vec::new();
        for event in events.drain() {
            match event {
                Event::Message { message, .. } => told.extend(self.hear(message)),
                Event::Closed { reason: CloseReason::Refused { code, detail }, .. } => {
                    told.push(Told::Refused { code, detail });
                }
                Event::Closed { .. } => told.push(Told::Closed),
                Event::Opened { .. } => self.opened += 1,
                Event::Read(_) | Event::Result { .. } => told.push(Told::Other),
            }
        }
        told
    }

    fn hear(&mut self, message: Message<'_>) -> Option<Told> {
        Some(match message {
            Message::ThreadDesc(desc) => {
                self.addrs.push(desc.addr.resolve("127.0.0.1".parse().unwrap()));
                return None;
            }
            Message::ModelDesc(desc, name) => {
                self.models.push((name.to_owned(), desc.thread.get()));
                self.described.push(*desc);
                return None;
            }
            Message::VariantDesc(desc, name) => {
                let VariantDesc { model, accuracy } = desc;
                self.variants.push((model.get(), accuracy.get(), name.to_owned()));
                return None;
            }
            Message::ModelTable(table, text) => {
                Told::Table { model: table.model.get(), text: text.to_owned() }
            }
            Message::ModelDown(down) => Told::ModelDown { model: down.model.get() },
            Message::SlabKnown(known) => Told::SlabKnown { first_slot: known.first_slot.get() },
            Message::CatalogChanged(changed, text) => {
                Told::Changed { done: changed.status == 0, text: text.to_owned() }
            }
            Message::StatusPart(part, text) => {
                Told::Status { next: part.next.get(), text: text.to_owned() }
            }
            Message::SlabDesc(slab) => {
                self.slabs.push(*slab);
                return None;
            }
            Message::SubclusterDesc(..) | Message::CatalogEnd(_) => return None,
            Message::JoinAck(ack) => Told::Joined {
                member: ack.member.get(),
                first_gpu: ack.first_gpu.get(),
                token: ack.token.get(),
            },
            Message::PeerUp(up) => Told::PeerUp { frontend: up.frontend.get() },
            Message::PeerDown(down) => Told::PeerDown { frontend: down.frontend.get() },
            Message::LeaveAck(_) => Told::LeaveAck,
            Message::ReadyAck(_) => {
                self.confirmed += 1;
                return None;
            }
            Message::Pong(pong) => Told::Pong { scheduler: Nanos(pong.scheduler_ns.get()) },
            Message::Action(action, tasks) => {
                let cold = tasks.iter().filter(|task| task.is_cold());
                self.cold.extend(cold.map(|task| task.task.get()));
                Told::Action {
                    batch: action.action.get(),
                    gpu: action.gpu.get(),
                    model: action.model.get(),
                    exec_at: Nanos(action.earliest_ns.get()),
                    variants: [action.floor.into(), action.variant.get()],
                    tasks: tasks.iter().map(as_submitted).collect(),
                }
            }
            Message::Load(load, victims) => Told::Load {
                load: load.load.get(),
                gpu: load.gpu.get(),
                model: load.model.get(),
                latest: Nanos(load.latest_ns.get()),
                victims: victims.iter().map(|victim| victim.get()).collect(),
            },
            Message::TaskEnd(end) => {
                let (kind, reason, retry_ms) = (end.kind, end.reason, end.retry_ms.get());
                Told::Ended { task: end.task.get(), kind, reason, retry_ms }
            }
            _ => Told::Other,
        })
    }
}
