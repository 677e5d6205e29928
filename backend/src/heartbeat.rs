//! Signs of life to and from the scheduler, which also tell its clock from ours.
//!
//! In: `Pong` messages. Out: `Ping` messages, the clock offset, and whether the scheduler has
//! fallen silent. Begins with a burst, one ping per pong, so that the offset is good before the
//! first plan.

use baton_core::Nanos;
use baton_rdma::ClockSync;
use baton_rdma::wire::{Ping, Pong};

/// Between pings.
const PING_EVERY: Nanos = Nanos::from_millis(100);
/// Round trips of the opening burst.
const BURST: u32 = 8;

/// One connection's heartbeat.
#[derive(Debug)]
pub(crate) struct Heartbeat {
    sync: ClockSync,
    next_ping: Nanos,
    last_pong: Nanos,
    round_trips: u32,
    /// The last pass found the scheduler silent.
    was_late: bool,
    /// A pong that arrived in this pass. It is taken in with the next pass's time: this pass's was
    /// read before the pong arrived, which would make the trip seem shorter than it was, and the
    /// shortest trip is the one believed.
    arrived: Option<Pong>,
}

impl Heartbeat {
    /// Begins now.
    pub(crate) fn start(now: Nanos) -> Self {
        Self {
            sync: ClockSync::new(),
            next_ping: now,
            last_pong: now,
            round_trips: 0,
            was_late: false,
            arrived: None,
        }
    }

    /// The scheduler's clock against ours.
    pub(crate) fn sync(&self) -> &ClockSync {
        &self.sync
    }

    /// True once the opening burst is over.
    pub(crate) fn is_synced(&self) -> bool {
        self.round_trips >= BURST
    }

    /// A pong has arrived.
    pub(crate) fn on_pong(&mut self, pong: &Pong) {
        self.arrived = Some(*pong);
    }

    /// The ping that is due, if one is. Call once at the start of a pass.
    pub(crate) fn poll(&mut self, now: Nanos) -> Option<Ping> {
        if let Some(pong) = self.arrived.take() {
            let sent = Nanos(pong.sent_ns.get());
            self.sync.on_pong(sent, Nanos(pong.scheduler_ns.get()), now);
            self.last_pong = now;
            self.round_trips = self.round_trips.saturating_add(1);
            if !self.is_synced() {
                self.next_ping = now;
            }
        }
        if now < self.next_ping {
            return None;
        }
        self.next_ping = now + PING_EVERY;
        Some(Ping { sent_ns: now.0.into() })
    }

    /// True when the scheduler has not been heard of for `timeout`, and a whole pass has not changed
    /// that: after a stall of our own, its pongs are here but not read yet. Call once per pass.
    pub(crate) fn is_silent(&mut self, now: Nanos, timeout: Nanos) -> bool {
        let is_late = now - self.last_pong > timeout;
        std::mem::replace(&mut self.was_late, is_late) && is_late
    }

    /// When the next ping is due.
    pub(crate) fn next_ping(&self) -> Nanos {
        self.next_ping
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pong(ping: Ping, scheduler_ns: u64) -> Pong {
        Pong { sent_ns: ping.sent_ns, scheduler_ns: scheduler_ns.into() }
    }

    #[test]
    fn the_burst_pings_once_per_pong_and_then_every_100_ms() {
        let mut now = Nanos(1_000_000);
        let mut heartbeat = Heartbeat::start(now);
        let mut pings = 0;
        while !heartbeat.is_synced() {
            if let Some(ping) = heartbeat.poll(now) {
                pings += 1;
                heartbeat.on_pong(&pong(ping, now.0 + 5_000_000));
            }
            now = now + Nanos(1_000);
        }
        assert_eq!(pings, BURST);
        assert!(heartbeat.poll(now).is_none());
        assert!(heartbeat.poll(now + PING_EVERY).is_some());
    }

    #[test]
    fn a_pong_is_stamped_after_it_arrived_never_before() {
        let mut heartbeat = Heartbeat::start(Nanos(0));
        let ping = heartbeat.poll(Nanos(0)).unwrap();
        heartbeat.on_pong(&pong(ping, 1_000));
        assert!(heartbeat.sync().to_local(Nanos(1_000)).is_none());
        heartbeat.poll(Nanos(200));
        assert!(heartbeat.sync().error() >= Nanos(100), "half of the whole trip");
    }

    #[test]
    fn silence_is_counted_from_the_last_pong() {
        let timeout = Nanos::from_millis(1_000);
        let mut heartbeat = Heartbeat::start(Nanos(0));
        let ping = heartbeat.poll(Nanos(0)).unwrap();
        heartbeat.on_pong(&pong(ping, 1));
        let heard = Nanos(50);
        heartbeat.poll(heard);
        assert!(!heartbeat.is_silent(heard + timeout, timeout));
        let late = heard + timeout + Nanos(1);
        assert!(!heartbeat.is_silent(late, timeout), "its pong may be unread");
        assert!(heartbeat.is_silent(late, timeout));
    }

    #[test]
    fn a_stall_of_our_own_is_not_the_schedulers_silence() {
        let timeout = Nanos::from_millis(1_000);
        let mut heartbeat = Heartbeat::start(Nanos(0));
        let ping = heartbeat.poll(Nanos(0)).unwrap();
        let late = Nanos::from_millis(3_000);
        assert!(!heartbeat.is_silent(late, timeout));
        heartbeat.on_pong(&pong(ping, 1));
        heartbeat.poll(late + Nanos(10));
        assert!(!heartbeat.is_silent(late + Nanos(10), timeout));
    }
}
