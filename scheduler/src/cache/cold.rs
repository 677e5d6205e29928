//! Which tasks came while no slot held the weights of their model.

use baton_core::{ModelId, Nanos, Request};

/// For each model, since when no slot held it, the last time that this began, and since when one does. Empty without caches.
#[derive(Debug)]
pub(crate) struct ColdSpans(Vec<(Nanos, Nanos)>);

impl ColdSpans {
    /// A slot has held it all the time.
    const NEVER: (Nanos, Nanos) = (Nanos::MAX, Nanos::ZERO);

    /// For this number of models.
    pub(crate) fn new(models: usize) -> Self {
        Self(vec![Self::NEVER; models])
    }

    /// No slot holds the model any more.
    pub(crate) fn begins(&mut self, model: ModelId, now: Nanos) {
        self.0[model.0 as usize].0 = now;
    }

    /// A slot holds it.
    pub(crate) fn ends(&mut self, model: ModelId, now: Nanos) {
        self.0[model.0 as usize].1 = now;
    }

    /// The model comes to this thread, and begins anew.
    pub(crate) fn forget(&mut self, model: ModelId) {
        if let Some(span) = self.0.get_mut(model.0 as usize) {
            *span = Self::NEVER;
        }
    }

    /// Whether this task of the model was cold. A grant may be here before the news that a slot holds the model; in a pass tasks
    /// come before news.
    #[inline]
    pub(crate) fn has(&self, model: ModelId, task: &Request) -> bool {
        self.0.get(model.0 as usize).is_some_and(|&(since, until)| {
            since < task.arrived && (task.arrived <= until || until < since)
        })
    }
}

#[cfg(test)]
mod tests {
    use baton_core::{FrontendId, TaskId};

    use super::*;

    const MODEL: ModelId = ModelId(1);

    fn has(spans: &ColdSpans, model: ModelId, arrived: u64) -> bool {
        let request = Request::new(TaskId::new(FrontendId(1), 2, 3), Nanos(1_000));
        spans.has(model, &Request { arrived: Nanos(arrived), ..request })
    }

    #[test]
    fn a_task_is_cold_if_no_slot_held_its_model_when_it_came() {
        let mut spans = ColdSpans::new(2);
        assert!(!has(&spans, MODEL, 5), "always held");
        spans.begins(MODEL, Nanos(10));
        assert_eq!([9, 10, 11].map(|at| has(&spans, MODEL, at)), [false, false, true]);
        spans.ends(MODEL, Nanos(20));
        assert_eq!([10, 11, 20, 21].map(|at| has(&spans, MODEL, at)), [false, true, true, false]);
        spans.begins(MODEL, Nanos(30));
        assert_eq!([25, 31].map(|at| has(&spans, MODEL, at)), [false, true]);
        assert!(!has(&spans, ModelId(0), 15), "another model");
    }

    #[test]
    fn a_model_that_comes_to_a_thread_begins_anew_and_without_caches_none_is_cold() {
        let mut spans = ColdSpans::new(2);
        spans.begins(MODEL, Nanos(10));
        spans.forget(MODEL);
        assert!(!has(&spans, MODEL, 15));
        let mut none = ColdSpans::new(0);
        none.forget(MODEL);
        assert!(!has(&none, MODEL, 15));
    }
}
