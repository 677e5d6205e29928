//! A backend in one of its lives: batches of one task, from the action to the report.

use baton_core::{DropReason, FailReason, TaskId, Unserved};
use baton_rdma::wire::ActionStatus;

use crate::scheduler::Sealed;

/// Where a batch is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Phase {
    /// Its READ is not posted.
    Waiting,
    /// The input is read.
    Reading(u8),
    /// The input is here.
    Here(u8),
    /// The input could not be read.
    Lost,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Held {
    pub(crate) sealed: Sealed,
    /// The life of the scheduler that sent it.
    pub(crate) scheduler: u8,
    pub(crate) phase: Phase,
}

/// What a backend says to a client.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Answer {
    /// The answer to a task.
    Result(TaskId, u8),
    /// It failed.
    End(TaskId, Unserved),
}

/// What a backend says to the scheduler.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Report {
    pub(crate) action: u64,
    pub(crate) status: u8,
}

/// See the module documentation.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Backend {
    /// The life of its scheduler; 0 while it has none.
    pub(crate) scheduler: u8,
    pub(crate) life: u32,
    /// The client's number as the connection to it knows it.
    pub(crate) link: Option<u16>,
    pub(crate) held: Vec<Held>,
}

impl Backend {
    /// An action: refused if its frontend is unknown here.
    pub(crate) fn on_action(&mut self, sealed: Sealed) -> Option<Report> {
        let is_known = self.link == Some(sealed.task.frontend().0);
        if !is_known {
            return Some(Report { action: sealed.action, status: ActionStatus::Refused as u8 });
        }
        self.held.push(Held { sealed, scheduler: self.scheduler, phase: Phase::Waiting });
        None
    }

    /// Executes a batch: the answer first, then the report, which goes to the scheduler that sent the batch.
    pub(crate) fn execute(&mut self, at: usize) -> (Option<Answer>, Option<Report>) {
        let Held { sealed, scheduler, phase } = self.held.remove(at);
        let answer = match phase {
            Phase::Here(content) => Answer::Result(sealed.task, content),
            _ => Answer::End(sealed.task, Unserved::Failed(FailReason::StaleGeneration)),
        };
        let is_linked = self.link == Some(sealed.task.frontend().0);
        let report = Report { action: sealed.action, status: ActionStatus::Executed as u8 };
        let reports = self.scheduler != 0 && scheduler == self.scheduler;
        (is_linked.then_some(answer), reports.then_some(report))
    }

    /// Gives a batch back that cannot start in time.
    pub(crate) fn give_back(&mut self, at: usize) -> Option<Report> {
        let Held { sealed, scheduler, .. } = self.held.remove(at);
        let report = Report { action: sealed.action, status: ActionStatus::Expired as u8 };
        (self.scheduler != 0 && scheduler == self.scheduler).then_some(report)
    }

    /// It has lost its scheduler: what waits is abandoned.
    pub(crate) fn let_go(&mut self) {
        self.scheduler = 0;
        self.held.retain(|held| held.phase != Phase::Waiting);
    }
}

/// Why a task ends whose model has gone.
pub(crate) const REMOVED: Unserved = Unserved::Dropped(DropReason::ModelRemoved);
