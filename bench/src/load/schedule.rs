//! What load to offer, and when each of its tasks is due: rates with Poisson arrivals, or those of a scenario file.
//! Where tasks follow the end of others, nothing is due by the clock: `supply.rs`.

use std::sync::Arc;

use baton_core::Nanos;
use baton_sim::{Arrivals, Arrived, Scenario};

use super::LoadError;

/// What load to offer.
#[derive(Clone, Debug)]
pub enum Offered {
    /// Models that the cluster serves and their tasks per second; arrivals are Poisson.
    Rates(Vec<(String, f64)>),
    /// The models of a scenario, which the cluster serves, at this total rate in tasks per second. The scenario says
    /// how arrivals vary, how popular each model is, and what each task's objective is; its GPUs do not count.
    Scenario(Arc<Scenario>, f64),
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
            Self::Outstanding(models, _) => models.iter().map(String::as_str).collect(),
        };
        names.into_iter()
    }

    /// How long it lasts by itself, warm-up included.
    pub fn lasts(&self) -> Option<Nanos> {
        match self {
            Self::Rates(_) | Self::Outstanding(..) => None,
            Self::Scenario(scenario, _) => Some(scenario.warmup + scenario.duration),
        }
    }

    /// Its rates are some.
    pub(super) fn check(&self) -> Result<(), LoadError> {
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
            Self::Scenario(..) | Self::Outstanding(..) => Ok(()),
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
    /// The arrivals say how long each task may take.
    has_objectives: bool,
}

impl Schedule {
    /// Those of the scenario from `start` on, at `rate` tasks per second in all.
    pub(super) fn scenario(scenario: &Scenario, rate: f64, seed: u64, start: Nanos) -> Self {
        Self { arrivals: Arrivals::new(scenario, rate, seed), start, has_objectives: true }
    }

    /// Poisson arrivals from `start` on at these rates, tasks per second, by model.
    pub(crate) fn poisson(rates: &[f64], seed: u64, start: Nanos) -> Self {
        Self { arrivals: Arrivals::poisson(rates, seed), start, has_objectives: false }
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
        let within = self.has_objectives.then(|| deadline - at);
        Some(Due { at: at + self.start, model: model as usize, within })
    }
}

#[cfg(test)]
mod tests {
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
