//! Arrivals for a trial.

use alloc::vec::Vec;

use super::{RECORDED_FOR, Recorded};
use baton_types::Nanos;

/// The tasks that come from some moment on, until there are enough. Allocates once.
#[derive(Clone, Debug)]
pub struct Recording {
    arrivals: Vec<Recorded>,
    most: usize,
    until: Nanos,
}

impl Recording {
    /// Records up to `most` tasks from now on, for at most [`RECORDED_FOR`].
    pub fn new(now: Nanos, most: usize) -> Self {
        Self { arrivals: Vec::with_capacity(most), most, until: now + RECORDED_FOR }
    }

    /// A task came. False if it is not recorded: the recording is over.
    #[inline]
    pub fn arrived(&mut self, now: Nanos, model: u32, deadline: Nanos) -> bool {
        let is_recorded = !self.is_over(now);
        if is_recorded {
            self.arrivals.push(Recorded { at: now, model, budget: deadline - now });
        }
        is_recorded
    }

    /// There are enough.
    #[inline]
    pub fn is_over(&self, now: Nanos) -> bool {
        self.arrivals.len() >= self.most || now >= self.until
    }

    /// What came, in order of time.
    pub fn into_arrivals(self) -> Vec<Recorded> {
        self.arrivals
    }
}
