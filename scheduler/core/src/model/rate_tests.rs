//! What the meter counts, against counting everything there was.

use super::*;
use alloc::vec;
use alloc::vec::Vec;
use proptest::prelude::*;

/// Counts by looking at every arrival there was.
fn naive(arrivals: &[Nanos], now: Nanos) -> Option<Rate> {
    let bucket = |at: Nanos| ((at - arrivals[0]).0 / BUCKET.0) as usize;
    let open = arrivals.first().map(|_| bucket(now))?;
    let closed = open.min(BUCKETS);
    let counted = arrivals.iter().filter(|&&at| (open - closed..open).contains(&bucket(at)));
    let rate = Rate { arrivals: counted.count() as u64, span: BUCKET.times(closed as u64) };
    (closed > 0).then_some(rate)
}

proptest! {
    #[test]
    fn it_counts_the_arrivals_of_five_seconds(
        gaps_ms in prop::collection::vec(prop_oneof![30 => 0..60u64, 1 => 0..9_000u64], 1..400),
    ) {
        let (mut meter, mut arrivals, mut now) = (RateMeter::new(), Vec::new(), Nanos(17));
        for gap_ms in gaps_ms {
            now = now + Nanos::from_millis(gap_ms);
            let before = meter.rate();
            let rolled = meter.roll(now);
            prop_assert!(rolled || meter.rate() == before);
            prop_assert_eq!(meter.rate(), naive(&arrivals, now));
            meter.on_arrival(now);
            arrivals.push(now);
        }
    }
}

fn run_gap(mean_gap: Nanos) -> Nanos {
    if mean_gap == Nanos::MAX { Nanos::ZERO } else { Nanos(mean_gap.0 / RUN) }
}

/// What the meter counts, by looking at everything there was.
struct Counted {
    /// Each bucket since the first arrival, the open one last.
    buckets: Vec<Counts>,
    last: Nanos,
    /// A task has waited since then.
    waits: bool,
}

impl Counted {
    fn arrival(&mut self, now: Nanos, mean_gap: Nanos) {
        let gap = now - self.last;
        let run_gap = run_gap(mean_gap);
        let is_pause = gap > mean_gap;
        let joined = gap > run_gap && self.waits;
        (self.last, self.waits) = (now, true);
        self.add(Counts {
            arrivals: 1,
            pauses: is_pause.into(),
            paused: if is_pause { gap - mean_gap } else { Nanos::ZERO },
            joined: joined.into(),
            waited: if joined { gap - run_gap } else { Nanos::ZERO },
            ..Counts::default()
        });
    }

    /// Opens the buckets until `now`; the first opened at `start`.
    fn open_at(&mut self, now: Nanos, start: Nanos) {
        let open = ((now - start).0 / BUCKET.0) as usize;
        self.buckets.resize(open + 1, Counts::default());
    }

    fn empty(&mut self, now: Nanos, mean_gap: Nanos) {
        let waited = if self.waits { now - self.last - run_gap(mean_gap) } else { Nanos::ZERO };
        self.waits = false;
        self.add(Counts { waited, ..Counts::default() });
    }

    fn add(&mut self, what: Counts) {
        let open = self.buckets.last_mut().expect("one is open");
        *open = open.plus(what);
    }

    /// The sum of the buckets that have closed, of five seconds at most.
    fn sum(&self) -> Counts {
        let closed = &self.buckets[..self.buckets.len() - 1];
        let counted = &closed[closed.len().saturating_sub(BUCKETS)..];
        counted.iter().fold(Counts::default(), |sum, &bucket| sum.plus(bucket))
    }
}

