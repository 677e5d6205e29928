//! Operators: models are added, changed and removed while everything else goes on.
//!
//! What is asked for is drawn apart from the rest of a plan, so that the rest is as it would be without.

use baton_client::{ChangeKind, OperatorIo};
use baton_core::{ModelId, Nanos, Profile, QuotaLimits, SubclusterId};
use baton_rdma::TcpConfig;
use baton_rdma::wire::Role;
use baton_topo::{Cluster, EngineSpec, ModelSpec};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use serde::Serialize;

use crate::clock::SkewedClock;
use crate::network::{HostId, addr_of};
use crate::process::Line;
use crate::world::{SimTransport, World};

/// What an operator asks for.
#[derive(Clone, Debug)]
pub enum Change {
    /// Serve this model too.
    Add(Box<ModelSpec>),
    /// Another latency objective.
    Objective(String, Nanos),
    /// Serve this model in place of the one of its name.
    Exchange(Box<ModelSpec>),
    /// Serve the model of this name no more.
    Remove(String),
}

/// Names of models that come and go.
const NAMES: u32 = 3;
/// Changes in a run at most.
const CHANGES_MAX: u32 = 8;

impl Change {
    /// In every other run: when operators ask for what.
    pub(crate) fn draw(seed: u64, cluster: &Cluster, span: Nanos) -> Vec<(Nanos, Self)> {
        let mut rng = StdRng::seed_from_u64(seed ^ 0x6361_7461);
        if rng.random_range(0..2) == 0 {
            return Vec::new();
        }
        let count = rng.random_range(1..=CHANGES_MAX);
        let changes = (0..count).map(|_| {
            let at = Nanos(rng.random_range(0..span.0));
            (at, Self::one(&mut rng, cluster))
        });
        let mut changes: Vec<(Nanos, Self)> = changes.collect();
        changes.sort_by_key(|&(at, _)| at);
        changes
    }

    fn one(rng: &mut StdRng, cluster: &Cluster) -> Self {
        let name = format!("x{}", rng.random_range(0..NAMES));
        let models = &cluster.models;
        let of_file = models[rng.random_range(0..models.len())].name.clone();
        match rng.random_range(0..10) {
            0..4 => Self::Add(Box::new(model(rng, name, cluster))),
            4 => Self::Objective(name, Nanos::from_micros(rng.random_range(8_000..=60_000))),
            5 => Self::Remove(of_file),
            6 => Self::Exchange(Box::new(model(rng, of_file, cluster))),
            7 => Self::Exchange(Box::new(model(rng, name, cluster))),
            _ => Self::Remove(name),
        }
    }

    /// Whether backends load a model for it.
    pub(crate) fn brings_a_model(&self) -> bool {
        matches!(self, Self::Add(_) | Self::Exchange(_))
    }

    /// Whether the model of this name goes.
    fn removes(&self) -> bool {
        matches!(self, Self::Remove(_) | Self::Exchange(_))
    }

    fn kind(&self) -> ChangeKind {
        match self {
            Self::Add(_) => ChangeKind::Add,
            Self::Objective(..) | Self::Exchange(_) => ChangeKind::Set,
            Self::Remove(_) => ChangeKind::Remove,
        }
    }

    fn text(&self, cluster: &Cluster) -> String {
        match self {
            Self::Add(spec) | Self::Exchange(spec) => table(spec, cluster),
            Self::Objective(name, slo) => {
                format!("[[model]]\nname = \"{name}\"\nslo_ms = {}\n", slo.as_millis_f64())
            }
            Self::Remove(name) => name.clone(),
        }
    }
}

/// Like those of the cluster file; one in four has longer inputs than any of them.
fn model(rng: &mut StdRng, name: String, cluster: &Cluster) -> ModelSpec {
    let batch_max = rng.random_range(1..=16);
    let [alpha, beta] =
        [50..=1_500, 500..=6_000].map(|us| Nanos::from_micros(rng.random_range(us)));
    let profile = Profile::linear(alpha, beta, batch_max).expect("it rises");
    let longest = cluster.models.iter().map(|model| model.input_bytes).max().unwrap_or(0);
    let input_bytes = match rng.random_range(0..4) {
        0 => longest + rng.random_range(1..=10_000),
        _ => rng.random_range(24..=2_000),
    };
    let network = cluster.network.ctrl + cluster.network.data_per_task + cluster.network.response;
    let least = (profile.latency(1).times(3) + network).0 / 1_000 + 1;
    ModelSpec {
        id: ModelId(0),
        name,
        subcluster: SubclusterId(rng.random_range(0..cluster.subclusters.len() as u32)),
        slo: Nanos::from_micros(rng.random_range(least..=least + 40_000)),
        profile,
        input_bytes,
        output_bytes: 8,
        queue_capacity: rng.random_range(8..=128),
        quota: QuotaLimits::default(),
        expected_rps: None,
        engine: EngineSpec::Emulated { jitter: 0.0 },
        variants: Vec::new(),
        weights: None,
    }
}

