//! Which tasks came while no slot held the weights of their model.

use baton_core::{ModelId, Nanos, Request};

/// The last time that no slot held a model: since when, and since when one does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ColdSpan(Nanos, Nanos);

impl ColdSpan {
    /// A slot has held it all the time.
    pub(crate) const NEVER: Self = Self(Nanos::MAX, Nanos::ZERO);
}

/// That of each model. Empty without caches.
#[derive(Debug)]
pub(crate) struct ColdSpans(Vec<ColdSpan>);

impl ColdSpans {
    /// For this number of models.
    pub(crate) fn new(models: usize) -> Self {
        Self(vec![ColdSpan::NEVER; models])
    }

    /// No slot holds the model any more.
    pub(crate) fn begins(&mut self, model: ModelId, now: Nanos) {
        self.0[model.0 as usize].0 = now;
    }

    /// A slot holds it.
    pub(crate) fn ends(&mut self, model: ModelId, now: Nanos) {
        self.0[model.0 as usize].1 = now;
    }

    /// Of a model that leaves this thread: its tasks go along.
    pub(crate) fn of(&self, model: ModelId) -> ColdSpan {
        self.0.get(model.0 as usize).copied().unwrap_or(ColdSpan::NEVER)
    }

    /// The model comes to this thread, whatever was here of an earlier time.
    pub(crate) fn adopt(&mut self, model: ModelId, brought: ColdSpan) {
        if let Some(span) = self.0.get_mut(model.0 as usize) {
            *span = brought;
        }
    }

    /// Whether this task of the model was cold. A grant may be here before the news that a slot holds the model; in a pass tasks
    /// come before news.
    #[inline]
    pub(crate) fn has(&self, model: ModelId, task: &Request) -> bool {
        self.0.get(model.0 as usize).is_some_and(|&ColdSpan(since, until)| {
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
    fn a_model_that_moves_takes_its_span_along_and_without_caches_none_is_cold() {
        let (mut from, mut to) = (ColdSpans::new(2), ColdSpans::new(2));
        from.begins(MODEL, Nanos(10));
        to.begins(MODEL, Nanos(30));
        to.adopt(MODEL, from.of(MODEL));
        to.ends(MODEL, Nanos(20));
        assert_eq!([15, 31].map(|at| has(&to, MODEL, at)), [true, false]);
        to.adopt(MODEL, ColdSpan::NEVER);
        assert!(!has(&to, MODEL, 15), "another model of that number");
        let mut none = ColdSpans::new(0);
        none.adopt(MODEL, from.of(MODEL));
        assert!(!has(&none, MODEL, 15) && none.of(MODEL) == ColdSpan::NEVER);
    }
}
