//! What goes wrong: GPU slots that leave and come, executions that take too long, and profiles that
//! are not what the hardware does.

use baton_core::Nanos;
use serde::Deserialize;

use crate::scenario_file::{ScenarioError, check};

/// What becomes of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GpuChange {
    /// Its backend is gone, and everybody knows at once. The tasks it had are not executed.
    Loss,
    /// A backend brings it, idle.
    Join,
}

/// A change of one slot. A slot whose first change is a join is absent until then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GpuEvent {
    /// From the beginning of the run, warm-up included.
    pub at: Nanos,
    /// The slot.
    pub gpu: u32,
    /// What becomes of it.
    pub change: GpuChange,
}

/// Executions that take longer than the profile says.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stragglers {
    /// How many times longer.
    pub factor: f64,
    /// Part of the executions, drawn at random.
    #[serde(default = "all")]
    pub fraction: f64,
    /// The slots whose executions these are; none: any slot's.
    #[serde(default)]
    pub gpus: Vec<u32>,
}

fn all() -> f64 {
    1.0
}

/// How real executions differ from the profiles that policies plan with.
#[derive(Clone, Copy, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct Misprofile {
    /// Real over planned ℓ(b), every model; a model's own factor replaces it.
    pub(crate) factor: f64,
    /// Each model's factor is moved by up to this part up or down, drawn once for each seed.
    pub(crate) spread: f64,
}

impl Default for Misprofile {
    fn default() -> Self {
        Self { factor: 1.0, spread: 0.0 }
    }
}

/// An entry of the scenario file: several slots at once.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GpuEventKey {
    at_s: f64,
    gpus: Vec<u32>,
    kind: GpuChange,
}

/// The events by time and, at one moment, in the order of the file.
pub(crate) fn gpu_events(
    keys: &[GpuEventKey],
    gpus: u32,
    end: Nanos,
) -> Result<Vec<GpuEvent>, ScenarioError> {
    let mut events = Vec::new();
    for &GpuEventKey { at_s, gpus: ref slots, kind: change } in keys {
        check("gpu_event.at_s", at_s, 0.0, end.as_millis_f64() / 1e3)?;
        check_slots("gpu_event.gpus", slots, gpus)?;
        let at = Nanos::from_millis_f64(at_s * 1e3);
        events.extend(slots.iter().map(|&gpu| GpuEvent { at, gpu, change }));
    }
    events.sort_by_key(|event| event.at);
    let mut last = vec![None; gpus as usize];
    for &GpuEvent { at, gpu, change } in &events {
        if last[gpu as usize].replace(change) == Some(change) {
            return Err(ScenarioError::GpuEvent { at_s: at.as_millis_f64() / 1e3, gpu });
        }
    }
    Ok(events)
}

fn check_slots(key: &str, slots: &[u32], gpus: u32) -> Result<(), ScenarioError> {
    let slot = |&slot: &u32| check(key, f64::from(slot), 0.0, f64::from(gpus) - 1.0);
    slots.iter().try_for_each(slot)
}

impl Stragglers {
    pub(crate) fn check(&self, gpus: u32) -> Result<(), ScenarioError> {
        check("stragglers.factor", self.factor, 1.0, 1e3)?;
        check("stragglers.fraction", self.fraction, 0.0, 1.0)?;
        check_slots("stragglers.gpus", &self.gpus, gpus)
    }
}

impl Misprofile {
    pub(crate) fn check(self) -> Result<(), ScenarioError> {
        check_factor("profile_error.factor", self.factor)?;
        check("profile_error.spread", self.spread, 0.0, 0.9)
    }
}

/// Checks by which factor a profile is to be wrong.
pub(crate) fn check_factor(key: &str, factor: f64) -> Result<(), ScenarioError> {
    check(key, factor, 0.1, 10.0)
}

/// Which slots are there when the run begins.
pub(crate) fn present_at_first(events: &[GpuEvent], gpus: u32) -> Vec<bool> {
    let mut present = vec![true; gpus as usize];
    for event in events.iter().rev() {
        present[event.gpu as usize] = event.change == GpuChange::Loss;
    }
    present
}

/// GPU time there is from `from` until `until`, all slots together, ms.
pub(crate) fn gpu_time_ms(events: &[GpuEvent], gpus: u32, from: Nanos, until: Nanos) -> f64 {
    let present = present_at_first(events, gpus);
    let at_first = present.iter().filter(|&&present| present).count() as f64;
    let changed = events.iter().map(|event| {
        let rest = (until - event.at.max(from)).as_millis_f64();
        if event.change == GpuChange::Join { rest } else { -rest }
    });
    (until - from).as_millis_f64() * at_first + changed.sum::<f64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(text: &str) -> Result<Vec<GpuEvent>, ScenarioError> {
        #[derive(Deserialize)]
        struct File {
            gpu_event: Vec<GpuEventKey>,
        }
        gpu_events(&toml::from_str::<File>(text).unwrap().gpu_event, 4, Nanos::from_millis(9_000))
    }

    const TWO: &str = "[[gpu_event]]\nat_s = 6\ngpus = [1]\nkind = 'join'\n\
                       [[gpu_event]]\nat_s = 2\ngpus = [0, 1]\nkind = 'loss'\n\
                       [[gpu_event]]\nat_s = 5\ngpus = [3]\nkind = 'join'\n";

    #[test]
    fn a_slot_that_joins_first_is_absent_at_first() {
        let events = events(TWO).unwrap();
        assert_eq!(
            events.iter().map(|e| (e.at.0 / 1_000_000_000, e.gpu)).collect::<Vec<_>>(),
            [(2, 0), (2, 1), (5, 3), (6, 1)]
        );
        assert_eq!(present_at_first(&events, 4), [true, true, true, false]);
    }

    #[test]
    fn gpu_time_counts_the_slots_that_are_there() {
        let events = events(TWO).unwrap();
        let ms = |from, until| {
            gpu_time_ms(&events, 4, Nanos::from_millis(from), Nanos::from_millis(until))
        };
        assert_eq!((ms(0, 1_000), ms(0, 3_000)), (3_000.0, 7_000.0));
        // 1, then 2 from 5 s, then 3 from 6 s
        assert_eq!((ms(4_000, 8_000), ms(7_000, 8_000)), (1_000.0 + 2_000.0 + 6_000.0, 3_000.0));
        assert_eq!(gpu_time_ms(&[], 4, Nanos::ZERO, Nanos::from_millis(10)), 40.0);
    }

    #[test]
    fn a_slot_cannot_leave_twice_or_be_none() {
        let error = |text: &str| events(text).unwrap_err().to_string();
        let twice = TWO.replace("'join'", "'loss'");
        assert_eq!(error(&twice), "gpu_event at 6 s: slot 1 is in that state already");
        assert!(error(&TWO.replace("6", "9.1")).starts_with("gpu_event.at_s = 9.1"));
        assert!(error(&TWO.replace("[3]", "[4]")).starts_with("gpu_event.gpus = 4"));
    }
}
