//! What a seed decides: the cluster, its settings, the load, and everything that goes wrong.

use std::net::SocketAddr;

use baton_core::{ModelId, Nanos, Policy, Profile, QuotaLimits, RateLimit, SubclusterId};
use baton_topo::{
    BackendSpec, Cluster, EngineSpec, FabricSpec, FrontendSpec, Idle, ModelSpec, NetworkSpec,
    ReconnectSpec, SchedulerSpec,
};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::ambush::{self, Ambush};
use crate::caches;
use crate::changes::Change;
use crate::companions;
use crate::faults::{self, Fault};
use crate::hostile::Attack;
use crate::network::Link;
use crate::scale::{Scale, leave_out};
use crate::variants;

/// What happens in one run.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The seed it came from.
    pub seed: u64,
    /// How large it is.
    pub scale: Scale,
    /// The cluster file.
    pub cluster: Cluster,
    /// Frontends at a time.
    pub frontends: usize,
    /// The network.
    pub link: Link,
    /// Bounds of every transport.
    pub transport: Transport,
    /// What is asked for.
    pub load: Load,
    /// What executions really take.
    pub engines: Engines,
    /// How long load is offered and faults happen.
    pub span: Nanos,
    /// What goes wrong, and when, counted from the moment everybody had joined.
    pub faults: Vec<(Nanos, Fault)>,
    /// What goes wrong when messages pass.
    pub ambushes: Vec<Ambush>,
    /// How far apart the processes' clocks go, parts per million either way.
    pub drift_ppm: i64,
    /// Who else takes part.
    pub attacks: Vec<Attack>,
    /// What operators ask for, and when.
    pub changes: Vec<(Nanos, Change)>,
}

/// Bounds of the transports.
#[derive(Clone, Copy, Debug)]
pub struct Transport {
    /// The scheduler's; see [`baton_rdma::TcpConfig`].
    pub send_queue_bytes: usize,
    /// The backends' and the frontends'.
    pub member_queue_bytes: [usize; 2],
    /// See [`baton_rdma::TcpConfig`].
    pub handshake_timeout: Nanos,
}

/// What the applications do.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Mean time between two tasks over all frontends.
    pub gap: Nanos,
    /// Tasks of a burst; 1: none are bursts.
    pub burst: u32,
    /// Deadlines, as shares of the model's objective in percent: from, to.
    pub deadline_percent: (u64, u64),
    /// Of 1,000 submits, how many are followed by a cancellation.
    pub cancels: u32,
    /// Of 1,000 submits, how many are followed by the drop of a ticket.
    pub drops: u32,
    /// Of 1,000 replies, how many are kept for a while.
    pub keeps: u32,
}

/// How executions differ from what the cluster file says.
#[derive(Clone, Copy, Debug)]
pub struct Engines {
    /// What an execution takes, in percent of the profile.
    pub percent: u64,
    /// At most this is added, in percent of the profile.
    pub jitter_percent: u64,
    /// Of 1,000 executions, how many fail.
    pub failures: u32,
    /// Backends report this share of the profile as measured, in percent; `None`: they measure
    /// nothing.
    pub measured_percent: Option<u64>,
}

fn ms(value: u64) -> Nanos {
    Nanos::from_millis(value)
}

fn us(value: u64) -> Nanos {
    Nanos::from_micros(value)
}

impl Plan {
    /// The plan of a seed.
    pub fn of(seed: u64) -> Self {
        let mut plan = Self::without_caches(seed);
        plan.faults.extend(companions::of_changes(seed, &plan.changes, &plan.cluster, plan.span));
        plan.faults.sort_by_key(|(at, _)| *at);
        plan.ambushes = ambush::draw(seed, &plan.cluster);
        caches::draw(seed, &mut plan.cluster);
        if plan.has_caches() {
            caches::weigh(seed, &plan.cluster, &mut plan.changes);
        }
        plan
    }

    /// Whether GPU slots have not room for every model.
    pub fn has_caches(&self) -> bool {
        self.cluster.backends.iter().any(|backend| backend.weights_cache.is_some())
    }

