//! One batch slot: where a batch is between its action and its answers. Pure.
//!
//! ```text
//!       begin        last row settled      prepare          submit           finish          free
//!  Free ─────▶ Fetching ───────────▶ Ready ──────▶ Prepared ─────▶ Executing ─────▶ Replying ────▶ Free
//!                                    │  ▲             └─withdraw─▶ Withdrawing  │
//!                      give_back ◀───┘  └──────────── come_back ────────┴───────┘
//! ```
//! A batch that cannot start in time any more leaves its action in Executing too (`give_up`), and its slot is free when the
//! executor gives the rows back (`release`).
//!
//! In: actions, READ completions, vanished frontends, measured executions. Out: which rows to abort,
//! how to compact the rows that arrived, which answers to send. Invariant: a slot leaves Fetching
//! only when no READ into its rows is outstanding, and what the executor has only when that gives it back, so rows are
//! never reused under a late READ or copy.

use baton_types::{FailReason, FrontendId, Nanos, TaskId};

use crate::action::{Action, BatchTask};
use crate::fetch_time::Fetched;

/// Where a batch slot is in its cycle.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Phase {
    /// No batch.
    Free,
    /// READs are outstanding.
    Fetching,
    /// Every row has arrived or is abandoned.
    Ready,
    /// The GPU slot's executor has it; waits for its turn.
    Prepared,
    /// The executor is to give it back.
    Withdrawing,
    /// It executes, or will behind the batch that does.
    Executing,
    /// Executed; answers are going out.
    Replying,
}

/// How long a batch waits for rows that are missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Patience {
    /// Until `latest`, or rows that are here would be late for others.
    Window,
    /// No row had arrived by then, so none is held up, or all may have arrived unread: lasts as long as the
    /// batch may start at all.
    Grace,
    /// What was missing has been aborted.
    Over,
}

/// What is known of one row of the batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Row {
    /// Its READ is outstanding.
    Reading,
    /// Its READ is outstanding and has been aborted, for this reason.
    Aborting(FailReason),
    /// Its input is in the batch buffer.
    Here,
    /// It is left out of the batch.
    Lost(FailReason),
}

/// How an execution went, on this process's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Execution {
    /// The variant that executed.
    pub(crate) variant: u16,
    /// Measured start.
    pub(crate) started: Nanos,
    /// Measured end.
    pub(crate) finished: Nanos,
    /// False when the engine reported an error: no row has an answer.
    pub(crate) succeeded: bool,
}

impl Execution {
    /// Before the first.
    const NONE: Self =
        Self { variant: 0, started: Nanos::ZERO, finished: Nanos::ZERO, succeeded: false };
}

/// The answer to one task of a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Answer {
    /// Its output row, counted in executed rows.
    Output(BatchTask, u32),
    /// It failed.
    Failed(TaskId, FailReason),
}

/// One batch slot. Calling a transition in the wrong phase is a bug of the caller and panics.
#[derive(Debug)]
pub(crate) struct BatchSlot {
    phase: Phase,
    action: Option<Action>,
    rows: Vec<Row>,
    /// Rows whose READ is outstanding.
    reading: u32,
    /// `order[i]`: the action's row that executes as row i.
    order: Vec<u16>,
    execution: Execution,
    /// Answers that have not been given: to executed rows first.
    unanswered: Vec<Answer>,
    /// When the batch came back from the executor, later by what this process has been stopped since.
    replies_since: Nanos,
    /// How long missing rows are waited for.
    patience: Patience,
    /// A row that was prepared is lost.
    is_outdated: bool,
}

impl BatchSlot {
    /// A free slot for batches of up to `batch_max` rows.
    pub(crate) fn new(batch_max: u32) -> Self {
        Self {
            phase: Phase::Free,
            action: None,
            rows: Vec::with_capacity(batch_max as usize),
            reading: 0,
            order: Vec::with_capacity(batch_max as usize),
            execution: Execution::NONE,
            unanswered: Vec::with_capacity(batch_max as usize),
            replies_since: Nanos::ZERO,
            patience: Patience::Window,
            is_outdated: false,
        }
    }

