//! Leadership: schedulers that compete for an etcd lease.
//!
//! The elections and lease deadlines are the real ones; etcd and clocks are modelled (`docs/models.md`).

#[path = "../support/mod.rs"]
mod support;

mod etcd;
mod scheduler;

use baton_core::Nanos;
use stateright::{Model, Property};

use etcd::{Asked, Etcd};
use scheduler::{Scheduler, addr};
use support::{Run, is_wide};

/// The grain of time.
const TICK: Nanos = Nanos::from_millis(200);
/// What a lease lasts.
const TTL_TICKS: u8 = 8;
/// How long it may take until one leads, once nothing goes wrong any more: a lease that must end, a look, a campaign.
const SUCCESSION_TICKS: u8 = TTL_TICKS + 3;

/// How far the model goes.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    schedulers: usize,
    ticks: u8,
    /// When the first and the second thing goes wrong, at the latest; nothing does any more.
    faults: &'static [u8],
    clocks: &'static [[u8; 3]],
}

/// How fast the clocks run, in eighths of etcd's. Slower than seven is outside of the promise.
const CLOCKS: &[[u8; 3]] = &[[8, 8, 8], [7, 9, 8], [7, 7, 7]];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    /// The clocks run like this from the beginning.
    Clocks([u8; 3]),
    /// Time moves on. Every scheduler has done what was due.
    Tick,
    /// The thread of an election does what is due, and etcd answers at once.
    Run(usize),
    /// The same, but the request takes its time, or is lost.
    RunSlowly(usize),
    /// etcd gets to a request that takes its time.
    CarryOut(usize),
    /// The answer arrives.
    Answer(usize),
    /// etcd gets to a request that was given up.
    CarryOutStray(usize),
    /// The thread of an election stands still.
    Hang(usize),
    /// It goes on.
    Wake(usize),
    /// The process is killed, and started again.
    Kill(usize),
    /// It is stopped in order.
    Resign(usize),
    /// etcd does not answer.
    EtcdAway,
    /// It answers again.
    EtcdBack,
}

#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
struct State {
    tick: u8,
    /// Ticks since something was wrong last.
    calm: u8,
    faults: u8,
    schedulers: Vec<Scheduler>,
    etcd: Etcd,
    strays: Vec<Asked>,
    /// The highest epoch in which a scheduler has acted, and the one before. A member may have joined then.
    epochs: [u64; 2],
}

impl State {
    fn leaders(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        let schedulers = self.schedulers.iter().enumerate();
        schedulers.filter_map(|(number, it)| Some((number, it.acts(self.tick)?)))
    }

    /// Something is wrong at the moment.
    fn is_troubled(&self) -> bool {
        let stuck = |it: &Scheduler| it.hangs || it.pending.is_some();
        self.etcd.is_away || !self.strays.is_empty() || self.schedulers.iter().any(stuck)
    }

    fn tick(&mut self) {
        self.tick += 1;
        self.calm = if self.is_troubled() { 0 } else { self.calm + 1 };
        self.etcd.tick(self.tick);
        self.schedulers.iter_mut().for_each(|it| it.look(self.tick));
    }

    /// Notes the epochs in which schedulers act.
    fn note_epochs(&mut self) {
        let highest = self.leaders().map(|(_, epoch)| epoch).max().unwrap_or(0);
        if highest > self.epochs[1] {
            self.epochs = [self.epochs[1], highest];
        }
    }
}

impl Bounds {
    fn may_fail(self, state: &State) -> bool {
        self.faults.get(usize::from(state.faults)).is_some_and(|&last| state.tick <= last)
    }

    fn actions_of(self, state: &State, number: usize, actions: &mut Vec<Action>) {
        let (it, may_fail) = (&state.schedulers[number], self.may_fail(state));
        if it.is_due(state.tick) {
            actions.push(Action::Run(number));
            if may_fail && it.pending.is_none() {
                actions.push(Action::RunSlowly(number));
            }
        }
        if it.is_with_etcd() && !state.etcd.is_away {
            actions.push(Action::CarryOut(number));
        }
        if it.has_answer() {
            actions.push(Action::Answer(number));
        }
        if it.hangs {
            actions.push(Action::Wake(number));
        } else if may_fail {
            actions.push(Action::Hang(number));
        }
        if may_fail && it.acts(state.tick).is_some() {
            actions.extend([Action::Kill(number), Action::Resign(number)]);
        }
    }

