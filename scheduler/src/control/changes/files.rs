//! Reading and writing files, and trials: aside, so that a slow disk delays an operator and no member.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use baton_core::{Alternative, SubclusterId, Trial};
use baton_topo::{Journal, NetworkSpec, Problem, read_model, with_checksums};

use crate::commands::{Notice, TableRead, TableRequest};
use crate::link::NoticeSender;

/// Where what takes long is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SlowWork {
    /// On a thread of its own.
    Aside,
    /// In the ControlThread, for who moves time by hand.
    InPlace,
}

impl SlowWork {
    /// Reads the `[[model]]` table that an operator sent, and the model's file with it. The answer is a notice.
    pub(super) fn read_table(
        self,
        request: TableRequest,
        network: NetworkSpec,
        notices: &NoticeSender,
    ) {
        let reads = request.text.clone();
        let read = move || {
            let read = read_model(&reads, Path::new(""), Some(&network));
            let table = read.map_err(|problems| Problem::lines(&problems))?;
            Ok((table, with_checksums(&reads)?))
        };
        let answer = move |result| {
            Notice::TableRead(Box::new(TableRead { request: request.clone(), result }))
        };
        self.work("baton-read-model", read, answer, notices);
    }

    /// Writes the journal. The answer is a notice.
    pub(super) fn write(self, journal: Journal, notices: &NoticeSender) {
        let write = move || {
            let written = journal.write();
            written.map_err(|error| {
                format!("{} cannot be written ({error})", journal.file().display())
            })
        };
        self.work("baton-write-journal", write, Notice::JournalWritten, notices);
    }

    /// Tries other rules. The answer is a notice.
    pub(in crate::control) fn try_rules(
        self,
        trial: Trial,
        (subcluster, present): (SubclusterId, Alternative),
        notices: &NoticeSender,
    ) {
        let answer = move |verdict| Notice::Tried { subcluster, verdict };
        self.work("baton-trial", move || Ok(trial.verdict(present)), answer, notices);
    }

    fn work<R: 'static>(
        self,
        name: &str,
        work: impl FnOnce() -> Result<R, String> + Send + 'static,
        answer: impl Fn(Result<R, String>) -> Notice + Clone + Send + 'static,
        notices: &NoticeSender,
    ) {
        if self == Self::InPlace {
            return notices.send(answer(work()));
        }
        let (answers, tell) = (answer.clone(), notices.clone());
        // Without an answer the ControlThread would wait for ever.
        let work = move || catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| panicked());
        let thread = std::thread::Builder::new().name(name.to_owned());
        if let Err(error) = thread.spawn(move || tell.send(answers(work()))) {
            notices
                .send(answer(Err(format!("the scheduler cannot start a thread for it: {error}"))));
        }
    }
}

fn panicked<R>() -> Result<R, String> {
    Err(String::from("the scheduler's thread for it panicked; please report this"))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use baton_topo::Waker;

    #[test]
    fn a_thread_that_panics_has_an_answer_too() {
        let (sender, notices) = NoticeSender::new(Waker::new(|| ()), 1, 1);
        let work = || -> Result<(), String> { panic!("as a bug would") };
        SlowWork::Aside.work("baton-panics", work, Notice::JournalWritten, &sender);
        match notices.recv_timeout(Duration::from_secs(60)) {
            Ok(Notice::JournalWritten(Err(why))) => assert!(why.contains("panicked"), "{why}"),
            other => panic!("{other:?}"),
        }
    }
}
