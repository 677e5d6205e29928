//! What a process counts, in Prometheus' text format, over HTTP.
//!
//! A process has a function that reads its numbers ([`Metric`]s) and lends it to a [`MetricsServer`], which calls it for each
//! scrape on a thread of its own. Nothing here is on a task's way: the threads that count do not know of it.
#![forbid(unsafe_code)]

mod exposition;
mod histogram;
mod server;
mod threads;

pub use exposition::text;
pub use histogram::{Histogram, LATENCY_BOUNDS_S, OBJECTIVE_BOUNDS};
pub use server::{MetricsError, MetricsServer};
pub use threads::threads;

/// What a number is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// It only grows; its name ends in `_total` where it is scraped.
    Counter,
    /// A level.
    Gauge,
    /// Counts by size.
    Histogram,
}

impl Kind {
    /// As in Prometheus.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// A number, or several that differ by their labels.
#[derive(Clone, PartialEq, Debug)]
pub struct Metric {
    /// Its name, without `_total`.
    pub name: String,
    /// What it says, in a sentence without its full stop.
    pub help: &'static str,
    /// What it is.
    pub kind: Kind,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// Its values, each with those of its labels in order.
    pub series: Vec<(Vec<String>, Value)>,
}

/// A value.
#[derive(Clone, PartialEq, Debug)]
pub enum Value {
    /// Of a counter.
    Count(u64),
    /// Of a counter of time.
    Seconds(f64),
    /// Of a gauge.
    Level(f64),
    /// Of a histogram: what lies at or below each bound and above the one before, what lies above all, and the sum.
    Sizes {
        /// Bounds and counts. The last bound is infinite.
        buckets: Vec<(f64, u64)>,
        /// Of all sizes.
        sum: f64,
    },
}

impl Metric {
    /// A counter without labels. The first lines of its documentation are its help: their blanks are taken away.
    pub fn counter(process: &str, name: &str, help: &'static str, count: u64) -> Self {
        Self {
            name: format!("baton_{process}_{name}"),
            help: sentence(help),
            kind: Kind::Counter,
            labels: &[],
            series: vec![(Vec::new(), Value::Count(count))],
        }
    }

    /// Counters with labels; none yet.
    pub fn counters(
        name: impl Into<String>,
        help: &'static str,
        labels: &'static [&'static str],
    ) -> Self {
        Self { kind: Kind::Counter, ..Self::gauges(name, help, labels) }
    }

    /// What the transport of a process counts, and its levels: names, documentation, values.
    pub fn of_transport(
        process: &str,
        counts: Vec<(&'static str, &'static str, u64)>,
        levels: Vec<(&'static str, &'static str, u64)>,
    ) -> impl Iterator<Item = Self> {
        let counts = counts.into_iter().map(move |(name, help, count)| {
            Self::counter(process, &format!("transport_{name}"), help, count)
        });
        let levels = levels.into_iter().map(move |(name, help, level)| {
            Self::gauge(format!("baton_{process}_transport_{name}"), help, level as f64)
        });
        counts.chain(levels)
    }

    /// A level without labels.
    pub fn gauge(name: impl Into<String>, help: &'static str, level: f64) -> Self {
        Self { series: vec![(Vec::new(), Value::Level(level))], ..Self::gauges(name, help, &[]) }
    }

    /// Levels with labels; none yet.
    pub fn gauges(
        name: impl Into<String>,
        help: &'static str,
        labels: &'static [&'static str],
    ) -> Self {
        let series = Vec::new();
        Self { name: name.into(), help: sentence(help), kind: Kind::Gauge, labels, series }
    }

    /// Histograms with labels; none yet.
    pub fn histograms(
        name: impl Into<String>,
        help: &'static str,
        labels: &'static [&'static str],
    ) -> Self {
        Self { kind: Kind::Histogram, ..Self::gauges(name, help, labels) }
    }

    /// The name under which it is scraped.
    pub fn full_name(&self) -> String {
        let ending = if self.kind == Kind::Counter { "_total" } else { "" };
        format!("{}{ending}", self.name)
    }
}

/// What every process says of itself.
pub fn build_info(version: &str) -> Metric {
    let help = "Always 1; its label is the version of this process";
    let series = vec![(vec![version.to_owned()], Value::Level(1.0))];
    Metric { series, ..Metric::gauges("baton_build_info", help, &["version"]) }
}

/// The counters that are not 0, for a line of a log.
pub fn counted(counters: &[(&'static str, u64)]) -> String {
    let counted = counters.iter().filter(|&&(_, count)| count > 0);
    counted.map(|(name, count)| format!("{name}={count}")).collect::<Vec<_>>().join(" ")
}

/// A doc comment's text as a line.
fn sentence(text: &'static str) -> &'static str {
    text.trim().trim_end_matches('.')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_that_are_0_are_left_out() {
        assert_eq!(counted(&[("plans", 3), ("loads", 0), ("rejoins", 1)]), "plans=3 rejoins=1");
    }
}
