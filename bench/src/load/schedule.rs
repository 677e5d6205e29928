//! What load to offer, and when each of its tasks is due: rates with Poisson arrivals, or those of a scenario file.
//! Where tasks follow the end of others, nothing is due by the clock: `supply.rs`.

use std::sync::Arc;

use baton_core::Nanos;
use baton_sim::{Arrivals, Arrived, Asking, Replay, Scenario};

use super::LoadError;

/// What load to offer.
#[derive(Clone, Debug)]
pub enum Offered {
    /// Models that the cluster serves and their tasks per second; arrivals are Poisson.
    Rates(Vec<(String, f64)>),
    /// The models of a scenario, which the cluster serves, at this total rate in tasks per second. The scenario says
    /// how arrivals vary, how popular each model is, and what each task's objective is; its GPUs do not count.
    Scenario(Arc<Scenario>, f64),
    /// The tasks of a file of arrivals, for these models, at this total rate in tasks per second.
    Replay(Vec<String>, Arc<Replay>, f64),
    /// A closed loop: of each of these models this number of tasks is under way, and the end of one brings the
    /// next. It offers what the cluster takes.
    Outstanding(Vec<String>, u32),
}

impl Offered {
    /// The models under load.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        let names: Vec<&str> = match self {
            Self::Rates(rates) => rates.iter().map(|(name, _)| name.as_str()).collect(),
            Self::Scenario(scenario, _) => {
                scenario.models.iter().map(|model| model.name.as_str()).collect()
            }
            Self::Outstanding(models, _) | Self::Replay(models, ..) => {
                models.iter().map(String::as_str).collect()
            }
        };
        names.into_iter()
    }

    /// How long it lasts by itself, warm-up included.
    pub fn lasts(&self) -> Option<Nanos> {
        match self {
            Self::Rates(_) | Self::Outstanding(..) => None,
            Self::Scenario(scenario, _) => Some(scenario.warmup + scenario.duration),
            Self::Replay(_, replay, rate) => {
                let stretched = replay.lasts().as_millis_f64() * replay.rate_rps() / rate;
                // At its end the next lap would begin.
                Some(Nanos::from_millis_f64(stretched) - Nanos::from_micros(1))
            }
        }
    }

    /// Which tasks of the model at this place ask for an accuracy.
    pub(crate) fn asking(&self, model: usize) -> Asking {
        match self {
            Self::Scenario(scenario, _) => scenario.models[model].asking,
            Self::Rates(_) | Self::Outstanding(..) | Self::Replay(..) => Asking::default(),
        }
    }

    /// Each of its tasks says how long it may take.
    pub(crate) const fn has_objectives(&self) -> bool {
        matches!(self, Self::Scenario(..))
    }

    /// Tasks per second of all models together; `None` for a closed loop.
    pub fn rate_rps(&self) -> Option<f64> {
        match self {
            Self::Rates(rates) => Some(rates.iter().map(|(_, rate)| rate).sum()),
            Self::Scenario(_, rate) | Self::Replay(_, _, rate) => Some(*rate),
            Self::Outstanding(..) => None,
        }
    }

    /// The same load at another total rate. A closed loop has none, and stays as it is.
    #[must_use]
    pub fn at_rate(&self, rate_rps: f64) -> Self {
        let factor = rate_rps / self.rate_rps().unwrap_or(1.0);
        match self {
            Self::Rates(rates) => Self::Rates(
                rates.iter().map(|(name, rate)| (name.clone(), rate * factor)).collect(),
            ),
            Self::Scenario(scenario, _) => Self::Scenario(Arc::clone(scenario), rate_rps),
            Self::Replay(models, replay, _) => {
                Self::Replay(models.clone(), Arc::clone(replay), rate_rps)
            }
            Self::Outstanding(models, most) => Self::Outstanding(models.clone(), *most),
        }
    }

    /// Its rates are some.
    pub(crate) fn check(&self) -> Result<(), LoadError> {
        let wrong = |rate: f64| !(0.0..=1e6).contains(&rate);
        match self {
            Self::Rates(rates) => {
                let refused = rates.iter().find(|(_, rate)| wrong(*rate));
                let error = |(name, rate): &(String, f64)| LoadError::Rate {
                    name: name.clone(),
                    rate: *rate,
                };
                refused.map(error).map_or(Ok(()), Err)
            }
            Self::Scenario(_, rate) if wrong(*rate) => {
                Err(LoadError::Rate { name: "the scenario".to_owned(), rate: *rate })
            }
            Self::Replay(_, _, rate) if wrong(*rate) || *rate == 0.0 => {
                Err(LoadError::Rate { name: "the replay".to_owned(), rate: *rate })
            }
            Self::Scenario(..) | Self::Replay(..) | Self::Outstanding(..) => Ok(()),
        }
    }
}

/// A task that is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Due {
    pub(crate) at: Nanos,
    /// Position in [`Offered::models`], or among the rates.
    pub(crate) model: usize,
    /// How long it may take; `None`: the model's objective.
    pub(crate) within: Option<Nanos>,
}

/// The tasks of a load, in the order in which they are due. It depends on the load and the seed alone, never on
/// completions: that is what makes the load open-loop.
#[derive(Debug)]
pub(crate) struct Schedule {
    arrivals: Arrivals,
    start: Nanos,
}

impl Schedule {
    /// Those of the scenario from `start` on, at `rate` tasks per second in all.
    pub(super) fn scenario(scenario: &Scenario, rate: f64, seed: u64, start: Nanos) -> Self {
        Self { arrivals: Arrivals::new(scenario, rate, seed), start }
    }

