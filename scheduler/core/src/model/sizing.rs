//! Which batch sizes suit a model's traffic: what it aims for, what it gives heads up for, and how
//! long it waits for more. Follows ℓ with every measurement and the traffic whenever a bucket of
//! [`RateMeter`] closes.

use crate::admission::fair_share::Turns;
use crate::candidate::{Candidate, Grant};
use crate::execution::fetching::Fetching;
use crate::execution::latency::Latency;
use crate::execution::network::NetworkDelay;
use crate::execution::prediction::ExecutionModel;
use crate::model::ModelConfig;
use crate::model::formation;
use crate::model::rate::{Rate, RateMeter};
use crate::model::spending::Spending;
use crate::policy::patience::{PARTS, Patience};
use crate::policy::{Deferral, Floor, Rules, WORTH_DROPPING};
use baton_types::{Nanos, Prefer, Profile, Variants};

/// A slot was busy until just now if it has been idle for no longer than this part of ℓ̂(1).
const JUST_NOW: u64 = 16;

/// A model loses tasks if its bad rate is above this, in 1/65536: a quarter of what may be.
pub(crate) const LOSING: u32 = 164;
/// One per cent, in 1/65536.
pub(crate) const PER_CENT: u64 = 655;

/// See the module documentation.
#[derive(Clone, Debug)]
pub(crate) struct Sizing {
    pub(crate) slo: Nanos,
    rules: Rules,
    /// What idle slots are for.
    pub(crate) prefer: Prefer,
    /// What [`Sizing::fetching`] plans with.
    pub(crate) network: NetworkDelay,
    pub(crate) fetching: Fetching,
    /// The batch size at which arrival and execution balance within the SLO.
    pub(crate) target: u32,
    /// The batch size that heads are given up for.
    pub(crate) floor: u32,
    /// The largest batch that leaves time for shorter objectives: [`Grant::longest`](crate::Grant).
    pub(crate) most: u32,
    pub(crate) longest: Nanos,
    /// [`RateMeter::pause_of_waiting`].
    pause: Nanos,
    /// Tasks that wait are joined by others as often as the traffic has it: [`RateMeter::pause_of_waiting`].
    is_joined: bool,
    /// [`RateMeter::run_tail`].
    run_tail: u16,
    /// GPU time of each task in a batch of the target size.
    each: Nanos,
    /// How long a lone task may wait for a slot, as of the last estimate.
    pub(crate) slack: Nanos,
    /// [`Grant::slot_wait`](crate::Grant), as of the last one.
    pub(crate) slot_wait: Nanos,
    /// [`Candidate::dispersion`].
    pub(crate) dispersion: u16,
    pub(crate) spending: Spending,
    /// Of the profile: what is measured since changes all batches alike.
    patience: Patience,
    pub(crate) execution: ExecutionModel,
    pub(crate) rate: RateMeter,
}

impl Sizing {
    pub(crate) fn new(config: ModelConfig) -> Self {
        let mut sizing = Self {
            slo: config.slo,
            rules: Rules::of(config.policy),
            prefer: config.prefer,
            network: config.network,
            fetching: Fetching::new(config.network, config.slo),
            patience: Patience::new(&config.profile),
            execution: ExecutionModel::new(config.profile, config.slo),
            rate: RateMeter::new(),
            target: 1,
            floor: 1,
            most: u32::MAX,
            longest: Nanos::MAX,
            pause: Nanos::MAX,
            is_joined: true,
            run_tail: 0,
            each: Nanos::ZERO,
            slack: Nanos::ZERO,
            slot_wait: Nanos::ZERO,
            dispersion: 0,
            spending: Spending::new(Rules::of(config.policy)),
        };
        sizing.resize();
        sizing
    }

    /// A task arrived. True if the traffic is estimated anew, and with it everything here.
    #[inline]
    pub(crate) fn on_arrival(&mut self, now: Nanos) -> bool {
        let rolled = self.rate.roll(now);
        if rolled {
            self.execution.relax();
            self.fetching.relax();
            self.resize();
        }
        self.rate.on_arrival(now);
        rolled
    }

