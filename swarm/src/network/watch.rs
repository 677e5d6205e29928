//! What the network has seen of things that oracles ask about.

use std::collections::{BTreeMap, BTreeSet};

use baton_core::{Nanos, TaskId};

use super::HostId;
use super::batches::{BatchWord, Batches};
use super::conn::Conn;
use super::ears::{Ears, Tidings};
use super::frames::{Wish, Word};
use super::order::Order;

/// Outcomes under way or lost, and conversations that broke.
#[derive(Default, Debug)]
pub struct Watch {
    /// Words about each task that were sent and have not been read, by how many.
    pub(super) words: BTreeMap<u64, u32>,
    /// Pairs of hosts between which a connection has ended or broken, the smaller first.
    pub(super) broken: BTreeSet<(HostId, HostId)>,
    /// Tasks that a scheduler gave back when it stopped.
    pub(super) given_back: BTreeSet<u64>,
    /// Wishes to cancel that clients have sent.
    pub cancels: u64,
    /// Frames repeated.
    pub repeated: u64,
    /// Frames in all.
    pub frames: u64,
    /// Bytes in all.
    pub bytes: u64,
    /// Ends of connections that their owners closed.
    pub closings: u64,
    /// Batches between plan and report.
    pub(super) batches: Batches,
    /// Tasks between request and plan.
    order: Order,
    /// Of which scheduler clients have asked that it serves each task.
    asked: BTreeMap<u64, HostId>,
    /// Who has gone, and what was given back.
    pub(super) ears: Ears,
    /// No thread of a scheduler has stood still since then.
    pub(super) awake_since: Nanos,
    /// A scheduler follows rules that a trial found. They may pass a task over for others, and serve it later.
    pub(super) others_go_first: bool,
}

impl Watch {
    /// True if the task's outcome was sent and not read: it is under way, or lost.
    pub fn word_unheard(&self, task: TaskId) -> bool {
        self.words.contains_key(&task.0)
    }

    /// True if a scheduler that stopped gave the task back, and its frontend has read that.
    pub(crate) fn was_given_back(&self, task: TaskId) -> bool {
        self.given_back.contains(&task.0) && !self.word_unheard(task)
    }

    /// When a scheduler gave the frontend a task back last.
    pub(crate) fn last_return(&self, frontend: HostId) -> Option<Nanos> {
        self.ears.last_return(frontend)
    }

    /// True if a connection between the two has ended or broken.
    pub fn broken(&self, a: HostId, b: HostId) -> bool {
        self.broken.contains(&(a.min(b), a.max(b)))
    }

    /// The first thing a backend said about a batch that cannot be.
    pub fn wrong(&self) -> Option<&str> {
        self.batches.wrong.as_deref()
    }

    /// Who has reported the task's batch as executed: it has answered, or is about to.
    pub(crate) fn answered_by(&self, task: TaskId) -> Option<HostId> {
        self.batches.answered_by(task)
    }

    pub(super) fn said(&mut self, task: TaskId) {
        *self.words.entry(task.0).or_default() += 1;
    }

    /// The owner of this endpoint has read that of `writer`.
    pub(super) fn read(
        &mut self,
        (reader, host): (usize, HostId),
        writer: HostId,
        word: Word,
        now: Nanos,
    ) {
        match word {
            Word::Tidings(tidings) => self.ears.heard(host, writer, tidings, now),
            Word::End(task) => self.heard(task),
            Word::Asked(asked) => self.order.read(reader, asked, now),
        }
    }

    /// A scheduler's thread writes that to a backend.
    pub(super) fn check_order(
        &mut self,
        thread: usize,
        (scheduler, backend): (HostId, HostId),
        word: &BatchWord,
        now: Nanos,
    ) {
        let BatchWord::Planned(batch, planned) = word else { return };
        if let Some(what) = self.ears.planned((scheduler, backend), word, now, self.awake_since) {
            self.batches.wrong.get_or_insert(what);
        }
        let wrong = self.order.planned((thread, planned.model), &planned.tasks, now);
        self.note_disorder(scheduler, wrong.map(|what| format!("in batch {batch} task {what}")));
    }

    /// A scheduler's thread gives a task up that has had no turn.
    pub(super) fn check_turn(
        &mut self,
        thread: usize,
        scheduler: HostId,
        task: TaskId,
        now: Nanos,
    ) {
        let wrong = self.order.given_up(thread, task.0, now);
        self.note_disorder(scheduler, wrong);
    }

    /// A client asks a scheduler for that. What it cancels it has asked the same scheduler for.
    pub(super) fn asked_of(&mut self, scheduler: HostId, wish: Wish) {
        match wish {
            Wish::Submit(task) => drop(self.asked.insert(task.0, scheduler)),
            Wish::Cancel(task) => {
                self.cancels += 1;
                if self.asked.get(&task.0) != Some(&scheduler) {
                    let said = || format!("{scheduler:?} never had {task:?}, and is to cancel it");
                    self.batches.wrong.get_or_insert_with(said);
                }
            }
        }
    }

    /// `from` writes that.
    pub(super) fn said_of(&mut self, from: HostId, tidings: Option<Tidings>, now: Nanos) {
        tidings.into_iter().for_each(|tidings| self.ears.said(from, tidings, now));
    }

    fn note_disorder(&mut self, scheduler: HostId, wrong: Option<String>) {
        let Some(what) = wrong.filter(|_| !self.others_go_first) else { return };
        // What was given to a backend that is gone may never have been seen here, and waits again.
        let mut broken = self.broken.iter();
        let is_gone = |&host: &HostId| host != scheduler && self.batches.is_backend(host);
        if !broken.any(|(a, b)| [a, b].contains(&&scheduler) && (is_gone(a) || is_gone(b))) {
            self.batches.wrong.get_or_insert(what);
        }
    }

    fn heard(&mut self, task: TaskId) {
        if let Some(count) = self.words.get_mut(&task.0) {
            *count -= 1;
            if *count == 0 {
                self.words.remove(&task.0);
            }
        }
    }

    /// What was on this way will not be read: the words in it stay unheard.
    pub(super) fn lost(&mut self, conn: &mut Conn, way: usize) {
        conn.ways[way].frames.words.clear();
    }
}
