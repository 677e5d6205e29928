//! Resident memory of this process over a run: does it grow?

use baton_core::Nanos;
use serde::Serialize;

use crate::machine::own_resident_kib;

/// Resident memory over the measured phase, KiB.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Memory {
    /// After the warm-up.
    pub start_kib: u64,
    /// Half way.
    pub middle_kib: u64,
    /// At the end.
    pub end_kib: u64,
    /// The most that was read.
    pub peak_kib: u64,
    /// From the middle to the end, per minute: what a longer run would go on to take. Negative if it
    /// fell.
    pub drift_kib_per_minute: f64,
}

/// Reads it at even intervals.
#[derive(Debug)]
pub(super) struct MemoryMeter(Vec<Option<u64>>);

impl MemoryMeter {
    /// With a first reading.
    pub(super) fn start() -> Self {
        Self(vec![own_resident_kib()])
    }

    /// Another one.
    pub(super) fn read(&mut self) {
        self.0.push(own_resident_kib());
    }

    /// The first and last reading are `elapsed` apart; `None` where the system does not tell.
    pub(super) fn finish(self, elapsed: Nanos) -> Option<Memory> {
        let readings: Vec<u64> = self.0.into_iter().collect::<Option<_>>()?;
        let (&start_kib, &end_kib) = (readings.first()?, readings.last()?);
        let half = readings.len() / 2;
        let middle_kib = readings[half];
        let share = (readings.len() - 1 - half) as f64 / (readings.len() - 1).max(1) as f64;
        let minutes = elapsed.as_millis_f64() / 60e3 * share;
        let drift = end_kib as f64 - middle_kib as f64;
        Some(Memory {
            start_kib,
            middle_kib,
            end_kib,
            peak_kib: readings.into_iter().max()?,
            drift_kib_per_minute: if minutes > 0.0 { drift / minutes } else { 0.0 },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drift_is_what_the_second_half_added() {
        let meter = MemoryMeter([100, 180, 200, 190, 230].map(Some).to_vec());
        let memory = meter.finish(Nanos::from_millis(60_000)).unwrap();
        assert_eq!((memory.start_kib, memory.middle_kib, memory.end_kib), (100, 200, 230));
        assert_eq!((memory.peak_kib, memory.drift_kib_per_minute), (230, 60.0));
        assert_eq!(MemoryMeter(vec![Some(1), None]).finish(Nanos(1)), None, "unknown");
    }
}