    /// What a grant says of the traffic of others.
    #[inline]
    pub(crate) fn note_grant(&mut self, now: Nanos, grant: &Grant) {
        let just_now = self.network.jitter + Nanos(self.latency().alone().0 / JUST_NOW);
        self.execution.note_slot(now - grant.free_at <= just_now);
        self.slot_wait = grant.slot_wait;
        self.spending.note_grant(grant, self.execution.dearer_alone());
        if self.longest != grant.longest {
            self.longest = grant.longest;
            self.resize();
        }
    }

    pub(crate) fn set_profiles(&mut self, profiles: &[Profile], patience: Patience) {
        self.patience = patience;
        self.execution.replace(profiles, self.slo);
        self.resize();
    }

    /// See [`ModelState::with_variants`](crate::ModelState::with_variants).
    pub(crate) fn set_variants(&mut self, variants: &Variants) {
        self.patience = Patience::new(&variants.all()[0].profile);
        self.execution = ExecutionModel::of_variants(variants, self.slo);
        self.resize();
    }

    /// What is given up for waiting, by the profile as it was given.
    pub(crate) fn patience(&self) -> &Patience {
        &self.patience
    }

    /// See [`ModelState::set_rules`](crate::ModelState::set_rules).
    pub(crate) fn set_rules(&mut self, rules: Rules) {
        self.rules = rules;
        self.resize();
    }

    /// A slot that is to spare is better spent on accuracy than on patience.
    fn deferral(&self) -> Deferral {
        if self.spending.has_spare() { Deferral::None } else { self.rules.deferral }
    }

    /// Whether batches may start before they are due.
    pub(crate) fn may_start_early(&self) -> bool {
        self.rules.yields && self.prefer == Prefer::Latency
    }

    /// What the model's batches follow.
    pub(crate) fn rules(&self) -> Rules {
        Rules { deferral: self.deferral(), ..self.rules }
    }

    pub(crate) fn set_objective(&mut self, slo: Nanos) {
        self.slo = slo;
        self.execution.set_objective(slo);
        self.resize();
    }

    /// See [`ModelState::on_fetched`](crate::ModelState::on_fetched).
    pub(crate) fn on_fetched(&mut self, batch: u32, time: Nanos, late: Nanos) {
        self.fetching.observe(batch, time, late);
        self.network = self.fetching.network();
    }

    /// ℓ(b) of the batches that are formed.
    #[inline]
    pub(crate) fn latency(&self) -> &Latency {
        self.execution.cheapest()
    }

    /// Until when a batch of this size waits for more tasks, if its head has this deadline.
    pub(crate) fn deferred(&self, batch: u32, deadline: Nanos, frontrun: Nanos) -> Nanos {
        if batch >= self.most {
            return Nanos::ZERO;
        }
        let latest = frontrun - self.network.jitter;
        match self.deferral() {
            Deferral::Expectation if self.rate.rate().is_none() => latest,
            Deferral::Expectation => self.awaited(batch, latest).min(latest - self.slot_wait),
            Deferral::Frontrun => latest,
            Deferral::Tenths(tenths) => latest.min(self.tenths_over(deadline, tenths)),
            Deferral::Fill if self.waits_for_fill(batch) => latest,
            Deferral::Fill | Deferral::None => Nanos::ZERO,
        }
    }

    /// Until when more tasks than the batch's patience are expected to come before `latest`, if none comes meanwhile. Once
    /// nothing has come for a mean gap, the mean pause says what is expected.
    pub(crate) fn awaited(&self, batch: u32, latest: Nanos) -> Nanos {
        let parts = self.patience.of(batch);
        let by_pause = latest - self.time_of(parts);
        let paused = self.rate.last_arrival() + self.rate.mean_gap();
        if !self.is_joined || by_pause >= paused {
            return by_pause;
        }
        self.rate.awaited(latest, parts).min(paused)
    }

    /// See [`Candidate::run`].
    pub(crate) fn run(&self, now: Nanos, batch: u32, latest: Nanos) -> u16 {
        if self.run_tail > 0 && self.awaited(batch, latest) > now { self.run_tail } else { 0 }
    }

