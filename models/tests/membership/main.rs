//! Membership: the real state machine of a member against a scheduler that comes, goes, refuses, changes and keeps silent.
//!
//! `docs/models.md` says what is modelled and what is not.

#[path = "../support/mod.rs"]
mod support;

mod fabric;
mod world;

use std::io::ErrorKind;

use baton_core::Nanos;
use baton_membership::Stage;
use baton_rdma::CloseReason;
use baton_rdma::wire::{RefuseCode, Role};
use stateright::{Model, Property};

use fabric::{CONTROL, thread_addr};
use support::{Run, is_wide};
use world::{End, World};

/// ModelThreads that a scheduler may have.
const THREADS_MAX: u32 = 2;
/// A kind scheduler needs fewer steps, and less time.
const RECOVERY_STEPS: usize = 60;
const RECOVERY: Nanos = Nanos::from_millis(6_000);

/// How far the model goes.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    role: Role,
    attempts: u32,
    lives: u32,
    faults: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    /// Time passes, until the member does something or has been heard again.
    Wait,
    /// The connection to the ControlThread is up.
    Open,
    /// The scheduler names its first ModelThread, and pauses.
    Begin,
    /// It names ModelThreads up to this number, and ends the catalogue.
    Catalogue(u32),
    /// It admits the member.
    Admit,
    /// The connection to a ModelThread is up.
    OpenThread(u32),
    /// The member hears of a connection that it has closed.
    HearClosed,
    /// The application ends.
    Leave,
    /// The scheduler confirms that.
    ConfirmLeave,
    /// The connection to the ControlThread breaks.
    Break,
    /// The scheduler refuses the member.
    Refuse(RefuseCode),
    /// The connection to a ModelThread breaks, or it refuses the member.
    BreakThread(u32),
    /// Another ModelThread is there than was named.
    OpenWrong(u32),
    /// The scheduler admits a member again that it has admitted.
    AdmitAgain,
    /// The scheduler keeps silent.
    Mute,
    /// It speaks again.
    Speak,
}

impl Bounds {
    fn kind_actions(state: &World, actions: &mut Vec<Action>) {
        let (stage, attempt) = (state.stage(), &state.attempt);
        let control = state.fabric.to(CONTROL);
        if stage == Stage::Connecting && control.is_some() {
            actions.push(Action::Open);
        }
        if stage == Stage::Catalogue && !attempt.has_catalogue {
            actions.extend([Action::Catalogue(THREADS_MAX), Action::Catalogue(1)]);
        }
        if stage == Stage::Joining {
            actions.push(Action::Admit);
        }
        if stage == Stage::Linking {
            let is_opening = |&number: &u32| {
                state.fabric.to(thread_addr(number)).is_some_and(|conn| !conn.is_open)
            };
            actions.extend((0..attempt.named).filter(is_opening).map(Action::OpenThread));
        }
        if stage == Stage::Leaving && control.is_some() {
            actions.push(Action::ConfirmLeave);
        }
    }

    fn faults(state: &World, actions: &mut Vec<Action>) {
        let stage = state.stage();
        let is_there = state.fabric.to(CONTROL).is_some() && stage != Stage::Left;
        if is_there && stage != Stage::Away {
            use RefuseCode::{BadRequest, Shutdown, Version};
            actions.push(Action::Break);
            actions.extend([Version, Shutdown, BadRequest].map(Action::Refuse));
            actions.push(if state.is_mute { Action::Speak } else { Action::Mute });
        }
        if stage == Stage::Catalogue && state.attempt.named == 0 {
            actions.push(Action::Begin);
        }
        if (Stage::Linking..=Stage::Leaving).contains(&stage) {
            for number in 0..state.attempt.named {
                let conn = state.fabric.to(thread_addr(number));
                actions.extend(conn.map(|_| Action::BreakThread(number)));
                let opening = conn.filter(|conn| !conn.is_open && stage == Stage::Linking);
                actions.extend(opening.map(|_| Action::OpenWrong(number)));
            }
            actions.push(Action::AdmitAgain);
        }
    }

    fn apply(state: &mut World, action: Action) {
        let control = state.fabric.to(CONTROL).map(|conn| conn.id);
        let thread = |number| state.fabric.to(thread_addr(number)).expect("it is there").id;
        match action {
            Action::Wait => state.wait(),
            Action::Open => state.open(control.expect("it is there"), None, true),
            Action::Begin => state.announce(1, false),
            Action::Catalogue(threads) => state.announce(threads, true),
            Action::Admit | Action::AdmitAgain => state.admit(),
            Action::OpenThread(at) => state.open(thread(at), Some(at), true),
            Action::OpenWrong(at) => state.open(thread(at), Some(at), false),
            Action::HearClosed => state.hear_closed(),
            Action::Leave => state.leave(),
            Action::ConfirmLeave => state.confirm_leave(),
            Action::Break => {
                let reason = CloseReason::Reset(ErrorKind::ConnectionReset);
                state.close(control.expect("it is there"), &reason);
            }
            Action::BreakThread(at) => state.close(thread(at), &CloseReason::Eof),
            Action::Refuse(code) => {
                let reason = CloseReason::Refused { code: Some(code), detail: String::new() };
                state.close(control.expect("it is there"), &reason);
            }
            Action::Mute | Action::Speak => state.is_mute = !state.is_mute,
        }
    }

