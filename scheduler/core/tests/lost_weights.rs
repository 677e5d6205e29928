//! What a candidate says of the tasks that were lost, by whether a slot had their weights.
mod world;

use baton_core::{
    Batch, Candidate, GpuUpdate, ModelId, ModelSink, ModelState, Nanos, Policy, Readiness, Request,
    TaskId, Unserved,
};
use world::{linear, ms};

const SLO_MS: f64 = 30.0;

#[derive(Default)]
struct Said {
    bad_rate: u32,
    ended: u32,
}

impl ModelSink for Said {
    fn candidate(&mut self, _: ModelId, candidate: Option<Candidate>, _: u32) {
        self.bad_rate = candidate.map_or(self.bad_rate, |candidate| candidate.bad_rate);
    }

    fn dispatch(&mut self, _: &Batch<'_>) {}

    fn gpu(&mut self, _: GpuUpdate) {}

    fn end_task(&mut self, _: TaskId, _: Unserved) {
        self.ended += 1;
    }
}

/// A model that never gets a slot.
struct Stage {
    model: ModelState,
    said: Said,
    now: Nanos,
    asked: u64,
}

impl Stage {
    fn new() -> Self {
        let model = ModelState::new(linear(Policy::Baton, 1.0, 4.0, SLO_MS));
        Self { model, said: Said::default(), now: ms(1_000.0), asked: 0 }
    }

    fn hears(&mut self, readiness: Readiness) {
        self.model.on_readiness(self.now, readiness, &mut self.said);
    }

    /// Nothing comes for so long, and then a task.
    fn rest(&mut self, span: Nanos) {
        self.now = self.now + span;
        self.model.on_timer(self.now, &mut self.said);
        let request = Request::new(TaskId(self.asked), self.now + ms(SLO_MS));
        self.model.on_request(self.now, request, &mut self.said);
        self.asked += 1;
    }

    /// Tasks come for a second, all but the last of which are given up.
    fn lose(&mut self) {
        let before = self.said.ended;
        for _ in 0..100 {
            self.now = self.now + ms(10.0);
            self.model.on_timer(self.now, &mut self.said);
            let request = Request::new(TaskId(self.asked), self.now + ms(SLO_MS));
            self.model.on_request(self.now, request, &mut self.said);
            self.asked += 1;
        }
        assert!(self.said.ended - before > 90, "{}", self.said.ended);
    }
}

#[test]
fn tasks_lost_for_want_of_weights_count_while_they_are_missing_and_no_longer() {
    let mut stage = Stage::new();
    stage.hears(Readiness::Cold { load: ms(10.0) });
    stage.lose();
    let of_a_second = stage.said.bad_rate;
    assert!(of_a_second > 1 << 14, "they say what a LOAD would save: {of_a_second}");
    stage.hears(Readiness::Loading { until: stage.now + ms(10.0) });
    assert_eq!(stage.said.bad_rate, of_a_second, "no slot has them yet");
    stage.hears(Readiness::Resident);
    assert_eq!(stage.said.bad_rate, 0, "a place before others would have saved none");

    stage.lose();
    let for_want_of_slots = stage.said.bad_rate;
    assert!(for_want_of_slots > 1 << 14, "{for_want_of_slots}");
    stage.hears(Readiness::Cold { load: ms(10.0) });
    assert!(stage.said.bad_rate > for_want_of_slots, "all count again");
    stage.rest(ms(6_000.0));
    assert_eq!(
        stage.said.bad_rate, 0,
        "what was lost longer ago does not, where weights come and go"
    );
}

#[test]
fn where_weights_stay_rare_tasks_that_were_lost_count_for_a_minute() {
    let mut stage = Stage::new();
    stage.lose();
    let after_a_second = stage.said.bad_rate;
    stage.rest(ms(6_000.0));
    assert!(
        stage.said.bad_rate > after_a_second / 4,
        "{} of {after_a_second}",
        stage.said.bad_rate
    );
}
