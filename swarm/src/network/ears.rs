//! What has been said and heard beside outcomes: what schedulers gave back, which frontends have gone, and messages
//! that faults wait for.

use std::collections::BTreeMap;

use baton_core::{DropReason, Nanos, TaskId};
use baton_rdma::wire::{Kind, Message};

use super::HostId;
use super::batches::BatchWord;

/// How long a thread may take to hear from another that a frontend has gone.
const TOLD: Nanos = Nanos::from_millis(5);
/// `TaskEnd.kind` of a dropped task.
const DROPPED: u8 = 1;

/// What a frame says of who is there and who has what.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tidings {
    /// A scheduler gives a task back: it stops, or no backend serves the model.
    Returned,
    /// A scheduler introduces the frontend with this number to a backend.
    Up(u16),
    /// A scheduler says that it has gone.
    Down(u16),
    /// A member asks to leave.
    Leaves,
}

impl Tidings {
    pub(super) fn of(message: &Message<'_>) -> Option<Self> {
        let returns = [DropReason::Shutdown.code(), DropReason::NoBackend.code()];
        match message {
            Message::TaskEnd(end) if end.kind == DROPPED && returns.contains(&end.reason) => {
                Some(Self::Returned)
            }
            Message::PeerUp(up) => Some(Self::Up(up.frontend.get() as u16)),
            Message::PeerDown(down) => Some(Self::Down(down.frontend.get() as u16)),
            Message::Leave(_) => Some(Self::Leaves),
            _ => None,
        }
    }
}

/// What was heard.
#[derive(Default, Debug)]
pub(super) struct Ears {
    /// The last time that a scheduler gave a task back to this frontend.
    returns: BTreeMap<HostId, Nanos>,
    /// Frontends that a scheduler has said to have gone, and when, by its host and their number.
    gone: BTreeMap<(HostId, u16), Nanos>,
    /// When a scheduler has read that a member asks to leave.
    leaving: BTreeMap<(HostId, HostId), Nanos>,
    /// Messages that faults wait for: which fault, what kind, and how many pass first.
    awaited: Vec<(usize, Kind, u32)>,
    /// Faults whose message has passed, who sent it and to whom.
    pub(super) sprung: Vec<(usize, HostId, HostId)>,
}

impl Ears {
    /// `from` writes that.
    pub(super) fn said(&mut self, from: HostId, tidings: Tidings, now: Nanos) {
        match tidings {
            Tidings::Returned | Tidings::Leaves => {}
            Tidings::Up(frontend) => drop(self.gone.remove(&(from, frontend))),
            Tidings::Down(frontend) => drop(self.gone.entry((from, frontend)).or_insert(now)),
        }
    }

    /// `reader` has read that of `writer`.
    pub(super) fn heard(&mut self, reader: HostId, writer: HostId, tidings: Tidings, now: Nanos) {
        match tidings {
            Tidings::Returned => drop(self.returns.insert(reader, now)),
            Tidings::Leaves => drop(self.leaving.entry((reader, writer)).or_insert(now)),
            Tidings::Up(_) | Tidings::Down(_) => {}
        }
    }

    /// When a task was given back to the frontend last.
    pub(super) fn last_return(&self, frontend: HostId) -> Option<Nanos> {
        self.returns.get(&frontend).copied()
    }

    /// What is wrong with a plan of the scheduler's: it has a task of a frontend that has long gone, or goes to a backend that
    /// asked long ago to leave. `awake_since`: no thread of the scheduler has stood still since then.
    pub(super) fn planned(
        &self,
        (scheduler, backend): (HostId, HostId),
        word: &BatchWord,
        now: Nanos,
        awake_since: Nanos,
    ) -> Option<String> {
        let BatchWord::Planned(batch, planned) = word else { return None };
        let since = |task: &u64| self.gone.get(&(scheduler, TaskId(*task).frontend().0));
        let is_old = |since: &Nanos| (*since).max(awake_since) + TOLD < now;
        if self.leaving.get(&(scheduler, backend)).is_some_and(is_old) {
            return Some(format!("batch {batch} goes to {backend:?}, which has asked to leave"));
        }
        let task = planned.tasks.iter().find(|task| since(task).is_some_and(is_old))?;
        Some(format!(
            "batch {batch} has task {task:x} of a frontend that its scheduler knows has gone"
        ))
    }

    pub(super) fn lie_in_wait(&mut self, faults: Vec<(Kind, u32)>) {
        let awaited = faults.into_iter().enumerate().map(|(at, (kind, passes))| (at, kind, passes));
        self.awaited = awaited.collect();
        self.sprung.clear();
    }

    /// A message passes.
    pub(super) fn passes(&mut self, kind: Kind, from: HostId, to: HostId) {
        let Self { awaited, sprung, .. } = self;
        awaited.retain_mut(|(which, awaited, passes)| {
            if *awaited != kind {
                return true;
            }
            if *passes == 0 {
                sprung.push((*which, from, to));
                return false;
            }
            *passes -= 1;
            true
        });
    }
}
