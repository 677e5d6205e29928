//! The end of a fabric: what was said arrives, and nothing writes to memory that is given back.

use baton_types::Nanos;

use super::super::engine::{PullBounds, ReadEngine};
use super::Fabric;

/// How long each of it may take.
const LAST_DRAIN: Nanos = Nanos::from_millis(1_000);

impl Drop for Fabric {
    /// Messages that were taken are delivered, as TCP would; rows are given back only when nothing
    /// writes to them any more, and otherwise never.
    fn drop(&mut self) {
        let until = self.clock.now() + LAST_DRAIN;
        self.settle(until, |fabric| fabric.sessions.engine.is_delivered());
        for place in 0..self.links.len() {
            self.read_engine.close(place, &mut self.device);
        }
        self.sessions.close_all(&mut self.device);
        let until = self.clock.now() + LAST_DRAIN;
        self.settle(until, |fabric| {
            fabric.read_engine.is_drained() && fabric.sessions.engine.is_empty()
        });
        if !self.read_engine.is_drained() {
            tracing::error!(
                "a queue pair does not drain; the rows its READs name are kept forever"
            );
            let empty = PullBounds { slice_bytes: 1, credit_bytes: 0, posted_max: 0, ops_max: 0 };
            std::mem::forget(std::mem::replace(&mut self.read_engine, ReadEngine::new(empty)));
        }
        self.device.disarm();
    }
}

impl Fabric {
    /// At the end: takes in completions until `done` or the time is up.
    fn settle(&mut self, until: Nanos, done: impl Fn(&Self) -> bool) {
        let mut now = self.clock.now();
        while !done(self) && now < until {
            self.device.poll(&mut self.completions, &mut self.sessions.signals);
            for completion in self.completions.drain(..) {
                self.read_engine.complete(completion, until, &mut self.device);
            }
            self.sessions.absorb(&mut self.device);
            self.sessions.engine.expire(now, &mut self.device);
            self.sessions.engine.pump(now, &mut self.device);
            std::thread::yield_now();
            now = self.clock.now();
        }
    }
}
