//! The scheduler's side played by hand, and the steps of time.

use std::net::SocketAddr;
use std::sync::Arc;

use baton_backend::{BackendConfig, Stage, Worker};
use baton_rdma::wire::{
    Action, ActionStatus, ActionTask, CatalogEnd, JoinAck, Load, ModelDesc, PeerDown, PeerUp, Pong,
    RefuseCode, Role, SubclusterDesc, ThreadDesc, WireAddr,
};
use baton_rdma::{
    Identity, InprocNetwork, InprocTransport, SlabSet, SlabSpec, TcpConfig, Transport,
};
use baton_topo::{
    Agent, EngineSpec, Idle, ModelSpec, ReconnectSpec, WeightsCacheSpec, WeightsSpec,
};
use baton_types::{
    FrontendId, GpuId, ModelId, Nanos, Profile, QuotaLimits, Request, SubclusterId, TaskId,
};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

use crate::hand::Hand;
use crate::party::{Party, Said};

/// The scheduler's clock is this far ahead of the backend's.
pub(crate) const OFFSET: u64 = 3_600_000_000_000;
/// The scheduler's id of the model; the backend's own file calls it 0.
pub(crate) const MODEL: u32 = 3;
/// The scheduler's id of a second model with another input size; 1 in the backend's file.
pub(crate) const SMALL: u32 = 1;
/// The id of a model that is added at run time, the second of its number, and its inputs: larger than any other's.
pub(crate) const ADDED: u32 = 4 | 1 << 16;
pub(crate) const ADDED_BYTES: u32 = 4_096;
pub(crate) const FRONTEND_TOKEN: u64 = 0xfeed;
pub(crate) const INPUT_BYTES: u32 = 64;
pub(crate) const BATCH_MAX: u32 = 4;
pub(crate) const FIRST_GPU: u32 = 10;
/// Pages of a slot with a cache, and how long a LOAD's window is.
pub(crate) const PAGES: u32 = 2;
pub(crate) const LOAD_WINDOW: Nanos = Nanos::from_millis(5);
pub(crate) const EXECUTED: u8 = ActionStatus::Executed as u8;
pub(crate) const EXPIRED: u8 = ActionStatus::Expired as u8;
pub(crate) const ENGINE_ERROR: u8 = ActionStatus::EngineError as u8;
pub(crate) const REFUSED: u8 = ActionStatus::Refused as u8;
const STEP: Nanos = Nanos::from_micros(10);

pub(crate) struct World {
    pub(crate) network: InprocNetwork,
    pub(crate) now: Nanos,
    pub(crate) control: Party,
    pub(crate) thread: Party,
    pub(crate) worker: Worker<InprocTransport, Hand>,
    pub(crate) hands: Vec<Hand>,
    /// Whether the ControlThread answers pings.
    pub(crate) answers_pings: bool,
    next_batch: u64,
}

pub(crate) struct FrontendSide {
    pub(crate) party: Party,
    pub(crate) slabs: Arc<SlabSet>,
    pub(crate) id: FrontendId,
}

/// An action to send; see [`World::infer`].
#[derive(Clone)]
pub(crate) struct ActionSpec {
    pub(crate) gpu: u32,
    pub(crate) model: u32,
    /// From now, backend's clock.
    pub(crate) exec_in: Nanos,
    pub(crate) invalid_in: Nanos,
    pub(crate) kind: u8,
    pub(crate) variant: u16,
}

/// As an action lists tasks whose inputs are all that long.
pub(crate) fn listed(tasks: &[TaskId], input_bytes: u32) -> Vec<ActionTask> {
    let request = |&task| Request { input_bytes, ..Request::new(task, Nanos::MAX) };
    tasks.iter().map(|task| ActionTask::new(&request(task))).collect()
}

impl Default for ActionSpec {
    fn default() -> Self {
        let (exec_in, invalid_in) = (Nanos::from_millis(1), Nanos::from_millis(5));
        Self { gpu: FIRST_GPU, model: MODEL, exec_in, invalid_in, kind: 0, variant: 0 }
    }
}

fn identity(role: Role, member: u32) -> Identity {
    Identity { role, member }
}

pub(crate) fn model(name: &str, id: u32, input_bytes: u32) -> ModelSpec {
    let (alpha, beta) = (Nanos::from_micros(100), Nanos::from_micros(200));
    ModelSpec {
        id: ModelId(id),
        name: name.into(),
        subcluster: SubclusterId(0),
        profile: Profile::linear(alpha, beta, BATCH_MAX).unwrap(),
        slo: Nanos::from_millis(25),
        input_bytes,
        output_bytes: 8,
        queue_capacity: 16,
        quota: QuotaLimits::default(),
        expected_rps: None,
        engine: EngineSpec::Emulated { jitter: 0.0 },
        variants: Vec::new(),
        weights: None,
    }
}

