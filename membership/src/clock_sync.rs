//! How far the scheduler's clock is from ours, and how surely we know.
//!
//! Input: pings (our clock), the scheduler's stamp, and when the pong came back. A sample's true
//! offset lies within half its round trip of the estimate, whatever the two ways' shares; so the
//! sample with the shortest round trip is the best, and it gets worse with age because clocks drift.
//! Pure: the caller reads the clock. The error bound is what planners subtract from a window.

use baton_types::Nanos;

/// Samples remembered. At a heartbeat of 100 ms, 1.6 s.
const SAMPLES: usize = 16;
/// How fast two clocks may part, parts per million: twice what crystals do, so that a clock being
/// slewed is covered as well.
const DRIFT_PPM: u64 = 200;

#[derive(Clone, Copy, Debug)]
struct Sample {
    /// Scheduler's clock minus ours.
    offset: i128,
    half_trip: Nanos,
    received: Nanos,
}

impl Sample {
    /// How wrong the sample may be at `now`, our clock.
    fn error(&self, now: Nanos) -> Nanos {
        let age = (now - self.received).0;
        self.half_trip + Nanos((u128::from(age) * u128::from(DRIFT_PPM) / 1_000_000) as u64)
    }
}

/// Estimates the offset between this process's clock and the scheduler's.
/// One per connection to a scheduler: a restarted scheduler has another clock.
#[derive(Clone, Debug, Default)]
pub struct ClockSync {
    samples: [Option<Sample>; SAMPLES],
    next: usize,
    best: Option<(i128, Nanos)>,
}

impl ClockSync {
    /// Knows nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes in one round trip: our clock when the ping left and when the pong arrived, and the
    /// scheduler's clock in between. A pong from before its ping is ignored.
    pub fn on_pong(&mut self, sent_local: Nanos, scheduler: Nanos, received_local: Nanos) {
        if received_local < sent_local {
            return;
        }
        let trip = (received_local - sent_local).0;
        let middle = i128::from(sent_local.0) + i128::from(trip / 2);
        let offset = i128::from(scheduler.0) - middle;
        let sample =
            Sample { offset, half_trip: Nanos(trip.div_ceil(2)), received: received_local };
        self.samples[self.next] = Some(sample);
        self.next = (self.next + 1) % SAMPLES;
        let candidates = self.samples.iter().flatten();
        let best = candidates.min_by_key(|sample| sample.error(received_local));
        self.best = best.map(|sample| (sample.offset, sample.error(received_local)));
    }

    /// A moment of our clock on the scheduler's; `None` before the first pong.
    pub fn to_scheduler(&self, local: Nanos) -> Option<Nanos> {
        self.best.map(|(offset, _)| shift(local, offset))
    }

    /// A moment of the scheduler's clock on ours; `None` before the first pong.
    pub fn to_local(&self, scheduler: Nanos) -> Option<Nanos> {
        self.best.map(|(offset, _)| shift(scheduler, -offset))
    }

    /// The estimate may be wrong by this much either way, as of the latest pong: half the round
    /// trip of the sample in use plus its drift since. "Never" before the first pong.
    pub fn error(&self) -> Nanos {
        self.best.map_or(Nanos::MAX, |(_, error)| error)
    }
}

/// Saturates at both ends of the clock; [`Nanos::MAX`] means "never" and is kept.
fn shift(moment: Nanos, offset: i128) -> Nanos {
    if moment == Nanos::MAX {
        return moment;
    }
    let shifted = i128::from(moment.0) + offset;
    Nanos(shifted.clamp(0, i128::from(u64::MAX)) as u64)
}
