//! What a run came to.

use std::fmt;

use baton_core::Nanos;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};

use super::Pull;
use crate::machine::{Unusable, stolen, too_good};

/// Longest time told apart: a minute.
const NANOS_MAX: u64 = 60_000_000_000;

/// Times of rounds or stretches, and how much they moved.
pub(super) struct Recorder {
    nanos: Histogram<u64>,
    objects: u64,
    total: Nanos,
}

impl Recorder {
    pub(super) fn new() -> Self {
        let nanos = Histogram::new_with_max(NANOS_MAX, 3).expect("the bounds are sound");
        Self { nanos, objects: 0, total: Nanos::ZERO }
    }

    pub(super) fn record(&mut self, took: Nanos, objects: u64) {
        self.nanos.saturating_record(took.0.max(1));
        self.objects += objects;
        self.total = self.total + took;
    }

    pub(super) fn count(&self) -> u64 {
        self.nanos.len()
    }

    /// Objects per second of recorded time.
    pub(super) fn per_s(&self) -> f64 {
        self.objects as f64 * 1e9 / self.total.0.max(1) as f64
    }

    pub(super) fn times(&self) -> Times {
        let at = |q| self.nanos.value_at_quantile(q) as f64 / 1e3;
        Times {
            min: self.nanos.min() as f64 / 1e3,
            p25: at(0.25),
            p50: at(0.5),
            p75: at(0.75),
            p99: at(0.99),
            p999: at(0.999),
        }
    }

    fn gigabytes_per_s(&self, bytes: u32) -> f64 {
        (self.objects * u64::from(bytes)) as f64 / self.total.0.max(1) as f64
    }
}

/// Microseconds.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Times {
    /// The quickest.
    pub min: f64,
    /// A quarter took no longer: where times come in two kinds, as on Soft-RoCE, their halves.
    pub p25: f64,
    /// The median.
    pub p50: f64,
    /// Three quarters took no longer.
    pub p75: f64,
    /// 99 % took no longer.
    pub p99: f64,
    /// 99.9 % took no longer.
    pub p999: f64,
}

/// A run's result.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PullReport {
    /// Which.
    pub bench: &'static str,
    /// Over what.
    pub transport: &'static str,
    /// Senders.
    pub senders: u32,
    /// Objects of each under way.
    pub objects: u32,
    /// Bytes of an object.
    pub bytes: u32,
    /// Rounds, or stretches of a stream.
    pub rounds: u64,
    /// Time of a round: all objects of all senders.
    pub total_us: Times,
    /// Bytes of objects over the time of all rounds, GB/s.
    pub gigabytes_per_s: f64,
    /// The median round at the link's rate, or else over bare sockets in the same run; `null` where
    /// neither is known.
    pub floor_us: Option<f64>,
    /// The floor over the median round.
    pub efficiency: Option<f64>,
    /// Share of the CPU time that went to other machines' work; `null` where unknown.
    pub steal_fraction: Option<f64>,
    /// Why the figures are not to be used; empty if nothing is known against them.
    pub not_usable: Unusable,
}

impl PullReport {
    pub(super) fn new(
        pull: &Pull,
        ours: &Recorder,
        bare: Option<&Recorder>,
        steal_fraction: Option<f64>,
    ) -> Self {
        let Pull { bench, transport, senders, objects, bytes, .. } = *pull;
        let rounds = ours.nanos.len();
        let round_bytes = ours.objects as f64 / rounds.max(1) as f64 * f64::from(bytes);
        let at_link_rate = pull.link_gbps.map(|gbps| round_bytes * 8.0 / gbps / 1e3);
        let floor_us = at_link_rate.or_else(|| bare.map(|bare| bare.times().p50));
        let total_us = ours.times();
        let efficiency = floor_us.map(|floor| floor / total_us.p50);
        Self {
            bench,
            transport: transport.as_str(),
            senders,
            objects,
            bytes,
            rounds,
            total_us,
            gigabytes_per_s: ours.gigabytes_per_s(bytes),
            floor_us,
            efficiency,
            steal_fraction,
            not_usable: not_usable(steal_fraction, efficiency),
        }
    }
}

impl fmt::Display for PullReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Times { min, p50, p99, p999, .. } = self.total_us;
        writeln!(
            f,
            "{} over {}: {} × {} objects of {} bytes, {} rounds",
            self.bench, self.transport, self.senders, self.objects, self.bytes, self.rounds
        )?;
        writeln!(f, "  round   min {min:.1}  p50 {p50:.1}  p99 {p99:.1}  p99.9 {p999:.1} µs")?;
        writeln!(f, "  {:.3} GB/s", self.gigabytes_per_s)?;
        match (self.floor_us, self.efficiency) {
            (Some(floor), Some(efficiency)) => {
                writeln!(f, "  floor   {floor:.1} µs  efficiency {efficiency:.2}")?;
            }
            _ => writeln!(f, "  floor   not known; --link-gbps gives one")?,
        }
        write_steal(f, self.steal_fraction)?;
        self.not_usable.write(f)
    }
}

/// Bare sockets do what we do and less: where they are slower, something else kept them.
pub(super) fn not_usable(steal: Option<f64>, efficiency: Option<f64>) -> Unusable {
    let missed = too_good(efficiency, "the floor was disturbed: the efficiency is");
    Unusable::because([stolen(steal), missed])
}

/// Says so where the host took much of the CPU away.
pub(super) fn write_steal(f: &mut fmt::Formatter<'_>, steal: Option<f64>) -> fmt::Result {
    match steal {
        Some(steal) if steal > 0.001 => {
            writeln!(f, "  {:.1} % of the CPU was stolen: the tail is the host's", steal * 100.0)
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use baton_topo::{Idle, TransportChoice};

    use super::*;

    #[test]
    fn efficiency_is_the_floor_over_the_median() {
        let pull = Pull {
            bench: "incast",
            transport: TransportChoice::Tcp,
            senders: 2,
            objects: 5,
            bytes: 1_000,
            stream: false,
            seconds: 1.0,
            idle: Idle::Park,
            link_gbps: None,
        };
        let (mut ours, mut bare) = (Recorder::new(), Recorder::new());
        (0..3).for_each(|_| ours.record(Nanos::from_micros(20), 10));
        bare.record(Nanos::from_micros(15), 10);
        let report = PullReport::new(&pull, &ours, Some(&bare), None);
        assert!((report.efficiency.unwrap() - 0.75).abs() < 0.01);
        assert!((report.gigabytes_per_s - 0.5).abs() < 1e-9, "30 000 bytes in 60 us");
        let linked = PullReport::new(&Pull { link_gbps: Some(8.0), ..pull }, &ours, None, None);
        assert!((linked.floor_us.unwrap() - 10.0).abs() < 1e-9, "10 000 bytes at 1 GB/s");
        let unknown = PullReport::new(&pull, &ours, None, None);
        assert_eq!(unknown.efficiency, None);
        let Times { min, p50, p999, .. } = unknown.total_us;
        assert!([min, p50, p999].iter().all(|us| (us - 20.0).abs() < 0.1));
    }
}