/// Sends the catalogue: the model of another sub-cluster, `tiny`, and `name`.
pub(crate) fn send_catalog<T: Transport>(
    control: &mut Party<T>,
    thread: SocketAddr,
    name: &str,
    input_bytes: u32,
) {
    send_file_models(control, thread, name, input_bytes);
    control.tell(&CatalogEnd { scheduler_epoch: 1.into() }, &[]);
}

/// The same without its end.
pub(crate) fn send_file_models<T: Transport>(
    control: &mut Party<T>,
    thread: SocketAddr,
    name: &str,
    input_bytes: u32,
) {
    control.tell(&ThreadDesc { thread: 0.into(), addr: WireAddr::new(thread) }, &[]);
    control.tell(&SubclusterDesc { subcluster: 7.into() }, b"cpu");
    control.tell(&SubclusterDesc { subcluster: 8.into() }, b"gpu");
    for (id, subcluster, name, bytes) in
        [(0, 7, "digits", 256), (SMALL, 8, "tiny", 16), (MODEL, 8, name, input_bytes)]
    {
        let desc = ModelDesc {
            model: id.into(),
            thread: 0.into(),
            subcluster: subcluster.into(),
            batch_max: BATCH_MAX.into(),
            input_bytes: bytes.into(),
            output_bytes: 8.into(),
            slo_ns: 25_000_000.into(),
        };
        control.tell(&desc, name.as_bytes());
    }
}

/// Lets the backend in.
pub(crate) fn acknowledge_join<T: Transport>(control: &mut Party<T>) {
    let ack = JoinAck { member: 5.into(), first_gpu: FIRST_GPU.into(), token: 77.into() };
    control.tell(&ack, &[]);
}

/// Tells the backend of a frontend.
pub(crate) fn announce<T: Transport>(
    control: &mut Party<T>,
    slabs: &SlabSet,
    id: FrontendId,
    addr: SocketAddr,
) {
    let descs = slabs.descs();
    for desc in &descs {
        control.tell(desc, &[]);
    }
    let up = PeerUp {
        frontend: u32::from(id.0).into(),
        reserved: 0.into(),
        token: FRONTEND_TOKEN.into(),
        addr: WireAddr::new(addr),
        slabs: (descs.len() as u16).into(),
        reserved2: 0.into(),
    };
    control.tell(&up, &[]);
}

/// A frontend's slabs: 16 slots for each model.
pub(crate) fn slabs(id: u16) -> Arc<SlabSet> {
    let spec = |model, input_bytes| SlabSpec {
        model: ModelId(model),
        slots: 16,
        input_bytes,
        output_bytes: 8,
    };
    let slabs = SlabSet::new(&[spec(MODEL, INPUT_BYTES), spec(SMALL, 16)], 1).unwrap();
    slabs.set_frontend(FrontendId(id));
    slabs
}

/// A backend's configuration with `resnet50` and `tiny`.
pub(crate) fn config(scheduler: SocketAddr, gpus: u32) -> BackendConfig {
    BackendConfig {
        reconnect: ReconnectSpec::default(),
        name: "emulated-a".into(),
        scheduler: scheduler.into(),
        subcluster: "gpu".into(),
        gpus,
        cores: vec![],
        idle: Idle::Park,
        credit_bytes: 0,
        model_memory: None,
        host_weights: 0,
        model_folder: baton_topo::ModelFolderSpec::default(),
        weights_cache: None,
        fabric: baton_topo::FabricSpec::default(),
        models: vec![model("resnet50", 0, INPUT_BYTES), model("tiny", 1, 16)],
        member_timeout: Nanos::from_millis(1_000),
        join_timeout: Nanos::from_millis(5_000),
        leave_timeout: Nanos::from_millis(5_000),
    }
}

impl World {
    /// A backend with `gpus` GPU slots that has not begun to join.
    pub(crate) fn new(gpus: u32, backend_transport: TcpConfig) -> Self {
        Self::with(gpus, backend_transport, |_| {})
    }

