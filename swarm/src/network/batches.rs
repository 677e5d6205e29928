//! What plans allow and what reports claim, compared as they go by.

use std::collections::{BTreeMap, BTreeSet};

use baton_core::{Nanos, TaskId};
use baton_rdma::wire::{ActionStatus, Kind, Message};

use super::HostId;
use crate::clock::SkewedClock;

/// How long past `invalid_after` a backend may still start a batch.
pub(crate) const START_GRACE: Nanos = Nanos::from_millis(1);
/// How old a report may be when it leaves: its frontends may not take their answers, and its backend
/// may stand still.
const OLD: Nanos = Nanos::from_millis(2_000);

/// What a frame says about a batch; moments on the scheduler's clock.
#[derive(Clone, Debug)]
pub(super) enum BatchWord {
    Planned(u64, Planned),
    Done(u64, Done),
    Load(u64),
    Loaded(u64),
}

/// A plan, until its report.
#[derive(Clone, Debug)]
pub(super) struct Planned {
    pub(super) model: u32,
    gpu: u32,
    invalid_after: Nanos,
    /// The cheapest variant that may execute, and the one that must start by `invalid_after`.
    variants: (u16, u16),
    pub(super) tasks: Vec<u64>,
}

/// A report.
#[derive(Clone, Copy, Debug)]
pub(super) struct Done {
    gpu: u32,
    /// What was executed; `None`: the batch was given back.
    executed: Option<Executed>,
}

#[derive(Clone, Copy, Debug)]
struct Executed {
    started: Nanos,
    finished: Nanos,
    rows: u16,
    variant: u16,
}

impl BatchWord {
    pub(super) fn of(message: &Message<'_>) -> Option<Self> {
        match message {
            Message::Action(action, tasks) => {
                let invalid_after = Nanos(action.latest_ns.get());
                let (gpu, tasks) = (action.gpu.get(), tasks.iter().map(|task| task.task.get()));
                let variants = (action.floor.into(), action.variant.get());
                let (model, tasks) = (action.model.get(), tasks.collect());
                let planned = Planned { model, gpu, invalid_after, variants, tasks };
                Some(Self::Planned(action.action.get(), planned))
            }
            Message::ActionDone(done, _) => {
                let (started, finished) = (done.started_ns.get(), done.finished_ns.get());
                let (started, finished) = (Nanos(started), Nanos(finished));
                let (rows, variant) = (done.rows.get(), done.variant.into());
                let executed = || Executed { started, finished, rows, variant };
                let executed = has_executed(done.status).then(executed);
                Some(Self::Done(done.action.get(), Done { gpu: done.gpu.get(), executed }))
            }
            Message::Load(load, _) => Some(Self::Load(load.load.get())),
            Message::LoadDone(done) => Some(Self::Loaded(done.load.get())),
            _ => None,
        }
    }
}

fn has_executed(status: u8) -> bool {
    [ActionStatus::Executed as u8, ActionStatus::EngineError as u8].contains(&status)
}

/// As far apart as the clocks of two hosts may drift, parts per million.
const DRIFT_PPM: u64 = 200;

/// Plans without a report, what was reported, and every scheduler's clock.
#[derive(Default, Debug)]
pub(super) struct Batches {
    /// By connection and name.
    planned: BTreeMap<(usize, u64), Planned>,
    /// LOADs without a report, by connection and name.
    loads: BTreeSet<(usize, u64)>,
    /// Backends that a scheduler has sent one.
    with_loads: BTreeSet<HostId>,
    /// Tasks of batches that were reported as executed: they are answered, says this host.
    answered: BTreeMap<u64, HostId>,
    clocks: BTreeMap<HostId, SkewedClock>,
    /// Backends that have asked to join; what attackers say is not followed.
    joining: BTreeSet<HostId>,
    /// Backends that have said that they can serve.
    ready: BTreeSet<HostId>,
    /// Backends that may go: nothing of theirs is outstanding.
    released: BTreeSet<HostId>,
    /// For how long a fault makes backends stand still, beyond what [`OLD`] allows for.
    pauses: Nanos,
    /// The first thing that was not as it must be.
    pub(super) wrong: Option<String>,
}

impl Batches {
    pub(super) fn know(&mut self, host: HostId, clock: SkewedClock) {
        self.clocks.insert(host, clock);
    }

    pub(super) fn expect_pauses(&mut self, longest: Nanos) {
        self.pauses = longest;
    }

