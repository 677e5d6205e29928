//! A latency histogram that can be merged over processes.

use hdrhistogram::Histogram;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use baton_core::Nanos;

/// Latencies in whole microseconds, to three digits, 1 µs … 1 h. Takes memory as far as they reach: there may be thousands of
/// models. Travels as a list of `[microseconds, count]`.
#[derive(Clone, PartialEq, Debug)]
pub struct Latency(Histogram<u64>);

const MICROS_MAX: u64 = 3_600_000_000;
const DIGITS: u8 = 3;

impl Default for Latency {
    fn default() -> Self {
        Self(Histogram::new(DIGITS).expect("three digits are possible"))
    }
}

impl Latency {
    /// Records one latency; what is out of bounds counts as the bound.
    pub fn record(&mut self, latency: Nanos) {
        self.count(latency.0 / 1_000, 1);
    }

    fn count(&mut self, micros: u64, count: u64) {
        self.0.record_n(micros.min(MICROS_MAX), count).expect("it grows");
    }

    /// Takes over another's records.
    pub fn merge(&mut self, other: &Self) {
        self.0.add(&other.0).expect("both have the same bounds");
    }

    /// The latency that a share of `q` of the tasks did not exceed, ms; `None` without records.
    pub fn quantile_ms(&self, q: f64) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.value_at_quantile(q) as f64 / 1e3)
    }

    /// Their mean, ms; `None` without records.
    pub fn mean_ms(&self) -> Option<f64> {
        (!self.0.is_empty()).then(|| self.0.mean() / 1e3)
    }
}

impl Serialize for Latency {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let recorded = self.0.iter_recorded();
        serializer
            .collect_seq(recorded.map(|step| (step.value_iterated_to(), step.count_at_value())))
    }
}

impl<'de> Deserialize<'de> for Latency {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut latency = Self::default();
        for (micros, count) in Vec::<(u64, u64)>::deserialize(deserializer)? {
            latency.count(micros, count);
        }
        Ok(latency)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_those_of_the_records_also_after_a_trip_and_a_merge() {
        let mut one = Latency::default();
        let mut other = Latency::default();
        assert_eq!(one.quantile_ms(0.5), None);
        for ms in 1..=50 {
            one.record(Nanos::from_millis(ms));
            other.record(Nanos::from_millis(50 + ms));
        }
        let travelled: Latency =
            serde_json::from_str(&serde_json::to_string(&other).unwrap()).unwrap();
        assert_eq!(travelled, other);
        one.merge(&travelled);
        assert!((one.quantile_ms(0.5).unwrap() - 50.0).abs() < 0.1);
        assert!((one.quantile_ms(0.99).unwrap() - 99.0).abs() < 0.1);
    }

    #[test]
    fn what_is_out_of_bounds_counts_as_the_bound() {
        let mut latency = Latency::default();
        latency.record(Nanos::MAX);
        latency.record(Nanos::ZERO);
        assert!(latency.quantile_ms(1.0).unwrap() >= 3.5e6);
        assert_eq!(latency.quantile_ms(0.1), Some(0.0));
    }
}
