//! When the next task of which model arrives.

use std::sync::Arc;

use baton_core::Nanos;

use crate::closed_loop::ClosedLoop;
use crate::generated::GeneratedArrivals;
use crate::replay::Replay;
use crate::replayed::ReplayedArrivals;
use crate::scenario::Scenario;

/// One task of the load.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Arrived {
    /// When, from the beginning of the scenario, its warm-up included.
    pub at: Nanos,
    /// Position of its model in [`Scenario::models`], or among the rates.
    pub model: u32,
    /// By when it should be answered, on the same clock; [`Nanos::MAX`] if neither a scenario nor a file says so.
    pub deadline: Nanos,
}

/// The load of a run. Its open-loop part depends on scenario, rate and seed, never on what is served.
#[derive(Debug)]
pub struct Arrivals(Source, Option<ClosedLoop>);

#[derive(Debug)]
enum Source {
    Generated(GeneratedArrivals),
    Replayed(ReplayedArrivals),
}

impl Arrivals {
    /// `rate_rps` tasks per second in total until the scenario's end.
    pub fn new(scenario: &Scenario, rate_rps: f64, seed: u64) -> Self {
        let source = match &scenario.replay {
            None => Source::Generated(GeneratedArrivals::new(scenario, rate_rps, seed)),
            Some(replay) => Source::Replayed(ReplayedArrivals::new(
                scenario,
                Arc::clone(replay),
                rate_rps,
                seed,
            )),
        };
        let is_closed = scenario.models.iter().any(|model| model.clients > 0);
        Self(source, is_closed.then(|| ClosedLoop::new(scenario)))
    }

    /// Endless Poisson arrivals at these rates, tasks per second, by model. A model with rate 0 never
    /// arrives, and one model's rate does not move another's arrivals.
    pub fn poisson(rates_rps: &[f64], seed: u64) -> Self {
        Self(Source::Generated(GeneratedArrivals::poisson(rates_rps, seed)), None)
    }

    /// The tasks of a file, lap after lap without an end, stretched to `rate_rps` tasks per second. A task without a model is
    /// any of `models`.
    pub fn replayed(replay: Arc<Replay>, models: usize, rate_rps: f64, seed: u64) -> Self {
        Self(Source::Replayed(ReplayedArrivals::endless(replay, models, rate_rps, seed)), None)
    }

    /// How many tasks of each model arrive after the warm-up: what a run with this rate and seed
    /// submits.
    pub(crate) fn counts(scenario: &Scenario, rate_rps: f64, seed: u64) -> Vec<u64> {
        let mut counts = vec![0; scenario.models.len()];
        match Self::new(scenario, rate_rps, seed).0 {
            Source::Generated(generated) => generated.count(scenario.warmup, &mut counts),
            Source::Replayed(mut played) => {
                while let Some(arrived) = played.take() {
                    counts[arrived.model as usize] += u64::from(arrived.at >= scenario.warmup);
                }
            }
        }
        counts
    }

    /// The moment of the next arrival; [`Nanos::MAX`] when there is none.
    pub fn due(&self) -> Nanos {
        let closed = self.1.as_ref().map_or(Nanos::MAX, ClosedLoop::due);
        self.open_due().min(closed)
    }

    fn open_due(&self) -> Nanos {
        match &self.0 {
            Source::Generated(generated) => generated.due(),
            Source::Replayed(replayed) => replayed.due(),
        }
    }

    /// Takes the next arrival.
    pub fn take(&mut self) -> Option<Arrived> {
        let due = self.open_due();
        if let Some(closed) = self.1.as_mut().filter(|closed| closed.due() < due) {
            return closed.take();
        }
        match &mut self.0 {
            Source::Generated(generated) => generated.take(),
            Source::Replayed(replayed) => replayed.take(),
        }
    }

