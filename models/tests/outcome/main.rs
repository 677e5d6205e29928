//! Outcome: two tasks, one after the other in the same slot, from submit to outcome, whatever breaks meanwhile.
//!
//! The scheduler's decisions and the client's memory are the real ones; client, backend and connections are modelled
//! (`docs/models.md`).

#[path = "../support/panics.rs"]
mod panics;
#[path = "../support/mod.rs"]
mod support;

mod backend;
mod client;
mod model;
mod scheduler;
mod slab;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use baton_core::{DropReason, FrontendId, TaskId, Unserved};
use baton_rdma::wire::ActionStatus;
use stateright::{Model, Property};

use backend::{Answer, Backend, Phase, REMOVED, Report};
use client::Client;
use panics::said;
use scheduler::{Scheduler, Sealed};
use support::{Run, is_wide};

/// How far the model goes.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    tickets: u8,
    cancels: u8,
    faults: u8,
    resubmits: u8,
    /// How many batches a scheduler seals.
    actions: u64,
}

/// What a client says to the scheduler.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Request {
    Submit(TaskId),
    Cancel(TaskId),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Action {
    /// The application submits the next task.
    Submit,
    /// It cancels the outstanding one.
    Cancel,
    /// The scheduler hears what the client says next.
    HearClient,
    /// The RankThread hears of candidates and slots, and grants.
    Match,
    /// The ModelThread hears of a grant.
    Grant,
    /// The backend hears what the scheduler says next.
    HearBatch,
    /// The client hears how a task ended at the scheduler.
    HearEnd,
    /// The client hears the backend's next answer.
    HearAnswer,
    /// The scheduler hears the backend's next report.
    HearReport,
    /// The backend begins to read a task's input.
    Read(usize),
    /// The input is here.
    EndRead(usize),
    /// The backend executes a batch, answers and reports.
    Execute(usize),
    /// The backend gives a batch back.
    GiveBack(usize),
    /// The client submits its task again.
    Resubmit,
    /// The lease of the client's task runs out.
    Expire,
    /// Another scheduler leads.
    Succeed,
    /// The client joins it, and backends are introduced.
    ClientJoins,
    /// The backend joins it.
    BackendJoins,
    /// The backend connects to the client again.
    Reconnect,
    /// The scheduler dies.
    KillScheduler,
    /// It stops in order.
    StopScheduler,
    /// The backend dies, and the scheduler finds out.
    KillBackend,
    /// The connection from backend to client breaks.
    BreakLink,
    /// The connection from client to scheduler breaks.
    BreakClient,
    /// An operator removes the model.
    RemoveModel,
}

#[derive(Clone, PartialEq, Hash, Debug)]
struct State {
    client: Client,
    /// Shared by the states that do not change it.
    scheduler: Option<Arc<Scheduler>>,
    backend: Backend,
    requests: VecDeque<Request>,
    actions: VecDeque<Sealed>,
    ends: VecDeque<(TaskId, Unserved)>,
    answers: VecDeque<Answer>,
    reports: VecDeque<Report>,
    lives: u8,
    faults: u8,
    /// A message was lost from which a client would have learned an outcome.
    is_answer_lost: bool,
    broken: Option<String>,
}

impl State {
    fn new() -> Self {
        let mut state = Self {
            client: Client::default(),
            scheduler: Some(Arc::new(Scheduler::new(1))),
            backend: Backend { life: 1, ..Backend::default() },
            requests: VecDeque::new(),
            actions: VecDeque::new(),
            ends: VecDeque::new(),
            answers: VecDeque::new(),
            reports: VecDeque::new(),
            lives: 1,
            faults: 0,
            is_answer_lost: false,
            broken: None,
        };
        state.backend_joins();
        state.client_joins();
        state
    }

    fn scheduler_mut(&mut self) -> Option<&mut Scheduler> {
        self.scheduler.as_mut().map(Arc::make_mut)
    }

    /// Sends what the scheduler has decided.
    fn send_decisions(&mut self) {
        if self.scheduler.as_ref().is_none_or(|it| it.sealed.is_empty() && it.ends.is_empty()) {
            return;
        }
        let Some(scheduler) = self.scheduler.as_mut().map(Arc::make_mut) else { return };
        self.actions.extend(scheduler.sealed.drain(..));
        let ends = std::mem::take(&mut scheduler.ends);
        let number = scheduler.frontend;
        self.ends.extend(ends.into_iter().filter(|(task, _)| Some(task.frontend()) == number));
    }

