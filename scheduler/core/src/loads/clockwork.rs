//! Clockwork's rule for LOADs (§5.3): the model whose demand exceeds most what the slots that have it can give it.
//!
//! d is the predicted execution time of a model's waiting tasks. Slots that have the model share it in inverse proportion to
//! their own load ℓ, the sum of their shares. The priority of a LOAD is p = d − Σ a·capacity/ℓ, of those tasks in d that a LOAD
//! still helps. The paper does not say what the capacity of a slot is; as in its published code it is 100 ms. Shares and priorities of a
//! model are brought up to date when something happens to that model, not when a slot's load changes.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::cmp::Reverse;

use super::memory::Memory;
use super::{LoadReason, LoadSink, LoadState, Rule};
use crate::candidate::Gpu;
use crate::containers::heap::IndexedHeap;
use baton_types::{ModelId, Nanos, SplitMix64};

/// The capacity of a slot.
const CAPACITY: Nanos = Nanos::from_millis(100);
/// The load of a slot without any.
const IDLE: u64 = 1_000_000;
/// Loads are inverted to parts of this.
const UNIT: u64 = 1 << 50;
/// How many models are looked at for one that the slot lacks.
const LOOKED_AT: usize = 256;

/// Predicted execution time of a model's waiting tasks.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Demand {
    /// Of all of them.
    pub total: Nanos,
    /// Of those that a LOAD could still help.
    pub loadable: Nanos,
}

/// Smaller is sooner.
type Key = (Reverse<u64>, u64);

/// See the module documentation.
#[derive(Clone, Debug)]
pub(super) struct Priorities {
    demands: Box<[Demand]>,
    /// Of each place, in [`Memory`]'s order, the slot and its share: what was added to the slot's load.
    shares: Box<[Option<(Gpu, u64)>]>,
    /// ℓ of each slot, ns.
    loads: Box<[u64]>,
    /// Models by priority, if it is above zero; equal ones in an order that has nothing to do with their numbers, which may go
    /// by popularity.
    order: IndexedHeap<Key>,
    passed: Vec<(Key, u32)>,
    copies: usize,
}

impl Priorities {
    pub(super) fn new(gpus: usize, models: usize, copies: usize) -> Self {
        Self {
            demands: vec![Demand::default(); models].into_boxed_slice(),
            shares: vec![None; models * copies].into_boxed_slice(),
            loads: vec![IDLE; gpus].into_boxed_slice(),
            order: IndexedHeap::new(models),
            passed: Vec::with_capacity(LOOKED_AT),
            copies,
        }
    }

    /// Another demand.
    pub(super) fn demand(&mut self, memory: &Memory, model: ModelId, demand: Demand) {
        self.demands[model.0 as usize] = demand;
        self.refresh(memory, model);
    }

    /// Shares out the model's demand anew.
    pub(super) fn refresh(&mut self, memory: &Memory, model: ModelId) {
        let first = model.0 as usize * self.copies;
        for share in &mut self.shares[first..first + self.copies] {
            if let Some((gpu, share)) = share.take() {
                self.loads[gpu.id.0 as usize] -= share;
            }
        }
        let inverse = |gpu: Gpu, loads: &[u64]| UNIT / loads[gpu.id.0 as usize];
        let sum: u64 = memory.places(model).map(|(_, p)| inverse(p.gpu, &self.loads)).sum();
        let total = self.demands[model.0 as usize].total.0;
        for (at, place) in memory.places(model) {
            let part = u128::from(inverse(place.gpu, &self.loads));
            let share = (u128::from(total) * part / u128::from(sum)) as u64;
            self.shares[at] = Some((place.gpu, share));
        }
        for &(gpu, share) in self.shares[first..first + self.copies].iter().flatten() {
            self.loads[gpu.id.0 as usize] += share;
        }
        match self.priority(model) {
            0 => drop(self.order.remove(model.0)),
            priority => {
                let key = (Reverse(priority), SplitMix64::mix(model.0.into()));
                self.order.set(model.0, key);
            }
        }
    }

    /// p, or 0 below zero: such a model needs no LOAD.
    pub(super) fn priority(&self, model: ModelId) -> u64 {
        let first = model.0 as usize * self.copies;
        let served = self.shares[first..first + self.copies].iter().flatten();
        let capacity = u128::from(CAPACITY.0);
        let served = served.map(|&(gpu, share)| {
            u128::from(share) * capacity / u128::from(self.loads[gpu.id.0 as usize])
        });
        let loadable = u128::from(self.demands[model.0 as usize].loadable.0);
        loadable.saturating_sub(served.sum()) as u64
    }

    /// The model to load next on a slot.
    pub(super) fn first(&mut self, memory: &Memory, gpu: Gpu) -> Option<ModelId> {
        let mut found = None;
        while self.passed.len() < LOOKED_AT
            && found.is_none()
            && let Some((key, model)) = self.order.pop_up_to((Reverse(0), u64::MAX))
        {
            let is_there = memory.place(ModelId(model), gpu).is_some();
            found = (!is_there).then_some(ModelId(model));
            self.passed.push((key, model));
        }
        for (key, model) in self.passed.drain(..) {
            self.order.set(model, key);
        }
        found
    }
}