    pub(crate) fn with(gpus: u32, tcp: TcpConfig, change: impl FnOnce(&mut BackendConfig)) -> Self {
        let network = InprocNetwork::new();
        let control = Party::new(network.endpoint(identity(Role::Control, 0)));
        let thread = Party::new(network.endpoint(identity(Role::ModelThread, 0)));
        let mut config = config(control.transport.local_addr(), gpus);
        change(&mut config);
        let hands: Vec<Hand> = (0..gpus).map(|_| Hand::default()).collect();
        let transport = network.endpoint_with(identity(Role::Backend, 0), tcp);
        let measured = vec![(ModelId(1), vec![Profile::from_table(&[Nanos(7); 4]).unwrap()])];
        let worker = Worker::new(config, measured, transport, hands.clone()).unwrap();
        let now = Nanos::from_millis(1_000);
        let (answers_pings, next_batch) = (true, 1);
        Self { network, now, control, thread, worker, hands, answers_pings, next_batch }
    }

    /// A backend whose slot has [`PAGES`] pages and holds nothing; its models take `pages` each.
    pub(crate) fn cached(pages: [u32; 2]) -> Self {
        let mut world = Self::with(1, TcpConfig::default(), |config| {
            config.weights_cache = Some(WeightsCacheSpec { pages: PAGES, page_bytes: 1 << 20 });
            for (model, pages) in config.models.iter_mut().zip(pages) {
                let (bytes, load) = (u64::from(pages) << 20, Nanos::from_millis(1));
                model.weights = Some(WeightsSpec { bytes, load, is_guess: false });
            }
        });
        world.let_in();
        world
    }

    /// A backend with one GPU slot that is Ready.
    pub(crate) fn ready() -> Self {
        Self::ready_with(1, TcpConfig::default())
    }

    pub(crate) fn ready_with(gpus: u32, backend_transport: TcpConfig) -> Self {
        let mut world = Self::new(gpus, backend_transport);
        world.let_in();
        world
    }

    /// Lets the backend join, until it is Ready.
    pub(crate) fn let_in(&mut self) {
        self.let_in_with(|_| {});
    }

    /// The same, with more models in the catalogue.
    pub(crate) fn let_in_with(&mut self, more: impl Fn(&mut Party)) {
        self.until("it asks for the catalogue", |w| w.control.conn.is_some());
        let thread = self.thread.transport.local_addr();
        send_file_models(&mut self.control, thread, "resnet50", INPUT_BYTES);
        more(&mut self.control);
        self.control.tell(&CatalogEnd { scheduler_epoch: 1.into() }, &[]);
        self.until("it asks to join", |w| {
            w.control.heard.iter().any(|said| matches!(said, Said::Join { .. }))
        });
        self.acknowledge_join();
        self.until("it is ready", |w| w.control.heard.contains(&Said::Ready));
        self.control.heard.retain(|said| !matches!(said, Said::Ping(_)));
        self.thread.heard.retain(|said| !matches!(said, Said::Closed(_)));
    }

    /// The scheduler dies, and with it everything it knew; another life answers at its addresses.
    pub(crate) fn restart_scheduler(&mut self) {
        for party in [&mut self.control, &mut self.thread] {
            if let Some(conn) = party.conn.take() {
                party.transport.close(conn, RefuseCode::Shutdown, "bye");
                party.transport.flush();
            }
            party.heard.clear();
        }
    }

    pub(crate) fn send_catalog(&mut self, name: &str, input_bytes: u32) {
        send_catalog(&mut self.control, self.thread.transport.local_addr(), name, input_bytes);
    }

    pub(crate) fn acknowledge_join(&mut self) {
        acknowledge_join(&mut self.control);
    }

    /// One pass of everyone, 10 µs later.
    pub(crate) fn step(&mut self) {
        self.now = self.now + STEP;
        self.hands.iter().for_each(|hand| hand.set_now(self.now));
        self.worker.poll(self.now);
        for said in self.control.poll(self.now) {
            if let Said::Ping(sent) = said
                && self.answers_pings
            {
                let scheduler_ns = (self.now.0 + OFFSET).into();
                self.control.tell(&Pong { sent_ns: sent.into(), scheduler_ns }, &[]);
            }
        }
        self.thread.poll(self.now);
    }

    pub(crate) fn steps(&mut self, count: usize) {
        (0..count).for_each(|_| self.step());
    }

    /// Steps until `done`; bounded.
    pub(crate) fn until(&mut self, what: &str, done: impl Fn(&Self) -> bool) {
        for _ in 0..1_000 {
            if done(self) {
                return;
            }
            self.step();
        }
        panic!("in vain: {what}; result {:?}", self.worker.result());
    }

