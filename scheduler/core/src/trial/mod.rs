//! Would other rules lose fewer tasks? `baton` tries them: on a copy of itself, in virtual time, with the tasks that came
//! lately.
//!
//! No fixed rule is best for every mixture of models, and nothing that a model knows of itself says which is. But arrivals
//! do not depend on decisions, and decisions are pure: what would have become of the same tasks under other rules can be
//! found out exactly, as far as ℓ(b) is known. So while tasks are being lost, the arrivals of some seconds are recorded
//! ([`Trials`] says when), and a [`Trial`] replays them under each [`Alternative`](crate::Alternative).
//!
//! A trial takes its time and allocates: it belongs on a thread of its own, off every task's way.

mod course;
mod recording;
mod shadow;

use alloc::vec::Vec;

use crate::model::ModelConfig;
use crate::model::sizing::LOSING;
use crate::policy::Alternative;
use baton_types::Nanos;
use shadow::{Lost, Shadow};

pub use course::Trials;
pub use recording::Recording;

/// Arrivals are recorded for no longer than this.
const RECORDED_FOR: Nanos = Nanos::from_millis(10_000);
/// Of fewer tasks nothing follows for other rules.
const TASKS_MIN: u64 = 64;

/// Other rules are taken if their losses are at most this part of the present ones'. Losses are compared by the cubes of
/// the models' bad rates: 1/2 is a bad rate that is a fifth smaller.
const BETTER: (u128, u128) = (1, 2);
/// And the model that loses most, or all together, must lose fewer tasks by this many times the root of what is lost now,
/// or it was chance.
const ROOTS: u64 = 2;
/// The copy learns the traffic for at least this long: a rate is known after a tenth of a second.
const LEARNT: Nanos = Nanos::from_millis(500);
/// Tasks that every model is taken to have had besides, all in time: of a few tasks one is not much.
const TASKS_ASSUMED: u64 = 20;

/// A task that came.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recorded {
    /// When.
    pub at: Nanos,
    /// For which model: its position in [`Trial::models`].
    pub model: u32,
    /// Its deadline less that.
    pub budget: Nanos,
}

/// See the module documentation.
#[derive(Clone, Copy, Debug)]
pub struct Trial<'a> {
    /// The models that share the slots, as [`ModelState::config`](crate::ModelState::config) has them.
    pub models: &'a [ModelConfig],
    /// Slots that take batches.
    pub slots: u32,
    /// In order of time.
    pub arrivals: &'a [Recorded],
}

/// What a trial found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// Tasks that arrived.
    pub tasks: u64,
    /// Of these, those that would have been lost under the present rules.
    pub lost: u64,
    /// The rules under which least would have been lost …
    pub least: Alternative,
    /// … and how many tasks.
    pub lost_least: u64,
    /// That is clearly better than the present rules.
    pub is_better: bool,
    /// Under the policy's own rules no model would have lost a noticeable part of its tasks.
    pub is_calm: bool,
}

impl Trial<'_> {
    /// Tries every alternative.
    pub fn verdict(&self, present: Alternative) -> Verdict {
        let losses = Alternative::ALL.map(|rules| self.lost(rules));
        let of = |rules: Alternative| &losses[rules as usize];
        let least = Alternative::ALL.into_iter().min_by_key(|&rules| weight(of(rules)));
        let least = least.expect("there are alternatives");
        let sum = |rules| of(rules).iter().map(|lost| lost.lost).sum();
        let tasks = self.arrivals.len() as u64;
        let [better, worse] = [least, present].map(|rules| weight(of(rules)));
        Verdict {
            tasks,
            lost: sum(present),
            least,
            lost_least: sum(least),
            is_better: tasks >= TASKS_MIN
                && better * BETTER.1 < worse * BETTER.0
                && is_no_chance(of(present), of(least)),
            is_calm: of(Alternative::Own).iter().all(is_small),
        }
    }

    /// What each model loses under these rules. The arrivals are replayed once more than it takes the copy to learn the
    /// traffic; the last time counts.
    fn lost(&self, rules: Alternative) -> Vec<Lost> {
        let mut shadow = Shadow::new(self.models, self.slots, self.arrivals, rules.rules());
        shadow.replay(self.arrivals);
        while shadow.now() < LEARNT && self.arrivals.len() > 1 {
            shadow.replay(self.arrivals);
        }
        shadow.count_anew();
        shadow.replay(self.arrivals);
        shadow.end()
    }
}

/// Whether the model that loses most under the present rules, or all together, lose clearly fewer under others.
fn is_no_chance(present: &[Lost], others: &[Lost]) -> bool {
    let is_clear =
        |now: u64, then: u64| now.saturating_sub(then).pow(2) >= ROOTS.pow(2) * now.max(1);
    let most = (0..present.len()).max_by_key(|&model| bad_rate(&present[model]));
    let of_most = most.is_some_and(|model| is_clear(present[model].lost, others[model].lost));
    let sum = |losses: &[Lost]| losses.iter().map(|lost| lost.lost).sum();
    of_most || is_clear(sum(present), sum(others))
}

/// In 1/65536.
fn bad_rate(lost: &Lost) -> u64 {
    (lost.lost << 16) / (lost.tasks + TASKS_ASSUMED)
}

/// As little as a model may lose without being said to lose tasks.
fn is_small(lost: &Lost) -> bool {
    bad_rate(lost) <= u64::from(LOSING)
}

