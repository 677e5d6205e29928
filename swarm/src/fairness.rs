//! Fairness among equals: models with the same profile and objective that are asked for as often, by frontends that ask as
//! often. None of them starves while another thrives, whatever its number, its ModelThread or its place in a table.
//!
//! Every policy serves equals alike where the GPUs bear the load. Where they do not, `symphony` and `eager` serve whom they have
//! just served: who has many tasks that can wait forms the larger batch, which is due first. The policy `baton` counts losses
//! against that, over five seconds (`docs/scheduling.md`, *Which candidate*), and so is judged over several times that.
//!
//! The cluster is one of its own: what a seed's own cluster serves is never alike.

use baton_core::{ModelId, Nanos, Policy, Profile, QuotaLimits, SubclusterId};
use baton_topo::{Cluster, ModelSpec};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::plan::{Engines, Load, Plan};
use crate::run::Run;
use crate::scale::Scale;

/// Until all tasks have their outcome.
const ENDING: Nanos = Nanos::from_millis(4_000);
/// Mean time between two tasks, at least: what a run can bear.
const GAP_MIN: Nanos = Nanos::from_micros(400);

/// Of each model and of each frontend, at least.
const TASKS_MIN: u32 = 50;

/// How much the equals have to do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Demand {
    /// What the GPUs can do: a tenth of the seeds.
    Bearable,
    /// More than that: a hundredth, for it takes as long as twenty others.
    Overload,
}

impl Demand {
    fn of(plan: &Plan) -> Option<Self> {
        let is_usual = plan.scale == Scale::Usual && plan.attacks.is_empty();
        match plan.seed % 100 {
            _ if !is_usual => None,
            50 => Some(Self::Overload),
            number if number % 10 == 5 => Some(Self::Bearable),
            _ => None,
        }
    }

    /// In percent of what the GPUs do in the largest batches.
    fn percent(self) -> std::ops::RangeInclusive<u64> {
        match self {
            Self::Bearable => 10..=40,
            Self::Overload => 110..=300,
        }
    }

    /// The share of tasks answered in time with which a model thrives, in thousandths.
    fn thriving(self) -> u64 {
        match self {
            Self::Bearable => 500,
            Self::Overload => 100,
        }
    }

    /// For how long tasks are offered, and from when on they are counted.
    fn spans(self) -> (Nanos, Nanos) {
        let (from, until) = match self {
            Self::Bearable => (200, 600),
            Self::Overload => (3_000, 10_000),
        };
        (Nanos::from_millis(from), Nanos::from_millis(until))
    }
}

/// What one of the equals got.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
struct Part {
    /// Tasks that it was to have.
    offered: u32,
    /// Of these, answered by their deadline.
    in_time: u32,
}

/// The cluster of equals that a seed draws, if it draws one.
pub(crate) fn of(plan: &Plan) -> Option<Plan> {
    let demand = Demand::of(plan)?;
    let mut rng = StdRng::seed_from_u64(plan.seed ^ 0x6571_7561);
    let mut cluster = Plan::without_caches(plan.seed).cluster;
    if demand == Demand::Overload {
        cluster.scheduler.policy = Policy::Baton;
    }
    alike(&mut cluster, rng.random_range(2..=4));
    let load = load(&mut cluster, rng.random_range(demand.percent()));
    let engines = Engines { percent: 100, jitter_percent: 0, failures: 0, measured_percent: None };
    let (faults, changes) = (Vec::new(), Vec::new());
    Some(Plan { cluster, load, engines, faults, ambushes: Vec::new(), changes, ..plan.clone() })
}

/// One sub-cluster with models that differ in nothing but their numbers and names.
fn alike(cluster: &mut Cluster, count: u32) {
    cluster.subclusters.truncate(1);
    cluster.backends.iter_mut().for_each(|backend| backend.subcluster = SubclusterId(0));
    let first = ModelSpec {
        quota: QuotaLimits::default(),
        variants: Vec::new(),
        input_bytes: cluster.models[0].input_bytes.min(600),
        output_bytes: 8,
        ..cluster.models[0].clone()
    };
    let model = |id| ModelSpec { id: ModelId(id), name: format!("m{id}"), ..first.clone() };
    cluster.models = (0..count).map(model).collect();
    cluster.scheduler.models_max = None;
    // Free slots are no bound here: what a model does not serve must not be asked for less.
    cluster.frontend.slots_per_model = 300;
}

/// This share of what the GPUs can do, in percent; models for which that is too often for a run become slower.
fn load(cluster: &mut Cluster, percent: u64) -> Load {
    let gpus: u32 = cluster.backends.iter().map(|backend| backend.gpus).sum();
    let profile = &cluster.models[0].profile;
    let each = profile.latency(profile.batch_max()).0 / u64::from(profile.batch_max());
    let gap = each / u64::from(gpus) * 100 / percent;
    let slower = GAP_MIN.0.div_ceil(gap);
    for model in &mut cluster.models {
        let (alpha, beta) = (model.profile.alpha(), model.profile.beta());
        let (alpha, beta) = (alpha.times(slower), beta.times(slower));
        model.profile = Profile::linear(alpha, beta, model.profile.batch_max()).expect("it rises");
        model.slo = model.slo.times(slower);
    }
    let gap = Nanos(gap * slower);
    Load { gap, burst: 1, deadline_percent: (100, 100), cancels: 0, drops: 0, keeps: 0 }
}

