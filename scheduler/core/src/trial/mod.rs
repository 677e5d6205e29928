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
mod sooner;

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::execution::slowdown::Slowdown;
use crate::model::ModelConfig;
use crate::model::sizing::LOSING;
use crate::policy::Alternative;
use crate::policy::patience::Patience;
use baton_types::Nanos;
use shadow::{Lost, Shadow, Task};

pub use course::{Look, Trials};
pub use recording::{Enough, Recent, Record, Recorded, Recording};

/// Of fewer tasks nothing follows for other rules.
const TASKS_MIN: u64 = 64;

/// Other rules are taken if the present ones lose more than this many times as much. Losses are compared by the cubes of the
/// models' bad rates: half is a bad rate that is a fifth smaller.
const BETTER: u128 = 2;
/// And the model that loses most, or all together, must lose fewer tasks by this many times the root of what is lost now,
/// or it was chance.
const ROOTS: u64 = 2;
/// The copy learns the traffic for at least this long: a rate is known after a tenth of a second …
const LEARNT: Nanos = Nanos::from_millis(500);
/// … and for eight of the longest objectives: what waits in an overload has gone after one or two …
const LEARNT_OBJECTIVES: u64 = 8;
/// … but from no more replays than these: of what came in a shorter span nothing is concluded.
const REPLAYS_MAX: u64 = 32;
/// Batches begin at once if tasks end sooner by this part of the time that they take now: less is not worth GPU time.
const SOONER: u64 = 20;
/// Tasks that every model is taken to have had besides, all in time: of a few tasks one is not much.
const TASKS_ASSUMED: u64 = 20;

/// A model that is tried, as it was when its arrivals had been recorded: see
/// [`ModelState::replica`](crate::ModelState::replica).
#[derive(Clone, Debug)]
pub struct Replica {
    /// What it plans with.
    pub(crate) config: ModelConfig,
    /// It follows from the profile as it was given, without margin or drift.
    pub(crate) patience: Patience,
    /// By so much its batches of 1, 2, … tasks end earlier than planned, as a rule: what ℓ̂(b) has of the margin.
    pub(crate) margins: Box<[Nanos]>,
    /// It has others than this one, the cheapest.
    pub(crate) has_variants: bool,
}

/// See the module documentation.
#[derive(Clone, Debug)]
pub struct Trial {
    models: Vec<Replica>,
    /// How slow each slot is.
    slots: Vec<Slowdown>,
    tasks: Vec<Task>,
    /// How long it took them to come.
    span: Nanos,
}

/// What a trial found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Verdict {
    /// Tasks that arrived …
    pub tasks: u64,
    /// … in this time.
    pub span: Nanos,
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
    /// And under those of [`Alternative::AtOnce`] neither, even if more had come, but tasks would have ended sooner. Never where
    /// rules are followed that are neither of the two.
    pub is_sooner: bool,
}

impl Trial {
    /// For models that share these slots, and what arrived for them by several ways. Arrivals for other models do not
    /// count.
    pub fn new(mut models: Vec<Replica>, slots: Vec<Slowdown>, records: Vec<Record>) -> Self {
        models.sort_by_key(|model| model.config.id.0);
        let Record { arrivals, from, until } = Record::common(records);
        let task = |Recorded { at, model, budget }: Recorded| {
            let model = models.binary_search_by_key(&model.0, |model| model.config.id.0).ok()?;
            Some(Task { at: at - from, model, budget })
        };
        let tasks = arrivals.into_iter().filter_map(task).collect();
        Self { models, slots, tasks, span: until - from }
    }