    /// The same, where every GPU slot holds every model.
    pub fn without_caches(seed: u64) -> Self {
        let rng = &mut StdRng::seed_from_u64(seed);
        let (scale, mut scaling) = Scale::draw(seed);
        let mut link = link(rng);
        let mut cluster = cluster(rng, &link);
        // Drawn apart, so that everything else is as it would be without.
        let mut sizes = StdRng::seed_from_u64(seed ^ 0x6f75_7470);
        cluster.models.iter_mut().for_each(|m| m.output_bytes = output_bytes(&mut sizes, &link));
        scale.enlarge(&mut scaling, &mut cluster);
        variants::draw(seed, &mut cluster.models);
        let frontends = scale.frontends(rng.random_range(1..=3));
        let span = scale.span(&mut scaling, ms(rng.random_range(80..=400)));
        let engines = engines(rng);
        let mut load = load(rng, &cluster);
        scale.load(&mut scaling, &mut load);
        let send_queue_bytes = 1 << rng.random_range(15..=20);
        scale.narrow(&mut link, &mut sizes, &mut cluster);
        let member_queue_bytes = member_queues(&mut sizes, scale, &cluster, send_queue_bytes);
        let handshake_timeout = ms(rng.random_range(40..=200));
        let transport = Transport { send_queue_bytes, member_queue_bytes, handshake_timeout };
        let mut drift_ppm = rng.random_range(0..=90);
        leave_out(&mut scaling, &mut link, &mut drift_ppm);
        link.patience = patience(&mut scaling, link.patience);
        let mut faults = faults::draw(rng, &cluster, frontends, span);
        faults.extend(scale.trouble(&mut scaling, span));
        faults.extend(companions::of(seed, &faults, &cluster, frontends, span));
        scale.spare(&mut scaling, &mut faults, frontends, span);
        faults.sort_by_key(|(at, _)| *at);
        let span = span.max(long_faults_end(&faults));
        let attacks = Vec::new();
        let changes = Change::draw(seed, &cluster, span);
        // Little room, so that numbers serve one model after the other.
        cluster.scheduler.models_max = Some(cluster.models.len() as u32 + 1 + (seed % 3) as u32);
        Self {
            seed,
            scale,
            cluster,
            frontends,
            link,
            transport,
            load,
            engines,
            span,
            faults,
            ambushes: Vec::new(),
            drift_ppm,
            attacks,
            changes,
        }
    }

    /// The plan of a seed, with attackers. In two of three runs they are all that goes wrong.
    pub fn hostile(seed: u64) -> Self {
        let mut plan = Self::without_caches(seed);
        let mut rng = StdRng::seed_from_u64(seed ^ 0x6576_696c);
        plan.attacks = Attack::draw(&mut rng, plan.span);
        if rng.random_range(0..3) > 0 {
            plan.faults.clear();
        }
        plan
    }

    /// True if the scheduler plans with delays that the network mostly keeps: plan, READ and input
    /// are each under way once, and no weights have to come before.
    pub fn network_fits(&self) -> bool {
        if self.has_caches() {
            return false;
        }
        let travel = self.link.delay + self.link.jitter;
        let inputs = self.cluster.models.iter().map(|model| model.input_bytes as usize);
        let windows = inputs.max().unwrap_or(0).div_ceil(self.link.window) as u64;
        let mut credits = self.cluster.backends.iter().map(|backend| backend.credit_bytes);
        // With little credit the inputs of a batch come one after another.
        let batches = self.cluster.models.iter().map(|model| model.profile.batch_max());
        let batch = u64::from(batches.max().unwrap_or(1));
        let rows = if credits.any(|bytes| (1..100_000).contains(&bytes)) { batch } else { 1 };
        self.cluster.network.ctrl >= travel.times(1 + 2 * rows * windows)
    }

    /// True if nothing goes wrong that could keep an outcome from its frontend or make anybody say
    /// a thing twice.
    pub fn is_calm(&self) -> bool {
        self.attacks.is_empty()
            && self.ambushes.is_empty()
            && self.faults.iter().all(|(_, fault)| fault.is_calm())
    }
}

