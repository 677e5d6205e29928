//! Seeded random numbers, one stream per concern: changing how one thing is drawn moves nothing
//! else.

use baton_core::SplitMix64;

/// What a stream is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Concern {
    /// Gaps between the arrivals of one model.
    Arrivals(u32),
    /// Gaps between those arrivals of one model that come in bursts beside a constant rate.
    Bursts(u32),
    /// How long executions overrun their profile.
    Overrun,
    /// How long LOADs overrun their plan.
    LoadOverrun,
    /// Which executions straggle.
    Stragglers,
    /// How far one model's profile is off.
    ProfileError(u32),
    /// Which frontend a task comes through.
    Frontend,
    /// Which model a task is for, where a replayed file does not say.
    Popularity,
    /// Which functions the load comes from, and when each runs.
    Functions,
    /// When within its minute a task comes, where a replayed file has counts.
    Minutes,
    /// What a scenario consists of that is drawn itself.
    Scenario(u32),
}

/// Numbers for one concern.
#[derive(Clone, Debug)]
pub(crate) struct Stream(SplitMix64);

impl Stream {
    /// The stream of a run's seed for one concern.
    pub(crate) fn new(seed: u64, concern: Concern) -> Self {
        let tag = match concern {
            Concern::Overrun => 1,
            Concern::Frontend => 3,
            Concern::Popularity => 4,
            Concern::Stragglers => 5,
            Concern::Functions => 8,
            Concern::LoadOverrun => 10,
            Concern::Minutes => 11,
            Concern::Arrivals(model) => (2 << 32) | u64::from(model),
            Concern::Bursts(model) => (9 << 32) | u64::from(model),
            Concern::ProfileError(model) => (6 << 32) | u64::from(model),
            Concern::Scenario(index) => (7 << 32) | u64::from(index),
        };
        Self(SplitMix64::new(SplitMix64::mix(SplitMix64::mix(seed) ^ tag)))
    }

    pub(crate) fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// Uniform in (0, 1].
    pub(crate) fn unit(&mut self) -> f64 {
        ((self.next_u64() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// Exponentially distributed with mean 1.
    pub(crate) fn exponential(&mut self) -> f64 {
        -self.unit().ln()
    }

    /// Gamma distributed with this shape and mean 1 (Marsaglia and Tsang, 2000; below shape 1 by
    /// their power of a uniform).
    pub(crate) fn gamma(&mut self, shape: f64) -> f64 {
        let boost = if shape < 1.0 { self.unit().powf(1.0 / shape) } else { 1.0 };
        let d = if shape < 1.0 { shape + 1.0 } else { shape } - 1.0 / 3.0;
        let c = 1.0 / (9.0 * d).sqrt();
        loop {
            let x = self.normal();
            let v = (1.0 + c * x).powi(3);
            if v > 0.0 && self.unit().ln() < 0.5 * x * x + d - d * v + d * v.ln() {
                return boost * d * v / shape;
            }
        }
    }

    /// Normally distributed with mean 0 and deviation 1 (Box-Muller).
    pub(crate) fn normal(&mut self) -> f64 {
        let radius = (-2.0 * self.unit().ln()).sqrt();
        radius * (std::f64::consts::TAU * self.unit()).cos()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Mean and variance of 200,000 draws.
    fn moments(mut draw: impl FnMut() -> f64) -> (f64, f64) {
        let draws: Vec<f64> = (0..200_000).map(|_| draw()).collect();
        let mean = draws.iter().sum::<f64>() / draws.len() as f64;
        let square = |x: &f64| (x - mean) * (x - mean);
        (mean, draws.iter().map(square).sum::<f64>() / draws.len() as f64)
    }

    #[test]
    fn gaps_have_the_mean_and_variance_of_their_distribution() {
        let mut stream = Stream::new(7, Concern::Arrivals(0));
        let (mean, variance) = moments(|| stream.exponential());
        assert!((mean - 1.0).abs() < 0.02 && (variance - 1.0).abs() < 0.05, "{mean} {variance}");
        for shape in [0.1, 0.5, 1.0, 4.0] {
            let (mean, variance) = moments(|| stream.gamma(shape));
            let expected = 1.0 / shape;
            assert!((mean - 1.0).abs() < 0.05, "shape {shape}: mean {mean}");
            assert!((variance / expected - 1.0).abs() < 0.1, "shape {shape}: {variance}");
        }
    }

    #[test]
    fn streams_of_one_seed_differ() {
        let first = |concern| Stream::new(1, concern).next_u64();
        let (a, b) = (Concern::Arrivals(0), Concern::Arrivals(1));
        let all = [
            Concern::Overrun,
            Concern::LoadOverrun,
            Concern::Stragglers,
            Concern::ProfileError(0),
            Concern::Frontend,
            Concern::Popularity,
            Concern::Functions,
            Concern::Scenario(0),
            a,
            b,
        ]
        .map(first);
        let distinct: std::collections::BTreeSet<u64> = all.into_iter().collect();
        assert_eq!(distinct.len(), all.len());
    }
}
