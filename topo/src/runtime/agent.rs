//! Agents and the loop that runs them.
//!
//! An agent owns state, not a thread: the same `poll` is called by the pinned loop below in
//! production and by hand, with a clock of its choosing, in tests.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use baton_types::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec};

use crate::runtime::Clock;
use crate::runtime::PARK_MAX;
use crate::runtime::Waker;

/// Something that is polled.
pub trait Agent {
    /// One pass: takes what has arrived, does what is due, sends what results. Never blocks.
    /// Returns how much there was to do; 0 lets the loop idle.
    fn poll(&mut self, now: Nanos) -> usize;

    /// When the agent must be polled again even if nothing arrives; `None`: not before.
    fn next_timer(&self) -> Option<Nanos>;

    /// Blocks until something arrives, the agent's waker fires, or `timeout` passes.
    fn wait(&mut self, timeout: Option<Nanos>);

    /// Ends [`Agent::wait`].
    fn waker(&self) -> Waker;

    /// The longest that its thread sleeps where no timer ends the sleep. Agents that measure the time that they were awake
    /// must not sleep longer in one piece than the step they count in, [`PARK_MAX`] by default; others may say [`SLEEP_MAX`].
    fn sleep_max(&self) -> Nanos {
        PARK_MAX
    }

    /// True once the agent has nothing left to do and its thread may end.
    fn finished(&self) -> bool {
        false
    }
}

/// What a thread does while its agent has no work.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Idle {
    /// Burn the core: lowest latency, one core per agent.
    Spin,
    /// Offer the core to others between passes.
    Yield,
    /// Sleep until woken: the default, and right wherever agents outnumber cores.
    Park,
}

impl Idle {
    /// As cluster files and options say it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Spin => "spin",
            Self::Yield => "yield",
            Self::Park => "park",
        }
    }
}

/// Where and how an agent's thread runs.
#[derive(Clone, Debug)]
pub struct Placement {
    /// The thread's name, for debuggers and logs (the kernel keeps 15 bytes).
    pub name: String,
    /// Core to pin to; `None` leaves it to the kernel.
    pub core: Option<usize>,
    /// What to do without work.
    pub idle: Idle,
}

/// A stop wakes its thread. The thread looks by itself this often all the same.
pub const SLEEP_MAX: Nanos = Nanos::from_millis(10_000);

/// A timer closer than this is waited for by polling: parking would oversleep it.
const PARK_MIN: Nanos = Nanos::from_micros(20);

/// Runs `agent` on the calling thread until `stop` is set or the agent has finished.
pub fn run(agent: &mut impl Agent, clock: Clock, placement: &Placement, stop: &Arc<AtomicBool>) {
    prepare_thread(placement);
    let waker = agent.waker();
    while !stop.load(Ordering::Relaxed) && !agent.finished() {
        if agent.poll(clock.now()) > 0 {
            continue;
        }
        match placement.idle {
            Idle::Spin => std::hint::spin_loop(),
            Idle::Yield => std::thread::yield_now(),
            Idle::Park => park(agent, &waker, clock, stop),
        }
    }
}

fn park(agent: &mut impl Agent, waker: &Waker, clock: Clock, stop: &AtomicBool) {
    waker.prepare_sleep();
    let now = clock.now();
    // A stop that came before the sleep was announced has woken no thread.
    if agent.poll(now) == 0 && !stop.load(Ordering::Relaxed) {
        let longest = agent.sleep_max();
        let timeout = agent.next_timer().map_or(longest, |due| (due - now).min(longest));
        if timeout >= PARK_MIN {
            agent.wait(Some(timeout));
        }
    }
    waker.awake();
}

/// Blocks the calling thread until it is unparked or `timeout` passes: [`Agent::wait`] for agents
/// without a transport.
pub fn park_thread(timeout: Option<Nanos>) {
    match timeout {
        Some(timeout) => std::thread::park_timeout(Duration::from_nanos(timeout.0)),
        None => std::thread::park(),
    }
}

/// Blocks the calling thread until the descriptor is readable or `timeout` passes (`None`: no bound), to the nanosecond.
/// An epoll instance is itself such a descriptor, and its own wait counts in milliseconds.
pub fn wait_readable(pollable: impl AsFd, timeout: Option<Nanos>) {
    let timeout = timeout
        .map(|Nanos(ns)| Timespec::try_from(Duration::from_nanos(ns)).expect("584 years fit"));
    let mut fds = [PollFd::new(&pollable, PollFlags::IN)];
    match rustix::event::poll(&mut fds, timeout.as_ref()) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(error) => tracing::error!(%error, "ppoll failed"),
    }
}

/// Pins the calling thread and asks the kernel for precise timeouts. Neither is needed for correctness, so
/// a refusal is reported and lived with.
pub fn prepare_thread(placement: &Placement) {
    if let Some(core) = placement.core
        && !core_affinity::set_for_current(core_affinity::CoreId { id: core })
    {
        tracing::warn!(thread = placement.name, core, "could not pin; running unpinned");
    }
    if let Err(error) = rustix::thread::set_current_timer_slack(TIMER_SLACK) {
        tracing::warn!(thread = placement.name, %error, "could not tighten the timer slack");
    }
}

/// Linux rounds timeouts by 50 µs by default; 1 ns requests the best precision it has.
const TIMER_SLACK: Option<core::num::NonZeroU64> = core::num::NonZeroU64::new(1);

#[cfg(test)]
mod tests {
    use super::*;

    /// It hears of its stop while it looks once more before it sleeps.
    struct Stopped(Arc<AtomicBool>, u32);

    impl Agent for Stopped {
        fn poll(&mut self, _: Nanos) -> usize {
            self.1 += 1;
            self.0.store(self.1 > 1, Ordering::Relaxed);
            0
        }

        fn next_timer(&self) -> Option<Nanos> {
            None
        }

        fn wait(&mut self, _: Option<Nanos>) {
            panic!("no one will wake it");
        }

        fn waker(&self) -> Waker {
            Waker::new(|| {})
        }
    }

    /// It has work on every other pass, ten times. What it would sleep through came while it worked.
    struct Busy(u32);

    impl Agent for Busy {
        fn poll(&mut self, _: Nanos) -> usize {
            self.0 += 1;
            (self.0 % 2) as usize
        }

        fn next_timer(&self) -> Option<Nanos> {
            None
        }

        fn wait(&mut self, _: Option<Nanos>) {
            panic!("there was work a pass ago");
        }

        fn waker(&self) -> Waker {
            Waker::new(|| {})
        }

        fn finished(&self) -> bool {
            self.0 >= 20
        }
    }

    #[test]
    fn an_agent_sleeps_behind_two_passes_without_work() {
        let (clock, stop) = (Clock::start(), Arc::new(AtomicBool::new(false)));
        for idle in [Idle::Spin, Idle::Yield, Idle::Park] {
            let placement = Placement { name: "busy".into(), core: None, idle };
            run(&mut Busy(0), clock, &placement, &stop);
        }
    }

    #[test]
    fn a_stop_that_comes_before_the_sleep_is_not_slept_through() {
        let stop = Arc::new(AtomicBool::new(false));
        let placement = Placement { name: "stopped".into(), core: None, idle: Idle::Park };
        let mut agent = Stopped(Arc::clone(&stop), 0);
        run(&mut agent, Clock::start(), &placement, &stop);
        assert_eq!(agent.1, 2);
    }
}