    /// A client's task has ended; its next one comes then.
    pub(crate) fn again(&mut self, model: u32, at: Nanos) {
        if let Some(closed) = &mut self.1 {
            closed.again(model, at);
        }
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
        while let Some(Arrived { at, model, deadline }) = arrivals.take() {
            assert_eq!(deadline, at + Nanos::from_millis(9));
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
    fn rates_without_a_scenario_are_kept_and_independent() {
        let drain = |rates: &[f64], seed| {
            let mut arrivals = Arrivals::poisson(rates, seed);
            let minute = |arrived: &Arrived| arrived.at < Nanos::from_millis(60_000);
            let found = std::iter::from_fn(|| arrivals.take()).take_while(minute);
            found.map(|arrived| (arrived.at, arrived.model)).collect::<Vec<_>>()
        };
        let together = drain(&[100.0, 0.0, 25.0], 7);
        assert!(together.is_sorted());
        let of = |model| together.iter().filter(move |(_, m)| *m == model).copied();
        // The standard deviation of n arrivals is √n; five of them is one seed in 10⁶.
        assert!((of(0).count() as f64 - 6_000.0).abs() < 5.0 * 6_000f64.sqrt());
        assert!((of(2).count() as f64 - 1_500.0).abs() < 5.0 * 1_500f64.sqrt());
        assert_eq!(of(1).count(), 0);
        assert_eq!(of(0).collect::<Vec<_>>(), drain(&[100.0], 7));
        assert_ne!(drain(&[100.0], 7), drain(&[100.0], 8));
        assert_eq!(Arrivals::poisson(&[0.0], 1).due(), Nanos::MAX);
    }

    #[test]
    fn arrivals_are_counted_as_they_come() {
        for head in [
            "",
            "arrival = { process = 'gamma', shape = 0.2 }",
            "load = { shape = 'steps', points = [[0, 9], [2, 1], [2.5, 0]] }",
        ] {
            let text = format!(
                "gpus = 1\nduration_s = 3\nwarmup_s = 1\n{head}\n\
                 [[model]]\nname = 'm'\nalpha_ms = 1\nbeta_ms = 1\nslo_ms = 9\ncopies = 3"
            );
            let scenario = Scenario::parse(&text).unwrap();
            let mut arrivals = Arrivals::new(&scenario, 700.0, 3);
            let mut counts = vec![0; 3];
            while let Some(Arrived { at, model, .. }) = arrivals.take() {
                counts[model as usize] += u64::from(at >= Nanos::from_millis(1_000));
            }
            assert_eq!(Arrivals::counts(&scenario, 700.0, 3), counts, "{head}");
            assert!(counts.iter().all(|&count| count > 300), "{counts:?}");
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

    const EVEN: &str = "{ process = 'constant' }";

    /// Every arrival of three models at 3,000 tasks/s, two seconds of warm-up before ten measured.
    fn loaded(arrival: &str, load: &str, own: &str) -> Vec<Arrived> {
        let text = format!(
            "gpus = 1\nduration_s = 10\nwarmup_s = 2\narrival = {arrival}\n{load}\n\
             [[model]]\nname = 'm'\nalpha_ms = 1\nbeta_ms = 1\nslo_ms = 9\ncopies = 2\n\
             [[model]]\nname = 'own'\nalpha_ms = 1\nbeta_ms = 1\nslo_ms = 9\n{own}"
        );
        let mut arrivals = Arrivals::new(&Scenario::parse(&text).unwrap(), 3_000.0, 5);
        std::iter::from_fn(|| arrivals.take()).collect()
    }

    /// Arrivals of one model between two seconds.
    fn between(arrivals: &[Arrived], model: u32, from_s: u64, until_s: u64) -> usize {
        let span = Nanos::from_millis(from_s * 1_000)..Nanos::from_millis(until_s * 1_000);
        arrivals.iter().filter(|a| a.model == model && span.contains(&a.at)).count()
    }

    #[test]
    fn the_rate_is_the_mean_of_the_measured_span_and_follows_the_shape() {
        let steps = "load = { shape = 'steps', points = [[0, 9], [2, 1], [7, 3]] }";
        for (process, off) in [
            (EVEN, 2),
            ("{ process = 'poisson' }", 300),
            ("{ process = 'gamma', shape = 0.5 }", 500),
        ] {
            let arrivals = loaded(process, steps, "");
            for model in 0..3 {
                // 500 and 1,500 tasks/s, and 4,500 in the warm-up
                for (from_s, until_s, expected) in [(2, 7, 2_500), (7, 12, 7_500), (0, 2, 9_000)] {
                    let count = between(&arrivals, model, from_s, until_s);
                    assert!(count.abs_diff(expected) <= off, "{process} {model}: {count}");
                }
            }
        }
    }

    #[test]
    fn ramps_and_sines_are_as_dense_as_their_area() {
        let ramp = loaded(EVEN, "load = { shape = 'ramp', points = [[2, 0], [12, 2]] }", "");
        // The k-th of ten seconds has 2k − 1 hundredths of the 10,000.
        for second in 0..10 {
            let count = between(&ramp, 0, 2 + second, 3 + second);
            assert!(count.abs_diff(200 * second as usize + 100) <= 2, "{second}: {count}");
        }
        let sine = "load = { shape = 'sine', period_s = 4, amplitude = 1 }";
        let sine = loaded(EVEN, sine, "");
        // Ten seconds are two and a half periods: the mean is 1 − 2/(5π), the half from 4 s on up.
        let mean = 1.0 - 2.0 / (5.0 * std::f64::consts::PI);
        let half =
            |sign: f64| (2_000.0 * (1.0 + sign * 2.0 / std::f64::consts::PI) / mean) as usize;
        assert!(between(&sine, 0, 4, 6).abs_diff(half(1.0)) <= 2, "{}", between(&sine, 0, 4, 6));
        assert!(between(&sine, 0, 6, 8).abs_diff(half(-1.0)) <= 2, "{}", between(&sine, 0, 6, 8));
    }

    #[test]
    fn a_models_own_course_replaces_the_common_one() {
        let common = "load = { shape = 'steps', points = [[7, 0], [8, 1]] }";
        let own = "load = { shape = 'steps', points = [[0, 1], [7, 0]] }";
        let arrivals = loaded(EVEN, common, own);
        assert_eq!(between(&arrivals, 0, 0, 8), 0);
        assert_eq!(between(&arrivals, 2, 7, 12), 0);
        assert!(between(&arrivals, 0, 8, 12).abs_diff(10_000) <= 1);
        assert!(between(&arrivals, 2, 2, 7).abs_diff(10_000) <= 1);
    }

    #[test]
    fn a_level_course_changes_nothing() {
        let gamma = "{ process = 'gamma', shape = 0.3 }";
        let level = loaded(gamma, "load = { shape = 'sine', period_s = 1, amplitude = 0 }", "");
        let plain = loaded(gamma, "", "");
        assert_eq!(level.len(), plain.len());
        let near =
            |(a, b): (&Arrived, &Arrived)| a.model == b.model && a.at.0.abs_diff(b.at.0) <= 1;
        assert!(level.iter().zip(&plain).all(near));
    }
}
