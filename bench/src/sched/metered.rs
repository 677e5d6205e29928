//! An agent that knows what it cost: passes with and without work, and the thread's CPU time.

use baton_core::Nanos;
use baton_topo::{Agent, Clock, Waker};

use super::cpu::thread_time;

/// An agent that is counted.
pub(super) struct Metered<A> {
    pub(super) agent: A,
    idle_passes: u64,
}

/// A reading of the meter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    cpu: Nanos,
    idle_passes: u64,
}

/// What was used between two readings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    pub(super) cpu: Nanos,
    pub(super) idle_passes: u64,
}

impl<A: Agent> Metered<A> {
    pub(super) fn new(agent: A) -> Self {
        Self { agent, idle_passes: 0 }
    }

    /// To be called on the agent's own thread.
    pub(super) fn read(&self) -> Reading {
        Reading { cpu: thread_time(), idle_passes: self.idle_passes }
    }

    /// CPU time of a pass that finds nothing to do, the clock reading included; ns.
    pub(super) fn idle_pass_ns(&mut self, clock: Clock) -> f64 {
        const PASSES: u32 = 20_000;
        let before = thread_time();
        for _ in 0..PASSES {
            self.agent.poll(clock.now());
        }
        (thread_time() - before).0 as f64 / f64::from(PASSES)
    }
}

impl Reading {
    pub(super) fn since(self, earlier: Self) -> Usage {
        Usage { cpu: self.cpu - earlier.cpu, idle_passes: self.idle_passes - earlier.idle_passes }
    }
}

impl<A: Agent> Agent for Metered<A> {
    fn poll(&mut self, now: Nanos) -> usize {
        let work = self.agent.poll(now);
        self.idle_passes += u64::from(work == 0);
        work
    }

    fn next_timer(&self) -> Option<Nanos> {
        self.agent.next_timer()
    }

    fn wait(&mut self, timeout: Option<Nanos>) {
        self.agent.wait(timeout);
    }

    fn waker(&self) -> Waker {
        self.agent.waker()
    }
}
