//! What the flood came to: for scripts as JSON, for people as text.

use std::collections::BTreeMap;
use std::fmt;

use serde::Serialize;

use super::{BAD_MAX, Overload};
use crate::machine::{Unusable, stolen, too_good};
use crate::processes::ProcessUsage;
use crate::two_models::{Ending, LoadClient, MODELS, PhaseReport, SLO_MS, WINDOW};

/// A window counts as normal if its bad rate is above that of the normal load by this at most.
const SLACK: f64 = 0.01;
/// Windows that are looked at together, a second: tasks of one alone are too few to judge by.
const TOGETHER: usize = 10;

/// A process's resident memory, KiB.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct MemoryOf {
    /// Whose.
    pub process: String,
    /// When the flood began.
    pub before_kib: u64,
    /// After a sixth of the flood: what it needs at all is touched by then.
    pub early_kib: u64,
    /// After the flood.
    pub after_kib: u64,
    /// The most that was read.
    pub peak_kib: u64,
}

/// Readings over the flood.
#[derive(Debug)]
pub(super) struct Memory(Vec<Vec<ProcessUsage>>);

impl Memory {
    pub(super) fn start(first: Vec<ProcessUsage>) -> Self {
        Self(vec![first])
    }

    pub(super) fn read(&mut self, reading: Vec<ProcessUsage>) {
        self.0.push(reading);
    }

    /// Of each process that lived throughout.
    pub(super) fn finish(self) -> Vec<MemoryOf> {
        let of = |first: &ProcessUsage| {
            let name = &first.process;
            let in_reading = |all: &Vec<ProcessUsage>| {
                Some(all.iter().find(|usage| usage.process == *name)?.resident_kib)
            };
            let readings: Vec<u64> = self.0.iter().map(in_reading).collect::<Option<_>>()?;
            Some(MemoryOf {
                process: name.clone(),
                before_kib: first.resident_kib,
                early_kib: readings[readings.len() / 6],
                after_kib: *readings.last()?,
                peak_kib: readings.iter().copied().max()?,
            })
        };
        self.0[0].iter().filter_map(of).collect()
    }
}

/// The numbers of the phases' spans.
#[derive(Clone, Copy, Debug)]
pub(super) struct Spans {
    pub(super) normal: usize,
    pub(super) flood: usize,
    pub(super) after: usize,
}

/// The whole run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct OverloadReport {
    /// The highest rate that was served with at most 1 % bad.
    pub peak: PhaseReport,
    /// The load before the flood, at 0.8 of that.
    pub normal: PhaseReport,
    /// How many times the peak was offered.
    pub factor: f64,
    /// For how long.
    pub seconds: f64,
    /// The flood.
    pub flood: PhaseReport,
    /// The same by model: with one of them flooded, the other is the neighbour.
    pub flood_by_model: BTreeMap<&'static str, PhaseReport>,
    /// Goodput under the flood over that of the peak.
    pub goodput_ratio: f64,
    /// The objective, ms: answers take no longer.
    pub slo_ms: f64,
    /// The normal load again.
    pub after: PhaseReport,
    /// How long after the end of the flood a task had to be due for the next second's to fare as before
    /// the flood; `null` if none did.
    pub recovery_ms: Option<f64>,
    /// Tasks refused with word how long to wait, over all that were refused for quota or a full queue.
    pub hinted: u64,
    /// See `hinted`.
    pub refused: u64,
    /// Resident memory of scheduler and backends.
    pub memory: Vec<MemoryOf>,
    /// Why the figures are not to be used; empty if nothing is known against them.
    pub not_usable: Unusable,
    /// Of the tasks of every phase, and of the processes.
    #[serde(flatten)]
    pub ending: Ending,
}

impl OverloadReport {
    pub(super) fn new(
        overload: &Overload,
        peak: PhaseReport,
        load: &LoadClient,
        spans: Spans,
        memory: Vec<MemoryOf>,
        lost: Vec<String>,
        steal_fraction: Option<f64>,
    ) -> Self {
        let normal = PhaseReport::new(load.span(spans.normal));
        let flood = PhaseReport::new(load.span(spans.flood));
        let total = load.total();
        let models = load.span(spans.flood).models.iter().cloned();
        let by_model = models.map(|tally| PhaseReport::of(tally, overload.seconds));
        let goodput_ratio = flood.goodput_rps / peak.goodput_rps;
        let missed = "the search missed the peak, give a longer --step: goodput under the flood is";
        let refused = ["quota", "queue_full"].map(|why| total.dropped.get(why).unwrap_or(&0));
        Self {
            factor: overload.factor,
            seconds: overload.seconds,
            goodput_ratio,
            not_usable: Unusable::because([
                stolen(steal_fraction),
                too_good(Some(goodput_ratio), missed),
            ]),
            flood_by_model: MODELS.into_iter().zip(by_model).collect(),
            slo_ms: SLO_MS,
            after: PhaseReport::new(load.span(spans.after)),
            recovery_ms: recovery(&load.span(spans.after).windows, normal.bad_rate),
            hinted: load.hinted,
            refused: refused.into_iter().sum(),
            memory,
            ending: Ending::new(&total, lost, steal_fraction),
            peak,
            normal,
            flood,
        }
    }
}