    /// Tries every alternative. `None` without slots, and if all came in too short a time.
    pub fn verdict(&self, present: Alternative) -> Option<Verdict> {
        if self.slots.is_empty() || self.span.times(REPLAYS_MAX) < LEARNT {
            return None;
        }
        let own = self.lost(Alternative::Own);
        if own.iter().all(is_small) {
            return Some(self.calm(present, &own));
        }
        let losses = Alternative::ALL.map(|rules| match rules {
            Alternative::Own => own.clone(),
            rules => self.lost(rules),
        });
        let of = |rules: Alternative| &losses[rules as usize];
        let least = Alternative::ALL.into_iter().min_by_key(|&rules| weight(of(rules)));
        let least = least.expect("there are alternatives");
        let sum = |rules| sum_lost(of(rules));
        let tasks = self.tasks.len() as u64;
        let [better, worse] = [least, present].map(|rules| weight(of(rules)));
        Some(Verdict {
            tasks,
            span: self.span,
            lost: sum(present),
            least,
            lost_least: sum(least),
            is_better: tasks >= TASKS_MIN
                && is_clearly_less(better, worse)
                && is_no_chance(of(present), of(least)),
            is_calm: false,
            is_sooner: false,
        })
    }

    /// The own rules do. Then others matter only as far as tasks end sooner under them.
    fn calm(&self, present: Alternative, own: &[Lost]) -> Verdict {
        let lost = sum_lost(own);
        let asks = matches!(present, Alternative::Own | Alternative::AtOnce)
            && self.models.iter().all(|model| !model.has_variants);
        Verdict {
            tasks: self.tasks.len() as u64,
            span: self.span,
            lost,
            least: Alternative::Own,
            lost_least: lost,
            is_better: false,
            is_calm: true,
            is_sooner: asks && self.is_sooner(own),
        }
    }

    /// Whether tasks end clearly sooner if batches begin at once, and hardly one is lost even if half as many again come.
    fn is_sooner(&self, own: &[Lost]) -> bool {
        let took = |losses: &[Lost]| losses.iter().map(|lost| lost.took.0).sum::<u64>();
        let lost = self.lost(Alternative::AtOnce);
        let is_clear = took(&lost).saturating_add(took(own) / SOONER) < took(own);
        is_clear && {
            let losses = [lost, self.denser().lost(Alternative::AtOnce)];
            losses.iter().flatten().all(is_small)
        }
    }

    /// The same tasks in two thirds of the time.
    fn denser(&self) -> Self {
        let less = |time: Nanos| Nanos(time.0 - time.0 / 3);
        let task = |task: &Task| Task { at: less(task.at), ..*task };
        Self { tasks: self.tasks.iter().map(task).collect(), span: less(self.span), ..self.clone() }
    }

    /// What each model loses under these rules. The arrivals are replayed until the copy has learnt the traffic, and then
    /// once more, which counts. It begins in an overload, which some rules do not come out of again: full queues make them
    /// start small batches, which keep the queues full.
    fn lost(&self, rules: Alternative) -> Vec<Lost> {
        let mut shadow = Shadow::new(self, rules.rules());
        for _ in 0..self.learning() {
            shadow.replay(self);
        }
        shadow.count_anew();
        shadow.replay(self);
        shadow.end()
    }

    /// Replays that do not count.
    fn learning(&self) -> u64 {
        let longest = self.longest_objective().times(LEARNT_OBJECTIVES).max(LEARNT);
        longest.0.div_ceil(self.span.0).min(REPLAYS_MAX)
    }

    /// Of a model; single tasks may have later deadlines.
    fn longest_objective(&self) -> Nanos {
        self.models.iter().map(|model| model.config.slo).max().unwrap_or_default()
    }
}

/// Of two weights.
fn is_clearly_less(better: u128, worse: u128) -> bool {
    better * BETTER < worse
}

/// Whether the model that loses most under the present rules, or all together, lose clearly fewer under others.
fn is_no_chance(present: &[Lost], others: &[Lost]) -> bool {
    let is_clear =
        |now: u64, then: u64| now.saturating_sub(then).pow(2) >= ROOTS.pow(2) * now.max(1);
    let most = (0..present.len()).max_by_key(|&model| bad_rate(&present[model]));
    let of_most = most.is_some_and(|model| is_clear(present[model].lost, others[model].lost));
    of_most || is_clear(sum_lost(present), sum_lost(others))
}

fn sum_lost(losses: &[Lost]) -> u64 {
    losses.iter().map(|lost| lost.lost).sum()
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
mod tests;