    /// What a scheduler does that means well; `None` if it is the member's turn.
    fn kindest(state: &World) -> Option<Action> {
        let mut actions = Vec::new();
        Self::kind_actions(state, &mut actions);
        actions.first().copied()
    }

    /// From here a scheduler that means well gets the member where it wants to be.
    fn recovers(state: &World) -> bool {
        let mut state = state.clone();
        state.is_mute = false;
        let by = state.now + RECOVERY;
        for _ in 0..RECOVERY_STEPS {
            let is_there = state.stage() == Stage::Ready || state.end != End::Open;
            if is_there || state.broken.is_some() {
                return is_there && state.now <= by;
            }
            let next = Self::kindest(&state).unwrap_or(Action::Wait);
            Self::apply(&mut state, next);
        }
        false
    }
}

fn is_fault(action: Action) -> bool {
    use Action::{AdmitAgain, Begin, Break, BreakThread, Mute, OpenWrong, Refuse};
    matches!(action, AdmitAgain | Begin | Break | BreakThread(_) | Mute | OpenWrong(_) | Refuse(_))
}

impl Model for Bounds {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        vec![World::new(self.role).seal()]
    }

    fn actions(&self, state: &World, actions: &mut Vec<Action>) {
        if state.end != End::Open {
            return;
        }
        Self::kind_actions(state, actions);
        if state.stage() != Stage::Ready || state.idles == 0 || state.is_mute {
            actions.push(Action::Wait);
        }
        if !state.fabric.closed.is_empty() {
            actions.push(Action::HearClosed);
        }
        if state.stage() == Stage::Ready {
            actions.push(Action::Leave);
        }
        if state.faults < self.faults {
            Self::faults(state, actions);
        }
    }

    fn next_state(&self, state: &World, action: Action) -> Option<World> {
        let mut state = state.clone();
        state.faults += u8::from(is_fault(action));
        Self::apply(&mut state, action);
        Some(state.seal())
    }

    fn within_boundary(&self, state: &World) -> bool {
        state.attempt.number <= self.attempts && state.membership.life() <= self.lives
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = always();
        properties.extend(sometimes());
        properties
    }
}

fn always() -> Vec<Property<Bounds>> {
    vec![
        Property::always(
            "Ready follows on catalogue, join and links of this life",
            |_, it: &World| it.broken.is_none(),
        ),
        Property::always("nothing of a former life is used", |_, it: &World| {
            let (number, stage) = (it.attempt.number, it.stage());
            let named = (it.membership.number(), it.membership.token());
            let own = (number, u64::from(number) + 100);
            let is_clock_known = it.membership.sync().to_local(it.now).is_some();
            match stage {
                Stage::Connecting | Stage::Catalogue => named == (0, 0) && !is_clock_known,
                Stage::Joining => named == (0, 0),
                Stage::Linking | Stage::Ready | Stage::Leaving => named == own,
                Stage::Away | Stage::Left => true,
            }
        }),
        Property::always("every open connection is of this life", |_, it: &World| {
            let (first, stage) = (it.attempt.control, it.stage());
            let own = (it.attempt.number, u64::from(it.attempt.number) + 100);
            let is_own = |conn: &fabric::Conn| {
                let hello = if conn.addr == CONTROL { (0, 0) } else { own };
                Some(conn.id) >= first && conn.hello == hello
            };
            stage == Stage::Away || it.fabric.conns.iter().all(is_own)
        }),
        Property::always(
            "a member that was Ready gives up only what cannot be mended",
            |_, it: &World| it.end != End::GaveUp(false),
        ),
        Property::always(
            "a member that is not at its end has something to wait for",
            |_, it: &World| it.end != End::Open || it.membership.next_timer().is_some(),
        ),
        Property::always("it can get to Ready, or to its end, from everywhere", |_, it: &World| {
            Bounds::recovers(it)
        }),
    ]
}

fn sometimes() -> Vec<Property<Bounds>> {
    vec![
        Property::sometimes("a member is Ready in its last life", |bounds: &Bounds, it: &World| {
            it.stage() == Stage::Ready && it.membership.life() == bounds.lives
        }),
        Property::sometimes("it has left", |_, it: &World| it.end == End::Left),
        Property::sometimes("nothing confirmed its leave", |_, it: &World| {
            it.end == End::Unconfirmed
        }),
        Property::sometimes("it gave up", |_, it: &World| it.end == End::GaveUp(true)),
        Property::sometimes("its scheduler was silent", |_, it: &World| it.was_silent),
        Property::sometimes("it hears of a former connection while it links", |_, it: &World| {
            !it.fabric.closed.is_empty() && it.stage() == Stage::Linking
        }),
    ]
}

#[test]
fn a_client_stays_in_or_comes_back() {
    let role = Role::Frontend;
    let bounds = match is_wide() {
        false => Bounds { role, attempts: 3, lives: 3, faults: 2 },
        true => Bounds { role, attempts: 4, lives: 4, faults: 3 },
    };
    let test = ("membership", "a_client_stays_in_or_comes_back");
    Run { test, states_min: 50_000 }.check(&bounds);
}

#[test]
fn a_backend_stays_in_or_comes_back() {
    let bounds = Bounds { role: Role::Backend, attempts: 3, lives: 2, faults: 2 };
    let test = ("membership", "a_backend_stays_in_or_comes_back");
    Run { test, states_min: 2_000 }.check(&bounds);
}
