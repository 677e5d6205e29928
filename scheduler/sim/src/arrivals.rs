//! When the next task of which model arrives. Lazily: one pending arrival per model.

use baton_core::{IndexedHeap, Nanos};

use crate::random::{Concern, Stream};
use crate::scenario::{Arrival, Scenario};

/// The open-loop load of a run: depends on scenario, rate and seed, never on what is served.
#[derive(Debug)]
pub(crate) struct Arrivals {
    process: Arrival,
    end: Nanos,
    sources: Vec<Source>,
    /// The next arrival of every model that has one.
    next: IndexedHeap<Nanos>,
}

#[derive(Debug)]
struct Source {
    mean_gap_ns: f64,
    /// The next arrival with its fraction: rounding every gap would shift the rate.
    at_ns: f64,
    stream: Stream,
}

impl Arrivals {
    /// `rate_rps` tasks per second in total, by the models' shares, until the scenario's end.
    pub(crate) fn new(scenario: &Scenario, rate_rps: f64, seed: u64) -> Self {
        let source = |(m, share): (usize, f64)| Source {
            mean_gap_ns: 1e9 / (rate_rps * share),
            at_ns: 0.0,
            stream: Stream::new(seed, Concern::Arrivals(m as u32)),
        };
        let shares = scenario.models.iter().map(|model| model.share);
        let mut arrivals = Self {
            process: scenario.arrival,
            end: scenario.end(),
            sources: shares.enumerate().map(source).collect(),
            next: IndexedHeap::new(scenario.models.len()),
        };
        for (m, source) in arrivals.sources.iter_mut().enumerate() {
            if arrivals.process == Arrival::Constant {
                source.at_ns = -source.stream.unit() * source.mean_gap_ns;
            }
            advance(&mut arrivals.next, source, m as u32, arrivals.process, arrivals.end);
        }
        arrivals
    }

    /// The moment of the next arrival; [`Nanos::MAX`] when there is none.
    pub(crate) fn due(&self) -> Nanos {
        self.next.peek().map_or(Nanos::MAX, |(at, _)| at)
    }

    /// Takes the next arrival: when, and of which model.
    pub(crate) fn take(&mut self) -> Option<(Nanos, u32)> {
        let (at, model) = self.next.peek()?;
        let source = &mut self.sources[model as usize];
        advance(&mut self.next, source, model, self.process, self.end);
        Some((at, model))
    }
}

fn advance(
    next: &mut IndexedHeap<Nanos>,
    source: &mut Source,
    model: u32,
    process: Arrival,
    end: Nanos,
) {
    source.at_ns += source.mean_gap_ns * gap(&mut source.stream, process);
    let at = Nanos(source.at_ns as u64);
    if at < end {
        next.set(model, at);
    } else {
        next.remove(model);
    }
}

/// A gap with mean 1.
fn gap(stream: &mut Stream, process: Arrival) -> f64 {
    match process {
        Arrival::Constant => 1.0,
        Arrival::Poisson => stream.exponential(),
        Arrival::Gamma { shape } => stream.gamma(shape),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(arrival: &str, popularity: &str) -> Vec<usize> {
        let text = format!(
            "gpus = 1\nduration_s = 20\narrival = {arrival}\npopularity = {popularity}\n\
             [[model]]\nname = \"m\"\nalpha_ms = 1\nbeta_ms = 1\nslo_ms = 9\ncopies = 3"
        );
        let mut arrivals = Arrivals::new(&Scenario::parse(&text).unwrap(), 3_000.0, 5);
        let (mut counts, mut last) = (vec![0; 3], Nanos::ZERO);
        while let Some((at, model)) = arrivals.take() {
            assert!(last <= at && at < Nanos::from_millis(20_000));
            (counts[model as usize], last) = (counts[model as usize] + 1, at);
        }
        counts
    }

    #[test]
    fn every_process_offers_the_rate_it_is_asked_for() {
        let equal = "{ kind = \"equal\" }";
        assert_eq!(counts("{ process = \"constant\" }", equal), [20_000; 3]);
        for process in ["{ process = \"poisson\" }", "{ process = \"gamma\", shape = 0.3 }"] {
            for count in counts(process, equal) {
                assert!((19_000..21_000).contains(&count), "{process}: {count}");
            }
        }
    }

    #[test]
    fn zipf_popularity_falls_with_the_rank() {
        let counts = counts("{ process = \"constant\" }", "{ kind = \"zipf\", s = 1.0 }");
        // 1 : 1/2 : 1/3, of 60,000
        for (count, expected) in counts.into_iter().zip([32_727, 16_363, 10_909]) {
            assert!(count.abs_diff(expected) <= 1, "{count} instead of {expected}");
        }
    }
}
