//! The event log of a run: always a hash of it, and its text on request.

use std::fmt::{self, Write as _};

use baton_core::Nanos;

/// See the module documentation.
#[derive(Debug)]
pub struct Trace {
    hash: u64,
    line: String,
    log: Option<Vec<String>>,
}

impl Trace {
    /// An empty log; `keep` keeps its text.
    pub fn new(keep: bool) -> Self {
        // FNV-1a, eight bytes at a time: it tells runs apart and is the same everywhere.
        Self { hash: 0xcbf2_9ce4_8422_2325, line: String::new(), log: keep.then(Vec::new) }
    }

    /// Enters an event.
    pub fn event(&mut self, now: Nanos, what: fmt::Arguments<'_>) {
        self.line.clear();
        let _infallible = write!(self.line, "{:>13.6} ms  {what}", now.as_millis_f64());
        let line = std::mem::take(&mut self.line);
        line.as_bytes().chunks(8).for_each(|piece| {
            let mut word = [0; 8];
            word[..piece.len()].copy_from_slice(piece);
            self.mix(u64::from_le_bytes(word));
        });
        if let Some(log) = &mut self.log {
            log.push(line.clone());
        }
        self.line = line;
    }

    fn mix(&mut self, word: u64) {
        self.hash = (self.hash ^ word).wrapping_mul(0x0000_0100_0000_01b3).rotate_left(23);
    }

    /// Enters an event in the text only.
    pub fn note(&mut self, now: Nanos, what: fmt::Arguments<'_>) {
        if let Some(log) = &mut self.log {
            log.push(format!("{:>13.6} ms  {what}", now.as_millis_f64()));
        }
    }

    /// True if the text is kept.
    pub fn is_kept(&self) -> bool {
        self.log.is_some()
    }

    /// Differs where the logs do.
    pub fn hash(&self) -> u64 {
        self.hash
    }

    /// The text, if it was kept.
    pub fn into_lines(self) -> Vec<String> {
        self.log.unwrap_or_default()
    }
}
