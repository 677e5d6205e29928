//! How models and slots have fared lately: what their counters have grown by since five to ten seconds ago.

use std::collections::BTreeMap;

use baton_core::{Gpu, ModelId, Nanos, VARIANTS_MAX};

use crate::latencies::quantile;
use crate::limits::GPUS_MAX;
use crate::migration::load_board::{LoadBoard, ModelLoad};
use crate::task_board::{ModelTotals, PerVariant, SlotWork, TaskBoards};

/// Looks, of a second each, in half of the window.
const LOOKS_PER_HALF: u32 = 5;

/// What counters showed at a moment.
#[derive(Clone, Debug)]
struct Moment {
    read_at: Nanos,
    /// When the ModelThreads had last written down what the [`LoadBoard`] has.
    reported_at: Nanos,
    /// Of models that are missing, nothing was counted yet.
    models: BTreeMap<ModelId, ModelMoment>,
    slots: Vec<SlotWork>,
}

/// What was counted of a model by a moment.
#[derive(Clone, Default, Debug)]
pub(super) struct ModelMoment {
    requests: u64,
    refused: u64,
    /// Tasks that ended while they waited.
    ended: u64,
    /// Of these, those that found the queue full.
    queue_full: u64,
    totals: ModelTotals,
}

/// How a model fares.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub(super) struct Figures {
    pub(super) rate_rps: f64,
    pub(super) refused_rps: f64,
    pub(super) bad_rate: Option<f64>,
    pub(super) mean_batch: Option<f64>,
    pub(super) p50_ms: Option<f64>,
    pub(super) p99_ms: Option<f64>,
    /// By variant: tasks that it has executed, and how many in a batch.
    pub(super) variants: [(u64, Option<f64>); VARIANTS_MAX],
}

/// How much of its time a slot has used.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub(in crate::control) struct Shares {
    /// It executed.
    pub(in crate::control) busy: f64,
    /// Weights were copied to it.
    pub(in crate::control) loader_busy: f64,
}

/// See the module documentation.
#[derive(Debug)]
pub(super) struct Window {
    /// Five to ten seconds ago.
    begin: Moment,
    /// Less than five seconds ago: the next `begin`.
    middle: Moment,
    looks: u32,
    reported_at: Nanos,
}

impl Window {
    pub(super) fn begin(now: Nanos) -> Self {
        let (models, slots) = (BTreeMap::new(), vec![SlotWork::default(); GPUS_MAX as usize]);
        let moment = Moment { read_at: now, reported_at: now, models, slots };
        Self { begin: moment.clone(), middle: moment, looks: 0, reported_at: now }
    }

    /// Once a second, before the ModelThreads are asked to write down their load again.
    pub(super) fn look(
        &mut self,
        now: Nanos,
        models: impl Iterator<Item = ModelId>,
        boards: (&LoadBoard, &TaskBoards),
    ) {
        self.looks += 1;
        if self.looks == LOOKS_PER_HALF {
            self.looks = 0;
            let models = models.map(|model| (model, ModelMoment::read(model, boards))).collect();
            let slots = (0..GPUS_MAX).map(|slot| boards.1.slot(slot)).collect();
            let reported_at = self.reported_at;
            let moment = Moment { read_at: now, reported_at, models, slots };
            self.begin = std::mem::replace(&mut self.middle, moment);
        }
        self.reported_at = now;
    }

    /// The ModelThreads are asked to write down their load.
    pub(super) fn reported(&mut self, now: Nanos) {
        self.reported_at = now;
    }

    /// What was counted so far under this number is no news: the next model that has it begins.
    pub(super) fn forget(&mut self, model: ModelId, boards: (&LoadBoard, &TaskBoards)) {
        let seen = ModelMoment::read(model, boards);
        self.begin.models.insert(model, seen.clone());
        self.middle.models.insert(model, seen);
    }

    /// What the slots have executed so far, they have in another life.
    pub(super) fn forget_slots(&mut self, gpus: &[Gpu], tasks: &TaskBoards) {
        for slot in gpus.iter().map(|gpu| gpu.id.0) {
            let work = tasks.slot(slot);
            self.begin.slots[slot as usize] = work;
            self.middle.slots[slot as usize] = work;
        }
    }