/// The model as an operator writes it.
fn table(spec: &ModelSpec, cluster: &Cluster) -> String {
    let latencies = spec.profile.table().iter().map(|latency| latency.as_millis_f64().to_string());
    let latencies: Vec<String> = latencies.collect();
    let weights = spec.weights.map_or_else(String::new, |weights| {
        let (mib, load) = (weights.bytes as f64 / f64::from(1 << 20), weights.load);
        format!("weights_mib = {mib}\nload_ms = {}\n", load.as_millis_f64())
    });
    format!(
        "[[model]]\nname = \"{}\"\nsubcluster = \"{}\"\nlatency_ms = [{}]\nslo_ms = {}\n\
         input_bytes = {}\nqueue_capacity = {}\n{weights}",
        spec.name,
        cluster.subclusters[spec.subcluster.0 as usize],
        latencies.join(", "),
        spec.slo.as_millis_f64(),
        spec.input_bytes,
        spec.queue_capacity,
    )
}

/// What operators were answered, counted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize)]
pub struct Changes {
    /// Models that were added.
    pub added: u64,
    /// Models that were changed.
    pub changed: u64,
    /// Models that were exchanged.
    pub exchanged: u64,
    /// Models that were removed.
    pub removed: u64,
    /// Changes that were refused, or came to nothing.
    pub refused: u64,
}

impl Changes {
    /// Counts those of another run too.
    pub fn add(&mut self, other: &Self) {
        self.added += other.added;
        self.changed += other.changed;
        self.exchanged += other.exchanged;
        self.removed += other.removed;
        self.refused += other.refused;
    }

    fn count(&mut self, change: &Change, is_done: bool) {
        let counter = match change {
            _ if !is_done => &mut self.refused,
            Change::Add(_) => &mut self.added,
            Change::Objective(..) => &mut self.changed,
            Change::Exchange(_) => &mut self.exchanged,
            Change::Remove(_) => &mut self.removed,
        };
        *counter += 1;
    }
}

/// An operator and the one change that it asks for.
pub(crate) struct OperatorProcess {
    pub(crate) io: OperatorIo<SimTransport>,
    pub(crate) host: HostId,
    pub(crate) clock: SkewedClock,
    pub(crate) line: Line,
    change: Change,
    /// The scheduler that it has asked, by the host of its life.
    asked: Option<HostId>,
    /// It has its answer, or its connection broke.
    pub(crate) is_over: bool,
}

impl OperatorProcess {
    /// After a pass: asks once it can. Returns what it was answered.
    fn go_on(
        &mut self,
        cluster: &Cluster,
        scheduler: Option<HostId>,
    ) -> Option<Result<String, String>> {
        if self.io.is_connected() && self.asked.is_none() {
            self.asked = scheduler;
            let asked = self.io.ask(self.change.kind(), &self.change.text(cluster));
            self.is_over |= asked.is_err();
            self.line.wake(self.line.polled);
        }
        let answer = self.io.take_answer();
        self.is_over |= answer.is_some() || self.io.closed().is_some();
        answer
    }
}

impl World {
    /// An operator connects and asks for this change.
    pub(crate) fn start_operator(&mut self, change: Change) {
        if let Change::Add(spec) | Change::Exchange(spec) = &change {
            self.models.push((**spec).clone());
        }
        self.may_remove |= change.removes();
        let (host, clock) = self.host();
        let addr = addr_of(host, 1);
        let versions = self.versions(Role::Operator);
        let window = TcpConfig::default().credit_bytes;
        let (transport, line) = self.transport(host, addr, Role::Operator, 0, window, versions);
        self.trace.event(self.now, format_args!("OPERATOR {host:?}: {change:?}"));
        let Ok(io) = OperatorIo::new(transport, self.control) else { return };
        let (asked, is_over) = (None, false);
        let process = OperatorProcess { io, host, clock, line, change, asked, is_over };
        self.operators.push(process);
    }

    /// After an operator's pass.
    pub(crate) fn hear_operator(&mut self, at: usize) {
        let Self { operators, changes, cluster, trace, now, scheduler, ledger, .. } = self;
        let operator = &mut operators[at];
        let scheduler = scheduler.as_ref().map(|process| process.host);
        let answer = operator.go_on(cluster, scheduler);
        let cut_off =
            operator.io.closed().filter(|_| answer.is_none() && operator.asked == scheduler);
        let stops = scheduler.is_some_and(|host| ledger.borrow().stopped.contains(&host));
        if let (Some(why), true, false) = (cut_off, operator.asked.is_some(), stops) {
            let host = operator.host;
            ledger
                .borrow_mut()
                .fail(format!("operator {host:?} was cut off without an answer: {why}"));
        }
        if let Some(answer) = answer {
            let host = operator.host;
            changes.count(&operator.change, answer.is_ok());
            trace.event(*now, format_args!("operator {host:?} is answered: {answer:?}"));
        }
    }

    /// Operators that this scheduler owes an answer.
    pub(crate) fn owed_operators(&self) -> usize {
        let scheduler = self.scheduler.as_ref().map(|process| process.host);
        let owed = |operator: &&OperatorProcess| {
            !operator.is_over && operator.asked.is_some() && operator.asked == scheduler
        };
        self.operators.iter().filter(owed).count()
    }

    /// Operators that have their answer go.
    pub(crate) fn dismiss_operators(&mut self) {
        self.operators.retain(|operator| !operator.is_over);
    }
}