    fn apply(state: &mut State, action: Action) {
        let State { tick, schedulers, etcd, strays, .. } = state;
        let now = *tick;
        match action {
            Action::Clocks(_) | Action::Tick => {}
            Action::Run(at) => schedulers[at].run(now, at, false, etcd, strays),
            Action::RunSlowly(at) => schedulers[at].run(now, at, true, etcd, strays),
            Action::CarryOut(at) => schedulers[at].carry_out(now, etcd),
            Action::Answer(at) => schedulers[at].answered(now),
            Action::CarryOutStray(at) => drop(etcd.carry_out(now, strays.remove(at))),
            Action::Hang(at) => schedulers[at].hangs = true,
            Action::Wake(at) => schedulers[at].hangs = false,
            Action::Kill(at) => schedulers[at] = Scheduler::new(schedulers[at].eighths),
            Action::Resign(at) => schedulers[at].resign(now),
            Action::EtcdAway => etcd.is_away = true,
            Action::EtcdBack => etcd.come_back(now),
        }
    }
}

fn is_fault(action: Action) -> bool {
    use Action::{EtcdAway, Hang, Kill, Resign, RunSlowly};
    matches!(action, RunSlowly(_) | Hang(_) | Kill(_) | Resign(_) | EtcdAway)
}

impl Model for Bounds {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::default()]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.schedulers.is_empty() {
            return actions.extend(self.clocks.iter().copied().map(Action::Clocks));
        }
        (0..self.schedulers).for_each(|at| self.actions_of(state, at, actions));
        if !state.schedulers.iter().any(|it| it.is_due(state.tick)) {
            actions.push(Action::Tick);
        }
        if state.etcd.is_away {
            actions.push(Action::EtcdBack);
        } else {
            actions.extend((0..state.strays.len()).map(Action::CarryOutStray));
            if self.may_fail(state) {
                actions.push(Action::EtcdAway);
            }
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut state = state.clone();
        if is_fault(action) {
            (state.faults, state.calm) = (state.faults + 1, 0);
        }
        match action {
            Action::Clocks(clocks) => {
                let clocks = clocks.into_iter().take(self.schedulers);
                state.schedulers = clocks.map(Scheduler::new).collect();
            }
            Action::Tick => state.tick(),
            action => Self::apply(&mut state, action),
        }
        state.note_epochs();
        Some(state)
    }

    fn within_boundary(&self, state: &State) -> bool {
        state.tick <= self.ticks && state.calm <= SUCCESSION_TICKS
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("one scheduler acts at most", |_, state: &State| {
                state.leaders().count() <= 1
            }),
            Property::always("who acts holds the key in etcd", |_, state: &State| {
                let holder = state.etcd.key.map(|holder| (holder.addr, holder.epoch));
                let holds = |(at, epoch)| holder == Some((Some(addr(at)), epoch));
                state.etcd.is_away || state.leaders().all(holds)
            }),
            Property::always("no member finds a former leader that acts", |_, state: &State| {
                state.leaders().all(|(_, epoch)| epoch >= state.epochs[1])
            }),
            Property::always("one leads once nothing is wrong any more", |_, state: &State| {
                state.calm < SUCCESSION_TICKS || state.leaders().count() == 1
            }),
            Property::sometimes("a second leader has followed", |_, state: &State| {
                state.epochs[0] > 0
            }),
            Property::sometimes("a leader acts whose etcd is away", |_, state: &State| {
                state.etcd.is_away && state.leaders().count() == 1
            }),
            Property::sometimes("a lease ends under a thread that hangs", |_, state: &State| {
                state.schedulers.iter().any(|it| it.hangs) && state.etcd.key.is_none()
            }),
        ]
    }
}

/// A leader renews its lease every other tick, so whatever goes wrong may as well go wrong in one of the first.
#[test]
fn one_leads_at_most_whatever_goes_wrong_once() {
    let bounds = match is_wide() {
        false => Bounds { schedulers: 2, ticks: 26, faults: &[2], clocks: CLOCKS },
        true => Bounds { schedulers: 3, ticks: 16, faults: &[2], clocks: CLOCKS },
    };
    let test = ("leadership", "one_leads_at_most_whatever_goes_wrong_once");
    Run { test, states_min: 150_000 }.check(&bounds);
}

#[test]
fn one_leads_at_most_whatever_goes_wrong_twice() {
    let clocks = &CLOCKS[1..2];
    let bounds = match is_wide() {
        false => Bounds { schedulers: 2, ticks: 14, faults: &[0, 1], clocks },
        true => Bounds { schedulers: 2, ticks: 16, faults: &[2, 4], clocks: CLOCKS },
    };
    let test = ("leadership", "one_leads_at_most_whatever_goes_wrong_twice");
    Run { test, states_min: 100_000 }.check(&bounds);
}