/// When the last fault ends that everybody stands still for, or that parts the scheduler from a member.
fn long_faults_end(faults: &[(Nanos, Fault)]) -> Nanos {
    let parted = faults.iter().filter(|(_, fault)| fault.parts() > Nanos::ZERO);
    let parted = parted.map(|(at, fault)| *at + fault.parts()).max();
    pauses_end(faults).max(parted.unwrap_or(Nanos::ZERO))
}

/// When the last fault ends of those that are longer than a run usually is.
pub(crate) fn pauses_end(faults: &[(Nanos, Fault)]) -> Nanos {
    let long = faults.iter().filter(|(_, fault)| fault.outlasts() > Nanos::ZERO);
    long.map(|(at, fault)| *at + fault.outlasts()).max().unwrap_or(Nanos::ZERO)
}

fn cluster(rng: &mut StdRng, link: &Link) -> Cluster {
    let subclusters = rng.random_range(1..=2_u32);
    let models = rng.random_range(subclusters..=4);
    let backends = rng.random_range(subclusters..=4);
    Cluster {
        scheduler: SchedulerSpec {
            models_max: None,
            journal: None,
            listen: SocketAddr::from(([10, 0, 0, 0], 7700)),
            model_threads: rng.random_range(1..=3),
            idle: Idle::Park,
            cores: Vec::new(),
            policy: Policy::ALL[rng.random_range(0..Policy::ALL.len())],
            prefer: baton_core::Prefer::default(),
            // Two heartbeats and some: less would take the living for dead.
            member_timeout: ms(rng.random_range(250..=450)),
            metrics: None,
            etcd: None,
        },
        network: NetworkSpec {
            // One in five plans with less than it takes.
            ctrl: match rng.random_range(0..5) {
                0 => us(rng.random_range(10..=500)),
                _ => (link.delay + link.jitter).times(rng.random_range(3..=40)),
            },
            data_per_task: us(rng.random_range(5..=50)),
            response: us(rng.random_range(100..=500)),
            jitter: us(rng.random_range(0..=500)),
        },
        fabric: FabricSpec::default(),
        subclusters: (0..subclusters).map(|id| format!("s{id}")).collect(),
        models: (0..models).map(|id| model(rng, id, subclusters)).collect(),
        backends: (0..backends).map(|id| backend(rng, id, subclusters)).collect(),
        frontend: FrontendSpec {
            slots_per_model: rng.random_range(4..=64),
            lease_grace: ms(rng.random_range(100..=250)),
        },
        gateway: baton_topo::GatewaySpec::default(),
        reconnect: ReconnectSpec::default(),
    }
}

pub(crate) fn model(rng: &mut StdRng, id: u32, subclusters: u32) -> ModelSpec {
    let alpha = us(rng.random_range(50..=1_500));
    let beta = us(rng.random_range(500..=6_000));
    let batch_max = rng.random_range(1..=16);
    let profile = Profile::linear(alpha, beta, batch_max).expect("it rises");
    let slo = us(rng.random_range(profile.latency(1).0 * 3 / 1000..=40_000));
    ModelSpec {
        id: ModelId(id),
        name: format!("m{id}"),
        subcluster: SubclusterId(id % subclusters),
        profile,
        slo,
        input_bytes: input_bytes(rng) + id,
        output_bytes: 8,
        queue_capacity: rng.random_range(8..=128),
        quota: quota(rng),
        expected_rps: None,
        engine: EngineSpec::Emulated { jitter: 0.0 },
        variants: Vec::new(),
        weights: None,
    }
}

/// One model in six has one.
fn quota(rng: &mut StdRng) -> QuotaLimits {
    let mut limit = |of: u32| {
        let rps = rng.random_range(100.0..=2_000.0);
        (rng.random_range(0..of) == 0).then(|| RateLimit::per_second(rps))
    };
    QuotaLimits { model: limit(8), frontend: limit(12) }
}

/// Mostly short; one model in four has inputs that no connection takes at once.
fn input_bytes(rng: &mut StdRng) -> u32 {
    match rng.random_range(0..4) {
        0 => rng.random_range(2_000..=20_000),
        _ => rng.random_range(24..=2_000),
    }
}

