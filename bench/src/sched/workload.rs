//! The cluster a shape stands for: models and GPUs that suit the rate.

use baton_core::{ModelId, Nanos, Policy, Profile, QuotaLimits, SubclusterId};
use baton_topo::{
    Cluster, EngineSpec, FrontendSpec, Idle, ModelSpec, NetworkSpec, ReconnectSpec, SchedulerSpec,
    VariantSpec, accuracy_of,
};

use super::Shape;
use super::generator::{CATCH_UP_MAX, REQUESTS_PER_POLL};

/// The batch size the profile is made for.
pub(super) const BATCH: u32 = 10;
const BATCH_MAX: u32 = 32;
/// Share of the GPUs' time that batches of [`BATCH`] take.
const BUSY: f64 = 0.8;
/// Tasks of one model that may wait before a saturating generator holds back.
pub(super) const BACKLOG: u32 = 64;

/// A shape, the rate it is sized for and the profile that follows.
#[derive(Clone, Debug)]
pub(super) struct Workload {
    pub(super) shape: Shape,
    /// ℓ(b), the same for every model.
    pub(super) profile: Profile,
    /// Long enough that only a scheduler that stands still drops anything.
    pub(super) slo: Nanos,
    /// Tasks of one model that may wait.
    pub(super) queue_capacity: u32,
    /// Requests the connections of one ModelThread hold before senders are refused.
    pub(super) ingress_max: usize,
    /// Requests one pass of a ModelThread reads at most, when they come at a rate.
    pub(super) per_poll: usize,
    /// The same when there is always more.
    pub(super) saturating_per_poll: usize,
    /// Every task is followed by the conservation oracle.
    pub(super) watched: bool,
}

impl Workload {
    pub(super) fn new(shape: Shape, rate_rps: f64) -> Self {
        let batch = f64::from(BATCH);
        let execution_ns = BUSY * f64::from(shape.gpus) * batch / rate_rps * 1e9;
        let gathering_ns = batch * f64::from(shape.models) / rate_rps * 1e9;
        let profile = match shape.policy {
            Policy::Baton => efficient_at_batch(execution_ns),
            Policy::Symphony | Policy::Eager => filled_at_batch(execution_ns, gathering_ns),
        };
        let slo = Nanos((4.0 * (execution_ns + gathering_ns)) as u64).max(SLO_MIN);
        Self {
            shape,
            profile,
            slo,
            queue_capacity: 4 * BACKLOG,
            ingress_max: ingress(rate_rps / f64::from(shape.model_threads), slo),
            per_poll: CATCH_UP_MAX,
            saturating_per_poll: REQUESTS_PER_POLL,
            watched: false,
        }
    }

    /// The models on a ModelThread, by their ids.
    pub(super) fn models_of(&self, thread: u32) -> Vec<u32> {
        (thread..self.shape.models).step_by(self.shape.model_threads as usize).collect()
    }

    /// Tasks per second that the GPUs execute with batches of the best size.
    pub(super) fn capacity_rps(&self) -> f64 {
        let of = |batch: u32| f64::from(batch) / self.profile.latency(batch).0 as f64;
        let best = (1..=self.profile.batch_max()).map(of).fold(0.0, f64::max);
        f64::from(self.shape.gpus) * best * 1e9
    }

    /// ℓ(b) of each variant.
    pub(super) fn profiles(&self) -> Vec<Profile> {
        let scaled = |variant: u32| {
            let latency = |batch| Nanos(self.profile.latency(batch).0 * u64::from(4 + variant) / 4);
            let table: Vec<Nanos> = (1..=self.profile.batch_max()).map(latency).collect();
            Profile::from_table(&table).expect("it is a profile, stretched")
        };
        (0..self.shape.variants).map(scaled).collect()
    }

    /// None where a model is no supernet.
    fn variants(&self) -> Vec<VariantSpec> {
        let spec = |(variant, profile): (u32, Profile)| VariantSpec {
            name: format!("variant-{variant}"),
            accuracy: accuracy_of(70.0 + f64::from(variant)),
            profile,
            file: None,
            sha256: None,
        };
        let variants = || (0..).zip(self.profiles()).map(spec).collect();
        if self.shape.variants > 1 { variants() } else { Vec::new() }
    }

    pub(super) fn cluster(&self) -> Cluster {
        let none = Nanos::ZERO;
        Cluster {
            scheduler: SchedulerSpec {
                models_max: None,
                journal: None,
                listen: ([127, 0, 0, 1], 0).into(),
                model_threads: self.shape.model_threads,
                idle: Idle::Spin,
                cores: Vec::new(),
                policy: self.shape.policy,
                prefer: baton_core::Prefer::default(),
                member_timeout: Nanos::MAX,
                metrics: None,
                etcd: None,
            },
            network: NetworkSpec { ctrl: none, data_per_task: none, response: none, jitter: none },
            fabric: baton_topo::FabricSpec::default(),
            subclusters: vec!["all".into()],
            models: (0..self.shape.models).map(|id| self.model(id)).collect(),
            backends: Vec::new(),
            frontend: FrontendSpec { slots_per_model: 1, lease_grace: none },
            gateway: baton_topo::GatewaySpec::default(),
            reconnect: ReconnectSpec::default(),
        }
    }

    fn model(&self, id: u32) -> ModelSpec {
        ModelSpec {
            id: ModelId(id),
            name: format!("model-{id}"),
            subcluster: SubclusterId(0),
            profile: self.profile.clone(),
            slo: self.slo,
            input_bytes: 1,
            output_bytes: 1,
            queue_capacity: self.queue_capacity,
            quota: QuotaLimits::default(),
            expected_rps: None,
            engine: EngineSpec::Emulated { jitter: 0.0 },
            variants: self.variants(),
            weights: None,
        }
    }
}

/// What is read this late still has three quarters of its SLO.
fn ingress(rate_rps: f64, slo: Nanos) -> usize {
    (rate_rps * slo.0 as f64 / 4e9).clamp(64.0, 65_536.0) as usize
}

const SLO_MIN: Nanos = Nanos::from_millis(100);

/// Tasks are cheaper the more of them there are, up to [`BATCH`] and not beyond: that many are what
/// the policy `baton` waits for.
fn efficient_at_batch(execution_ns: f64) -> Profile {
    let latency = |tasks: u32| {
        let share = f64::from(tasks) / f64::from(BATCH);
        let ns = if tasks < BATCH { (1.0 + share) / 2.0 } else { share } * execution_ns;
        Nanos(ns.max(1.0) as u64)
    };
    let table: Vec<Nanos> = (1..=BATCH_MAX).map(latency).collect();
    Profile::from_table(&table).expect("latencies rise and the batches are within bounds")
}

/// βλ tasks make a batch schedulable under the policy `symphony`: with β the time in which [`BATCH`]
/// tasks of one model arrive, they are that many.
fn filled_at_batch(execution_ns: f64, gathering_ns: f64) -> Profile {
    let beta_ns = gathering_ns.min(0.9 * execution_ns);
    let alpha = Nanos(((execution_ns - beta_ns) / f64::from(BATCH)).max(1.0) as u64);
    Profile::linear(alpha, Nanos(beta_ns as u64), BATCH_MAX)
        .expect("α is positive and the batches within bounds")
}
