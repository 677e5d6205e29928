//! A thread that hangs in a load.

use baton_topo::{BatchLayout, Clock, EngineSpec, OnnxPlace, Sha256, park_thread};
use baton_types::Nanos;

use super::*;
use crate::execute::{BatchBack, BatchJob, Blocking, BlockingEngine, Emulated, Inputs, Outputs};
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
    LoadOrder { model, source, measure: false, keeps_files: false }
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
    let memory = (budget.clone(), HostStore::default());
    let (mut aside, _errands) =
        Aside::start("loads".into(), make, memory, owner.clone()).expect("a thread");
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
    let measured = |is_measured, is_wanted| {
        let spec = emulated("model", 0, 4, 2);
        let (signature, place) = (spec.signature(), OnnxPlace::CPU);
        let (file, sha256, layout) = ("model.onnx".into(), None, BatchLayout::default());
        let onnx = EngineSpec::Onnx { file, sha256, signature, layout, is_measured, place };
        let (_open, gate) = bounded(1);
        let mut engine = Blocking::new(Stuck { gate, models: Emulated::new(clock, 1) }, clock);
        let spec = ModelSpec { engine: onnx, ..spec };
        load_measured(&mut engine, &Budget::new(None), &spec, is_wanted)
            .map(|(_, profiles)| profiles.is_some())
    };
    assert_eq!(
        [(true, true), (true, false), (false, true)].map(|(is_measured, is_wanted)| measured(
            is_measured,
            is_wanted
        )
        .expect("it loads")),
        [true, false, false]
    );
}

/// A model that was only looked at goes; what a LOAD has brought meanwhile waits for its executor.
#[test]
fn one_model_is_given_up_and_the_others_stay() {
    let (clock, owner) = (Clock::start(), Waker::for_current_thread());
    let make = move || Blocking::new(Emulated::new(clock, 1), clock);
    let memory = (Budget::new(None), HostStore::default());
    let (mut aside, _errands) =
        Aside::start("loads".into(), make, memory, owner.clone()).expect("a thread");
    for model in [OTHER, STUCK] {
        aside.load(order(model));
        assert_eq!(loaded(&mut aside, &owner).spec.id, model);
    }
    aside.discard(STUCK);
    assert!(aside.take(STUCK).is_none() && aside.take(OTHER).is_some());
}

/// A model from a file, of an engine that needs none of it.
fn from_file(file: &Path, sha256: Option<Sha256>) -> ModelSpec {
    let spec = emulated("model", OTHER.0, 4, 2);
    let (file, signature, place) = (file.into(), spec.signature(), OnnxPlace::CPU);
    let engine = EngineSpec::Onnx {
        file,
        sha256,
        signature,
        layout: BatchLayout::default(),
        is_measured: false,
        place,
    };
    ModelSpec { engine, ..spec }
}

/// What loading such a model comes to, and whether its file is in memory then.
fn kept(model: ModelId, spec: ModelSpec, keeps_files: bool) -> (Result<(), EngineError>, bool) {
    let (clock, (_, gate)) = (Clock::start(), bounded(1));
    let mut engine = Blocking::new(Stuck { gate, models: Emulated::new(clock, 1) }, clock);
    let store = HostStore::fill(std::iter::empty(), 1 << 20);
    let file = spec.files()[0].to_owned();
    let source = ModelSource::Spec(Box::new(spec));
    let order = LoadOrder { model, source, measure: false, keeps_files };
    let budget = Budget::new((model == STUCK).then_some(1));
    let outcome = load(&order, &mut engine, &budget, &store).map(drop);
    (outcome, store.get(&file).is_some())
}

#[test]
fn files_of_a_model_that_is_added_stay_in_memory_if_they_are_right_and_the_model_loads() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/digits/digits.onnx");
    let (right, wrong) = (Sha256::of_file(&file).expect("a file"), Sha256::of(b"another"));
    for sha256 in [None, Some(right)] {
        assert_eq!(kept(OTHER, from_file(&file, sha256), true), (Ok(()), true));
    }
    assert_eq!(kept(OTHER, from_file(&file, None), false), (Ok(()), false), "a LOAD keeps nothing");
    let (outcome, is_kept) = kept(OTHER, from_file(&file, Some(wrong)), true);
    let Err(EngineError::Different { model, expected, found, .. }) = outcome else {
        panic!("{outcome:?}")
    };
    assert_eq!((model.as_str(), expected, found, is_kept), ("model", wrong, right, false));
    let (outcome, _) = kept(OTHER, from_file(Path::new("/nowhere/model.onnx"), None), true);
    assert!(matches!(outcome, Err(EngineError::Unreadable { .. })), "{outcome:?}");
    let (outcome, is_kept) = kept(STUCK, from_file(&file, None), true);
    assert!(matches!(outcome, Err(EngineError::Memory { .. })), "{outcome:?}");
    assert!(!is_kept, "the model was not added");
}

/// An engine whose models turn out to take more than they said.
#[derive(Default)]
struct Larger {
    loaded: Vec<ModelId>,
}

impl Engine for Larger {
    fn model_bytes(&mut self, _: &ModelSpec) -> u64 {
        10
    }

    fn load(&mut self, model: &ModelSpec) -> Result<(), EngineError> {
        self.loaded.push(model.id);
        Ok(())
    }

    fn taken_bytes(&self, model: ModelId) -> Option<u64> {
        assert!(self.loaded.contains(&model), "measured once it is loaded");
        Some(60)
    }

    fn unload(&mut self, model: ModelId) {
        self.loaded.retain(|&loaded| loaded != model);
    }

    fn take(&mut self, _: ModelId) -> Option<LooseModel> {
        None
    }

    fn put(&mut self, _: ModelId, _: LooseModel) {}

    fn prepare(&mut self, _: BatchJob) {}

    fn submit(&mut self, _: usize) {}

    fn withdraw(&mut self, _: usize) {}

    fn poll(&mut self) -> Option<BatchBack> {
        None
    }

    fn is_busy(&self) -> bool {
        false
    }
}

#[test]
fn a_model_that_turns_out_too_large_is_given_up_again() {
    let (budget, mut engine) = (Budget::new(Some(100)), Larger::default());
    let [first, second] = [emulated("first", 0, 4, 2), emulated("second", 1, 4, 2)];
    let share = load_within(&mut engine, &budget, &first).unwrap();
    assert_eq!(budget.taken(), 60);
    let refused = load_within(&mut engine, &budget, &second).unwrap_err();
    let (needs_bytes, free_bytes) = (60, 40);
    assert_eq!(refused, EngineError::Memory { model: "second".into(), needs_bytes, free_bytes });
    assert_eq!((engine.loaded.as_slice(), budget.taken()), (&[first.id][..], 60));
    drop(share);
    assert!(load_within(&mut engine, &budget, &second).is_ok());
}

#[test]
fn what_is_dropped_leaves_room_for_loads() {
    let (errands, queue) = bounded(ERRANDS_MAX);
    (0..ERRANDS_MAX).for_each(|_| drop_aside(&errands, Errand::DropFiles(Vec::new())));
    assert_eq!(queue.len(), ERRANDS_MAX / 2, "the others were dropped here");
}