proptest! {
    /// Pauses, waits and bad tasks leave the window with the arrivals.
    #[test]
    fn whatever_is_counted_is_counted_for_five_seconds(
        steps in prop::collection::vec(
            (prop_oneof![30 => 0..60_000u64, 10 => 0..900u64, 1 => 0..9_000_000u64], 0..7u8),
            1..500,
        ),
    ) {
        let start = Nanos(17);
        let (mut meter, mut now) = (RateMeter::new(), start);
        let mut counted =
            Counted { buckets: vec![Counts::default()], last: Nanos::ZERO, waits: false };
        for (gap_us, what) in steps {
            meter.roll(now);
            counted.open_at(now, start);
            prop_assert_eq!(meter.sum, counted.sum());
            counted.arrival(now, meter.mean_gap);
            meter.on_arrival(now);
            match what {
                0 => {
                    meter.on_bad(true);
                    counted.add(Counts { bad: 1, ..Counts::default() });
                }
                1 => {
                    meter.on_bad(false);
                    counted.add(Counts { unready: 1, ..Counts::default() });
                }
                2 => {
                    meter.on_refused();
                    counted.add(Counts { refused: 1, ..Counts::default() });
                }
                3 | 4 => {
                    // No task waits when the next comes, or already some time before.
                    let at = now + Nanos::from_micros(gap_us / u64::from(what - 2));
                    meter.roll(at);
                    counted.open_at(at, start);
                    meter.on_empty(at);
                    counted.empty(at, meter.mean_gap);
                }
                _ => {}
            }
            now = now + Nanos::from_micros(gap_us);
        }
    }
}

#[test]
fn no_history_is_no_rate() {
    let mut meter = RateMeter::default();
    assert!(!meter.roll(Nanos::MAX));
    meter.on_arrival(Nanos(5));
    assert_eq!(meter.rate(), None, "the first bucket is still open");
}

#[test]
fn extreme_rates_saturate() {
    let flood = Rate { arrivals: u64::MAX, span: Nanos(1) };
    assert_eq!(flood.arrivals_in(Nanos::MAX), u64::MAX);
    assert_eq!(flood.time_for(1), Nanos::ZERO);
    let trickle = Rate { arrivals: 1, span: Nanos::MAX };
    assert_eq!(trickle.time_for(u64::MAX), Nanos::MAX);
    let silence = Rate { arrivals: 0, span: BUCKET };
    assert_eq!((silence.time_for(1), silence.arrivals_in(Nanos::MAX)), (Nanos::MAX, 0));
}

/// Tasks that wait until their batch starts `wait` after they came; the next come `until_next` later, or meanwhile.
fn pauses_of(tasks: u32, wait: Nanos, until_next: Nanos, meanwhile: bool) -> (Nanos, Nanos) {
    let (mut meter, mut now) = (RateMeter::new(), Nanos(17));
    for round in 0..200 {
        meter.roll(now);
        (0..tasks).for_each(|_| meter.on_arrival(now));
        if !meanwhile || round % 4 == 3 {
            meter.on_empty(now + wait);
        }
        now = now + wait + until_next;
    }
    meter.roll(now);
    (meter.pause(), meter.pause_of_waiting())
}

#[test]
fn what_waits_is_not_expected_to_grow_by_tasks_that_come_once_it_is_answered() {
    let ms = Nanos::from_millis;
    let (pause, waiting) = pauses_of(4, ms(60), ms(8), false);
    assert!(pause < ms(60), "{pause:?}");
    assert!(waiting > ms(2_000), "nothing came in seconds of waiting: {waiting:?}");
    let (pause, waiting) = pauses_of(4, ms(60), ms(8), true);
    assert_eq!(pause, waiting, "three of four came while others waited");
}

#[test]
fn tasks_that_hardly_wait_say_nothing_of_those_that_would() {
    let us = Nanos::from_micros;
    for wait in [0, 900, 1_800] {
        let (pause, waiting) = pauses_of(1, us(wait), us(30_000 - wait), false);
        assert_eq!(pause, waiting, "they waited for less than a run would take");
    }
    let (pause, waiting) = pauses_of(1, us(9_000), us(21_000), false);
    assert!(waiting > pause.times(20), "no task comes within 9 ms of another: {waiting:?}");
}

/// A mean gap of 1 ms is the pause while no other was seen.
#[test]
fn what_is_expected_while_a_task_waits_takes_eight_pauses_and_a_quarter_of_the_arrivals() {
    let (ms, ns) = (Nanos::from_millis, Nanos);
    let mut meter = RateMeter::new();
    meter.mean_gap = ms(1);
    let mut is_plain = |waited, joined| {
        (meter.sum.waited, meter.sum.joined) = (waited, joined);
        meter.pause_of_waiting() > meter.pause()
    };
    assert!(!is_plain(ms(8), 0) && is_plain(ms(8) + ns(1), 0), "eight pauses were seen");
    assert!(!is_plain(ms(11), 2), "two of eight that were to be expected came");
    assert!(is_plain(ms(11) + ns(3), 2));
}