/// The start of the first second in which no more is bad than normal, ms.
fn recovery(windows: &[[u64; 2]], normal_bad_rate: f64) -> Option<f64> {
    let most = normal_bad_rate.max(BAD_MAX) + SLACK;
    let fine = |second: &[[u64; 2]]| {
        let due: u64 = second.iter().map(|window| window[0]).sum();
        let in_time: u64 = second.iter().map(|window| window[1]).sum();
        (due - in_time) as f64 <= most * due as f64
    };
    let first = windows.windows(TOGETHER.min(windows.len())).position(fine)?;
    Some(WINDOW.times(first as u64).as_millis_f64())
}

impl fmt::Display for OverloadReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        line(f, "peak", &self.peak)?;
        line(f, "normal", &self.normal)?;
        line(f, "flood", &self.flood)?;
        for (name, model) in &self.flood_by_model {
            line(f, &format!("  {name}"), model)?;
        }
        line(f, "after", &self.after)?;
        let ratio = self.goodput_ratio;
        writeln!(
            f,
            "goodput under the flood: {ratio:.3} of the peak; objective {} ms",
            self.slo_ms
        )?;
        match self.recovery_ms {
            Some(ms) => writeln!(f, "as before {ms:.0} ms after the flood")?,
            None => writeln!(f, "not as before within the time looked at")?,
        }
        writeln!(f, "{} tasks refused, {} with word how long to wait", self.refused, self.hinted)?;
        for of in &self.memory {
            writeln!(
                f,
                "{}: {} KiB before the flood, {} early in it, {} after, {} at most",
                of.process, of.before_kib, of.early_kib, of.after_kib, of.peak_kib
            )?;
        }
        self.ending.write(f, "")?;
        writeln!(f)?;
        self.not_usable.write(f)
    }
}

fn line(f: &mut fmt::Formatter<'_>, name: &str, phase: &PhaseReport) -> fmt::Result {
    let ms =
        |quantile: Option<f64>| quantile.map_or_else(|| "–".to_owned(), |ms| format!("{ms:.1}"));
    writeln!(
        f,
        "{name:<9} {:>8.0}/s offered, {:>6.0}/s in time, {:>6.2} % bad, {} late; p50 {} p99 {} p99.9 {} ms; \
         dropped {:?}, failed {:?}",
        phase.offered_rps,
        phase.goodput_rps,
        phase.bad_rate * 1e2,
        phase.late,
        ms(phase.p50_ms),
        ms(phase.p99_ms),
        ms(phase.p999_ms),
        phase.dropped,
        phase.failed
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recovery_is_where_a_second_begins_that_is_as_good_as_before() {
        let bad = [[100, 0]; 3];
        let good = [[100, 100]; 20];
        assert_eq!(recovery(&[&bad[..], &good[..]].concat(), 0.0), Some(300.0));
        assert_eq!(recovery(&good, 0.0), Some(0.0));
        let nearly = [[100, 98]; 20];
        assert_eq!(recovery(&nearly, 0.0), Some(0.0), "one per cent, and one more");
        assert_eq!(recovery(&[[100, 97]; 20], 0.0), None);
        assert_eq!(recovery(&[[100, 97]; 20], 0.02), Some(0.0), "it was no better before");
    }

    #[test]
    fn memory_is_read_of_those_that_live_throughout() {
        let of = |name: &str, resident_kib| ProcessUsage {
            process: name.to_owned(),
            resident_kib,
            handles: 1,
        };
        let mut memory = Memory::start(vec![of("a", 10), of("b", 20)]);
        memory.read(vec![of("a", 15), of("b", 30)]);
        memory.read(vec![of("a", 12)]);
        let expected = MemoryOf {
            process: "a".to_owned(),
            before_kib: 10,
            early_kib: 10,
            after_kib: 12,
            peak_kib: 15,
        };
        assert_eq!(memory.finish(), [expected]);
    }
}
