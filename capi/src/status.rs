//! How a call ended: a number, and words for people, which the thread keeps until its next call.

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

use baton_client::{InputError, SubmitReason, TicketBusy, UnknownModel};

macro_rules! statuses {
    ($($name:ident = $code:literal;)*) => {
        /// What calls return, by their names in `baton.h` without `BATON_`. Never renumber.
        pub(crate) const STATUSES: &[(&str, i32)] = &[$((stringify!($name), $code),)*];
        $(pub(crate) const $name: i32 = $code;)*
    };
}

statuses! {
    OK = 0;
    PENDING = 1;
    EMPTY = 2;
    E_ARGUMENT = -1;
    E_HANDLE = -2;
    E_BUSY = -3;
    E_CONNECT = -4;
    E_UNKNOWN_MODEL = -5;
    E_NO_SLOT = -6;
    E_MODEL_REMOVED = -7;
    E_CLIENT_CLOSED = -8;
    E_DEADLINE_PASSED = -9;
    E_SCHEDULER_LOST = -10;
    E_QUEUE_FULL = -11;
    E_LEAVE = -12;
    E_TENSORS = -13;
    E_SYSTEM = -14;
    E_FORKED = -15;
    E_INTERNAL = -16;
}

/// A call that did not do what it was asked for.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) status: i32,
    pub(crate) words: String,
}

/// What a call returns besides [`OK`].
pub(crate) type Result<T = i32> = std::result::Result<T, Refusal>;

impl Refusal {
    #[expect(clippy::needless_pass_by_value, reason = "errors are made for this")]
    pub(crate) fn new(status: i32, words: impl ToString) -> Self {
        Self { status, words: words.to_string() }
    }

    pub(crate) fn argument(words: impl ToString) -> Self {
        Self::new(E_ARGUMENT, words)
    }
}

impl From<InputError> for Refusal {
    fn from(error: InputError) -> Self {
        let status = match error {
            InputError::SlabExhausted { .. } => E_NO_SLOT,
            InputError::WrongSize { .. } | InputError::Tensors { .. } => E_TENSORS,
            InputError::ModelRemoved { .. } => E_MODEL_REMOVED,
            InputError::ClientClosed => E_CLIENT_CLOSED,
        };
        Self::new(status, error)
    }
}

impl From<SubmitReason> for Refusal {
    fn from(reason: SubmitReason) -> Self {
        let status = match reason {
            SubmitReason::DeadlinePassed => E_DEADLINE_PASSED,
            SubmitReason::SchedulerLost => E_SCHEDULER_LOST,
            SubmitReason::ClientClosed => E_CLIENT_CLOSED,
            SubmitReason::ModelRemoved => E_MODEL_REMOVED,
        };
        Self::new(status, reason)
    }
}

impl From<UnknownModel> for Refusal {
    fn from(error: UnknownModel) -> Self {
        Self::new(E_UNKNOWN_MODEL, error)
    }
}

impl From<TicketBusy> for Refusal {
    fn from(error: TicketBusy) -> Self {
        Self::new(E_BUSY, error)
    }
}

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Set in a process that was forked off one with a client.
static FORKED: AtomicBool = AtomicBool::new(false);

/// The process is a copy, in which no I/O thread runs, and whose locks may be held by threads that are not there.
pub(crate) fn note_fork() {
    FORKED.store(true, Ordering::Relaxed);
}

/// The border: what a call does, with its refusal kept as words for [`last_error`]. No panic crosses it.
pub(crate) fn call(act: impl FnOnce() -> Result) -> i32 {
    let refusal = match FORKED.load(Ordering::Relaxed) {
        true => forked(),
        false => match catch_unwind(AssertUnwindSafe(act)) {
            Ok(Ok(status)) => return status,
            Ok(Err(refusal)) => refusal,
            Err(_) => internal(),
        },
    };
    // The words may have a zero byte, out of a name that was given.
    let words = CString::new(refusal.words.replace('\0', " ")).unwrap_or_default();
    LAST.with_borrow_mut(|last| *last = words);
    refusal.status
}

fn forked() -> Refusal {
    Refusal::new(
        E_FORKED,
        "this process was forked off one with a client, whose I/O thread is not here: call exec, or connect behind the fork only",
    )
}

fn internal() -> Refusal {
    Refusal::new(
        E_INTERNAL,
        "libbaton panicked, which is a bug: its message is on stderr; free the client",
    )
}

/// The words of this thread's last call that failed.
pub(crate) fn last_error() -> *const c_char {
    LAST.with_borrow(|last| last.as_ptr())
}

#[cfg(test)]
mod tests {
    use std::ffi::CStr;

    use super::*;

    fn words() -> String {
        LAST.with_borrow(|last| CStr::to_string_lossy(last).into_owned())
    }

    #[test]
    fn a_panic_ends_at_the_border() {
        let status = call(|| panic!("planted"));
        assert_eq!(status, E_INTERNAL);
        assert!(words().contains("stderr"), "{}", words());
    }

    #[test]
    fn words_stay_until_the_next_failure() {
        assert_eq!(call(|| Err(Refusal::argument("a\0b: give c"))), E_ARGUMENT);
        assert_eq!(call(|| Ok(OK)), OK);
        assert_eq!(words(), "a b: give c");
    }

    #[test]
    fn statuses_differ() {
        let mut codes: Vec<i32> = STATUSES.iter().map(|(_, code)| *code).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), STATUSES.len());
    }
}
