//! Signs of life on the control connection, which also measure the clock offset.
//!
//! In: pongs. Out: when to ping, and whether the scheduler has fallen silent. At the start a burst,
//! each ping sent on the pong before, makes the clock estimate good before the first task.

use baton_core::Nanos;
use baton_rdma::ClockSync;
use baton_rdma::wire::Pong;

/// Between two pings. The scheduler's patience is a multiple of it.
const INTERVAL: Nanos = Nanos::from_millis(100);
/// Pongs wanted before the clock counts as known.
const BURST: u32 = 8;

#[derive(Debug)]
pub(super) struct Heartbeat {
    sync: ClockSync,
    burst_left: u32,
    /// `None` until the catalogue is there.
    next_ping: Option<Nanos>,
    /// When the oldest ping was sent that nothing has been heard after. Counting from a ping, not
    /// from the last pong, keeps a process that was itself stopped from blaming the scheduler.
    unheard_since: Option<Nanos>,
    timeout: Nanos,
}

impl Heartbeat {
    pub(super) fn new(timeout: Nanos) -> Self {
        Self {
            sync: ClockSync::new(),
            burst_left: BURST,
            next_ping: None,
            unheard_since: None,
            timeout,
        }
    }

    pub(super) fn start(&mut self, now: Nanos) {
        self.next_ping = Some(now);
    }

    /// No more pings: the scheduler is gone.
    pub(super) fn stop(&mut self) {
        self.next_ping = None;
        self.unheard_since = None;
    }

    /// True if a ping is to be sent now; counts it as sent.
    pub(super) fn take_due(&mut self, now: Nanos) -> bool {
        let due = self.next_ping.is_some_and(|due| due <= now);
        if due {
            self.next_ping = Some(now + INTERVAL);
            self.unheard_since.get_or_insert(now);
        }
        due
    }

    pub(super) fn on_pong(&mut self, now: Nanos, pong: &Pong) {
        self.sync.on_pong(Nanos(pong.sent_ns.get()), Nanos(pong.scheduler_ns.get()), now);
        self.unheard_since = None;
        self.burst_left = self.burst_left.saturating_sub(1);
        if self.burst_left > 0 {
            self.next_ping = Some(now);
        }
    }

    /// The clock is known well enough to convert deadlines.
    pub(super) fn synced(&self) -> bool {
        self.burst_left == 0
    }

    pub(super) fn sync(&self) -> &ClockSync {
        &self.sync
    }

    pub(super) fn silent(&self, now: Nanos) -> bool {
        self.unheard_since.is_some_and(|since| now - since >= self.timeout)
    }

    pub(super) fn next_timer(&self) -> Option<Nanos> {
        let silence = self.unheard_since.map(|since| since + self.timeout);
        self.next_ping.into_iter().chain(silence).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pong(sent: Nanos) -> Pong {
        Pong { sent_ns: sent.0.into(), scheduler_ns: (sent.0 + 7_000).into() }
    }

    #[test]
    fn a_burst_then_a_steady_beat() {
        let mut heartbeat = Heartbeat::new(Nanos::from_millis(1_000));
        assert!(!heartbeat.take_due(Nanos(5)), "not before it is started");
        let mut now = Nanos::from_millis(1);
        heartbeat.start(now);
        for _ in 0..BURST {
            assert!(!heartbeat.synced());
            assert!(heartbeat.take_due(now));
            now = now + Nanos(100);
            heartbeat.on_pong(now, &pong(now - Nanos(100)));
        }
        assert!(heartbeat.synced());
        assert!(!heartbeat.take_due(now));
        assert!(heartbeat.take_due(now + INTERVAL));
        assert_eq!(heartbeat.sync().to_scheduler(Nanos(0)), Some(Nanos(6_950)));
    }

    #[test]
    fn silence_counts_from_an_unanswered_ping() {
        let mut heartbeat = Heartbeat::new(Nanos::from_millis(1_000));
        heartbeat.start(Nanos::ZERO);
        assert!(heartbeat.take_due(Nanos::ZERO));
        assert!(!heartbeat.silent(Nanos::from_millis(999)));
        assert!(heartbeat.silent(Nanos::from_millis(1_000)));
        heartbeat.on_pong(Nanos::from_millis(1_000), &pong(Nanos::ZERO));
        assert!(!heartbeat.silent(Nanos::from_millis(9_000)), "stopped here, not silent there");
    }
}
