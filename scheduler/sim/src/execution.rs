//! How long executions really take, which policies only hear afterwards.

use baton_core::{Nanos, Profile};

use crate::faults::Stragglers;
use crate::random::{Concern, Stream};
use crate::scenario::{Scenario, SimModel};

/// ℓ(b) as it is, not as it is planned with.
#[derive(Debug)]
pub(crate) struct Execution {
    /// Of each model's variants; of a model without any, its own.
    profiles: Vec<Vec<Profile>>,
    overrun: Nanos,
    overruns: Stream,
    stragglers: Option<Stragglers>,
    /// Which slots may straggle.
    straggles: Vec<bool>,
    straggling: Stream,
}

impl Execution {
    pub(crate) fn new(scenario: &Scenario, seed: u64) -> Self {
        let real = |(m, model): (usize, &SimModel)| {
            let part = 2.0 * Stream::new(seed, Concern::ProfileError(m as u32)).unit() - 1.0;
            let factor = model.profile_error * (1.0 + scenario.profile_spread * part);
            match model.variants.as_slice() {
                [] => vec![scaled(&model.profile, factor)],
                variants => variants.iter().map(|v| scaled(&v.profile, factor)).collect(),
            }
        };
        Self {
            profiles: scenario.models.iter().enumerate().map(real).collect(),
            overrun: scenario.overrun,
            overruns: Stream::new(seed, Concern::Overrun),
            stragglers: scenario.stragglers.clone(),
            straggles: straggles(scenario),
            straggling: Stream::new(seed, Concern::Stragglers),
        }
    }

    /// Of one batch.
    pub(crate) fn time(&mut self, gpu: u32, (model, variant): (u32, u16), batch: u32) -> Nanos {
        let mut time = self.profiles[model as usize][usize::from(variant)].latency(batch);
        if let Some(factor) = self.straggles(gpu) {
            time = times(time, factor);
        }
        if self.overrun != Nanos::ZERO {
            time = time + times(self.overrun, self.overruns.exponential());
        }
        time
    }

    /// The factor, if this execution is one that straggles.
    fn straggles(&mut self, gpu: u32) -> Option<f64> {
        let Stragglers { factor, fraction, .. } = self.stragglers.as_ref()?;
        let drawn = self.straggles[gpu as usize] && self.straggling.unit() <= *fraction;
        drawn.then_some(*factor)
    }
}

fn straggles(scenario: &Scenario) -> Vec<bool> {
    let named: &[u32] = scenario.stragglers.as_ref().map_or(&[], |s| &s.gpus);
    let mut straggles = vec![named.is_empty(); scenario.gpus as usize];
    named.iter().for_each(|&gpu| straggles[gpu as usize] = true);
    straggles
}

fn times(time: Nanos, factor: f64) -> Nanos {
    Nanos((time.0 as f64 * factor) as u64)
}

fn scaled(profile: &Profile, factor: f64) -> Profile {
    let real = |&planned: &Nanos| times(planned, factor).max(Nanos(1));
    let table: Vec<Nanos> = profile.table().iter().map(real).collect();
    Profile::from_table(&table).expect("a profile times a factor rises as the profile does")
}