    /// How far back it goes, s.
    pub(super) fn span_s(&self, now: Nanos) -> f64 {
        seconds(now - self.begin.read_at)
    }

    /// How the model fares.
    pub(super) fn figures(&self, model: ModelId, boards: (&LoadBoard, &TaskBoards)) -> Figures {
        let now = ModelMoment::read(model, boards);
        let span = self.reported_at - self.begin.reported_at;
        match self.begin.models.get(&model) {
            Some(before) => figures(before, now, span),
            None => figures(&ModelMoment::default(), now, span),
        }
    }

    /// The shares of the window, or of its time as a member, in which a slot executed and in which weights were copied to it.
    pub(super) fn shares(
        &self,
        now: Nanos,
        slot: u32,
        joined_at: Nanos,
        tasks: &TaskBoards,
    ) -> Shares {
        let (work, before) = (tasks.slot(slot), self.begin.slots[slot as usize]);
        let span = now - self.begin.read_at.max(joined_at);
        let share = |ns: u64| match span {
            Nanos::ZERO => 0.0,
            span => (ns as f64 / span.0 as f64).min(1.0),
        };
        Shares {
            busy: share(work.busy_ns - before.busy_ns),
            loader_busy: share(work.loading_ns - before.loading_ns),
        }
    }
}

impl ModelMoment {
    /// What has grown since. A model that begins anew under the number counts its requests from nothing.
    pub(super) fn since(self, before: &Self) -> Self {
        Self {
            requests: self.requests.saturating_sub(before.requests),
            refused: self.refused.saturating_sub(before.refused),
            ended: self.ended.saturating_sub(before.ended),
            queue_full: self.queue_full.saturating_sub(before.queue_full),
            totals: self.totals.since(&before.totals),
        }
    }

    /// Requests that arrived: those too that nothing serves.
    pub(super) fn requests(&self) -> u64 {
        self.requests + self.totals.unserved
    }

    /// Of these, those that a quota refused.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    /// Tasks that ended without an execution and against the will of their applications.
    pub(super) fn dropped(&self) -> u64 {
        self.ended.saturating_sub(self.totals.excused) + self.totals.unserved
    }

    /// Of these, those that found the queue full.
    pub(super) fn queue_full(&self) -> u64 {
        self.queue_full
    }

    pub(super) fn into_totals(self) -> ModelTotals {
        self.totals
    }

    pub(super) fn read(model: ModelId, (load, tasks): (&LoadBoard, &TaskBoards)) -> Self {
        let ModelLoad { requests, refused, ended, queue_full, .. } = load.of(model);
        Self { requests, refused, ended, queue_full, totals: tasks.model(model) }
    }
}

fn figures(before: &ModelMoment, now: ModelMoment, span: Nanos) -> Figures {
    let grown = now.since(before);
    let per_second = |count: f64| if span == Nanos::ZERO { 0.0 } else { count / seconds(span) };
    let refused_rps = per_second(grown.refused as f64);
    let (requests, dropped) = (grown.requests() as f64, grown.dropped() as f64);
    let ModelTotals { batches, tasks, late, failed, latencies, variants, .. } = grown.totals;
    let quantile_ms = |q| quantile(&latencies, q).map(|ns| ns / 1e6);
    Figures {
        rate_rps: per_second(requests),
        refused_rps,
        bad_rate: of(dropped + (late + failed) as f64, dropped + tasks as f64),
        mean_batch: of(tasks as f64, batches as f64),
        p50_ms: quantile_ms(0.5),
        p99_ms: quantile_ms(0.99),
        variants: variants
            .map(|PerVariant { batches, tasks }| (tasks, of(tasks as f64, batches as f64))),
    }
}

/// A share; of nothing, there is none.
fn of(part: f64, whole: f64) -> Option<f64> {
    (whole > 0.0).then(|| part / whole)
}