/// `each` tasks come in each of these tenths of a second, of the first of them ten are lost, and then none comes in the
/// `silent` ones.
fn after(each: u32, tenths: u64, silent: u64) -> RateMeter {
    let mut meter = RateMeter::new();
    for tenth in 0..tenths {
        meter.roll(BUCKET.times(tenth));
        for _ in 0..each {
            meter.on_arrival(BUCKET.times(tenth));
        }
        if tenth == 0 {
            (0..10).for_each(|_| meter.on_bad(true));
        }
    }
    meter.roll(BUCKET.times(tenths + silent));
    meter
}

#[test]
fn the_bad_rate_of_rare_tasks_is_that_of_the_last_minute() {
    let rate = |each, tenths, silent| after(each, tenths, silent).bad_rate_where_ready();
    // Ten a second, and the hundred that are assumed.
    assert_eq!([rate(10, 1, 0), rate(1, 50, 0)], [(10 << 16) / 110, (10 << 16) / 150]);
    // Ten seconds later 50 buckets have faded by a tenth.
    let later = rate(1, 100, 0);
    assert!((9 << 16) / 200 < later && later < (10 << 16) / 195, "{later}");
    // Half of what is older has gone after 35 seconds in which nothing came.
    let silent = rate(1, 100, 355 + 51);
    assert!((4 << 16) / 150 < silent && silent < (5 << 16) / 145, "{silent}");
    assert_eq!(rate(1, 100, 100_000), 0);
    // A thousand in five seconds say enough.
    assert!(rate(19, 51, 0) > 0);
    assert_eq!([rate(20, 50, 0), rate(20, 51, 0)], [(10 << 16) / 1_100, 0]);
}

#[test]
fn nothing_of_what_was_lost_counts_once_it_is_forgotten() {
    let mut meter = RateMeter::new();
    let second = Nanos::from_millis(1_000);
    let lose = |meter: &mut RateMeter| {
        meter.on_bad(true);
        meter.on_bad(false);
        meter.on_refused();
    };
    meter.on_arrival(Nanos::ZERO);
    lose(&mut meter);
    meter.roll(second.times(6));
    assert!(meter.bad_rate() > 0, "of more than five seconds ago");
    meter.on_arrival(second.times(6));
    lose(&mut meter);
    meter.roll(second.times(7));
    assert!(meter.bad_rate() > 0);
    lose(&mut meter);
    meter.forget_losses();
    meter.roll(second.times(8));
    assert_eq!((meter.bad_rate(), meter.bad_rate_where_ready()), (0, 0));
    assert_eq!(meter.demand(), meter.rate(), "nor what was not let in");
}

#[test]
fn a_meter_is_silent_once_nothing_came_for_as_long_as_it_looks_back() {
    let mut meter = RateMeter::new();
    let (at, span) = (Nanos::from_millis(9_000), BUCKET.times(BUCKETS as u64));
    meter.on_arrival(at);
    let after = [Nanos(0), span, span + Nanos(1)].map(|passed| meter.is_silent(at + passed));
    assert_eq!(after, [false, false, true]);
}

#[test]
fn rates_of_ages_do_not_overflow() {
    let day = Nanos::from_millis(86_400_000);
    let rate = Rate { arrivals: 1 << 40, span: day };
    assert_eq!(rate.arrivals_in(day.times(2)), 1 << 41);
    assert_eq!(rate.time_for(1 << 41), day.times(2));
}

#[test]
fn what_is_not_let_in_was_asked_for_as_well() {
    let mut meter = RateMeter::new();
    meter.on_arrival(Nanos(1));
    (0..2).for_each(|_| meter.on_refused());
    meter.roll(Nanos::from_millis(500));
    let [rate, demand] = [meter.rate(), meter.demand()].map(|rate| rate.unwrap().arrivals);
    assert_eq!((rate, demand), (1, 3));
}