    /// From now on batches may have up to `batch_max` rows.
    pub(crate) fn reserve(&mut self, batch_max: u32) {
        self.expect(Phase::Free);
        self.rows.clear();
        self.order.clear();
        self.rows.reserve(batch_max as usize);
        self.order.reserve(batch_max as usize);
        self.unanswered.reserve(batch_max as usize);
    }

    /// Where the slot is.
    pub(crate) fn phase(&self) -> Phase {
        self.phase
    }

    /// The batch in the slot; `None` while free, and once it is given up.
    pub(crate) fn action(&self) -> Option<&Action> {
        self.action.as_ref()
    }

    /// How the batch executed. Meaningful while Replying.
    pub(crate) fn execution(&self) -> Execution {
        self.execution
    }

    /// Rows that execute, or executed. Meaningful from Prepared on.
    pub(crate) fn executed_rows(&self) -> u32 {
        self.order.len() as u32
    }

    /// The tasks that execute, or executed, row by row. Meaningful from Prepared on.
    pub(crate) fn executing(&self) -> impl Iterator<Item = &BatchTask> {
        let tasks = self.action.as_ref().map_or(&[][..], |action| &action.tasks);
        self.order.iter().map(|&row| &tasks[usize::from(row)])
    }

    /// The rows whose inputs were stale, not written yet or given up, in ascending order. Meaningful from Prepared on.
    pub(crate) fn stale_rows(&self) -> impl Iterator<Item = u16> + '_ {
        let rows = self.rows.iter().zip(0..);
        rows.filter(|(row, _)| **row == Row::Lost(FailReason::StaleGeneration)).map(|(_, at)| at)
    }

    /// Takes an action: every row is being read from now on.
    pub(crate) fn begin(&mut self, action: Action) {
        self.expect(Phase::Free);
        self.rows.clear();
        self.rows.resize(action.tasks.len(), Row::Reading);
        self.order.clear();
        self.reading = action.tasks.len() as u32;
        self.patience = Patience::Window;
        self.action = Some(action);
        self.phase = Phase::Fetching;
    }

    /// True if a READ of `task` into `row` is outstanding.
    pub(crate) fn expects(&self, row: u32, task: TaskId) -> bool {
        let row = row as usize;
        let is_reading = matches!(self.rows.get(row), Some(Row::Reading | Row::Aborting(_)));
        let planned =
            self.action.as_ref().and_then(|action| action.tasks.get(row)).map(|task| task.id);
        is_reading && planned == Some(task)
    }

    /// The READ into `row` has ended: `None` with the input, `Some` without. An abort that came too
    /// late to stop the data loses the row only if its frontend is gone. Returns the reason for
    /// which the row is left out, if it is.
    pub(crate) fn settle(&mut self, row: u32, failure: Option<FailReason>) -> Option<FailReason> {
        self.expect(Phase::Fetching);
        let row = &mut self.rows[row as usize];
        debug_assert!(matches!(row, Row::Reading | Row::Aborting(_)), "each READ ends once");
        let lost = match (*row, failure) {
            (Row::Aborting(FailReason::FetchFailed), _) => Some(FailReason::FetchFailed),
            (_, None) => None,
            (Row::Aborting(reason), Some(_)) => Some(reason),
            (_, failure) => failure,
        };
        *row = lost.map_or(Row::Here, Row::Lost);
        self.reading -= 1;
        if self.reading == 0 {
            self.phase = Phase::Ready;
        }
        lost
    }

    /// Its inputs are here, which is not kept if some could not be read: those took no part of the time. Call once, when
    /// the slot has become Ready.
    pub(crate) fn fetched(&mut self, fetched: Fetched) {
        self.expect(Phase::Ready);
        let unread = |row: &Row| matches!(row, Row::Lost(why) if *why != FailReason::FetchTimeout);
        let all_read = !self.rows.iter().any(unread);
        if let Some(action) = &mut self.action {
            action.fetched = all_read.then_some(fetched);
        }
    }

    /// When rows still being read must be abandoned, unless none has arrived by then; `None` unless that
    /// is yet to come.
    pub(crate) fn fetch_bound(&self) -> Option<Nanos> {
        let action = self.action.as_ref().filter(|_| self.phase == Phase::Fetching)?;
        match self.patience {
            Patience::Window => Some(action.latest),
            // From then on it is given back once its READs have ended.
            Patience::Grace => Some(action.expires_at() + Nanos(1)),
            Patience::Over => None,
        }
    }

    /// Rows that are here wait for others alone whose frontends owe answers: those are asked for nothing meanwhile.
    pub(crate) fn is_held_up_by(&self, owes: impl Fn(TaskId) -> bool) -> bool {
        let is_waiting = self.phase == Phase::Fetching && self.patience == Patience::Window;
        is_waiting && self.missing().all(owes) && self.rows.contains(&Row::Here)
    }

    /// The tasks whose rows are still being read.
    pub(crate) fn missing(&self) -> impl Iterator<Item = TaskId> + '_ {
        let rows = self.rows.iter().zip(self.action.iter().flat_map(|action| &action.tasks));
        rows.filter(|(row, _)| **row == Row::Reading).map(|(_, task)| task.id)
    }

    /// The fetch bound has passed: calls `abort` for every row still being read, once; or sets a later
    /// bound, if nothing is here, or with `may_be_here`: of what is missing, some may have arrived.
    pub(crate) fn abort_missing(&mut self, may_be_here: bool, mut abort: impl FnMut(u32, TaskId)) {
        let fetching = self.phase == Phase::Fetching;
        let Some(action) = self.action.as_ref().filter(|_| fetching) else { return };
        let may_come = may_be_here || !self.rows.contains(&Row::Here);
        if self.patience == Patience::Window && may_come {
            self.patience = Patience::Grace;
            return;
        }
        self.patience = Patience::Over;
        for (i, row) in self.rows.iter_mut().enumerate() {
            if *row == Row::Reading {
                *row = Row::Aborting(FailReason::FetchTimeout);
                abort(i as u32, action.tasks[i].id);
            }
        }
    }

    /// `frontend` is gone: its rows are left out unless the batch already executes; see [`BatchSlot::is_outdated`]. Calls
    /// `abort` for those being read. Returns how many rows that had arrived are lost by it.
    pub(crate) fn vanish(
        &mut self,
        frontend: FrontendId,
        mut abort: impl FnMut(u32, TaskId),
    ) -> u32 {
        let Some(action) = self.action.as_ref() else { return 0 };
        let open = [Phase::Fetching, Phase::Ready, Phase::Prepared, Phase::Withdrawing];
        if !open.contains(&self.phase) {
            return 0;
        }
        let mut lost = 0;
        for (i, row) in self.rows.iter_mut().enumerate() {
            if action.tasks[i].id.frontend() != frontend {
                continue;
            }
            match *row {
                Row::Reading => {
                    *row = Row::Aborting(FailReason::FetchFailed);
                    abort(i as u32, action.tasks[i].id);
                }
                Row::Aborting(_) => *row = Row::Aborting(FailReason::FetchFailed),
                Row::Here => {
                    *row = Row::Lost(FailReason::FetchFailed);
                    lost += 1;
                }
                Row::Lost(_) => {}
            }
        }
        self.is_outdated |= lost > 0;
        lost
    }

    /// True if a row is lost that the executor has been given: the batch is withdrawn and prepared without it.
    pub(crate) fn is_outdated(&self) -> bool {
        self.is_outdated
    }

    /// Hands the batch to the executor. Fills the gaps that lost rows left with rows from the end:
    /// `move_row(from, to)` for each, at most one per gap. Returns the rows that execute, maybe 0.
    ///
    /// May be done again once it has come back with more rows lost: what was moved is still where it came from.
    pub(crate) fn prepare(&mut self, mut move_row: impl FnMut(u32, u32)) -> u32 {
        self.expect(Phase::Ready);
        self.order.clear();
        self.is_outdated = false;
        let mut end = self.rows.len();
        let mut at = 0;
        while at < end {
            if self.rows[at] == Row::Here {
                self.order.push(at as u16);
            } else if let Some(from) = (at + 1..end).rev().find(|&i| self.rows[i] == Row::Here) {
                move_row(from as u32, at as u32);
                self.order.push(from as u16);
                end = from;
            } else {
                break;
            }
            at += 1;
        }
        self.phase = Phase::Prepared;
        self.executed_rows()
    }

    /// It executes next.
    pub(crate) fn submit(&mut self) {
        self.expect(Phase::Prepared);
        self.phase = Phase::Executing;
    }

    /// It is to come back unexecuted.
    pub(crate) fn withdraw(&mut self) {
        self.expect(Phase::Prepared);
        self.phase = Phase::Withdrawing;
    }

    /// The executor has given it back unexecuted.
    pub(crate) fn come_back(&mut self) {
        assert!(
            matches!(self.phase, Phase::Withdrawing | Phase::Executing),
            "batch slot in the wrong phase"
        );
        self.phase = Phase::Ready;
    }

    /// It waits behind another batch and cannot start in time any more: no outcome will be sent, so the scheduler may take all
    /// tasks back. The executor still has the rows.
    pub(crate) fn give_up(&mut self) -> Action {
        self.expect(Phase::Executing);
        self.action.take().expect("a batch is given up once")
    }

    /// True from [`BatchSlot::give_up`] on.
    pub(crate) fn is_given_up(&self) -> bool {
        self.phase == Phase::Executing && self.action.is_none()
    }

    /// The executor has returned the rows of a batch that was given up.
    pub(crate) fn release(&mut self) {
        assert!(self.is_given_up(), "an action is left in the slot");
        self.phase = Phase::Free;
    }

    /// The executor has given the batch back: every row that it executed is answered, and every row that was left out.
    pub(crate) fn finish(&mut self, execution: Execution, now: Nanos) {
        self.expect(Phase::Executing);
        (self.execution, self.replies_since) = (execution, now);
        self.phase = Phase::Replying;
        let action = self.action.as_ref().expect("a batch that was given up is released");
        let tasks = &action.tasks;
        let executed = self.order.iter().zip(0..).map(|(&row, at)| {
            let task = tasks[usize::from(row)];
            let failed = Answer::Failed(task.id, FailReason::Engine);
            if execution.succeeded { Answer::Output(task, at) } else { failed }
        });
        let left_out = self.rows.iter().zip(tasks).filter_map(|(row, task)| match *row {
            Row::Lost(reason) => Some(Answer::Failed(task.id, reason)),
            _ => None,
        });
        assert!(self.unanswered.is_empty(), "answers of an earlier batch are left");
        self.unanswered.extend(executed.chain(left_out));
        assert_eq!(self.unanswered.len(), tasks.len(), "each task has one answer");
    }

    /// Calls `answer` for every task without one, executed rows first; it returns false if that must wait. True once all are
    /// answered.
    pub(crate) fn answer(&mut self, mut answer: impl FnMut(Answer) -> bool) -> bool {
        self.expect(Phase::Replying);
        self.unanswered.retain(|&task| !answer(task));
        self.unanswered.is_empty()
    }

    /// When the wait for answers to leave began. Meaningful while Replying.
    pub(crate) fn replies_since(&self) -> Nanos {
        self.replies_since
    }

    /// This process was stopped for `pause`, which does not count against any frontend.
    pub(crate) fn excuse(&mut self, pause: Nanos) {
        self.replies_since = self.replies_since + pause;
    }

    /// All answers are out: the slot is free; the action comes back for the report.
    pub(crate) fn free(&mut self) -> Action {
        assert!(self.unanswered.is_empty(), "a task is left without an answer");
        self.leave(Phase::Replying)
    }

    /// Frees a Ready slot without executing: no outcome has been sent, so the scheduler may
    /// take all tasks back.
    pub(crate) fn give_back(&mut self) -> Action {
        self.leave(Phase::Ready)
    }

    fn leave(&mut self, phase: Phase) -> Action {
        self.expect(phase);
        self.phase = Phase::Free;
        self.action.take().expect("only a free slot has no action")
    }

    fn expect(&self, phase: Phase) {
        assert_eq!(self.phase, phase, "batch slot in the wrong phase");
    }
}

#[cfg(test)]
#[path = "slot_tests.rs"]
pub(crate) mod tests;
