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
    end: Nanos,
    sources: Vec<Source>,
    /// The next arrival of every source that has one.
    next: IndexedHeap<Nanos>,
}

#[derive(Debug)]
struct Source {
    model: u32,
    gaps: Gaps,
    mean_gap_ns: f64,
    /// The next arrival with its fraction: rounding every gap would shift the rate. In the time
    /// that `pace` stretches, if there is one.
    at_ns: f64,
    pace: Option<Arc<Pace>>,
    slo: Nanos,
    stream: Stream,
}

/// How the gaps of one source are distributed.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Gaps {
    Constant,
    Exponential,
    Gamma { shape: f64 },
}

impl GeneratedArrivals {
    /// `rate_rps` tasks per second in total, by the models' shares, until the scenario's end: the
    /// mean over the measured span, whatever the load's course.
    pub(crate) fn new(scenario: &Scenario, rate_rps: f64, seed: u64) -> Self {
        let pace = |load: &Load| Arc::new(load.pace(scenario.warmup, scenario.end()));
        let common = scenario.load.as_ref().map(pace);
        let parts = parts(scenario.arrival, rate_rps);
        let sources = |(model, sim_model): (u32, &SimModel)| {
            let pace = sim_model.load.as_ref().map(pace).or_else(|| common.clone());
            let (share, slo) = (sim_model.share, sim_model.slo());
            let source = move |(gaps, rate_rps, concern): Part| Source {
                model,
                gaps,
                mean_gap_ns: 1e9 / (rate_rps * share),
                at_ns: 0.0,
                pace: pace.clone(),
                slo,
                stream: Stream::new(seed, concern(model)),
            };
            parts.iter().copied().map(source)
        };
        Self::begin(scenario.end(), (0..).zip(&scenario.models).flat_map(sources).collect())
    }

    /// Poisson arrivals of each model at its own rate, without an end and without objectives.
    pub(crate) fn poisson(rates_rps: &[f64], seed: u64) -> Self {
        let source = |(model, rate_rps): (u32, &f64)| Source {
            model,
            gaps: Gaps::Exponential,
            mean_gap_ns: 1e9 / rate_rps,
            at_ns: 0.0,
            pace: None,
            slo: Nanos::MAX,
            stream: Stream::new(seed, Concern::Arrivals(model)),
        };
        Self::begin(Nanos::MAX, (0..).zip(rates_rps).map(source).collect())
    }

    fn begin(end: Nanos, sources: Vec<Source>) -> Self {
        let next = IndexedHeap::new(sources.len());
        let mut drawn = Self { end, sources, next };
        for (id, source) in (0..).zip(&mut drawn.sources) {
            if source.gaps == Gaps::Constant {
                source.at_ns = -source.stream.unit() * source.mean_gap_ns;
            }
            advance(&mut drawn.next, source, id, drawn.end);
        }
        drawn
    }

    /// The moment of the next arrival; [`Nanos::MAX`] when there is none.
    pub(crate) fn due(&self) -> Nanos {
        self.next.peek().map_or(Nanos::MAX, |(at, _)| at)
    }

    /// Takes the next arrival.
    pub(crate) fn take(&mut self) -> Option<Arrived> {
        let (at, id) = self.next.peek()?;
        let source = &mut self.sources[id as usize];
        let (model, deadline) = (source.model, at + source.slo);
        advance(&mut self.next, source, id, self.end);
        Some(Arrived { at, model, deadline })
    }

    /// Adds to each model's count the arrivals from `from` on that have not been taken. One model
    /// after the other: their order, which costs most, does not matter here.
    pub(crate) fn count(mut self, from: Nanos, counts: &mut [u64]) {
        for (id, source) in (0..).zip(&mut self.sources) {
            let mut next = self.next.key(id);
            while let Some(at) = next {
                counts[source.model as usize] += u64::from(at >= from);
                next = source.advance(self.end);
            }
        }
    }
}

/// One of the processes that a model's arrivals consist of: its gaps, its part of the rate, and what draws them.
type Part = (Gaps, f64, fn(u32) -> Concern);

fn parts(arrival: Arrival, rate_rps: f64) -> Vec<Part> {
    let whole = |gaps| vec![(gaps, rate_rps, Concern::Arrivals as fn(u32) -> Concern)];
    match arrival {
        Arrival::Constant => whole(Gaps::Constant),
        Arrival::Poisson => whole(Gaps::Exponential),
        Arrival::Gamma { shape } => whole(Gaps::Gamma { shape }),
        Arrival::Bursty { base_rps, shape } => {
            let base_rps = base_rps.min(rate_rps);
            vec![
                (Gaps::Constant, base_rps, Concern::Arrivals),
                (Gaps::Gamma { shape }, rate_rps - base_rps, Concern::Bursts),
            ]
        }
    }
}

fn advance(next: &mut IndexedHeap<Nanos>, source: &mut Source, id: u32, end: Nanos) {
    match source.advance(end) {
        Some(at) => next.set(id, at),
        None => {
            next.remove(id);
        }
    }
}

impl Source {
    /// The next arrival, if it comes before the end.
    fn advance(&mut self, end: Nanos) -> Option<Nanos> {
        if self.mean_gap_ns == f64::INFINITY {
            return None;
        }
        self.at_ns += self.mean_gap_ns * self.gaps.draw(&mut self.stream);
        let at_ns = self.pace.as_ref().map_or(self.at_ns, |pace| pace.real_ns(self.at_ns));
        Some(Nanos(at_ns as u64)).filter(|&at| at < end)
    }
}

impl Gaps {
    /// A gap with mean 1.
    fn draw(self, stream: &mut Stream) -> f64 {
        match self {
            Self::Constant => 1.0,
            Self::Exponential => stream.exponential(),
            Self::Gamma { shape } => stream.gamma(shape),
        }
    }
}
