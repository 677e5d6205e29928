//! Signs of life to and from the scheduler, which also tell its clock from ours.
//!
//! In: `Pong` messages, and whether this side has work. Out: `Ping` and `Pace` messages, the clock
//! offset, and whether the scheduler has fallen silent. Begins with a burst, one ping per pong, so
//! that the offset is good before the first task. A member without work for a while pings less
//! often, and says so: each ping wakes two sleeping processes. Silence is counted while this side is
//! awake: a side that stood still cannot know which others did. Pure: the caller sends, receives
//! and reads the clock.

use baton_rdma::wire::{PING_EVERY, PING_EVERY_MAX, Pace, Ping, Pong};
use baton_topo::{AwakeTime, PARK_MAX, SLEEP_MAX, is_gone};
use baton_types::Nanos;

use crate::clock_sync::ClockSync;

/// Without work for so long, a member pings less often.
const IDLE_AFTER: Nanos = Nanos::from_millis(5_000);
/// Round trips of the opening burst.
const BURST: u32 = 8;

/// What is due to the scheduler.
#[derive(Clone, Copy, Debug)]
pub struct Beat {
    /// To be sent before the ping: pings come in another pace from now on.
    pub pace: Option<Pace>,
    /// The sign of life.
    pub ping: Ping,
}

/// The heartbeat of one connection to a scheduler.
#[derive(Clone, Debug)]
pub struct Heartbeat {
    sync: ClockSync,
    timeout: Nanos,
    /// `None` before the start and after the stop.
    next_ping: Option<Nanos>,
    /// Between two pings, as the scheduler knows.
    every: Nanos,
    /// When this side last had work.
    worked_at: Nanos,
    round_trips: u32,
    /// Time for which this side has been awake.
    awake: AwakeTime,
    /// When the oldest ping left that nothing has been heard since, in time awake.
    unheard_since: Option<Nanos>,
    /// An earlier pass found the scheduler silent.
    was_late: bool,
    /// A pong that arrived in this pass. It is taken in with the next pass's time: this pass's was
    /// read before the pong arrived, which would make the trip seem shorter than it was, and the
    /// shortest trip is the one believed.
    arrived: Option<Pong>,
}

impl Heartbeat {
    /// Not beating yet. A ping unanswered for `timeout` means silence.
    pub fn new(timeout: Nanos) -> Self {
        Self {
            sync: ClockSync::new(),
            timeout,
            next_ping: None,
            every: PING_EVERY,
            worked_at: Nanos::ZERO,
            round_trips: 0,
            awake: AwakeTime::default(),
            unheard_since: None,
            was_late: false,
            arrived: None,
        }
    }

    /// Begins to ping.
    pub fn start(&mut self, now: Nanos) {
        self.next_ping = Some(now);
        self.worked_at = now;
    }

    /// No more pings: the scheduler is gone, or we are.
    pub fn stop(&mut self) {
        self.next_ping = None;
        self.unheard_since = None;
    }

    /// The scheduler's clock against ours.
    pub fn sync(&self) -> &ClockSync {
        &self.sync
    }

    /// True once the opening burst is over.
    pub fn is_synced(&self) -> bool {
        self.round_trips >= BURST
    }

    /// A pong has arrived.
    pub fn on_pong(&mut self, pong: &Pong) {
        self.unheard_since = None;
        self.arrived = Some(*pong);
    }

    /// What is due to the scheduler, if anything is. `has_work`: something is outstanding that needs the scheduler, or
    /// that it waits for. Call once per pass.
    pub fn poll(&mut self, now: Nanos, has_work: bool) -> Option<Beat> {
        self.awake.pass(now);
        if let Some(pong) = self.arrived.take() {
            self.take_in(&pong, now);
        }
        if has_work {
            self.work(now);
        }
        if self.next_ping.is_none_or(|due| now < due) {
            return None;
        }
        let every = self.pace_at(now);
        let has_changed = std::mem::replace(&mut self.every, every) != every;
        self.next_ping = Some(now + every);
        self.unheard_since.get_or_insert_with(|| self.awake.total());
        let pace = has_changed.then_some(Pace { every_ns: every.0.into() });
        Some(Beat { pace, ping: Ping { sent_ns: now.0.into() } })
    }

