//! Arrivals drawn at random, or evenly spaced. Lazily: one pending arrival per model.

use std::sync::Arc;

use baton_core::{IndexedHeap, Nanos};

use crate::arrivals::Arrived;
use crate::load::{Load, Pace};
use crate::random::{Concern, Stream};
use crate::scenario::{Arrival, Scenario, SimModel};

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct GeneratedArrivals {
    process: Arrival,
    end: Nanos,
    sources: Vec<Source>,
    /// The next arrival of every model that has one.
    next: IndexedHeap<Nanos>,
}

#[derive(Debug)]
struct Source {
    mean_gap_ns: f64,
    /// The next arrival with its fraction: rounding every gap would shift the rate. In the time
    /// that `pace` stretches, if there is one.
    at_ns: f64,
    pace: Option<Arc<Pace>>,
    slo: Nanos,
    stream: Stream,
}

impl GeneratedArrivals {
    /// `rate_rps` tasks per second in total, by the models' shares, until the scenario's end: the
    /// mean over the measured span, whatever the load's course.
    pub(crate) fn new(scenario: &Scenario, rate_rps: f64, seed: u64) -> Self {
        let pace = |load: &Load| Arc::new(load.pace(scenario.warmup, scenario.end()));
        let common = scenario.load.as_ref().map(pace);
        let source = |(m, model): (usize, &SimModel)| Source {
            mean_gap_ns: 1e9 / (rate_rps * model.share),
            at_ns: 0.0,
            pace: model.load.as_ref().map(pace).or_else(|| common.clone()),
            slo: model.slo(),
            stream: Stream::new(seed, Concern::Arrivals(m as u32)),
        };
        let sources = scenario.models.iter().enumerate().map(source).collect();
        Self::begin(scenario.arrival, scenario.end(), sources)
    }

    /// Poisson arrivals of each model at its own rate, without an end and without objectives.
    pub(crate) fn poisson(rates_rps: &[f64], seed: u64) -> Self {
        let source = |(m, rate_rps): (usize, &f64)| Source {
            mean_gap_ns: 1e9 / rate_rps,
            at_ns: 0.0,
            pace: None,
            slo: Nanos::MAX,
            stream: Stream::new(seed, Concern::Arrivals(m as u32)),
        };
        Self::begin(
            Arrival::Poisson,
            Nanos::MAX,
            rates_rps.iter().enumerate().map(source).collect(),
        )
    }

    fn begin(process: Arrival, end: Nanos, sources: Vec<Source>) -> Self {
        let next = IndexedHeap::new(sources.len());
        let mut drawn = Self { process, end, sources, next };
        for (m, source) in drawn.sources.iter_mut().enumerate() {
            if drawn.process == Arrival::Constant {
                source.at_ns = -source.stream.unit() * source.mean_gap_ns;
            }
            advance(&mut drawn.next, source, m as u32, drawn.process, drawn.end);
        }
        drawn
    }

    /// The moment of the next arrival; [`Nanos::MAX`] when there is none.
    pub(crate) fn due(&self) -> Nanos {
        self.next.peek().map_or(Nanos::MAX, |(at, _)| at)
    }

    /// Takes the next arrival.
    pub(crate) fn take(&mut self) -> Option<Arrived> {
        let (at, model) = self.next.peek()?;
        let source = &mut self.sources[model as usize];
        let deadline = at + source.slo;
        advance(&mut self.next, source, model, self.process, self.end);
        Some(Arrived { at, model, deadline })
    }

    /// Adds to each model's count the arrivals from `from` on that have not been taken. One model
    /// after the other: their order, which costs most, does not matter here.
    pub(crate) fn count(mut self, from: Nanos, counts: &mut [u64]) {
        for (m, source) in self.sources.iter_mut().enumerate() {
            let mut next = self.next.key(m as u32);
            while let Some(at) = next {
                counts[m] += u64::from(at >= from);
                next = source.advance(self.process, self.end);
            }
        }
    }
}

fn advance(
    next: &mut IndexedHeap<Nanos>,
    source: &mut Source,
    model: u32,
    process: Arrival,
    end: Nanos,
) {
    match source.advance(process, end) {
        Some(at) => next.set(model, at),
        None => {
            next.remove(model);
        }
    }
}

impl Source {
    /// The next arrival, if it comes before the end.
    fn advance(&mut self, process: Arrival, end: Nanos) -> Option<Nanos> {
        if self.mean_gap_ns == f64::INFINITY {
            return None;
        }
        self.at_ns += self.mean_gap_ns * gap(&mut self.stream, process);
        let at_ns = self.pace.as_ref().map_or(self.at_ns, |pace| pace.real_ns(self.at_ns));
        Some(Nanos(at_ns as u64)).filter(|&at| at < end)
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