impl LoadState {
    /// Each open loader gets the model with the highest priority on its slot.
    pub(super) fn load_by_priority(&mut self, now: Nanos, out: &mut impl LoadSink) {
        let mut looked_at = self.open.first();
        while let Some(slot) = looked_at {
            let Rule::Clockwork(priorities) = &mut self.rule else { return };
            let gpu = self.memory.gpu(slot as usize);
            let next = gpu.and_then(|gpu| Some((gpu, priorities.first(&self.memory, gpu)?)));
            let is_loading = next.is_some_and(|(gpu, model)| {
                self.load_for(LoadReason::Priority, now, (model, gpu), out)
            });
            if !is_loading || !self.open.contains(slot) {
                looked_at = self.open.above(slot);
            }
        }
        self.is_changed = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use baton_types::GpuId;

    const MS: Nanos = Nanos::from_millis(1);
    const MODEL: ModelId = ModelId(0);

    fn gpu(id: u32) -> Gpu {
        Gpu { id: GpuId(id), life: 0 }
    }

    fn two_slots() -> (Memory, Priorities) {
        let mut memory = Memory::new(2, 2, 8, vec![1, 1]);
        (0..2).for_each(|id| memory.join(gpu(id), 8));
        (memory, Priorities::new(2, 2, 2))
    }

    fn waits(ms: u64) -> Demand {
        Demand { total: MS.times(ms), loadable: MS.times(ms) }
    }

    #[test]
    fn loaded_nowhere_the_priority_is_the_demand() {
        let (memory, mut rule) = two_slots();
        rule.demand(&memory, MODEL, waits(7));
        assert_eq!(rule.priority(MODEL), MS.times(7).0);
        assert_eq!(rule.first(&memory, gpu(0)), Some(MODEL));
    }

    #[test]
    fn loaded_on_an_idle_slot_it_needs_no_load() {
        let (mut memory, mut rule) = two_slots();
        assert!(memory.take(Nanos::ZERO, MODEL, gpu(0)));
        rule.demand(&memory, MODEL, waits(7));
        assert_eq!((rule.priority(MODEL), rule.first(&memory, gpu(1))), (0, None));
    }

    /// ℓ = 1 + 300 ms, so a·100/ℓ = 99.67 ms of 300.
    #[test]
    fn a_slot_that_is_behind_makes_the_model_wanted_on_the_other() {
        let (mut memory, mut rule) = two_slots();
        assert!(memory.take(Nanos::ZERO, MODEL, gpu(0)));
        rule.demand(&memory, MODEL, waits(300));
        let served = MS.times(300).0 * 100 / 301;
        assert_eq!(rule.priority(MODEL), MS.times(300).0 - served);
        assert_eq!((rule.first(&memory, gpu(0)), rule.first(&memory, gpu(1))), (None, Some(MODEL)));
    }

    /// ℓ is 101 and 1 ms before the model's 102 ms come: 1 and 101 ms go there.
    #[test]
    fn shares_are_in_inverse_proportion_to_the_loads() {
        let (mut memory, mut rule) = two_slots();
        let other = ModelId(1);
        assert!(memory.take(Nanos::ZERO, other, gpu(0)));
        rule.demand(&memory, other, waits(100));
        (0..2).for_each(|id| assert!(memory.take(Nanos::ZERO, MODEL, gpu(id))));
        let near = |load: u64, ms: u64| load.abs_diff(MS.times(ms).0) < 1_000;
        // What the model had there before is no load that it yields to.
        for _ in 0..2 {
            rule.demand(&memory, MODEL, waits(102));
            assert!(near(rule.loads[0], 102) && near(rule.loads[1], 102), "{:?}", rule.loads);
        }
        rule.demand(&memory, MODEL, Demand::default());
        assert!(near(rule.loads[0], 101) && near(rule.loads[1], 1), "{:?}", rule.loads);
    }

    /// Numbers may go by popularity.
    #[test]
    fn of_equal_priorities_the_smaller_number_is_not_always_first() {
        let mut memory = Memory::new(1, 1, 8, vec![1; 8]);
        memory.join(gpu(0), 8);
        let mut rule = Priorities::new(1, 8, 1);
        (0..8).for_each(|id| rule.demand(&memory, ModelId(id), waits(7)));
        let next = || {
            let model = rule.first(&memory, gpu(0))?;
            rule.demand(&memory, model, Demand::default());
            Some(model.0)
        };
        let order: Vec<u32> = core::iter::from_fn(next).collect();
        assert!(order.len() == 8 && !order.is_sorted(), "{order:?}");
    }

    #[test]
    fn only_tasks_that_a_load_helps_ask_for_one() {
        let (memory, mut rule) = two_slots();
        rule.demand(&memory, MODEL, Demand { total: MS.times(9), loadable: MS.times(2) });
        rule.demand(&memory, ModelId(1), waits(3));
        assert_eq!(rule.first(&memory, gpu(0)), Some(ModelId(1)));
    }

    #[test]
    fn each_model_has_shares_of_its_own() {
        let (mut memory, mut rule) = two_slots();
        let other = ModelId(1);
        assert!(memory.take(Nanos::ZERO, other, gpu(0)));
        rule.demand(&memory, MODEL, waits(7));
        rule.demand(&memory, other, waits(7));
        assert_eq!([MODEL, other].map(|model| rule.priority(model)), [MS.times(7).0, 0]);
    }
}
