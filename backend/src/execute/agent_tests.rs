//! What runs on an executor's thread, polled by hand.

use super::*;
use crate::execute::{Blocking, Emulated};
use crate::test_models::emulated;

/// An agent that is to load this, and what it reports.
fn agent(
    spec: ModelSpec,
) -> (ExecutorAgent<Blocking<Emulated>>, Receiver<Result<Started, EngineError>>) {
    let clock = Clock::start();
    let (report, started) = bounded(1);
    let (store, trials, measure) = (HostStore::default(), Vec::new(), false);
    let agent = ExecutorAgent {
        engine: Blocking::new(Emulated::new(clock, 1), clock),
        budget: Budget::new(None),
        shares: BTreeMap::new(),
        loading: Some(Loading { models: vec![spec], measure, store, trials, report }),
        orders: bounded(1).1,
        events: bounded(1).0,
        errands: bounded(1).0,
        waker: Waker::for_current_thread(),
        owner: Waker::for_current_thread(),
        closed: false,
    };
    (agent, started)
}

fn sound() -> ModelSpec {
    emulated("toy", 0, 4, 2)
}

#[test]
fn a_thread_that_has_loaded_its_models_goes_on() {
    let (mut agent, started) = agent(sound());
    assert_eq!(agent.poll(Nanos::ZERO), 1);
    assert!(started.try_recv().unwrap().is_ok());
    assert!(!agent.finished());
}

#[test]
fn a_thread_that_cannot_load_its_models_ends() {
    let (mut agent, started) = agent(ModelSpec { output_bytes: 40, ..sound() });
    assert_eq!(agent.poll(Nanos::ZERO), 1);
    assert!(started.try_recv().unwrap().is_err());
    assert!(agent.finished());
}

#[test]
fn a_thread_that_no_other_waits_for_ends() {
    let (mut agent, _) = agent(sound());
    assert_eq!(agent.poll(Nanos::ZERO), 1);
    assert!(agent.finished());
}

#[test]
fn a_thread_without_work_gives_its_core_away() {
    let (mut agent, _started) = agent(sound());
    let clock = Clock::start();
    let begin = clock.now();
    agent.wait(Some(Nanos::from_millis(5)));
    assert!(clock.now() - begin >= Nanos::from_millis(5));
}
