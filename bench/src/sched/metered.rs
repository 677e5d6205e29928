//! An agent that knows what it cost: the thread's CPU time, and how much of it went into passes that
//! found something to do.
//!
//! A pass is as long as the span to the next one, so telling them apart costs no clock reading. A pass
//! during which the thread was interrupted says nothing; the CPU time is divided as the others are.

use baton_core::Nanos;
use baton_topo::{Agent, Waker};

use crate::machine::thread_time;

/// An agent that is counted.
pub(super) struct Metered<A> {
    pub(super) agent: A,
    passes: Passes,
    /// When the last pass began, and whether it found something to do.
    last: Option<(Nanos, bool)>,
}

/// Since the start, or between two readings.
#[derive(Clone, Copy, Default, Debug)]
struct Passes {
    /// With something to do, and how long they took.
    busy: u64,
    busy_span: Nanos,
    /// Without.
    idle: u64,
    idle_span: Nanos,
    /// Longer than [`INTERRUPTED`]; in none of the above.
    interrupted: u64,
}

/// A reading of the meter.
#[derive(Clone, Copy, Debug)]
pub(super) struct Reading {
    cpu: Nanos,
    passes: Passes,
}

/// What was used between two readings.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    cpu: Nanos,
    passes: Passes,
}

/// The kernel takes a core away for milliseconds; the longest pass of an agent is a tenth of this.
const INTERRUPTED: Nanos = Nanos::from_micros(500);

impl<A: Agent> Metered<A> {
    pub(super) fn new(agent: A) -> Self {
        Self { agent, passes: Passes::default(), last: None }
    }

    /// To be called on the agent's own thread.
    pub(super) fn read(&mut self) -> Reading {
        // What follows is not a pass.
        self.last = None;
        Reading { cpu: thread_time(), passes: self.passes }
    }
}

impl Reading {
    pub(super) fn since(self, earlier: Self) -> Usage {
        Usage { cpu: self.cpu - earlier.cpu, passes: self.passes.since(earlier.passes) }
    }
}

impl Usage {
    /// CPU time of the passes that did something, ns.
    pub(super) fn busy_ns(&self) -> f64 {
        self.cpu.0 as f64 * self.busy_share()
    }

    /// Share of the thread's CPU time in which it had something to do.
    pub(super) fn busy_share(&self) -> f64 {
        let Passes { busy_span, idle_span, .. } = self.passes;
        busy_span.0 as f64 / ((busy_span + idle_span).0 as f64).max(1.0)
    }

    /// Passes that did something.
    pub(super) fn busy_passes(&self) -> u64 {
        self.passes.busy
    }

    /// Length of a pass that finds nothing to do, ns; 0 without any.
    pub(super) fn idle_pass_ns(&self) -> f64 {
        self.passes.idle_span.0 as f64 / self.passes.idle.max(1) as f64
    }

    /// Passes during which the core was taken away.
    pub(super) fn interruptions(&self) -> u64 {
        self.passes.interrupted
    }
}

impl Passes {
    fn count(&mut self, span: Nanos, busy: bool) {
        if span > INTERRUPTED {
            self.interrupted += 1;
        } else if busy {
            self.busy += 1;
            self.busy_span = self.busy_span + span;
        } else {
            self.idle += 1;
            self.idle_span = self.idle_span + span;
        }
    }

    fn since(self, earlier: Self) -> Self {
        Self {
            busy: self.busy - earlier.busy,
            busy_span: self.busy_span - earlier.busy_span,
            idle: self.idle - earlier.idle,
            idle_span: self.idle_span - earlier.idle_span,
            interrupted: self.interrupted - earlier.interrupted,
        }
    }
}

impl<A: Agent> Agent for Metered<A> {
    fn poll(&mut self, now: Nanos) -> usize {
        if let Some((began, busy)) = self.last {
            self.passes.count(now - began, busy);
        }
        let work = self.agent.poll(now);
        self.last = Some((now, work > 0));
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Has something to do in every other pass.
    struct EveryOther(usize);

    impl Agent for EveryOther {
        fn poll(&mut self, _: Nanos) -> usize {
            self.0 += 1;
            self.0 % 2
        }
        fn next_timer(&self) -> Option<Nanos> {
            None
        }
        fn wait(&mut self, _: Option<Nanos>) {}
        fn waker(&self) -> Waker {
            Waker::new(|| ())
        }
    }

    #[test]
    fn passes_are_distinguished_by_what_they_found() {
        let mut agent = Metered::new(EveryOther(0));
        let before = agent.read();
        // Busy passes of 300 ns, idle ones of 100; the third busy one is interrupted.
        for at in [0, 300, 400, 700, 800, 9_000_000, 9_000_100] {
            agent.poll(Nanos(at));
        }
        let usage = agent.read().since(before);
        assert_eq!((usage.busy_passes(), usage.interruptions()), (2, 1));
        assert_eq!((usage.idle_pass_ns(), usage.busy_share()), (100.0, 600.0 / 900.0));
    }

    #[test]
    fn what_lies_between_two_readings_is_no_pass() {
        let mut agent = Metered::new(EveryOther(0));
        agent.poll(Nanos(0));
        let before = agent.read();
        agent.poll(Nanos(400_000));
        agent.poll(Nanos(400_100));
        let usage = agent.read().since(before);
        assert_eq!(usage.idle_pass_ns(), 100.0, "the pass before the reading is not counted");
    }
}
