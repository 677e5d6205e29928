//! Changes are written down for the next scheduler; an operator is answered once its change is.
//!
//! In: each change that was made, and its answer. Out: one write at a time, of all changes so far. What comes meanwhile waits
//! for the next write.

use baton_rdma::{ConnId, Transport};
use baton_topo::{Journal, JournalKind};

use crate::control::ControlThread;

/// The journal, and who waits for it.
#[derive(Debug)]
pub(in crate::control) struct JournalKeeper {
    journal: Journal,
    is_writing: bool,
    /// Changes that the write under way does not have.
    has_news: bool,
    /// At most one for each operator's connection.
    answers: Vec<Answer>,
}

#[derive(Debug)]
struct Answer {
    operator: ConnId,
    text: String,
    /// The write under way has its change.
    is_in_write: bool,
}

impl JournalKeeper {
    pub(in crate::control) fn new(journal: Journal) -> Self {
        Self { journal, is_writing: false, has_news: false, answers: Vec::new() }
    }

    /// Keeps the answer until what has changed is written. Gives it back if nothing is to be written: a change that was given up
    /// leaves nothing to write down.
    pub(super) fn keep(&mut self, operator: ConnId, text: String) -> Option<String> {
        debug_assert!(self.is_writing || !self.has_news, "what has changed is written at once");
        if !self.is_writing {
            return Some(text);
        }
        self.answers.push(Answer { operator, text, is_in_write: !self.has_news });
        None
    }

    fn next_write(&mut self) -> Option<Journal> {
        if self.is_writing || !self.has_news {
            return None;
        }
        self.is_writing = true;
        self.has_news = false;
        self.answers.iter_mut().for_each(|answer| answer.is_in_write = true);
        Some(self.journal.clone())
    }

    /// Who is answered now.
    fn written(&mut self) -> Vec<Answer> {
        self.is_writing = false;
        self.answers.extract_if(.., |answer| answer.is_in_write).collect()
    }
}

impl<T: Transport> ControlThread<T> {
    /// Writes a change down, if there is a journal.
    pub(super) fn write_down(&mut self, kind: JournalKind, name: &str, table: &str) {
        if let Some(keeper) = &mut self.journal {
            keeper.journal.note(kind, name, table);
            keeper.has_news = true;
        }
        self.write_journal();
    }

    fn write_journal(&mut self) {
        if let Some(journal) = self.journal.as_mut().and_then(JournalKeeper::next_write) {
            self.parts.slow_work.write(journal, &self.parts.notice_sender);
        }
    }

    /// Answers the operators whose changes the write had.
    pub(in crate::control) fn on_journal_written(&mut self, result: &Result<(), String>) {
        let answers = self.journal.as_mut().map(JournalKeeper::written).unwrap_or_default();
        if let Err(error) = result {
            tracing::error!(error, "changes of the catalogue could not be written down");
        }
        for Answer { operator, mut text, .. } in answers {
            if let Err(error) = result {
                text += &format!("; the next scheduler will not know of it: {error}");
            }
            self.send_answer(operator, Ok(text));
        }
        self.write_journal();
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn answered(keeper: &mut JournalKeeper) -> Vec<String> {
        keeper.written().into_iter().map(|answer| answer.text).collect()
    }

    /// A change as the ControlThread makes it: noted, perhaps written, answered.
    fn change(keeper: &mut JournalKeeper, operator: u64) -> Option<Journal> {
        keeper.journal.note(JournalKind::Remove, &operator.to_string(), "");
        keeper.has_news = true;
        let write = keeper.next_write();
        assert_eq!(keeper.keep(ConnId(operator), operator.to_string()), None);
        write
    }

    #[test]
    fn an_operator_is_answered_by_the_write_that_has_its_change() {
        let journal = Journal::open(Path::new("no/such/journal.toml")).unwrap();
        let mut keeper = JournalKeeper::new(journal);
        assert!(change(&mut keeper, 1).is_some(), "it is written at once");
        assert!(change(&mut keeper, 2).is_none(), "one write at a time");
        assert!(change(&mut keeper, 3).is_none());
        assert_eq!(answered(&mut keeper), ["1"], "the write began before the other change");
        assert!(keeper.next_write().is_some());
        assert!(change(&mut keeper, 4).is_none());
        assert_eq!(answered(&mut keeper), ["2", "3"]);
        assert!(keeper.next_write().is_some());
        assert_eq!(answered(&mut keeper), ["4"]);
        assert!(keeper.next_write().is_none(), "nothing is left");
        let given_up = keeper.keep(ConnId(5), "5".to_owned());
        assert_eq!(given_up.as_deref(), Some("5"), "no write would answer it");
    }
}