    /// See [`Candidate::excess`].
    pub(crate) fn excess(&self, batch: u32, latency: Nanos) -> u16 {
        if !self.is_joined {
            return Candidate::COMPLETE;
        }
        let efficient = self.each.0.saturating_mul(batch.into());
        let dearer = (latency.0.saturating_sub(efficient)).saturating_mul(Candidate::EXCESS_ONE);
        (dearer / efficient.max(1)).min(Candidate::EXCESS_MAX.into()) as u16
    }

    /// What the tasks of such a batch take of a GPU if they are executed in efficient batches.
    #[inline]
    pub(crate) fn work(&self, batch: u32, latency: Nanos) -> Nanos {
        latency.min(self.each.times(batch.into()))
    }

    /// GPU time that the demand takes per time in the batches that heads can wait for, in 1/65536.
    pub(crate) fn load(&self) -> u64 {
        let Some(demand) = self.rate.demand() else { return 0 };
        let each = self.gathered(demand);
        let unit = Rate { arrivals: demand.arrivals.saturating_mul(each.0), ..demand };
        unit.arrivals_in(Nanos(1 << 16))
    }

    /// GPU time of each task in a batch whose head waits for others as long as its objective
    /// allows, (b − 1)/λ + ℓ(b) = SLO. Such batches have b tasks on average: a number between two sizes.
    fn gathered(&self, rate: Rate) -> Nanos {
        let most = self.most.min(self.latency().batch_max());
        let ends = |b: u32| self.fetched_and_run(b) + rate.time_for(u64::from(b - 1));
        let size = formation::largest(1, most, |b| ends(b) <= self.budget());
        let above = (size + 1).min(most);
        let one = u64::from(PARTS);
        let left = (self.budget() - ends(size)).0 * one;
        let parts = left.checked_div((ends(above) - ends(size)).0).unwrap_or(0).min(one);
        let longer = self.latency().of(above) - self.latency().of(size);
        let all = self.latency().of(size).0 * one + longer.0 * parts;
        Nanos(all / (u64::from(size) * one + parts))
    }

    /// A batch size above `batch`, and the moment before which no batch between the two is due if
    /// its head's deadline is `deadline` or later.
    pub(crate) fn undue(&self, batch: u32, deadline: Nanos) -> (u32, Nanos) {
        let size = self.content().min(self.target.max(2 * batch)).min(self.most);
        let most_patient = match self.deferral() {
            Deferral::Expectation if self.rate.rate().is_some() => {
                // A pause begins a mean gap after an arrival.
                let paused = if self.is_joined { self.rate.mean_gap() } else { Nanos::ZERO };
                (self.time_of(self.patience.longest(size)) + paused).max(self.slot_wait)
            }
            _ => Nanos::ZERO,
        };
        let frontrun = deadline - self.latency().p99(size) - self.network.data_per_task;
        // The candidate that is formed then has two more hands to pass than one formed on arrival,
        // and jitter is how late one of them usually is, not how late it may be.
        let late = self.network.jitter.times(8);
        let due = match self.deferral() {
            Deferral::Tenths(tenths) => frontrun.min(self.tenths_over(deadline, tenths)),
            _ => frontrun - most_patient,
        };
        (size, due - late - self.network.before(size))
    }

    /// When a head with this deadline has waited for these tenths of the objective, if it came with all of it.
    fn tenths_over(&self, deadline: Nanos, tenths: u8) -> Nanos {
        deadline - (self.slo - Nanos(self.slo.0 / 10).times(tenths.into()))
    }

    /// The smallest batch that waits for nothing.
    fn content(&self) -> u32 {
        let most = self.latency().batch_max();
        match (self.deferral(), self.rate.rate()) {
            (Deferral::None, _) => 1,
            (Deferral::Frontrun | Deferral::Tenths(_), _) | (_, None) => most,
            (Deferral::Expectation, Some(_)) => self.patience.content(),
            (Deferral::Fill, Some(rate)) => {
                let enough = rate.arrivals_in(self.latency().beta());
                u32::try_from(enough).map_or(most, |enough| most.min(enough.saturating_add(1)))
            }
        }
    }

    /// The time in which `parts` of a task are expected once a pause has begun.
    fn time_of(&self, parts: u32) -> Nanos {
        Nanos(self.pause.times(u64::from(parts)).0 / u64::from(PARTS))
    }

