//! Whether a file is wanted still.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Set once, by who wanted the file. Who pulls it looks, or waits for it.
#[derive(Default, Debug)]
pub struct GiveUp {
    is_set: Mutex<bool>,
    set: Condvar,
}

impl GiveUp {
    /// The file is not wanted any more.
    pub fn set(&self) {
        *self.is_set.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.set.notify_all();
    }

    /// Whether it was set.
    pub fn is_set(&self) -> bool {
        *self.is_set.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits so long, unless it is set before that. Returns whether it is.
    pub(super) fn wait(&self, pause: Duration) -> bool {
        let is_set = self.is_set.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.set.wait_timeout_while(is_set, pause, |is_set| !*is_set);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}