/// The larger, the worse: one model's loss of three per cent is worse than one per cent of each of nine.
fn weight(losses: &[Lost]) -> u128 {
    losses.iter().map(|lost| u128::from(bad_rate(lost)).pow(3)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ModelId, NetworkDelay, Policy, Prefer, Profile, SplitMix64};

    const US: Nanos = Nanos(1_000);

    fn model((alpha_us, beta_us): (u64, u64), slo_us: u64) -> ModelConfig {
        ModelConfig {
            id: ModelId(7),
            profile: Profile::linear(US.times(alpha_us), US.times(beta_us), 64).unwrap(),
            slo: US.times(slo_us),
            queue_capacity: 1_024,
            policy: Policy::Baton,
            prefer: Prefer::Latency,
            network: NetworkDelay::default(),
        }
    }

    /// Poisson arrivals of model 0, and of as many others as there are `budgets_us`.
    fn arrivals(count: usize, gap_us: f64, budgets_us: &[u64]) -> Vec<Recorded> {
        let mut random = SplitMix64::new(11);
        let mut unit = || (random.next_u64() >> 11) as f64 / (1_u64 << 53) as f64;
        let mut at = 0.0;
        let arrival = |_| {
            at -= gap_us * (1.0 - unit()).ln();
            let model = (unit() * budgets_us.len() as f64) as usize;
            let budget = US.times(budgets_us[model]);
            Recorded { at: Nanos((at * 1e3) as u64), model: model as u32, budget }
        };
        (0..count).map(arrival).collect()
    }

    fn trial<'a>(models: &'a [ModelConfig], slots: u32, arrivals: &'a [Recorded]) -> Trial<'a> {
        Trial { models, slots, arrivals }
    }

    /// Two slots, batches of which one takes more than half of the objective: who starts a lone task at once has no slot for
    /// those that come while it executes.
    #[test]
    fn deferral_to_the_last_moment_is_found_where_it_pays() {
        let models = [model((457, 3_163), 5_751)];
        let arrivals = arrivals(4_000, 3_450.0, &[5_751]);
        let verdict = trial(&models, 2, &arrivals).verdict(Alternative::Own);
        assert!(verdict.is_better && !verdict.is_calm, "{verdict:?}");
        assert!(matches!(verdict.least, Alternative::Part | Alternative::Frontrun), "{verdict:?}");
        assert!(verdict.lost_least * 5 < verdict.lost * 4, "{verdict:?}");
        let again = trial(&models, 2, &arrivals).verdict(verdict.least);
        assert!(!again.is_better && again.lost == verdict.lost_least, "{again:?}");
    }

    #[test]
    fn the_own_rules_do_where_slots_are_to_spare() {
        let models = [model((457, 3_163), 20_000), model((100, 500), 9_000)];
        let arrivals = arrivals(2_000, 4_000.0, &[20_000, 9_000]);
        let verdict = trial(&models, 4, &arrivals).verdict(Alternative::Frontrun);
        assert!(verdict.is_calm && !verdict.is_better, "{verdict:?}");
        assert_eq!((verdict.lost, verdict.lost_least), (0, 0));
    }

    /// Under every alternative each task ends, and what cannot be served is lost.
    #[test]
    fn everything_is_lost_that_comes_too_late_and_nothing_else() {
        let models = [model((100, 900), 10_000)];
        let mut arrivals = arrivals(900, 20_000.0, &[10_000]);
        arrivals.iter_mut().step_by(3).for_each(|task| task.budget = US.times(900));
        for rules in Alternative::ALL {
            assert_eq!(
                trial(&models, 3, &arrivals).lost(rules),
                [Lost { tasks: 900, lost: 300 }],
                "{rules:?}"
            );
        }
    }

    #[test]
    fn little_is_concluded_from_few_tasks_and_nothing_from_none() {
        let models = [model((457, 3_163), 5_751)];
        for (count, is_better) in [(0, false), (1, false), (63, false), (64, true)] {
            // Bursts of eight on two slots.
            let mut arrivals = arrivals(count, 1.0, &[5_751]);
            let burst = |i: usize| US.times(i as u64 / 8 * 40_000 + i as u64 % 8 * 600);
            arrivals.iter_mut().enumerate().for_each(|(i, task)| task.at = burst(i));
            let verdict = trial(&models, 2, &arrivals).verdict(Alternative::Own);
            assert_eq!(verdict.is_better, is_better, "{count}: {verdict:?}");
        }
    }

    #[test]
    fn a_few_tasks_fewer_are_chance() {
        let lost = |lost| Lost { tasks: 1_000, lost };
        let is_clear = |now: &[u64], then: &[u64]| {
            let [now, then] =
                [now, then].map(|lost_each| lost_each.iter().copied().map(lost).collect());
            let (now, then): (Vec<Lost>, Vec<Lost>) = (now, then);
            is_no_chance(&now, &then)
        };
        assert!(is_clear(&[25], &[15]) && !is_clear(&[25], &[16]));
        assert!(!is_clear(&[3], &[0]) && is_clear(&[4], &[0]));
        assert!(is_clear(&[25, 16], &[15, 26]), "the one that loses most counts");
        assert!(is_clear(&[3, 3, 3, 2], &[1, 1, 1, 1]), "so do all together");
        assert!(!is_clear(&[], &[]));
    }

    #[test]
    fn one_large_loss_weighs_more_than_many_small_ones() {
        let lost = |lost| Lost { tasks: 10_000, lost };
        assert!(weight(&[lost(300), lost(0)]) > weight(&[lost(200), lost(200)]));
        assert!(weight(&[lost(210)]) < weight(&[lost(150), lost(200)]));
    }
}
