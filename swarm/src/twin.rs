//! What users get of a repaired cluster, against a twin to which nothing has happened: the same cluster, the same tasks at the
//! same distances. Whatever a fault leaves behind (a slot that is not offered any more, times that were learnt from a GPU
//! that was slow, a queue that stays short) costs answers here, whether or not another oracle knows of it.

use baton_core::{Nanos, Profile, QuotaLimits};
use baton_topo::{Cluster, ModelSpec};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::faults::Fault;
use crate::plan::Plan;
use crate::run::Run;
use crate::scale::Scale;

/// Tasks that are offered and counted,
const TASKS: u32 = 300;
/// and before them, so that what was learnt from GPUs and hosts that stood still has been measured anew.
const UNCOUNTED: u32 = 600;
/// Tasks that may be lost by chance.
const SPARED: u32 = 5;
/// Beyond, shares that were limited once stay so: full GPUs serve a little less with short queues.
const LOAD_MAX: f64 = 0.9;
/// Until they all have their outcome.
const ENDING: Nanos = Nanos::from_millis(4_000);

/// What came of the tasks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct Service {
    /// Tasks that were submitted.
    pub(crate) offered: u32,
    /// Of these, answered by their deadline.
    pub(crate) in_time: u32,
}

/// True where nothing but what the faults left behind can make a difference: GPUs and network do what is planned with, and
/// both serve the same models to the same frontends.
pub(crate) fn is_wanted(plan: &Plan) -> bool {
    let (engines, models) = (plan.engines, &plan.cluster.models);
    let is_exact = engines.percent == 100
        && engines.jitter_percent == 0
        && engines.failures == 0
        && engines.measured_percent.is_none();
    let has_quota = models.iter().any(|model| model.quota != QuotaLimits::default());
    let is_steady = plan.link.spikes == 0 && plan.network_fits() && !has_quota;
    // Where delivery takes most of the objective, two batches for each slot do not keep it busy.
    let is_near = models.iter().all(|model| plan.cluster.network.ctrl.times(2) <= model.slo);
    let is_bearable =
        (0..plan.cluster.subclusters.len() as u32).all(|at| load_of(plan, at) < LOAD_MAX);
    let joins = |fault: &Fault| matches!(fault, Fault::Join);
    let is_the_same = plan.changes.is_empty() && !plan.faults.iter().any(|(_, fault)| joins(fault));
    let is_usual = plan.attacks.is_empty() && plan.scale == Scale::Usual;
    is_exact && is_steady && is_near && is_bearable && is_the_same && is_usual
}

/// The part of the sub-cluster's GPU time that the tasks take at least, in the largest batches.
fn load_of(plan: &Plan, subcluster: u32) -> f64 {
    let Cluster { models, backends, .. } = &plan.cluster;
    let here = |model: &&ModelSpec| model.subcluster.0 == subcluster;
    let each = |p: &Profile| p.latency(p.batch_max()).0 as f64 / f64::from(p.batch_max());
    let work: f64 = models.iter().filter(here).map(|model| each(&model.profile)).sum();
    let gpus: u32 = backends.iter().filter(|b| b.subcluster.0 == subcluster).map(|b| b.gpus).sum();
    work / (plan.load.gap.0 * models.len() as u64) as f64 / f64::from(gpus)
}

/// The same cluster and load without faults.
pub(crate) fn of(plan: &Plan) -> Plan {
    Plan { faults: Vec::new(), ambushes: Vec::new(), ..plan.clone() }
}

/// What is wrong with the service after faults, beside the twin's. Where the twin is overloaded, who is served is a matter of
/// moments, and nothing follows.
pub(crate) fn worse(after: Service, twin: Service) -> Option<String> {
    let is_at_ease = twin.offered == TASKS && twin.in_time * 20 >= twin.offered * 19;
    let least = (twin.in_time * 9 / 10).saturating_sub(SPARED);
    (is_at_ease && after.in_time < least).then(|| {
        format!(
            "of {TASKS} tasks {} are answered in time after the faults are over, and {} in a cluster without",
            after.in_time, twin.in_time
        )
    })
}

impl Run {
    /// Offers the run's load once more, drawn from the seed alone, and counts what is answered in time.
    pub(crate) fn measure(&mut self) -> Service {
        let mut rng = StdRng::seed_from_u64(self.plan.seed ^ 0x7477_696e);
        let load = self.plan.load;
        let places: Vec<usize> = self.frontends.iter().flatten().copied().collect();
        let mut numbers = Vec::new();
        for task in 0..UNCOUNTED + TASKS {
            let wait = Nanos(rng.random_range(0..=2 * load.gap.0));
            let model = rng.random_range(0..self.plan.cluster.models.len());
            let (from, to) = load.deadline_percent;
            let percent = rng.random_range(from..=to);
            self.pass(wait);
            if !self.go_on() {
                break;
            }
            let within = Nanos(self.world.models[model].slo.0 * percent / 100);
            let at = places[task as usize % places.len()];
            let counts = task >= UNCOUNTED;
            if let Some(task) = self.world.submit(at, model, within) {
                if counts {
                    numbers.push(task.number);
                }
                self.applications.take(at, task);
            }
        }
        self.pass_until(ENDING, |run| run.applications.outstanding() == 0);
        let mut ledger = self.world.ledger.borrow_mut();
        let in_time = numbers.iter().filter(|&&number| ledger.task(number).in_time).count();
        Service { offered: numbers.len() as u32, in_time: in_time as u32 }
    }
}
