//! What the hours came to.

use std::fmt;

use serde::Serialize;

use super::Soak;
use super::curves;
use crate::load::Tally;
use crate::machine::{Unusable, stolen};
use crate::plot::PlotError;
use crate::processes::ProcessUsage;
use crate::two_models::{Ending, PhaseReport, SLO_MS};

/// One interval.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Sample {
    /// Tasks due in it.
    pub tasks: PhaseReport,
    /// The processes at its end.
    #[serde(rename = "vitals")]
    pub usage: Vec<ProcessUsage>,
    /// CPU time others took; `null` where unknown.
    pub steal_fraction: Option<f64>,
}

impl fmt::Display for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |ms: Option<f64>| ms.map_or_else(|| "–".to_owned(), |ms| format!("{ms:.1}"));
        let (p50, p99) = (ms(self.tasks.p50_ms), ms(self.tasks.p99_ms));
        let bad = self.tasks.bad_rate * 1e2;
        write!(f, "{} tasks, {bad:.2} % bad, p50 {p50} p99 {p99} ms", self.tasks.submitted)
    }
}

/// From the first quarter of the intervals to the last, by the median interval of each. The first
/// interval is left out where there are more than four: what a process needs at all it touches in it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Drift {
    /// Of what.
    pub what: String,
    /// In the first quarter.
    pub early: f64,
    /// In the last.
    pub late: f64,
    /// How much more that is, as a share of `early`.
    pub drift: f64,
}

impl Drift {
    fn over(samples: &[Sample], what: String, of: impl Fn(&Sample) -> Option<f64>) -> Option<Self> {
        let from = usize::from(samples.len() > 4);
        let values: Vec<f64> = samples[from..].iter().map(of).collect::<Option<_>>()?;
        let quarter = values.len().div_ceil(4);
        let early = median(values.get(..quarter)?)?;
        let late = median(&values[values.len() - quarter..])?;
        Some(Self { what, early, late, drift: late / early - 1.0 })
    }
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let upper = *sorted.get(sorted.len() / 2)?;
    let lower = sorted[(sorted.len() - 1) / 2];
    Some((lower + upper) / 2.0)
}

/// The whole run.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct SoakReport {
    /// Why the figures are not to be used; empty if nothing is known against them.
    pub not_usable: Unusable,
    /// Share of what the GPUs do at best that was offered.
    pub load: f64,
    /// Length of an interval.
    pub every_s: f64,
    /// How long load was offered.
    pub seconds: f64,
    /// The objective, ms.
    pub slo_ms: f64,
    /// Of the latency: the intervals' medians and 99th percentiles, ms.
    pub latency: Vec<Drift>,
    /// Of each process's resident memory, KiB.
    pub memory: Vec<Drift>,
    /// Of each process's open file descriptors.
    pub handles: Vec<Drift>,
    /// Of all tasks and processes.
    #[serde(flatten)]
    pub ending: Ending,
    /// Tasks that were answered after their deadline.
    pub late: u64,
    /// One after the other.
    pub samples: Vec<Sample>,
}

impl SoakReport {
    pub(super) fn new(
        soak: &Soak,
        samples: Vec<Sample>,
        total: &Tally,
        lost: Vec<String>,
        steal_fraction: Option<f64>,
    ) -> Self {
        let names: Vec<String> = samples.first().map_or_else(Vec::new, |first| {
            first.usage.iter().map(|usage| usage.process.clone()).collect()
        });
        let of_each = |of: fn(&ProcessUsage) -> u64| {
            let drift =
                |name: &String| Drift::over(&samples, name.clone(), |s| reading(s, name, of));
            names.iter().filter_map(drift).collect()
        };
        let latency = [
            Drift::over(&samples, "p50_ms".to_owned(), |sample| sample.tasks.p50_ms),
            Drift::over(&samples, "p99_ms".to_owned(), |sample| sample.tasks.p99_ms),
        ];
        Self {
            load: soak.load,
            every_s: soak.every_s,
            seconds: soak.every_s * samples.len() as f64,
            slo_ms: SLO_MS,
            latency: latency.into_iter().flatten().collect(),
            memory: of_each(|usage| usage.resident_kib),
            handles: of_each(|usage| usage.handles),
            ending: Ending::new(total, lost, steal_fraction),
            not_usable: Unusable::because([stolen(steal_fraction)]),
            late: total.late,
            samples,
        }
    }

    /// Latency, memory and handles over time, as an SVG document.
    ///
    /// # Errors
    /// It could not be drawn.
    pub fn svg(&self) -> Result<String, PlotError> {
        curves::svg(self)
    }
}

/// What the sample says of a process.
pub(super) fn reading(sample: &Sample, name: &str, of: fn(&ProcessUsage) -> u64) -> Option<f64> {
    let usage = sample.usage.iter().find(|usage| usage.process == name)?;
    Some(of(usage) as f64)
}

impl fmt::Display for SoakReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { seconds, load, slo_ms, .. } = self;
        writeln!(f, "{seconds:.0} s at {load} of what the GPUs do at best; objective {slo_ms} ms")?;
        writeln!(f, "                      first quarter  last quarter  drift")?;
        for (unit, drifts) in
            [("", &self.latency), (" KiB", &self.memory), (" handles", &self.handles)]
        {
            for Drift { what, early, late, drift } in drifts {
                let (what, percent) = (format!("{what}{unit}"), drift * 1e2);
                writeln!(f, "{what:<22} {early:>12.2} {late:>13.2}  {percent:+.2} %")?;
            }
        }
        self.ending.write(f, &format!(" ({} late)", self.late))?;
        writeln!(f)?;
        self.not_usable.write(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::processes::ChildConfig;

    fn sample(p50_ms: f64, kib: u64) -> Sample {
        let usage = ProcessUsage { process: "scheduler".to_owned(), resident_kib: kib, handles: 9 };
        let tasks = PhaseReport { p50_ms: Some(p50_ms), ..PhaseReport::default() };
        Sample { tasks, usage: vec![usage], steal_fraction: None }
    }

    #[test]
    fn drift_is_from_the_first_quarter_to_the_last_without_the_first_interval() {
        let samples: Vec<Sample> =
            [900, 100, 102, 50, 50, 50, 50, 110, 114].map(|kib| sample(kib as f64, kib)).to_vec();
        let soak = Soak {
            children: ChildConfig {
                exe: "baton".into(),
                common_args: Vec::new(),
                variables: Vec::new(),
            },
            load: 0.5,
            seconds: 9.0,
            every_s: 1.0,
            seed: 1,
        };
        let report = SoakReport::new(&soak, samples, &Tally::default(), Vec::new(), None);
        let memory = &report.memory[0];
        assert_eq!((memory.what.as_str(), memory.early, memory.late), ("scheduler", 101.0, 112.0));
        assert_eq!(report.latency.len(), 1, "no interval has a p99");
        assert!((report.latency[0].drift - 11.0 / 101.0).abs() < 1e-12);
        assert_eq!(report.handles[0].drift, 0.0);
        assert!(report.svg().unwrap().starts_with("<svg"));
    }
}