pub(super) fn seconds(time: Nanos) -> f64 {
    time.0 as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use baton_core::GpuId;

    use super::*;
    use crate::latencies::class_of;
    use crate::task_board::TaskBoard;

    const SPAN: Nanos = Nanos::from_millis(8_000);

    fn moment(requests: u64, ended: u64, change: impl FnOnce(&mut ModelTotals)) -> ModelMoment {
        let mut totals = ModelTotals::default();
        change(&mut totals);
        ModelMoment { requests, refused: requests / 4, ended, queue_full: ended / 5, totals }
    }

    #[test]
    fn figures_are_of_what_has_grown() {
        let before = moment(1_000, 500, |t| (t.tasks, t.batches, t.late) = (400, 200, 100));
        let now = moment(1_080, 510, |t| {
            (t.tasks, t.batches, t.late, t.failed) = (460, 215, 104, 1);
            (t.excused, t.unserved) = (4, 8);
            t.latencies[class_of(3_000_000)] = 99;
            t.variants[2] = PerVariant { batches: 5, tasks: 40 };
            t.latencies[class_of(700_000_000)] = 1;
        });
        let figures = figures(&before, now, SPAN);
        assert_eq!(figures.rate_rps, 11.0, "those that nothing served came too");
        assert_eq!(figures.refused_rps, 2.5);
        // 10 ended of which 4 were excused, 8 unserved, 4 late, 1 failed; of 14 and 60 executed.
        assert_eq!(figures.bad_rate, Some(19.0 / 74.0));
        assert_eq!(figures.mean_batch, Some(4.0));
        assert_eq!(figures.variants[2], (40, Some(8.0)));
        assert_eq!(figures.variants[3], (0, None));
        let (p50, p99) = (figures.p50_ms.expect("100"), figures.p99_ms.expect("100"));
        assert!((2.8..3.2).contains(&p50) && (2.8..3.3).contains(&p99), "{p50} {p99}");
    }

    #[test]
    fn without_tasks_there_are_no_shares() {
        let idle = figures(&ModelMoment::default(), ModelMoment::default(), SPAN);
        assert_eq!(idle, Figures::default());
        let at_once = figures(&ModelMoment::default(), moment(5, 0, |_| ()), Nanos::ZERO);
        assert_eq!(at_once.rate_rps, 0.0);
    }

    /// ModelThreads report behind each look: what a look reads is as old as the look before.
    #[test]
    fn a_rate_is_of_the_time_between_two_reports() {
        let (load, tasks) = (LoadBoard::new(1), TaskBoards::new(vec![Arc::new(TaskBoard::new(1))]));
        let second = |second: u64| Nanos::from_millis(1_000 * second);
        let mut window = Window::begin(Nanos::ZERO);
        for now in 1..=10 {
            window.look(second(now), [ModelId(0)].into_iter(), (&load, &tasks));
            load.write(ModelId(0), ModelLoad { requests: 10 * now, ..ModelLoad::default() });
        }
        assert_eq!(window.figures(ModelId(0), (&load, &tasks)).rate_rps, 10.0);
    }

    /// What a slot has done is read at the look itself, whenever the ModelThreads last reported.
    #[test]
    fn a_window_begins_with_a_look_and_not_with_the_report_before_it() {
        let boards = (&LoadBoard::new(1), &TaskBoards::new(vec![Arc::new(TaskBoard::new(1))]));
        let mut window = Window::begin(Nanos::ZERO);
        for now in 1..=10 {
            window.look(Nanos::from_millis(1_000 * now), std::iter::empty(), boards);
        }
        assert_eq!(window.span_s(Nanos::from_millis(10_000)), 5.0);
    }

    /// One backend leaves between two looks that are remembered, and another gets its slot's number.
    #[test]
    fn a_slot_shows_nothing_of_the_one_that_had_its_number() {
        let board = Arc::new(TaskBoard::new(1));
        let boards = (&LoadBoard::new(1), &TaskBoards::new(vec![Arc::clone(&board)]));
        let (mut window, slot) = (Window::begin(Nanos::ZERO), Gpu { id: GpuId(3), life: 0 });
        let second = |second: u64| Nanos::from_millis(1_000 * second);
        let joined_at = second(6);
        for now in 1..=10 {
            window.look(second(now), std::iter::empty(), boards);
            if second(now) == joined_at {
                window.forget_slots(&[slot], boards.1);
            }
            board.busy(slot, Nanos::from_millis(if now < 6 { 900 } else { 250 }));
            board.loaded(slot.id, Nanos::from_millis(if now < 6 { 800 } else { 500 }));
        }
        let shares = window.shares(second(11), 3, joined_at, boards.1);
        assert_eq!(shares, Shares { busy: 0.25, loader_busy: 0.5 });
    }
}