    /// Steps, the frontends too, until nothing can be under way any more.
    pub(crate) fn settle(&mut self, frontends: &mut [&mut FrontendSide]) {
        for _ in 0..10 {
            self.step();
            for frontend in frontends.iter_mut() {
                frontend.party.poll(self.now);
            }
        }
    }

    /// Moves time on; the backend looks up as often as one that has an answer to give does.
    pub(crate) fn pass_awake(&mut self, span: Nanos) {
        let end = self.now + span;
        while self.now < end {
            self.now = (self.now + Nanos::from_micros(500)).min(end);
            self.worker.poll(self.now);
        }
    }

    /// Moves time on without anybody polling.
    pub(crate) fn pass(&mut self, span: Nanos) {
        self.now = self.now + span;
    }

    /// A frontend with 8 slots for each model, announced to the backend but not yet polled.
    pub(crate) fn add_frontend(&mut self, id: u16) -> FrontendSide {
        let transport = self.network.endpoint(identity(Role::Frontend, u32::from(id)));
        let slabs = slabs(id);
        let mut side = FrontendSide { party: Party::new(transport), slabs, id: FrontendId(id) };
        side.party.transport.expose(side.slabs.clone()).unwrap();
        announce(&mut self.control, &side.slabs, side.id, side.party.transport.local_addr());
        side
    }

    /// Tells the backend that a frontend is gone.
    pub(crate) fn peer_down(&mut self, id: FrontendId) {
        self.control.tell(&PeerDown { frontend: u32::from(id.0).into() }, &[]);
    }

    /// A frontend that is connected and serves READs.
    pub(crate) fn connected_frontend(&mut self, id: u16) -> FrontendSide {
        let mut side = self.add_frontend(id);
        self.settle(&mut [&mut side]);
        assert!(side.party.conn.is_some(), "the backend connects to a new frontend");
        side
    }

    /// Sends a LOAD; returns its number.
    pub(crate) fn load(&mut self, model: u32, victims: &[u32]) -> u64 {
        let load = self.next_batch;
        self.next_batch += 1;
        let latest = self.now + LOAD_WINDOW + Nanos(OFFSET);
        let victims: Vec<U32> = victims.iter().map(|&victim| victim.into()).collect();
        let frame = Load {
            load: load.into(),
            latest_ns: latest.0.into(),
            model: model.into(),
            gpu: FIRST_GPU.into(),
        };
        self.thread.tell(&frame, victims.as_bytes());
        load
    }

    /// Sends an action; returns its batch number.
    pub(crate) fn infer(&mut self, spec: &ActionSpec, tasks: &[TaskId]) -> u64 {
        let batch = self.next_batch;
        self.next_batch += 1;
        let window = [spec.exec_in, spec.invalid_in].map(|span| self.now + span + Nanos(OFFSET));
        let action = Action::infer(batch, window, ModelId(spec.model), GpuId(spec.gpu));
        let input_bytes = match spec.model {
            SMALL => 16,
            ADDED => ADDED_BYTES,
            _ => INPUT_BYTES,
        };
        let action = Action { kind: spec.kind, variant: spec.variant.into(), ..action };
        self.thread.tell(&action, listed(tasks, input_bytes).as_bytes());
        batch
    }

    /// The reports the ModelThread got since the last call: batch, rows, status.
    pub(crate) fn reports(&mut self) -> Vec<(u64, u16, u8)> {
        let reports = self.thread.take().into_iter();
        reports
            .map(|said| match said {
                Said::Done { batch, rows, status, .. } => (batch, rows, status),
                other => panic!("a backend only reports to ModelThreads: {other:?}"),
            })
            .collect()
    }

    pub(crate) fn counter(&self, name: &str) -> u64 {
        let pairs = self.worker.counters().pairs();
        pairs.iter().find(|(key, _)| *key == name).expect("a counter of this name").1
    }

    pub(crate) fn stage(&self) -> Stage {
        self.worker.stage()
    }
}

impl FrontendSide {
    /// Submits an input filled with `byte` for the first model.
    pub(crate) fn submit(&self, byte: u8) -> TaskId {
        self.submit_for(MODEL, byte)
    }

    pub(crate) fn submit_for(&self, model: u32, byte: u8) -> TaskId {
        let mut input = self.slabs.acquire(ModelId(model)).unwrap();
        input.fill(byte);
        input.submit()
    }

    /// Decides the task and takes its answer.
    pub(crate) fn answer(&self, task: TaskId) -> Option<Vec<u8>> {
        assert!(self.slabs.complete(task));
        self.slabs.output(task).map(|output| output.to_vec())
    }
}