    /// By how much, at most, clocks that were compared before a pause have drifted apart in it.
    pub(super) fn drift_in_pauses(&self) -> Nanos {
        Nanos(self.pauses.0 / 1_000_000 * DRIFT_PPM)
    }

    /// A backend that has asked to join.
    pub(super) fn is_backend(&self, host: HostId) -> bool {
        self.joining.contains(&host)
    }

    pub(super) fn answered_by(&self, task: TaskId) -> Option<HostId> {
        self.answered.get(&task.0).copied()
    }

    /// `from` says this to `to` on a connection, at a moment of true time; `doubt` is how wrong a
    /// backend may be about the scheduler's clock.
    pub(super) fn note(
        &mut self,
        at: usize,
        (from, to): (HostId, HostId),
        word: BatchWord,
        now: Nanos,
        doubt: Nanos,
    ) {
        match word {
            BatchWord::Planned(batch, planned) => {
                self.check_serves(batch, to);
                self.planned.insert((at, batch), planned);
            }
            BatchWord::Load(load) if self.clocks.contains_key(&from) => {
                self.with_loads.insert(to);
                // The next scheduler may use the name again.
                self.loads.insert((at, load));
            }
            BatchWord::Loaded(load) if self.with_loads.contains(&from) => {
                let is_known = self.loads.remove(&(at, load));
                self.expect(is_known, || format!("{from:?} reports LOAD {load}, which it has not"));
            }
            BatchWord::Load(_) | BatchWord::Loaded(_) => {}
            BatchWord::Done(batch, done) => {
                let Some(planned) = self.planned.remove(&(at, batch)) else { return };
                if done.gpu != planned.gpu {
                    let (its, other) = (planned.gpu, done.gpu);
                    let said =
                        || format!("batch {batch} of slot {its} is reported from slot {other}");
                    self.wrong.get_or_insert_with(said);
                }
                let Some(executed) = done.executed else { return };
                self.answered.extend(planned.tasks.iter().map(|&task| (task, from)));
                let Some(clock) = self.clocks.get(&to) else { return };
                let old = OLD + self.pauses;
                let doubt = doubt + self.drift_in_pauses();
                if let Some(problem) = untrue(&planned, &executed, clock.at(now), doubt, old) {
                    let until = planned.invalid_after;
                    let said =
                        || format!("batch {batch} of {from:?}, valid until {until:?}, {problem}");
                    self.wrong.get_or_insert_with(said);
                }
            }
        }
    }
}

impl Batches {
    /// Follows who may be given batches.
    pub(super) fn follow(&mut self, kind: Kind, from: HostId, to: HostId) {
        match kind {
            Kind::JoinBackend => drop(self.joining.insert(from)),
            Kind::Ready => drop(self.ready.insert(from)),
            Kind::LeaveAck => drop(self.released.insert(to)),
            // A backend may leave one scheduler and join the next.
            Kind::JoinAck => drop((self.ready.remove(&to), self.released.remove(&to))),
            _ => {}
        }
    }

    fn expect(&mut self, holds: bool, otherwise: impl FnOnce() -> String) {
        if !holds {
            self.wrong.get_or_insert_with(otherwise);
        }
    }

    fn check_serves(&mut self, batch: u64, to: HostId) {
        let problem = if !self.joining.contains(&to) {
            return;
        } else if self.released.contains(&to) {
            "that has left"
        } else if !self.ready.contains(&to) {
            "that is not ready"
        } else {
            return;
        };
        self.wrong.get_or_insert_with(|| format!("batch {batch} is given to {to:?}, {problem}"));
    }
}

/// What cannot be about a report that leaves at `there` by the scheduler's clock.
fn untrue(
    plan: &Planned,
    done: &Executed,
    there: Nanos,
    doubt: Nanos,
    old: Nanos,
) -> Option<String> {
    let Executed { started, finished, rows, variant } = *done;
    let (floor, planned) = plan.variants;
    // What two estimates told apart may be wrong by both.
    let latest = plan.invalid_after + START_GRACE + doubt.times(2);
    let problem = if rows > 0 && !(floor..=planned).contains(&variant) {
        "as a variant that its plan does not allow"
    } else if rows > 0 && started > latest && variant == planned {
        "later than its plan allows"
    } else if started > finished || finished > there + doubt {
        "to the end before it began, or in the future"
    } else if there > finished + old {
        "long ago"
    } else {
        return None;
    };
    Some(format!(
        "is reported at {there:?} to have run from {started:?} to {finished:?}: {problem}"
    ))
}