    /// Poisson arrivals from `start` on at these rates, tasks per second, by model.
    pub(crate) fn poisson(rates: &[f64], seed: u64, start: Nanos) -> Self {
        Self { arrivals: Arrivals::poisson(rates, seed), start }
    }

    /// Those of a file for this number of models, from `start` on.
    pub(super) fn replay(
        replay: &Arc<Replay>,
        models: usize,
        rate: f64,
        seed: u64,
        start: Nanos,
    ) -> Self {
        Self { arrivals: Arrivals::replayed(Arc::clone(replay), models, rate, seed), start }
    }

    /// The moment of the next one; [`Nanos::MAX`] if there is none.
    pub(crate) fn next_at(&self) -> Nanos {
        self.arrivals.due() + self.start
    }

    /// Takes the next one, if it is due by `now`.
    pub(crate) fn take(&mut self, now: Nanos) -> Option<Due> {
        if self.next_at() > now {
            return None;
        }
        let Arrived { at, model, deadline } = self.arrivals.take()?;
        let within = (deadline != Nanos::MAX).then(|| deadline - at);
        Some(Due { at: at + self.start, model: model as usize, within })
    }
}

#[cfg(test)]
mod tests {
    use baton_sim::ReplayOptions;

    use super::*;

    const BURSTS: &str = "gpus = 1\nduration_s = 4\nwarmup_s = 1\n\
        arrival = { process = 'gamma', shape = 0.2 }\npopularity = { kind = 'zipf', s = 1.0 }\n\
        [[model]]\nname = 'a'\nalpha_ms = 1\nbeta_ms = 1\nslo_ms = 9\n\
        [[model]]\nname = 'b'\nalpha_ms = 1\nbeta_ms = 1\nslo_ms = 20\n";

    #[test]
    fn a_scenario_is_offered_as_the_simulator_draws_it() {
        let scenario = Arc::new(Scenario::parse(BURSTS).unwrap());
        let offered = Offered::Scenario(Arc::clone(&scenario), 300.0);
        assert_eq!(offered.models().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(offered.lasts(), Some(Nanos::from_millis(5_000)));
        let start = Nanos::from_millis(700);
        let mut schedule = Schedule::scenario(&scenario, 300.0, 7, start);
        let mut drawn = Arrivals::new(&scenario, 300.0, 7);
        let mut count = 0;
        while let Some(Arrived { at, model, .. }) = drawn.take() {
            assert_eq!(schedule.next_at(), start + at);
            assert_eq!(schedule.take(start + at - Nanos(1)), None, "not before it is due");
            let within = Some(Nanos::from_millis([9, 20][model as usize]));
            let due = Due { at: start + at, model: model as usize, within };
            assert_eq!(schedule.take(Nanos::MAX - Nanos(1)), Some(due));
            count += 1;
        }
        assert!(count > 1_000, "{count}");
        assert_eq!((schedule.next_at(), schedule.take(Nanos::MAX)), (Nanos::MAX, None));
    }

    #[test]
    fn a_file_is_offered_at_a_rate_and_lasts_as_long_as_that_takes() {
        let file = "timestamp,model,slo\n0,b,\n1,a,9\n3,b,\n";
        let names = ["a", "b"];
        let replay =
            Replay::read(std::path::Path::new("f"), file.as_bytes(), &ReplayOptions::new(&names))
                .unwrap();
        let offered = Offered::Replay(names.map(str::to_owned).to_vec(), Arc::new(replay), 1.0);
        assert_eq!(offered.rate_rps(), Some(1.0));
        let faster = offered.at_rate(10.0);
        assert_eq!(faster.lasts(), Some(Nanos::from_millis(300) - Nanos::from_micros(1)));
        let Offered::Replay(models, replay, rate) = faster else { panic!("a replay stays one") };
        let start = Nanos::from_millis(700);
        let mut schedule = Schedule::replay(&replay, models.len(), rate, 1, start);
        let (first, second) = (schedule.take(Nanos::MAX), schedule.take(Nanos::MAX));
        assert_eq!(first, Some(Due { at: start, model: 1, within: None }));
        let second = second.unwrap();
        assert_eq!((second.model, second.within), (0, Some(Nanos::from_millis(9))));
        assert!(((second.at - start).as_millis_f64() - 66.667).abs() < 0.01, "{second:?}");
    }

    #[test]
    fn a_load_at_another_rate_keeps_its_mixture() {
        let offered = Offered::Rates(vec![("a".to_owned(), 30.0), ("b".to_owned(), 10.0)]);
        let Offered::Rates(rates) = offered.at_rate(400.0) else { panic!("rates stay rates") };
        assert_eq!(rates, [("a".to_owned(), 300.0), ("b".to_owned(), 100.0)]);
        assert_eq!(Offered::Outstanding(vec!["a".to_owned()], 3).rate_rps(), None);
    }

    #[test]
    fn rates_are_offered_from_the_start_on_and_to_the_models_objectives() {
        let start = Nanos::from_millis(700);
        let mut schedule = Schedule::poisson(&[10.0, 0.0], 1, start);
        let first = schedule.next_at();
        assert!(first > start);
        assert_eq!(schedule.take(first - Nanos(1)), None, "not before it is due");
        assert_eq!(schedule.take(first), Some(Due { at: first, model: 0, within: None }));
        assert_eq!(Schedule::poisson(&[0.0], 1, start).next_at(), Nanos::MAX);
    }
}
