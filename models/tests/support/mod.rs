//! How a model is checked, and how a failure is reported: with the actions that lead to it and the command that repeats it.

use std::fmt::{Debug, Write as _};
use std::hash::Hash;

use stateright::{Checker as _, Expectation, HasDiscoveries, Model};

/// Names the actions to repeat, by their places among those that each state allows: `BATON_MODEL_PATH=0,2,1`.
const PATH: &str = "BATON_MODEL_PATH";
/// Set: the larger bounds, for which a test run has no time.
const WIDE: &str = "BATON_MODEL_WIDE";

/// More steps than these are not taken: a model that has no end is a mistake. The larger bounds may take 4 GiB.
const STATES_MAX: usize = 2_000_000;
const WIDE_MAX: usize = 40_000_000;

/// What a model's run must come to.
pub(crate) struct Run {
    /// The test, as `cargo test` selects it: its file and its name.
    pub(crate) test: (&'static str, &'static str),
    /// Fewer states than this are no check of the protocol.
    pub(crate) states_min: usize,
}

/// Whether the larger bounds are asked for.
pub(crate) fn is_wide() -> bool {
    std::env::var_os(WIDE).is_some()
}

impl Run {
    /// Visits every state of the model, breadth first, or repeats the actions of [`PATH`].
    pub(crate) fn check<M>(&self, model: &M)
    where
        M: Model + Clone + Send + Sync + 'static,
        M::State: Clone + Debug + PartialEq + Hash + Send + Sync,
        M::Action: Clone + Debug + PartialEq,
    {
        if let Ok(path) = std::env::var(PATH) {
            return repeat(model, &path);
        }
        let states_max = if is_wide() { WIDE_MAX } else { STATES_MAX };
        let checker = model.clone().checker().finish_when(HasDiscoveries::AnyFailures);
        let checker = checker.target_state_count(states_max);
        let checker = checker.spawn_bfs().join();
        let found = checker.discoveries();
        for property in model.properties() {
            let path = found.get(property.name);
            match (property.expectation.discovery_is_failure(), path) {
                (true, Some(path)) => {
                    self.fail(model, property.name, &path.clone().into_actions());
                }
                (false, None) if !found.values().any(|path| breaks(model, path.last_state())) => {
                    panic!("no state is reached in which {}", property.name);
                }
                _ => {}
            }
        }
        let states = checker.unique_state_count();
        assert!(checker.state_count() < states_max, "{states} states and not at an end");
        eprintln!("{}: {states} states, up to {} actions", self.test.1, checker.max_depth());
        let min = if is_wide() { 0 } else { self.states_min };
        assert!(states >= min, "{states} states are too few: the model has lost its way");
    }

    /// Panics with the actions that lead to the state in which a property does not hold.
    fn fail<M>(&self, model: &M, property: &str, actions: &[M::Action])
    where
        M: Model,
        M::State: Clone + Debug,
        M::Action: Clone + Debug + PartialEq,
    {
        let (mut text, mut indices) = (String::new(), Vec::new());
        let mut state = model.init_states().swap_remove(0);
        for (number, action) in actions.iter().enumerate() {
            let mut allowed = Vec::new();
            model.actions(&state, &mut allowed);
            let index = allowed.iter().position(|other| other == action).expect("it was taken");
            state = model.next_state(&state, action.clone()).expect("it led on");
            let _ = writeln!(text, "{:>4}  {action:?}", number + 1);
            indices.push(index.to_string());
        }
        let ((file, test), wide) = (self.test, if is_wide() { "BATON_MODEL_WIDE=1 " } else { "" });
        panic!(
            "it does not always hold that {property}:\n{text}{state:#?}\nto repeat it:\n  {wide}{PATH}={} cargo test -p \
             baton-models --test {file} {test} -- --nocapture",
            indices.join(",")
        );
    }
}

fn breaks<M: Model>(model: &M, state: &M::State) -> bool {
    let always = |expectation: &Expectation| *expectation == Expectation::Always;
    let mut properties = model.properties().into_iter();
    properties.any(|it| always(&it.expectation) && !(it.condition)(model, state))
}

/// Takes the actions one after the other, prints what each leads to and checks what must hold in every state.
fn repeat<M>(model: &M, path: &str)
where
    M: Model,
    M::State: Debug,
    M::Action: Clone + Debug,
{
    let mut state = model.init_states().swap_remove(0);
    for index in path.split(',').filter(|index| !index.is_empty()) {
        let mut allowed = Vec::new();
        model.actions(&state, &mut allowed);
        let action = allowed[index.parse::<usize>().expect("a number")].clone();
        state = model.next_state(&state, action.clone()).expect("it leads on");
        eprintln!("{action:?}\n{state:#?}");
        for property in model.properties() {
            let is_broken =
                property.expectation == Expectation::Always && !(property.condition)(model, &state);
            assert!(!is_broken, "it does not always hold that {}", property.name);
        }
    }
}
