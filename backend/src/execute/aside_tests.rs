//! A thread that hangs in a load.

use baton_topo::{Clock, EngineSpec, OnnxPlace, park_thread};
use baton_types::Nanos;

use super::*;
use crate::execute::{Blocking, BlockingEngine, Emulated, Inputs, Outputs};
use crate::test_models::emulated;

const STUCK: ModelId = ModelId(9);
const OTHER: ModelId = ModelId(7);
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(10);

/// Loads one model only once its gate opens.
struct Stuck {
    gate: Receiver<()>,
    models: Emulated,
}

impl BlockingEngine for Stuck {
    fn model_bytes(&mut self, _: &ModelSpec) -> u64 {
        100
    }

    fn load(&mut self, model: &ModelSpec) -> Result<(), EngineError> {
        if model.id == STUCK {
            self.gate.recv_timeout(PATIENCE).expect("the test opens it");
        }
        let engine = EngineSpec::Emulated { jitter: 0.0 };
        self.models.load(&ModelSpec { engine, ..model.clone() })
    }

    fn take(&mut self, model: ModelId) -> Option<LooseModel> {
        self.models.take(model)
    }

    fn put(&mut self, id: ModelId, model: LooseModel) {
        self.models.put(id, model);
    }

    fn execute(
        &mut self,
        model: ModelId,
        variant: u16,
        inputs: Inputs<'_>,
        outputs: &mut Outputs,
    ) -> Result<(), EngineError> {
        self.models.execute(model, variant, inputs, outputs)
    }
}

fn order(model: ModelId) -> LoadOrder {
    let source = ModelSource::Spec(Box::new(emulated("model", 0, 4, 2)));
    LoadOrder { model, source, measure: false }
}

fn loaded(aside: &mut Aside, owner: &Waker) -> Loaded {
    loop {
        owner.prepare_sleep();
        match aside.poll() {
            Some(outcome) => break outcome.expect("it loads"),
            None => park_thread(Some(Nanos::from_millis(100))),
        }
    }
}

#[test]
fn another_thread_takes_its_place_and_what_it_loads_at_last_is_dropped() {
    let ((open, gate), clock) = (bounded(1), Clock::start());
    let make =
        move || Blocking::new(Stuck { gate: gate.clone(), models: Emulated::new(clock, 1) }, clock);
    let (budget, owner) = (Budget::new(None), Waker::for_current_thread());
    let (mut aside, _errands) =
        Aside::start("loads".into(), make, budget.clone(), owner.clone()).expect("a thread");
    aside.load(order(STUCK));
    assert!(aside.poll().is_none());
    aside.replace().expect("another thread");
    aside.load(order(OTHER));
    assert_eq!(loaded(&mut aside, &owner).spec.id, OTHER);
    assert!(aside.take(OTHER).is_some() && aside.take(STUCK).is_none());
    open.send(()).expect("it still waits");
    while budget.taken() > 0 {
        assert!(clock.now() < Nanos::from_millis(10_000), "what no peer waits for is dropped");
        park_thread(Some(Nanos::from_millis(1)));
    }
    assert!(aside.poll().is_none(), "the first one is not heard any more");
}

/// What `profile` says was measured elsewhere, thoroughly; only a model without it is measured here.
#[test]
fn a_model_with_a_profile_is_not_measured() {
    let clock = Clock::start();
    let measured = |is_measured| {
        let spec = emulated("model", 0, 4, 2);
        let (signature, place) = (spec.signature(), OnnxPlace::CPU);
        let file = "model.onnx".into();
        let onnx = EngineSpec::Onnx { file, signature, fixed_batch: None, is_measured, place };
        let (_open, gate) = bounded(1);
        let mut engine = Blocking::new(Stuck { gate, models: Emulated::new(clock, 1) }, clock);
        let spec = ModelSpec { engine: onnx, ..spec };
        load_measured(&mut engine, &Budget::new(None), &spec, true)
            .map(|(_, profiles)| profiles.is_some())
    };
    assert_eq!(
        [true, false].map(|is_measured| measured(is_measured).expect("it loads")),
        [true, false]
    );
}

/// A model that was only looked at goes; what a LOAD has brought meanwhile waits for its executor.
#[test]
fn one_model_is_given_up_and_the_others_stay() {
    let (clock, owner) = (Clock::start(), Waker::for_current_thread());
    let make = move || Blocking::new(Emulated::new(clock, 1), clock);
    let (mut aside, _errands) =
        Aside::start("loads".into(), make, Budget::new(None), owner.clone()).expect("a thread");
    for model in [OTHER, STUCK] {
        aside.load(order(model));
        assert_eq!(loaded(&mut aside, &owner).spec.id, model);
    }
    aside.discard(STUCK);
    assert!(aside.take(STUCK).is_none() && aside.take(OTHER).is_some());
}