/// One model in two answers with more than a word, one in eight with more than some connections take.
fn output_bytes(rng: &mut StdRng, link: &Link) -> u32 {
    match rng.random_range(0..8) {
        0 => rng.random_range(1_000..=(link.window as u32).min(16_000)),
        1..4 => rng.random_range(9..=600),
        _ => 8,
    }
}

/// In one run of three a batch's answers do not fit a backend's queue, and a burst of requests not a
/// frontend's.
fn member_queues(rng: &mut StdRng, scale: Scale, cluster: &Cluster, usual: usize) -> [usize; 2] {
    let longest = cluster.models.iter().map(|model| model.output_bytes as usize).max();
    // A member announces itself in one go: a slab or a profile for each model.
    let announced = 300 * cluster.models.len();
    match rng.random_range(0..3) {
        which if which == 0 || scale == Scale::Bystanders => [
            announced.max(2_000).max(2 * longest.unwrap_or(0)),
            rng.random_range(600..=4_000).max(announced / 4),
        ],
        _ => [usual; 2],
    }
}

fn backend(rng: &mut StdRng, id: u32, subclusters: u32) -> BackendSpec {
    BackendSpec {
        name: format!("b{id}"),
        subcluster: SubclusterId(id % subclusters),
        gpus: rng.random_range(1..=3),
        cores: Vec::new(),
        idle: Idle::Park,
        credit_bytes: [0, 600, 4_000, 1 << 20][rng.random_range(0..4)],
        metrics: None,
        model_memory: None,
        host_weights: 0,
        model_folder: baton_topo::ModelFolderSpec::default(),
        weights_cache: None,
        cards: baton_topo::CardsSpec::default(),
    }
}

fn engines(rng: &mut StdRng) -> Engines {
    Engines {
        percent: if rng.random_range(0..4) == 0 { rng.random_range(60..=250) } else { 100 },
        jitter_percent: if rng.random_range(0..3) == 0 { rng.random_range(1..=50) } else { 0 },
        failures: if rng.random_range(0..8) == 0 { rng.random_range(1..=100) } else { 0 },
        measured_percent: (rng.random_range(0..4) == 0).then(|| rng.random_range(50..=300)),
    }
}

/// From a fifth to three times what the GPUs could bear.
fn load(rng: &mut StdRng, cluster: &Cluster) -> Load {
    let gpus: u32 = cluster.backends.iter().map(|backend| backend.gpus).sum();
    let profiles = cluster.models.iter().map(|model| &model.profile);
    let per_task = |p: &Profile| p.latency(p.batch_max()).0 / u64::from(p.batch_max());
    let mean = profiles.map(per_task).sum::<u64>() / cluster.models.len() as u64;
    let gap = mean / u64::from(gpus) * 100 / rng.random_range(20..=300);
    let (from, span) = (rng.random_range(30..=200), rng.random_range(0..=300));
    let seldom = |rng: &mut StdRng, most| match rng.random_range(0..3) {
        0 => rng.random_range(1..=most),
        _ => 0,
    };
    Load {
        // No more than the run can bear either.
        gap: Nanos(gap.max(120_000)),
        burst: if rng.random_range(0..3) == 0 { rng.random_range(2..=40) } else { 1 },
        deadline_percent: (from, from + span),
        cancels: seldom(rng, 300),
        drops: seldom(rng, 100),
        keeps: seldom(rng, 200),
    }
}

/// In one run of four kernels are more patient than the members are.
fn patience(rng: &mut StdRng, usual: Nanos) -> Nanos {
    if rng.random_range(0..4) == 0 { ms(rng.random_range(700..=1_000)) } else { usual }
}

fn link(rng: &mut StdRng) -> Link {
    let spiky = rng.random_range(0..3) == 0;
    Link {
        delay: us(rng.random_range(5..=150)),
        jitter: us(rng.random_range(1..=300)),
        spikes: if spiky { rng.random_range(1..=30) } else { 0 },
        spike: us(rng.random_range(500..=8_000)),
        window: 1 << rng.random_range(11..=18),
        cuts: if rng.random_range(0..2) == 0 { rng.random_range(1..=500) } else { 0 },
        patience: ms(rng.random_range(100..=600)),
    }
}
