//! Peers whose RDMA keeps failing although TCP reaches them: a blocked port, a wrong traffic class.
//! Pure. Only for `auto`; where RDMA is insisted on there is nothing to turn to.

use std::net::SocketAddr;

use baton_types::Nanos;

/// Failures in [`WITHIN`] that make a peer one for TCP.
const STRIKES: u32 = 3;
/// Failures further apart than this have nothing to do with each other.
const WITHIN: Nanos = Nanos::from_millis(10_000);
/// How long, the first time; each further time twice as long.
const PAUSE: Nanos = Nanos::from_millis(30_000);
/// How long, at most.
const PAUSE_MAX: Nanos = Nanos::from_millis(300_000);
/// Peers remembered; the one that failed longest ago is forgotten first.
const PEERS_MAX: usize = 1_024;

struct Record {
    addr: SocketAddr,
    strikes: u32,
    last: Nanos,
    pause: Nanos,
    paused_until: Nanos,
}

/// Who failed how often.
#[derive(Default)]
pub(super) struct CircuitBreaker {
    records: Vec<Record>,
}

impl CircuitBreaker {
    /// True if RDMA with this peer is not to be tried now.
    pub(super) fn is_open(&self, addr: SocketAddr, now: Nanos) -> bool {
        self.records.iter().any(|record| record.addr == addr && now < record.paused_until)
    }

    /// RDMA with this peer has failed.
    pub(super) fn strike(&mut self, addr: SocketAddr, now: Nanos) {
        let known = self.records.iter().position(|record| record.addr == addr);
        let mut record = match known {
            Some(at) => self.records.remove(at),
            None => {
                let (last, paused_until) = (now, Nanos::ZERO);
                Record { addr, strikes: 0, last, pause: PAUSE, paused_until }
            }
        };
        record.strikes = if now <= record.last + WITHIN { record.strikes + 1 } else { 1 };
        record.last = now;
        if record.strikes >= STRIKES {
            record.paused_until = now + record.pause;
            record.pause = Nanos(record.pause.0 * 2).min(PAUSE_MAX);
            record.strikes = 0;
        }
        if self.records.len() >= PEERS_MAX {
            self.records.remove(0);
        }
        self.records.push(record);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn addr(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    fn seconds(n: u64) -> Nanos {
        Nanos::from_millis(1_000 * n)
    }

    #[test]
    fn three_failures_in_ten_seconds_pause_a_peer_and_then_longer() {
        let mut breaker = CircuitBreaker::default();
        for at in [100, 105, 109] {
            assert!(!breaker.is_open(addr(1), seconds(at)));
            breaker.strike(addr(1), seconds(at));
        }
        assert!(breaker.is_open(addr(1), seconds(138)) && !breaker.is_open(addr(2), seconds(110)));
        assert!(!breaker.is_open(addr(1), seconds(139)));
        (140..143).for_each(|at| breaker.strike(addr(1), seconds(at)));
        assert!(breaker.is_open(addr(1), seconds(142 + 59)));
        assert!(!breaker.is_open(addr(1), seconds(142 + 60)));
        breaker.strike(addr(1), seconds(143));
        assert!(!breaker.is_open(addr(1), seconds(142 + 60)), "it takes three again");
    }

    #[test]
    fn pauses_double_up_to_five_minutes() {
        let mut breaker = CircuitBreaker::default();
        let pause = |round: u64| {
            let now = seconds(1_000 * round);
            (0..3).for_each(|_| breaker.strike(addr(1), now));
            (1..).find(|&s| !breaker.is_open(addr(1), now + seconds(s)))
        };
        let pauses: Vec<_> = (1..7).filter_map(pause).collect();
        assert_eq!(pauses, [30, 60, 120, 240, 300, 300]);
    }

    #[test]
    fn failures_far_apart_are_forgiven() {
        let mut breaker = CircuitBreaker::default();
        (0..20).for_each(|n| breaker.strike(addr(1), seconds(100 + 11 * n)));
        assert!(!breaker.is_open(addr(1), seconds(100 + 11 * 19)));
    }

    #[test]
    fn no_more_peers_are_remembered_than_there_may_be() {
        let mut breaker = CircuitBreaker::default();
        (0..3_000).for_each(|port| breaker.strike(addr(port), seconds(100)));
        assert_eq!(breaker.records.len(), PEERS_MAX);
        (0..2).for_each(|_| breaker.strike(addr(2_998), seconds(101)));
        assert!(breaker.is_open(addr(2_998), seconds(102)), "those that failed last");
    }
}
