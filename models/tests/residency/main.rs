//! Residency: LOADs of two models and batches of one at a real backend whose slot has not room for both, sent by a real
//! LoadState, while the executor does what the model says.
//!
//! A backend cannot be copied, so a state is the actions that led to it, and what can be seen after them
//! (`docs/models.md`).

#[path = "../support/panics.rs"]
mod panics;
#[path = "../support/mod.rs"]
mod support;

#[path = "../../../backend/tests/serving/hand.rs"]
#[allow(dead_code, clippy::unwrap_used, reason = "shared with the tests of the backend")]
mod hand;
#[path = "../../../backend/tests/serving/party.rs"]
#[allow(dead_code, clippy::unwrap_used, reason = "shared with the tests of the backend")]
mod party;
#[path = "../../../backend/tests/serving/world.rs"]
#[allow(dead_code, clippy::unwrap_used, reason = "shared with the tests of the backend")]
mod world;

mod replay;

use std::hash::{Hash, Hasher};
use std::panic::catch_unwind;

use stateright::{Model, Property};

use panics::said;
use replay::Seen;
use support::{Run, is_wide};

/// How far the model goes.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// LOADs and batches that are sent.
    sent: u8,
    steps: usize,
    restarts: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    /// LoadState is to load this model, if it may.
    Load(usize),
    /// The scheduler sends a batch of one task of the first model, where the matcher would grant the slot.
    Infer,
    /// The executor has executed the batch.
    Finish,
    /// The model is copied.
    Copy,
    /// It could not be copied.
    Fail,
    /// The executor has taken a model in, or given one up.
    Settle,
    /// Every window closes.
    Late,
    /// The scheduler dies, and the next one comes.
    Restart,
    /// The backend joins it.
    Join,
}

/// See the module documentation.
#[derive(Clone, Debug)]
struct State {
    done: Vec<Action>,
    seen: Seen,
    broken: Option<String>,
}

impl PartialEq for State {
    fn eq(&self, other: &Self) -> bool {
        self.seen == other.seen && self.broken == other.broken
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.seen, &self.broken).hash(state);
    }
}

impl State {
    /// A state machine that panics has broken a rule of its own.
    fn after(done: Vec<Action>) -> Self {
        match catch_unwind(|| replay::after(&done)) {
            Ok(seen) => Self { done, seen, broken: None },
            Err(panic) => Self { done, seen: Seen::default(), broken: Some(said(&*panic)) },
        }
    }
}

impl Model for Bounds {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::after(Vec::new())]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let seen = &state.seen;
        if state.broken.is_some() || state.done.len() == self.steps {
            return;
        }
        if seen.is_ready && seen.sent < self.sent {
            actions.extend([Action::Load(0), Action::Load(1)]);
            actions.extend(seen.may_run[0].then_some(Action::Infer));
        }
        if seen.executes {
            actions.push(Action::Finish);
        }
        if seen.copies.is_some() {
            actions.extend([Action::Copy, Action::Fail]);
        }
        if seen.performs.is_some() {
            actions.push(Action::Settle);
        }
        if (!seen.loads.is_empty() || seen.batches > 0) && !seen.is_late {
            actions.push(Action::Late);
        }
        if self.restarts && seen.is_ready && seen.lives == 1 {
            actions.push(Action::Restart);
        }
        if seen.asks_to_join {
            actions.push(Action::Join);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut done = state.done.clone();
        done.push(action);
        Some(State::after(done))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("no state machine breaks a rule of its own", |_, it: &State| {
                it.broken.is_none()
            }),
            Property::always("a batch executes only where its model is", |_, it: &State| {
                !it.seen.executes || it.seen.is_held[0]
            }),
            Property::always("each LOAD and batch has one report, in its life", |_, it: &State| {
                !it.seen.has_stray_report
            }),
            Property::always("what is not reported is still to be done", |_, it: &State| {
                let seen = &it.seen;
                let busy = seen.executes || seen.copies.is_some() || seen.performs.is_some();
                busy || !seen.is_late || seen.loads.is_empty() && seen.batches == 0
            }),
            Property::always("both agree once all is reported and done", |_, it: &State| {
                let Seen { is_ready, loads, copies, performs, .. } = &it.seen;
                let is_settled =
                    *is_ready && loads.is_empty() && copies.is_none() && performs.is_none();
                !is_settled || it.seen.is_resident == it.seen.is_held
            }),
            Property::always("the matcher grants what LoadState has", |_, it: &State| {
                !it.seen.is_ready || it.seen.may_run == it.seen.is_resident
            }),
            Property::always("both count the same free pages", |_, it: &State| {
                !it.seen.pages_differ
            }),
            Property::sometimes("a batch waits for its model", |_, it: &State| {
                it.seen.waits && !it.seen.is_held[0]
            }),
            Property::sometimes("a copy has failed", |_, it: &State| it.seen.failures > 0),
            Property::sometimes("a model has left for the other", |bounds: &Bounds, it: &State| {
                bounds.restarts || it.seen.evicted > 0 && it.seen.is_held[1]
            }),
            Property::sometimes(
                "the next scheduler finds a model",
                |bounds: &Bounds, it: &State| {
                    !bounds.restarts || it.seen.lives == 2 && it.seen.may_run[0]
                },
            ),
        ]
    }
}

#[test]
fn a_slot_executes_only_what_it_holds() {
    let bounds = match is_wide() {
        false => Bounds { sent: 3, steps: 7, restarts: false },
        true => Bounds { sent: 4, steps: 11, restarts: false },
    };
    let test = ("residency", "a_slot_executes_only_what_it_holds");
    Run { test, states_min: 100 }.check(&bounds);
}

#[test]
fn no_report_reaches_the_next_scheduler() {
    let bounds = match is_wide() {
        false => Bounds { sent: 2, steps: 6, restarts: true },
        true => Bounds { sent: 3, steps: 9, restarts: true },
    };
    let test = ("residency", "no_report_reaches_the_next_scheduler");
    Run { test, states_min: 100 }.check(&bounds);
}
