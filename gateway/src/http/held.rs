//! Memory that requests and answers take, against the bound of all of them.

use std::sync::Arc;

use crate::gateway::App;
use crate::protocol::problem::Problem;

/// When there may be room again.
const RETRY: std::time::Duration = std::time::Duration::from_millis(50);

/// A share of the bound; given back when dropped.
pub(crate) struct Held {
    app: Arc<App>,
    bytes: u64,
}

impl Held {
    pub(crate) fn new(app: &Arc<App>) -> Self {
        Self { app: Arc::clone(app), bytes: 0 }
    }

    /// Of short words, which are never refused: there are as many as requests.
    pub(crate) fn words(app: &Arc<App>, bytes: usize) -> Self {
        app.counters.held_bytes.add(bytes as u64);
        Self { app: Arc::clone(app), bytes: bytes as u64 }
    }

    /// # Errors
    /// The bound is reached.
    pub(crate) fn grow(&mut self, bytes: usize) -> Result<(), Problem> {
        let most = self.app.limits.held_bytes;
        if !self.app.counters.held_bytes.try_add(bytes as u64, most) {
            return Err(Problem::shed("the gateway's memory for requests is full", RETRY));
        }
        self.bytes += bytes as u64;
        Ok(())
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.app.counters.held_bytes.sub(self.bytes);
    }
}