/// One of the equals starves if it has less than half of what another has that thrives. What a few tasks show is chance.
fn unfair(what: &str, parts: &[Part], demand: Demand) -> Option<String> {
    let share = |part: &&Part| u64::from(part.in_time) * 1_000 / u64::from(part.offered.max(1));
    let (worst, best) = (parts.iter().min_by_key(share)?, parts.iter().max_by_key(share)?);
    let are_many = parts.iter().all(|part| part.offered >= TASKS_MIN);
    let thrives = share(&best) >= demand.thriving();
    (are_many && thrives && share(&worst) * 2 < share(&best)).then(|| {
        let told =
            |part: &Part| format!("{} of {} tasks answered in time", part.in_time, part.offered);
        format!("one {what} has {}, and its equal {}", told(worst), told(best))
    })
}

impl Run {
    /// Brings a cluster of equals up, and tells what is unfair in it, or wrong otherwise.
    pub(crate) fn judge_fairness(&mut self) -> Option<String> {
        let demand = Demand::of(&self.plan)?;
        self.come_up();
        let tasks = if self.go_on() { self.offer_alike(demand) } else { Vec::new() };
        let failure = self.world.ledger.borrow().failure().map(str::to_owned);
        let what = failure.or_else(|| self.weigh(&tasks, demand))?;
        Some(format!("in a cluster of equals: {what}"))
    }

    /// Offers each model and each frontend as much, in random order. Returns the tasks that count: of which model and frontend,
    /// and their numbers if there was room for them.
    fn offer_alike(&mut self, demand: Demand) -> Vec<(usize, usize, Option<u64>)> {
        let mut rng = StdRng::seed_from_u64(self.plan.seed ^ 0x7765_6967);
        let (start, (from, until)) = (self.world.now, demand.spans());
        let places: Vec<usize> = self.frontends.iter().flatten().copied().collect();
        let mut tasks = Vec::new();
        while self.world.now < start + until && self.go_on() {
            self.pass(Nanos(rng.random_range(0..=2 * self.plan.load.gap.0)));
            let model = rng.random_range(0..self.world.models.len());
            let frontend = rng.random_range(0..places.len());
            let within = self.world.models[model].slo;
            let task = self.world.submit(places[frontend], model, within);
            let number = task.as_ref().map(|task| task.number);
            task.into_iter().for_each(|task| self.applications.take(places[frontend], task));
            if self.world.now >= start + from {
                tasks.push((model, frontend, number));
            }
        }
        self.pass_until(ENDING, |run| run.applications.outstanding() == 0);
        tasks
    }

    fn weigh(&mut self, tasks: &[(usize, usize, Option<u64>)], demand: Demand) -> Option<String> {
        let mut ledger = self.world.ledger.borrow_mut();
        let mut models = vec![Part::default(); self.world.models.len()];
        let mut frontends = vec![Part::default(); self.frontends.len()];
        for &(model, frontend, number) in tasks {
            let in_time = u32::from(number.is_some_and(|number| ledger.task(number).in_time));
            for part in [&mut models[model], &mut frontends[frontend]] {
                part.offered += 1;
                part.in_time += in_time;
            }
        }
        let lost = models.iter().any(|part| part.in_time * 10 < part.offered * 9);
        self.states.equals_contended = demand == Demand::Overload && lost;
        unfair("model", &models, demand).or_else(|| unfair("frontend", &frontends, demand))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(demand: Demand, parts: [(u32, u32); 2]) -> bool {
        let parts = parts.map(|(offered, in_time)| Part { offered, in_time });
        unfair("model", &parts, demand).is_some()
    }

    #[test]
    fn who_has_less_than_half_of_an_equal_that_thrives_starves() {
        assert!(judged(Demand::Overload, [(1_000, 110), (1_000, 50)]));
        assert!(!judged(Demand::Overload, [(1_000, 110), (1_000, 55)]));
        assert!(!judged(Demand::Overload, [(1_000, 90), (1_000, 0)]), "no one thrives");
        assert!(judged(Demand::Bearable, [(100, 20), (100, 90)]));
        assert!(!judged(Demand::Bearable, [(100, 40), (100, 0)]), "no one thrives");
        assert!(!judged(Demand::Bearable, [(49, 0), (100, 90)]), "too few to tell");
    }

    #[test]
    fn equals_are_equal_and_the_gpus_bear_what_they_should() {
        let plans: Vec<Plan> = (0..400).map(Plan::of).collect();
        let drawn: Vec<_> = plans.iter().filter_map(|plan| of(plan).map(|of| (plan, of))).collect();
        assert!(drawn.len() > 35, "{}", drawn.len());
        for (plan, of) in drawn {
            let models = &of.cluster.models;
            assert!(models.len() >= 2 && of.is_calm());
            assert!(models.iter().all(|model| model.profile == models[0].profile));
            assert!(models.iter().all(|model| model.slo == models[0].slo));
            let policy = of.cluster.scheduler.policy;
            assert!(policy == plan.cluster.scheduler.policy || policy == Policy::Baton);
            let gpus: u32 = of.cluster.backends.iter().map(|backend| backend.gpus).sum();
            let each = models[0].profile.latency(models[0].profile.batch_max()).0 as f64
                / f64::from(models[0].profile.batch_max() * gpus);
            let is_borne = each / (of.load.gap.0 as f64) < 0.5;
            assert_eq!(is_borne, plan.seed % 100 != 50, "{}", plan.seed);
        }
    }
}
