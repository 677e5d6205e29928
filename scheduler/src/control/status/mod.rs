//! An operator asks how the cluster fares. Numbers are read where the threads publish them: no thread is asked.
//!
//! The answer goes out in parts, each when the operator asks for it, so that a large cluster fills no send queue. The
//! ControlThread keeps nothing from one part to the next and writes one part per pass at most.

mod events;
mod loads;
mod records;
mod state;
mod window;

use std::collections::{BTreeMap, VecDeque};

use baton_core::{Gpu, ModelId, Nanos};
use baton_rdma::status::PART_MAX;
use baton_rdma::wire::{RefuseCode, Role, StatusAsk, StatusPart};
use baton_rdma::{ConnId, Transport};

use super::{ControlThread, Handled, refuse};
use crate::migration::load_board::LoadBoard;
use crate::task_board::TaskBoards;
use events::EventLog;
pub(super) use events::{EventKind, LossReason};
use loads::LoadLog;
use records::{Place, Section};
use window::{ModelMoment, Window};

/// What the ControlThread keeps for questions.
#[derive(Default, Debug)]
pub(super) struct Status {
    /// Operators that wait for a part, one entry each at most.
    asks: VecDeque<ConnId>,
    /// `None` before the first pass.
    window: Option<Window>,
    started_at: Nanos,
    events: EventLog,
    loads: LoadLog,
    /// What was counted under a number before the model that has it now.
    origins: BTreeMap<ModelId, ModelMoment>,
}

impl Status {
    fn since_it_is_served(&self, model: ModelId, boards: (&LoadBoard, &TaskBoards)) -> ModelMoment {
        let now = ModelMoment::read(model, boards);
        match self.origins.get(&model) {
            Some(origin) => now.since(origin),
            None => now,
        }
    }
}

impl<T: Transport> ControlThread<T> {
    pub(super) fn on_status_ask(&mut self, conn: ConnId, ask: &StatusAsk) -> Handled {
        let Some(conversation) = self.conversations.get_mut(&conn) else { return Ok(()) };
        if conversation.peer.role != Role::Operator {
            return refuse(RefuseCode::UnexpectedMessage, "only an operator asks for the status");
        }
        if conversation.asks_from.replace(ask.from.get()).is_some() {
            let detail = "a part of the status is under way on this connection; wait for it";
            return refuse(RefuseCode::UnexpectedMessage, detail);
        }
        self.status.asks.push_back(conn);
        Ok(())
    }

    /// Answers who has waited longest. One a pass: members are heard in between.
    pub(super) fn answer_ask(&mut self, now: Nanos) -> usize {
        while let Some(conn) = self.status.asks.pop_front() {
            let waiting = self.conversations.get_mut(&conn).filter(|c| c.ended.is_none());
            let Some(from) = waiting.and_then(|c| c.asks_from.take()) else { continue };
            let (next, text) = self.part(now, Place::from_wire(from));
            let part = StatusPart { next: next.into() };
            self.send_or_drop(conn, |transport| {
                transport.send(conn, &part, text.as_bytes()).is_ok()
            });
            return 1;
        }
        0
    }

    /// The records from a place on, as many as a part may have, and where the next part begins.
    fn part(&self, now: Nanos, from: Place) -> (u64, String) {
        let mut text = String::new();
        for section in Section::ALL.into_iter().filter(|&section| section >= from.section) {
            let first = if section == from.section { from.index } else { 0 };
            for (index, record) in self.records(now, section, first) {
                let line = record.line();
                if text.len() + line.len() > PART_MAX {
                    return (Place { section, index }.to_wire(), text);
                }
                text.push_str(&line);
            }
        }
        (Place::END, text)
    }

    /// Once a second, before the ModelThreads write down their load again.
    pub(super) fn look_at_window(&mut self, now: Nanos) {
        let Some(window) = &mut self.status.window else {
            self.status.started_at = now;
            self.status.window = Some(Window::begin(now));
            return;
        };
        let models = self.parts.catalog.entries().map(|(model, _)| model);
        window.look(now, models, (&self.parts.load, &self.parts.tasks));
    }

    /// The ModelThreads are asked to write down their load.
    pub(super) fn note_report(&mut self, now: Nanos) {
        if let Some(window) = &mut self.status.window {
            window.reported(now);
        }
    }

    /// A model is gone; the next one with its number begins from nothing.
    pub(super) fn forget_figures(&mut self, model: ModelId) {
        let boards = (&*self.parts.load, &self.parts.tasks);
        self.status.origins.insert(model, ModelMoment::read(model, boards));
        if let Some(window) = &mut self.status.window {
            window.forget(model, boards);
        }
    }

    /// The slots begin another life.
    pub(super) fn forget_busy(&mut self, gpus: &[Gpu]) {
        if let Some(window) = &mut self.status.window {
            window.forget_slots(gpus, &self.parts.tasks);
        }
    }

    /// Remembers what has happened, for questions.
    pub(super) fn note_event(&mut self, kind: EventKind, subject: &str, detail: &str) {
        self.status.events.note(self.log.now, kind, subject, detail);
    }
}
