//! The LOADs that were ordered lately: why, and what became of each. The last ones, and how many there were.

use std::collections::VecDeque;
use std::sync::Arc;

use baton_core::Nanos;
use baton_metrics::{Histogram, Value};
use baton_rdma::Transport;
use baton_rdma::status::{LoadEntry, rounded, shortened};

use super::window::seconds;
use crate::cache::news::{LoadEnd, LoadNews, LoadOrdered, reason_name};
use crate::control::ControlThread;
use crate::limits::EVENTS_MAX;

#[derive(Debug)]
struct Load {
    order: LoadOrdered,
    model: String,
    /// When it ended, and how.
    end: Option<(Nanos, LoadEnd)>,
}

/// See the module documentation.
#[derive(Default, Debug)]
pub(super) struct LoadLog {
    last: VecDeque<Load>,
    total: u64,
    errors: LoadErrors,
}

/// By how much the weights were there sooner or later than planned, s.
#[derive(Debug)]
struct LoadErrors {
    early: Histogram<ERRORS>,
    late: Histogram<ERRORS>,
}

const ERRORS: usize = 13;
/// From the delay of a message to the longest objective that is usual, s.
const ERROR_BOUNDS_S: [f64; ERRORS] =
    [5e-5, 1e-4, 2e-4, 5e-4, 1e-3, 2e-3, 5e-3, 0.01, 0.02, 0.05, 0.1, 0.5, 2.0];

impl Default for LoadErrors {
    fn default() -> Self {
        Self { early: Histogram::new(&ERROR_BOUNDS_S), late: Histogram::new(&ERROR_BOUNDS_S) }
    }
}

impl LoadErrors {
    fn count(&self, planned: Nanos, at: Nanos) {
        let (side, off) =
            if at > planned { (&self.late, at - planned) } else { (&self.early, planned - at) };
        side.record(seconds(off));
    }
}

impl LoadLog {
    /// By how much the weights were there sooner or later than planned.
    pub(super) fn errors(&self) -> [(&'static str, Value); 2] {
        [("early", self.errors.early.value()), ("late", self.errors.late.value())]
    }

    /// Forgets the oldest if there is no more room. `name_of` says what the model is called.
    fn note(&mut self, news: LoadNews, name_of: impl FnOnce(LoadOrdered) -> String) {
        match news {
            LoadNews::Ordered(order) => {
                if self.last.len() == EVENTS_MAX {
                    self.last.pop_front();
                }
                self.last.push_back(Load { order, model: name_of(order), end: None });
                self.total += 1;
            }
            LoadNews::Ended { name, at, end } => {
                let open = |load: &&mut Load| load.order.name == name && load.end.is_none();
                if let Some(load) = self.last.iter_mut().rev().find(open) {
                    load.end = Some((at, end));
                    if matches!(end, LoadEnd::Loaded { .. }) {
                        self.errors.count(load.order.until, at);
                    }
                }
            }
        }
    }

    /// Those that are remembered, oldest first, each with its number since the start.
    pub(super) fn records(&self, now: Nanos) -> impl Iterator<Item = (u64, LoadEntry)> {
        let first = self.total - self.last.len() as u64;
        (first..).zip(self.last.iter().map(move |load| load.record(now)))
    }
}

impl Load {
    fn record(&self, now: Nanos) -> LoadEntry {
        let Self { order, model, end } = self;
        let ms = |span: Nanos| rounded(span.as_millis_f64());
        LoadEntry {
            age_s: rounded(seconds(now - order.at)),
            model: model.clone(),
            slot: order.slot.0,
            reason: reason_name(order.reason).to_owned(),
            victims: order.victims,
            planned_ms: ms(order.until - order.at),
            ended_ms: end.map(|(at, _)| ms(at - order.at)),
            copied_ms: end.and_then(|(_, end)| match end {
                LoadEnd::Loaded { took } => Some(ms(took)),
                _ => None,
            }),
            outcome: end.map(|(_, end)| end.as_str().to_owned()),
        }
    }
}

impl<T: Transport> ControlThread<T> {
    /// Remembers what the RankThread has to say of LOADs. The ControlThread does so in any pass that it makes, and makes none for it.
    pub(in crate::control) fn take_load_news(&mut self) {
        let Some(levels) = self.parts.levels.as_ref().map(Arc::clone) else { return };
        let catalog = &self.parts.catalog;
        while let Some(news) = levels.next_news() {
            let name = |order: LoadOrdered| catalog.entry(order.model).map(|e| &e.spec.name);
            self.status
                .loads
                .note(news, |order| name(order).map_or_else(String::new, |n| shortened(n)));
        }
    }
}

#[cfg(test)]
mod tests {
    use baton_core::{GpuId, LoadReason, ModelId};