    /// Work ends the slow pace at once.
    fn work(&mut self, now: Nanos) {
        self.worked_at = now;
        if self.every > PING_EVERY && self.next_ping.is_some() {
            self.next_ping = Some(now);
        }
    }

    fn pace_at(&self, now: Nanos) -> Nanos {
        let is_idle = self.is_synced() && now - self.worked_at >= IDLE_AFTER;
        let slow = PING_EVERY_MAX.min(self.timeout).max(PING_EVERY);
        if is_idle { slow } else { PING_EVERY }
    }

    /// For how long this side may sleep in one piece: what it waits for must be measured in time awake.
    pub fn sleep_max(&self) -> Nanos {
        let is_idle = self.every > PING_EVERY && self.unheard_since.is_none();
        if is_idle { SLEEP_MAX } else { PARK_MAX }
    }

    /// True when a ping has gone unanswered for the timeout, and a pass since has not changed that in
    /// which all was read: the pong may have arrived. `has_unread`: of the scheduler's connection
    /// something is not read yet. Call once per pass, behind [`Heartbeat::poll`].
    pub fn is_silent(&mut self, has_unread: bool) -> bool {
        let silence = self.unheard_since.map_or(Nanos::ZERO, |since| self.awake.total() - since);
        let is_late = is_gone(silence, self.timeout, false);
        std::mem::replace(&mut self.was_late, is_late) && is_gone(silence, self.timeout, has_unread)
    }

    /// When [`Heartbeat::poll`] and [`Heartbeat::is_silent`] have something to say next.
    pub fn next_timer(&self) -> Option<Nanos> {
        let silence = self.unheard_since.map(|since| self.awake.when(since + self.timeout));
        self.next_ping.into_iter().chain(silence).min()
    }

    /// When the next ping is due.
    pub(crate) fn next_ping(&self) -> Option<Nanos> {
        self.next_ping
    }

