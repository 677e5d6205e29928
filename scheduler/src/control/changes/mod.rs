//! The catalogue changes while members serve: an operator adds a model, changes one, or removes one.
//!
//! Each change goes from thread to thread by commands and notices; nothing is waited for. `add.rs` and `remove.rs` have the
//! steps in their order; `replace.rs` does one after the other. Several changes may be under way, one for each model and one for each operator's connection.

mod add;
mod files;
mod journal;
mod remove;
mod replace;
mod set;

use std::collections::BTreeMap;

use baton_core::{ModelId, SubclusterId};
use baton_rdma::wire::{CatalogChange, CatalogChanged, ChangeKind, RefuseCode, Role};
use baton_rdma::{ConnId, SendError, Transport};

use super::{ControlThread, Handled, refuse};
use crate::commands::ModelCommand;
use crate::roster::Backend;
pub(crate) use files::SlowWork;
pub(super) use journal::JournalKeeper;

/// The changes under way, by the model's number.
#[derive(Debug, Default)]
pub(super) struct Changes {
    under_way: BTreeMap<ModelId, Change>,
    /// Tables of models that are being read.
    reads: usize,
    /// Commands to the ModelThread of the model that is on its way to another one.
    held: Vec<ModelCommand>,
}

/// A change under way.
#[derive(Debug)]
struct Change {
    /// The operator that waits for the answer; `None` if none does.
    operator: Option<ConnId>,
    step: Step,
}

/// What is awaited.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    /// Every backend that serves the sub-cluster has loaded the model.
    Loaded,
    /// The RankThread, and then a ModelThread, serve the model.
    Served {
        /// The ModelThread.
        thread: usize,
    },
    /// The model's last task has ended.
    Retired,
    /// The RankThread has forgotten the model.
    Unranked,
    /// Some ModelThreads have yet to forget it.
    Forgotten {
        /// How many.
        threads: usize,
        /// Grants that its number has had.
        grants: u32,
    },
}

impl Changes {
    /// Whether the model is being added or removed.
    pub(super) fn is_changing(&self, model: ModelId) -> bool {
        self.under_way.contains_key(&model)
    }

    fn step(&self, model: ModelId) -> Option<Step> {
        self.under_way.get(&model).map(|change| change.step)
    }

    fn set_step(&mut self, model: ModelId, step: Step) {
        if let Some(change) = self.under_way.get_mut(&model) {
            change.step = step;
        }
    }
}

impl<T: Transport> ControlThread<T> {
    /// An operator asks for a change.
    pub(super) fn on_change(
        &mut self,
        conn: ConnId,
        change: &CatalogChange,
        text: &str,
    ) -> Handled {
        let Some(conversation) = self.conversations.get_mut(&conn) else { return Ok(()) };
        if conversation.peer.role != Role::Operator {
            return refuse(RefuseCode::UnexpectedMessage, "only an operator changes the catalogue");
        }
        if std::mem::replace(&mut conversation.is_changing, true) {
            let detail = "a change is under way on this connection; wait for its answer";
            return refuse(RefuseCode::UnexpectedMessage, detail);
        }
        let asked = match ChangeKind::from_code(change.kind) {
            Some(ChangeKind::Add) => self.read_table(conn, text.to_owned(), None),
            Some(ChangeKind::Set) => self.set_or_replace(conn, text),
            Some(ChangeKind::Remove) => self.begin_removal(conn, text).map(|()| None),
            None => Err(format!("this scheduler knows no change of kind {}", change.kind)),
        };
        if let Some(answer) = asked.transpose() {
            self.answer_operator(conn, answer);
        }
        Ok(())
    }

    /// The change of this model is complete, or has failed.
    fn end_change(&mut self, model: ModelId, result: Result<String, String>) {
        let Some(change) = self.changes.under_way.remove(&model) else { return };
        match &result {
            Ok(done) => tracing::info!(model = model.0, "{done}"),
            Err(why) => tracing::warn!(model = model.0, "{why}"),
        }
        match change.operator {
            Some(operator) => self.answer_operator(operator, result),
            None => self.count_change(result.is_ok()),
        }
    }

    /// Answers at once, or as soon as the change is written down.
    fn answer_operator(&mut self, operator: ConnId, result: Result<String, String>) {
        self.count_change(result.is_ok());
        let now = match (&mut self.journal, result) {
            (Some(journal), Ok(text)) => journal.keep(operator, text).map(Ok),
            (_, result) => Some(result),
        };
        if let Some(result) = now {
            self.send_answer(operator, result);
        }
    }

    fn count_change(&self, is_done: bool) {
        let counters = &self.parts.counters;
        let counter = if is_done { &counters.changes_done } else { &counters.changes_refused };
        counter.add(1);
    }

    fn send_answer(&mut self, operator: ConnId, result: Result<String, String>) {
        if let Some(conversation) = self.conversations.get_mut(&operator) {
            conversation.is_changing = false;
        }
        let (status, text) = match result {
            Ok(text) => (0, text),
            Err(text) => (1, text),
        };
        let answer = CatalogChanged { status, reserved: [0; 3] };
        self.send_or_drop(operator, |transport| {
            transport.send(operator, &answer, text.as_bytes()).is_ok()
        });
    }

    /// Tells the ModelThread on which the model lives, once it has arrived there.
    fn tell_home(&mut self, model: ModelId, command: ModelCommand) {
        if self.balance.is_moving(model) {
            return self.changes.held.push(command);
        }
        self.parts.model_threads[self.balance.home(model)].send(command);
    }

    /// The model has arrived where it lives from now on.
    pub(super) fn send_held(&mut self, model: ModelId) {
        let home = &self.parts.model_threads[self.balance.home(model)];
        self.changes.held.drain(..).for_each(|command| home.send(command));
    }

    /// Tells every client: those too that have been sent the catalogue and have not joined yet.
    pub(super) fn tell_clients(&mut self, tell: impl Fn(&mut T, ConnId) -> Result<(), SendError>) {
        let talking = self.conversations.iter().filter(|(_, c)| c.ended.is_none());
        let clients = talking.filter(|(_, c)| c.peer.role == Role::Frontend);
        let clients: Vec<ConnId> = clients.map(|(&conn, _)| conn).collect();
        for conn in clients {
            self.send_or_drop(conn, |transport| tell(transport, conn).is_ok());
        }
    }

    /// Tells the backends of a sub-cluster, or all of them; and those that have been sent the catalogue and have not joined
    /// yet, whose sub-cluster they alone know.
    fn tell_backends(
        &mut self,
        subcluster: Option<SubclusterId>,
        tell: impl Fn(&mut T, ConnId) -> Result<(), SendError>,
    ) {
        let is_other = |b: &Backend| subcluster.is_some_and(|this| b.subcluster != this);
        let others = self.roster.backends().filter(|(_, backend)| is_other(backend));
        let others: Vec<ConnId> = others.map(|(_, backend)| backend.conn).collect();
        let talking = self.conversations.iter().filter(|(_, c)| c.ended.is_none());
        let backends = talking.filter(|(_, c)| c.peer.role == Role::Backend);
        let meant = backends.filter(|(conn, _)| !others.contains(conn));
        let conns: Vec<ConnId> = meant.map(|(&conn, _)| conn).collect();
        for conn in conns {
            self.send_or_drop(conn, |transport| tell(transport, conn).is_ok());
        }
    }
}