    use super::*;
    use crate::cache::news::Failure;

    const MS: Nanos = Nanos::from_millis(1);

    fn ordered(name: u64, at: Nanos) -> LoadNews {
        let (model, slot, reason) = (ModelId(2), GpuId(5), LoadReason::Waiting);
        let until = at + MS.times(8);
        LoadNews::Ordered(LoadOrdered { name, model, slot, reason, at, until, victims: 1 })
    }

    fn told(log: &LoadLog) -> Vec<Option<String>> {
        log.records(Nanos::ZERO).map(|(_, load)| load.outcome).collect()
    }

    #[test]
    fn a_load_is_remembered_with_its_reason_and_its_end() {
        let mut log = LoadLog::default();
        log.note(ordered(7, MS), |order| format!("m{}", order.model.0));
        let end = LoadEnd::Loaded { took: MS.times(9) };
        let ended = |end| LoadNews::Ended { name: 7, at: MS.times(11), end };
        log.note(ended(end), |_| unreachable!("it has begun already"));
        let (number, load) = log.records(MS.times(2001)).next().expect("there is one");
        assert_eq!((number, load.model.as_str(), load.slot, load.victims), (0, "m2", 5, 1));
        assert_eq!((load.reason.as_str(), load.age_s, load.planned_ms), ("waiting", 2.0, 8.0));
        assert_eq!((load.ended_ms, load.copied_ms), (Some(10.0), Some(9.0)));
        assert_eq!(load.outcome.as_deref(), Some("loaded"));
        // The name comes again.
        log.note(ordered(7, MS.times(20)), |_| String::new());
        assert_eq!(told(&log), [Some("loaded".into()), None]);
        log.note(ended(LoadEnd::Failed(Failure::Different)), |_| unreachable!("as above"));
        assert_eq!(told(&log), [Some("loaded".into()), Some("different".into())]);
        log.note(ended(LoadEnd::Lost), |_| unreachable!("as above"));
        assert_eq!(told(&log), [Some("loaded".into()), Some("different".into())], "both ended");
    }

    #[test]
    fn the_error_of_a_load_that_ends_well_is_counted_on_its_side() {
        let mut log = LoadLog::default();
        let loaded = LoadEnd::Loaded { took: MS };
        // Planned for 8 ms after the order.
        for (took, end) in [(6, loaded), (8, loaded), (11, loaded), (30, LoadEnd::Late)] {
            log.note(ordered(7, MS), |_| String::new());
            log.note(LoadNews::Ended { name: 7, at: MS.times(1 + took), end }, |_| String::new());
        }
        let [early, late] = log.errors().map(|(_, value)| match value {
            Value::Sizes { buckets, sum } => (buckets.iter().map(|b| b.1).sum::<u64>(), sum),
            other => panic!("{other:?}"),
        });
        assert_eq!((early, late), ((2, 0.002), (1, 0.003)));
    }

    #[test]
    fn the_last_ones_stay_and_the_end_of_one_that_is_forgotten_changes_nothing() {
        let mut log = LoadLog::default();
        for name in 0..EVENTS_MAX as u64 + 2 {
            log.note(ordered(name, MS), |_| String::new());
        }
        assert_eq!(log.records(MS).next().expect("the oldest").0, 2);
        log.note(LoadNews::Ended { name: 1, at: MS, end: LoadEnd::Lost }, |_| String::new());
        assert_eq!(told(&log), vec![None; EVENTS_MAX]);
    }
}