    fn client_joins(&mut self) {
        self.client.join();
        self.ends.clear();
        let number = self.client.number();
        if let Some(scheduler) = self.scheduler_mut() {
            scheduler.on_frontend(FrontendId(number));
        }
        self.introduce();
    }

    fn backend_joins(&mut self) {
        let Some(scheduler) = self.scheduler.as_mut().map(Arc::make_mut) else { return };
        self.backend.scheduler = scheduler.life;
        scheduler.on_backend(self.backend.life);
        self.actions.clear();
        self.introduce();
    }

    /// A backend and a client of one scheduler are connected anew.
    fn introduce(&mut self) {
        let Some(scheduler) = &self.scheduler else { return };
        let is_joined = self.backend.scheduler == scheduler.life;
        let number = scheduler.frontend.filter(|_| is_joined);
        if let Some(number) = number.filter(|number| self.backend.link != Some(number.0)) {
            self.cut_link();
            self.backend.link = Some(number.0);
        }
    }

    fn cut_link(&mut self) {
        self.is_answer_lost |= !self.answers.is_empty();
        self.answers.clear();
        self.backend.link = None;
        self.end_reads();
    }

    /// The connection of its READs is gone.
    fn end_reads(&mut self) {
        for held in &mut self.backend.held {
            if let Phase::Reading(_) = held.phase {
                self.client.slab.end_read();
                held.phase = Phase::Lost;
            }
        }
    }

    fn kill_scheduler(&mut self) {
        self.scheduler = None;
        self.actions.clear();
        (self.requests, self.reports) = (VecDeque::new(), VecDeque::new());
        self.client.lose();
        self.backend.let_go();
    }

    fn kill_backend(&mut self) {
        self.end_reads();
        let life = self.backend.life + 1;
        // What it had still to say to the client is lost with it.
        self.is_answer_lost = true;
        self.backend = Backend { life, ..Backend::default() };
        (self.actions, self.reports) = (VecDeque::new(), VecDeque::new());
        self.answers.clear();
        if let Some(scheduler) = self.scheduler_mut() {
            scheduler.on_backend_lost();
        }
    }

    /// The scheduler takes the client for gone, and the client the scheduler.
    fn break_client(&mut self) {
        self.client.lose();
        self.requests.clear();
        if let Some(scheduler) = self.scheduler_mut() {
            scheduler.on_frontend_lost();
        }
    }

    fn hear_client(&mut self) {
        let request = self.requests.pop_front();
        if let Some((scheduler, request)) = self.scheduler_mut().zip(request) {
            match request {
                Request::Submit(task) => scheduler.on_submit(task),
                Request::Cancel(task) => scheduler.on_cancel(task),
            }
        }
    }

    fn hear_report(&mut self) {
        let report = self.reports.pop_front();
        if let Some((scheduler, Report { action, status })) = self.scheduler_mut().zip(report) {
            let status = ActionStatus::from_code(status).expect("it is known");
            scheduler.on_done(action, status);
        }
    }

    fn hear_answer(&mut self) {
        match self.answers.pop_front() {
            Some(Answer::Result(task, content)) => self.client.on_result(task, content),
            Some(Answer::End(task, why)) => self.client.on_end(task, why),
            None => {}
        }
    }

    fn read(&mut self, at: usize) {
        let held = &mut self.backend.held[at];
        let is_linked = self.backend.link == Some(held.sealed.task.frontend().0);
        let slab = Some(&mut self.client.slab).filter(|_| is_linked);
        let content = slab.and_then(|slab| slab.read(held.sealed.task));
        held.phase = content.map_or(Phase::Lost, Phase::Reading);
    }

    fn end_read(&mut self, at: usize) {
        let held = &mut self.backend.held[at];
        if let Phase::Reading(content) = held.phase {
            self.client.slab.end_read();
            held.phase = Phase::Here(content);
        }
    }

    fn execute(&mut self, at: usize) {
        let (answer, report) = self.backend.execute(at);
        self.is_answer_lost |= answer.is_none();
        self.answers.extend(answer);
        self.reports.extend(report);
    }
}
