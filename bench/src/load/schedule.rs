//! What load to offer, and when each of its tasks is due: rates with Poisson arrivals, or those of a scenario file.

use std::sync::Arc;

use baton_core::Nanos;
use baton_sim::{Arrived, Scenario};
use baton_topo::Cluster;

use super::LoadError;
use super::arrivals::Arrivals;

/// What load to offer.
#[derive(Clone, Debug)]
pub enum Offered {
    /// Models of the cluster file and their tasks per second; arrivals are Poisson.
    Rates(Vec<(String, f64)>),
    /// The models of a scenario, which the cluster file has too, at so many tasks per second in all. The scenario says
    /// how arrivals vary, how popular each model is, and what each task's objective is; its GPUs do not count.
    Scenario(Arc<Scenario>, f64),
}

impl Offered {
    /// The models under load.
    pub fn models(&self) -> impl Iterator<Item = &str> {
        let (rates, scenario) = match self {
            Self::Rates(rates) => (Some(rates), None),
            Self::Scenario(scenario, _) => (None, Some(scenario)),
        };
        let rates = rates.into_iter().flatten().map(|(name, _)| name.as_str());
        let scenario = scenario.into_iter().flat_map(|scenario| &scenario.models);
        rates.chain(scenario.map(|model| model.name.as_str()))
    }

    /// How long it lasts by itself, warm-up included.
    pub fn lasts(&self) -> Option<Nanos> {
        match self {
            Self::Rates(_) => None,
            Self::Scenario(scenario, _) => Some(scenario.warmup + scenario.duration),
        }
    }

    /// Its models are the cluster's, and its rates are some.
    pub(super) fn check(&self, cluster: &Cluster) -> Result<(), LoadError> {
        let known = |name: &&str| cluster.models.iter().any(|model| model.name == *name);
        if let Some(name) = self.models().find(|name| !known(name)) {
            let known: Vec<&str> = cluster.models.iter().map(|m| m.name.as_str()).collect();
            return Err(LoadError::UnknownModel { name: name.to_owned(), known: known.join(", ") });
        }
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
            Self::Scenario(..) => Ok(()),
        }
    }
}

/// A task that is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Due {
    pub(super) at: Nanos,
    /// Position in [`Offered::models`].
    pub(super) model: usize,
    /// How long it may take; `None`: the model's objective.
    pub(super) within: Option<Nanos>,
}

/// The tasks of a load, in the order in which they are due. It depends on the load and the seed alone, never on
/// completions.
pub(super) enum Schedule {
    Rates(Arrivals),
    Scenario(baton_sim::Arrivals, Nanos),
}

impl Schedule {
    /// From `start` on.
    pub(super) fn new(offered: &Offered, seed: u64, start: Nanos) -> Self {
        match offered {
            Offered::Rates(rates) => {
                let rates: Vec<f64> = rates.iter().map(|(_, rate)| *rate).collect();
                Self::Rates(Arrivals::new(&rates, seed, start))
            }
            Offered::Scenario(scenario, rate) => {
                Self::Scenario(baton_sim::Arrivals::new(scenario, *rate, seed), start)
            }
        }
    }

    /// The moment of the next one; [`Nanos::MAX`] if there is none.
    pub(super) fn next_at(&self) -> Nanos {
        match self {
            Self::Rates(arrivals) => arrivals.due(),
            Self::Scenario(arrivals, start) => arrivals.due() + *start,
        }
    }

    /// Takes the next one, if it is due by `now`.
    pub(super) fn take(&mut self, now: Nanos) -> Option<Due> {
        match self {
            Self::Rates(arrivals) => {
                let (at, model) = arrivals.take(now)?;
                Some(Due { at, model, within: None })
            }
            Self::Scenario(arrivals, start) if arrivals.due() + *start <= now => {
                let Arrived { at, model, deadline } = arrivals.take()?;
                let (model, within) = (model as usize, Some(deadline - at));
                Some(Due { at: at + *start, model, within })
            }
            Self::Scenario(..) => None,
        }
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
        let mut schedule = Schedule::new(&offered, 7, start);
        let mut drawn = baton_sim::Arrivals::new(&scenario, 300.0, 7);
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
}
