//! Dense ids. They index arrays; nothing in the core hashes.

/// A model, numbered from 0 in the order of the cluster file.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ModelId(pub u32);

/// One GPU slot of one backend: executes one batch at a time. Numbered by the scheduler on join.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GpuId(pub u32);

/// A sub-cluster: GPUs that have the same models loaded (Symphony §4.7). By default the first one.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SubclusterId(pub u32);

/// A frontend process while it is joined. 16 bits, because it is part of a [`TaskId`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FrontendId(pub u16);

/// A backend process while it is joined.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BackendId(pub u32);

/// The address of a task's input: frontend, slab slot, generation of that slot.
///
/// Layout, from the high bit: frontend 16, slot 20, generation 28. A backend that knows the
/// frontend's slabs needs nothing else to READ the input; a slot that has been reused since has
/// another generation, so a stale id is recognised wherever it turns up.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct TaskId(pub u64);

impl TaskId {
    /// Slots a frontend can address over all its slabs.
    pub const SLOTS_MAX: u32 = 1 << 20;
    /// Generations before a slot's counter wraps.
    pub const GENERATIONS: u32 = 1 << 28;

    /// Packs the three parts; the excess bits of `slot` and `generation` are cut off.
    pub const fn new(frontend: FrontendId, slot: u32, generation: u32) -> Self {
        let slot = (slot % Self::SLOTS_MAX) as u64;
        let generation = (generation % Self::GENERATIONS) as u64;
        Self(((frontend.0 as u64) << 48) | (slot << 28) | generation)
    }

    /// The frontend that holds the input and awaits the outcome.
    pub const fn frontend(self) -> FrontendId {
        FrontendId((self.0 >> 48) as u16)
    }

    /// The slot in that frontend's slabs.
    pub const fn slot(self) -> u32 {
        ((self.0 >> 28) as u32) % Self::SLOTS_MAX
    }

    /// How often the slot had been used before, modulo 2²⁸.
    pub const fn generation(self) -> u32 {
        (self.0 as u32) % Self::GENERATIONS
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_task_id_is_its_three_parts(
            frontend: u16,
            slot in 0..TaskId::SLOTS_MAX,
            generation in 0..TaskId::GENERATIONS,
        ) {
            let task = TaskId::new(FrontendId(frontend), slot, generation);
            prop_assert_eq!(task.frontend(), FrontendId(frontend));
            prop_assert_eq!((task.slot(), task.generation()), (slot, generation));
        }

        #[test]
        fn every_number_is_a_task_id(number: u64) {
            let task = TaskId(number);
            prop_assert_eq!(TaskId::new(task.frontend(), task.slot(), task.generation()), task);
        }

        #[test]
        fn excess_bits_do_not_leak_into_other_parts(slot: u32, generation: u32) {
            let task = TaskId::new(FrontendId(7), slot, generation);
            prop_assert_eq!(task.frontend(), FrontendId(7));
            prop_assert_eq!(task.slot(), slot % TaskId::SLOTS_MAX);
            prop_assert_eq!(task.generation(), generation % TaskId::GENERATIONS);
        }
    }
}
