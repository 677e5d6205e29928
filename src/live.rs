//! Progress on stderr: one line that is written over on a terminal, plain lines elsewhere.

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::{Mutex, PoisonError};

use baton_bench::processes::Note;
use baton_core::Nanos;
use baton_topo::Clock;
use rustix::termios::tcgetwinsize;

/// Writes to stderr. Failures are ignored: progress is a courtesy.
pub(crate) struct Live {
    terminal: bool,
    /// The cursor stands behind a line that is to be written over.
    open: bool,
}

/// Carriage return, erase to the end of the line.
const CLEAR: &str = "\r\x1b[K";

impl Live {
    pub(crate) fn new() -> Self {
        Self { terminal: io::stderr().is_terminal(), open: false }
    }

    /// Shows what a bench or the demo has to tell.
    pub(crate) fn note(&mut self, note: &Note<'_>) {
        match note {
            Note::Step(text) => self.line(text),
            Note::Trouble(text) => self.line(format_args!("!!! {text}")),
            Note::Progress(progress) => self.progress(progress),
        }
    }

    /// Shows the state of affairs in place of the last one.
    pub(crate) fn progress(&mut self, state: impl Display) {
        if self.terminal {
            self.open = true;
            let state = cut(&state.to_string(), width());
            let _ = write!(io::stderr().lock(), "{CLEAR}{state}");
        } else {
            let _ = writeln!(io::stderr().lock(), "{state}");
        }
    }

    /// Writes a line that stays.
    pub(crate) fn line(&mut self, text: impl Display) {
        let clear = if std::mem::take(&mut self.open) { CLEAR } else { "" };
        let _ = writeln!(io::stderr().lock(), "{clear}{text}");
    }

    /// Leaves the last progress standing.
    pub(crate) fn finish(&mut self) {
        if std::mem::take(&mut self.open) {
            let _ = writeln!(io::stderr().lock());
        }
    }
}

/// Progress once a second at most, and none of what ends sooner. Threads share it.
pub(crate) struct Paced {
    clock: Clock,
    /// And when more may be shown.
    live: Mutex<(Live, Nanos)>,
}

const PACE: Nanos = Nanos::from_millis(1_000);

impl Paced {
    pub(crate) fn new() -> Self {
        let clock = Clock::start();
        Self { live: Mutex::new((Live::new(), clock.now() + PACE)), clock }
    }

    pub(crate) fn progress(&self, state: impl Display) {
        let mut held = self.live.lock().unwrap_or_else(PoisonError::into_inner);
        let (live, due) = &mut *held;
        let now = self.clock.now();
        if now >= *due {
            *due = now + PACE;
            live.progress(state);
        }
    }
}

impl Drop for Paced {
    fn drop(&mut self) {
        self.live.get_mut().unwrap_or_else(PoisonError::into_inner).0.finish();
    }
}

/// Columns that a line may have before the terminal breaks it.
fn width() -> usize {
    let columns = tcgetwinsize(io::stderr()).map_or(0, |size| usize::from(size.ws_col));
    if columns > 0 { columns } else { 80 }
}

/// A line that the terminal breaks cannot be written over. The last column stays free for the cursor.
fn cut(line: &str, columns: usize) -> String {
    if line.chars().count() < columns {
        return line.to_owned();
    }
    let kept = line.chars().take(columns.saturating_sub(2));
    kept.chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_never_reaches_the_last_column() {
        assert_eq!(cut("4.0 s  12 tasks", 80), "4.0 s  12 tasks");
        assert_eq!(cut("0123456789", 11), "0123456789");
        assert_eq!(cut("0123456789", 10), "01234567…");
        assert!((1..20).all(|columns| cut("0123456789", columns).chars().count() < columns.max(2)));
    }
}
