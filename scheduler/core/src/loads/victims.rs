//! Eviction: which models of a slot leave so that another has room.

use super::{LoadState, Rule};
use crate::candidate::Gpu;
use baton_types::{ModelId, Nanos};

/// Those that rank lowest leave first: last, those that leave tasks behind.
pub(super) type Rank = (bool, u64, Nanos);

impl LoadState {
    /// Gathers the victims of a LOAD; false if there are not enough. One with batches stays. With demand per copy as the
    /// measure only copies that tasks wait for leave last, and copies of models that lose tasks, and only for more tasks than
    /// they leave behind.
    pub(super) fn choose_victims(&mut self, model: ModelId, gpu: Gpu) -> bool {
        self.victims.clear();
        if self.memory.has_room(model, gpu.id, 0, 0) {
            return true;
        }
        self.gather_leaving(model, gpu);
        self.leaving.sort_unstable();
        let mut pages = 0;
        let mut may_leave_behind = match &self.rule {
            Rule::Commanded | Rule::Clockwork(_) => u64::MAX,
            Rule::Baton(pool) => u64::from(pool.wanted(model).tasks).saturating_sub(1),
        };
        for &((is_wanted, tasks, _), victim) in &self.leaving {
            if is_wanted {
                let Some(left) = may_leave_behind.checked_sub(tasks) else { return false };
                may_leave_behind = left;
            }
            self.victims.push(victim);
            pages += self.memory.pages_of(victim);
            if self.memory.has_room(model, gpu.id, pages, self.victims.len()) {
                return true;
            }
        }
        false
    }

    fn gather_leaving(&mut self, loaded: ModelId, gpu: Gpu) {
        self.leaving.clear();
        let Self { memory, models, worth, rule, leaving, .. } = self;
        for (model, place) in memory.on_slot(gpu.id) {
            if !place.is_resident || place.batches > 0 {
                continue;
            }
            let is_wanted = models[model.0 as usize].is_wanted;
            match rule {
                Rule::Commanded | Rule::Clockwork(_) => {
                    leaving.push(((is_wanted, 0, place.used), model));
                }
                Rule::Baton(pool) => {
                    let copies = memory.copies(model);
                    let share = worth.of(model) / u64::from(copies);
                    if copies > 1 && pool.is_losing(model) {
                        // What it would execute in the time that goes to the batch of the other.
                        let time = pool.wanted(loaded).latency;
                        let left = pool.served_in(time, model, worth.sum(model)) / worth.tasks(1);
                        leaving.push(((true, left, place.used), model));
                    } else if copies > 1 || !is_wanted {
                        leaving.push(((false, share, place.used), model));
                    } else if place.has_served {
                        let tasks = pool.wanted(model).tasks;
                        leaving.push(((true, tasks.into(), place.used), model));
                    }
                }
            }
        }
    }
}