    fn take_in(&mut self, pong: &Pong, now: Nanos) {
        self.sync.on_pong(Nanos(pong.sent_ns.get()), Nanos(pong.scheduler_ns.get()), now);
        self.round_trips = self.round_trips.saturating_add(1);
        if !self.is_synced() && self.next_ping.is_some() {
            self.next_ping = Some(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TIMEOUT: Nanos = Nanos::from_millis(1_000);

    fn pong(beat: Beat, scheduler_ns: u64) -> Pong {
        Pong { sent_ns: beat.ping.sent_ns, scheduler_ns: scheduler_ns.into() }
    }

    fn started(now: Nanos) -> Heartbeat {
        let mut heartbeat = Heartbeat::new(TIMEOUT);
        assert!(heartbeat.poll(now, false).is_none(), "not before it is started");
        heartbeat.start(now);
        heartbeat
    }

    #[test]
    fn the_burst_pings_once_per_pong_and_then_every_100_ms() {
        let mut now = Nanos(1_000_000);
        let mut heartbeat = started(now);
        let mut pings = 0;
        while !heartbeat.is_synced() {
            if let Some(ping) = heartbeat.poll(now, false) {
                pings += 1;
                heartbeat.on_pong(&pong(ping, now.0 + 5_000_000));
            }
            now = now + Nanos(1_000);
        }
        assert_eq!(pings, BURST);
        assert!(heartbeat.poll(now, false).is_none());
        assert!(heartbeat.poll(now + PING_EVERY, false).is_some());
        heartbeat.stop();
        assert!(heartbeat.poll(now + PING_EVERY.times(5), false).is_none());
        assert_eq!(heartbeat.next_timer(), None);
    }

    #[test]
    fn a_pong_is_stamped_after_it_arrived_never_before() {
        let mut heartbeat = started(Nanos(0));
        let ping = heartbeat.poll(Nanos(0), false).unwrap();
        heartbeat.on_pong(&pong(ping, 1_000));
        assert!(heartbeat.sync().to_local(Nanos(1_000)).is_none());
        heartbeat.poll(Nanos(200), false);
        assert!(heartbeat.sync().error() >= Nanos(100), "half of the whole trip");
    }

    #[test]
    fn the_clock_is_followed_after_the_burst() {
        let mut now = Nanos(0);
        let mut heartbeat = started(now);
        for beat in 0..40 {
            now = now + PING_EVERY.times(2);
            // The scheduler's clock gains 50 ppm.
            let ahead = Nanos(beat * 10_000);
            let ping = heartbeat.poll(now, true).unwrap();
            heartbeat.on_pong(&pong(ping, (now + ahead).0));
            heartbeat.poll(now + Nanos(1_000), true);
            let there = heartbeat.sync().to_scheduler(now).unwrap();
            assert!(there + heartbeat.sync().error() >= now + ahead, "beat {beat}");
        }
    }

    /// A heartbeat whose member has had no work for long, at the moment of a ping in the slow pace; and that ping.
    fn idle() -> (Heartbeat, Nanos, Beat) {
        let mut now = Nanos(0);
        let mut heartbeat = started(now);
        loop {
            if let Some(beat) = heartbeat.poll(now, false) {
                if heartbeat.every > PING_EVERY {
                    return (heartbeat, now, beat);
                }
                heartbeat.on_pong(&pong(beat, now.0));
            }
            now = now + Nanos::from_millis(10);
        }
    }

    #[test]
    fn a_member_without_work_says_that_it_pings_less_often_and_does() {
        let (mut heartbeat, now, beat) = idle();
        assert!(
            now >= IDLE_AFTER && now < IDLE_AFTER + PING_EVERY,
            "{now:?}: counted from the start"
        );
        assert_eq!(beat.pace.map(|pace| pace.every_ns.get()), Some(1_000_000_000));
        assert_eq!(heartbeat.sleep_max(), PARK_MAX, "a pong is awaited");
        heartbeat.on_pong(&pong(beat, now.0));
        assert!(heartbeat.poll(now + Nanos(100_000), false).is_none());
        assert_eq!(heartbeat.sleep_max(), SLEEP_MAX);
        assert_eq!(heartbeat.next_timer(), Some(now + PING_EVERY_MAX));
        let next = heartbeat.poll(now + PING_EVERY_MAX, false).expect("due");
        assert!(next.pace.is_none(), "said once");
    }

    #[test]
    fn work_ends_the_slow_pace_at_once_and_for_some_time() {
        let (mut heartbeat, now, beat) = idle();
        heartbeat.on_pong(&pong(beat, now.0));
        let now = now + Nanos::from_millis(300);
        let beat = heartbeat.poll(now, true).expect("work is a reason to ping");
        assert_eq!(beat.pace.map(|pace| pace.every_ns.get()), Some(100_000_000));
        heartbeat.on_pong(&pong(beat, now.0));
        let next = heartbeat.poll(now + PING_EVERY, false).expect("due");
        assert!(next.pace.is_none());
        assert_eq!(heartbeat.next_timer(), Some(now + PING_EVERY.times(2)));
    }

    #[test]
    fn a_member_with_work_measures_how_long_it_was_awake_between_its_pings() {
        let mut heartbeat = started(Nanos(0));
        for pass in 0..100 {
            let now = Nanos::from_millis(10 * pass);
            if let Some(beat) = heartbeat.poll(now, true) {
                heartbeat.on_pong(&pong(beat, now.0));
            }
        }
        assert!(heartbeat.is_synced());
        let paces = (heartbeat.every, heartbeat.unheard_since, heartbeat.sleep_max());
        assert_eq!(paces, (PING_EVERY, None, PARK_MAX));
    }

    /// It joins again after a long time without a scheduler, and with what it had to do.
    #[test]
    fn who_starts_again_is_not_idle_at_once() {
        let mut heartbeat = started(Nanos::ZERO);
        heartbeat.round_trips = BURST;
        heartbeat.stop();
        let again = IDLE_AFTER.times(3);
        heartbeat.start(again);
        assert!(heartbeat.poll(again, false).expect("at once").pace.is_none());
        assert_eq!(heartbeat.next_ping(), Some(again + PING_EVERY));
    }

    #[test]
    fn who_has_stopped_says_nothing_of_work_and_answers_no_late_pong() {
        let (mut idle, now, _) = idle();
        idle.stop();
        assert!(idle.poll(now, true).is_none() && idle.next_timer().is_none());
        let mut young = started(now);
        let beat = young.poll(now, false).expect("at once");
        young.stop();
        young.on_pong(&pong(beat, now.0));
        assert!(young.poll(now, false).is_none() && young.next_timer().is_none());
    }

    #[test]
    fn who_is_not_synced_pings_as_often_as_ever() {
        let mut heartbeat = started(Nanos::ZERO);
        let late = IDLE_AFTER.times(2);
        assert!(heartbeat.poll(late, false).expect("overdue").pace.is_none());
        assert_eq!(heartbeat.next_ping(), Some(late + PING_EVERY));
    }

    #[test]
    fn a_short_patience_allows_no_longer_pace() {
        let mut heartbeat = Heartbeat::new(PING_EVERY.times(3));
        heartbeat.round_trips = BURST;
        assert_eq!(heartbeat.pace_at(IDLE_AFTER), PING_EVERY.times(3));
        let hasty = Heartbeat { timeout: Nanos(1), ..heartbeat };
        assert_eq!(hasty.pace_at(IDLE_AFTER), PING_EVERY);
    }

    #[test]
    fn a_scheduler_that_dies_while_its_member_is_idle_is_found_silent_within_its_timeout() {
        let (mut heartbeat, now, _) = idle();
        let dead = listen(&mut heartbeat, now, now + TIMEOUT.times(2), false);
        assert_eq!(dead, Some(now + TIMEOUT + Nanos::from_millis(50)), "a pass later");
    }

    /// Looks every 50 ms until `end`; pings get no answer. Returns when silence was found.
    fn listen(
        heartbeat: &mut Heartbeat,
        from: Nanos,
        end: Nanos,
        has_unread: bool,
    ) -> Option<Nanos> {
        let mut now = from;
        while now <= end {
            heartbeat.poll(now, false);
            if heartbeat.is_silent(has_unread) {
                return Some(now);
            }
            now = now + Nanos::from_millis(50);
        }
        None
    }

    #[test]
    fn silence_is_counted_from_the_first_unanswered_ping() {
        let mut heartbeat = started(Nanos(0));
        let ping = heartbeat.poll(Nanos(0), false).unwrap();
        heartbeat.on_pong(&pong(ping, 1));
        assert!(!heartbeat.is_silent(false));
        let asked = TIMEOUT.times(9);
        heartbeat.poll(asked, false).unwrap();
        assert!(!heartbeat.is_silent(false), "idle here is not silence there");
        assert_eq!(
            listen(&mut heartbeat, asked, asked + TIMEOUT, false),
            None,
            "its pong may be unread"
        );
        heartbeat.poll(asked + TIMEOUT, false);
        assert!(heartbeat.is_silent(false));
    }

    #[test]
    fn what_is_not_read_yet_is_waited_for_but_not_for_ever() {
        let mut heartbeat = started(Nanos(0));
        let found = listen(&mut heartbeat, Nanos(0), TIMEOUT.times(3), true);
        assert_eq!(found, Some(TIMEOUT.times(2)));
        let mut heartbeat = started(Nanos(0));
        assert_eq!(listen(&mut heartbeat, Nanos(0), TIMEOUT.times(2) - Nanos(1), true), None);
        assert!(heartbeat.is_silent(false), "all is read");
    }

    #[test]
    fn a_stall_of_our_own_is_not_the_schedulers_silence() {
        let mut heartbeat = started(Nanos(0));
        heartbeat.poll(Nanos(0), false).unwrap();
        let back = TIMEOUT.times(3);
        // It stood still as well, and takes longer to come back.
        let later = back + TIMEOUT - PING_EVERY - Nanos(1);
        assert_eq!(listen(&mut heartbeat, back, later, false), None);
        assert!(heartbeat.next_timer().is_some_and(|due| due <= later + PING_EVERY));
        let dead = listen(&mut heartbeat, later, later + TIMEOUT, false);
        assert!(dead.is_some_and(|at| at <= back + TIMEOUT), "{dead:?}");
    }
}