    /// Condition (a) of Symphony §4.3, negated: fewer than βλ tasks wait, so one more is worth its
    /// wait. Without an estimate of λ the deadline alone decides.
    fn waits_for_fill(&self, batch: u32) -> bool {
        let in_beta = |rate: Rate| rate.arrivals_in(self.latency().beta());
        let enough = self.rate.rate().map_or(u64::MAX, in_beta);
        u64::from(batch) <= enough
    }

    fn resize(&mut self) {
        self.fetching.set_objective(self.slo, self.latency().alone());
        self.network = self.fetching.network();
        self.target = self.balanced(0);
        self.spending.resize(self.execution.variants(), self.rules, &self.rate);
        self.floor = match self.rules.floor {
            Floor::Efficient => self.spending.floor(self.efficient(), &self.rate, self.latency()),
            Floor::Target => self.target,
            Floor::Gathered => self.balanced(1),
            Floor::One => 1,
        };
        self.pause = self.rate.pause_of_waiting();
        self.is_joined = self.pause == self.rate.pause();
        self.run_tail = self.rate.run_tail().min(Candidate::RUN_MAX.into()) as u16;
        self.dispersion = self.rate.dispersion();
        self.most = self.longest_batch();
        let target = self.target.min(self.most);
        self.each = Nanos(self.latency().of(target).0 / u64::from(target));
        let before = self.network.response + self.network.before(1);
        self.slack = self.slo - before - self.latency().alone();
    }

    /// Where not even a single task is short enough, there is no point in small batches.
    fn longest_batch(&self) -> u32 {
        let all = self.latency().batch_max();
        let most = if self.rules.splits { all.min(self.patience.content()) } else { all };
        if self.latency().alone() > self.longest {
            return most;
        }
        formation::largest(1, most, |b| self.latency().of(b) <= self.longest)
    }

    /// The largest b with b/λ + ℓ(b) ≤ SLO (Symphony Eq. 2 with N = λ·ℓ(b)/b), without those of the b tasks that
    /// wait already. Without an estimate of λ, what fits half of the SLO.
    fn balanced(&self, waiting: u32) -> u32 {
        let (budget, rate) = (self.budget(), self.rate.rate());
        let fits = |b: u32| match rate {
            Some(rate) => self.fetched_and_run(b) + rate.time_for(u64::from(b - waiting)) <= budget,
            None => self.fetched_and_run(b) <= Nanos(budget.0 / 2),
        };
        formation::largest(1, self.latency().batch_max(), fits)
    }

    /// How many tasks can wait and be served in time while the model's batches take such turns. A task that arrives
    /// waits for the next batch: the largest b with gap(b) + ℓ(b) ≤ SLO, and more where a batch may not be so large.
    /// Unlike the target it does not depend on λ, in which refused tasks do not count.
    pub(crate) fn room(&self, turns: Turns) -> u32 {
        let gap = |b: u32| turns.gap_at(self.latency().of(b));
        let most = self.latency().batch_max();
        let fits = |b: u32| gap(b) + self.fetched_and_run(b) <= self.budget();
        let batch = formation::largest(1, most, fits);
        if batch < most {
            return batch;
        }
        let wait = self.budget() - self.fetched_and_run(batch);
        let come = u64::from(batch) * wait.0 / gap(batch).0.max(1);
        batch.max(u32::try_from(come).unwrap_or(u32::MAX))
    }

    /// What the objective leaves for gathering a batch, its inputs' way and its execution.
    fn budget(&self) -> Nanos {
        self.slo - self.network.response - self.network.ctrl
    }

    fn fetched_and_run(&self, batch: u32) -> Nanos {
        self.latency().of(batch) + self.network.data_per_task.times(u64::from(batch))
    }

    /// The smallest batch that costs at most 1/12 more GPU time per task than the target.
    fn efficient(&self) -> u32 {
        let per_target = self.latency().of(self.target).0 / u64::from(self.target);
        let enough = per_target + per_target / WORTH_DROPPING;
        let efficient = |&b: &u32| self.latency().of(b).0 / u64::from(b) <= enough;
        (1..self.target).find(efficient).unwrap_or(self.target)
    }
}

#[cfg(test)]
#[path = "sizing_tests.rs"]
mod tests;
