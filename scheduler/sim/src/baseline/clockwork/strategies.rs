//! The queue of a slot's strategies, by the moment at which they must start (§5.3).
//!
//! A model's strategies are made when its batch is formed, or when tasks come and it has none, one for each batch size; what
//! comes and goes meanwhile does not change them. One that is popped and cannot be kept makes way for smaller ones.

use std::collections::{BTreeMap, BTreeSet};

use baton_core::Nanos;

/// When a strategy must start, of which model, and its size.
type Entry = (Nanos, u32, u32);

/// See the module documentation.
#[derive(Clone, Default, Debug)]
pub(super) struct Strategies {
    order: BTreeSet<Entry>,
    of: BTreeMap<u32, Vec<Entry>>,
}

impl Strategies {
    /// Whether a strategy of the model waits.
    pub(super) fn has(&self, model: u32) -> bool {
        self.of.contains_key(&model)
    }

    /// New strategies of the model: the latest start and the size of each. The old ones go.
    pub(super) fn renew(&mut self, model: u32, made: impl Iterator<Item = (Nanos, u32)>) {
        self.remove(model);
        let made: Vec<Entry> = made.map(|(latest, size)| (latest, model, size)).collect();
        if !made.is_empty() {
            self.order.extend(&made);
            self.of.insert(model, made);
        }
    }

    /// Model and size of the strategy that must start first; the model's others go with it.
    pub(super) fn pop(&mut self) -> Option<(u32, u32)> {
        let &(_, model, size) = self.order.first()?;
        self.remove(model);
        Some((model, size))
    }

    fn remove(&mut self, model: u32) {
        for entry in self.of.remove(&model).into_iter().flatten() {
            self.order.remove(&entry);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = Nanos::from_millis(1);

    #[test]
    fn the_strategy_that_must_start_first_comes_and_its_models_others_go() {
        let mut strategies = Strategies::default();
        strategies.renew(3, [(MS.times(9), 1), (MS.times(4), 2)].into_iter());
        strategies.renew(1, [(MS.times(5), 1)].into_iter());
        assert_eq!(strategies.pop(), Some((3, 2)));
        assert!(!strategies.has(3) && strategies.has(1));
        assert_eq!((strategies.pop(), strategies.pop()), (Some((1, 1)), None));
    }

    #[test]
    fn new_strategies_replace_the_old_ones() {
        let mut strategies = Strategies::default();
        strategies.renew(0, [(MS, 4)].into_iter());
        strategies.renew(0, [(MS.times(7), 1)].into_iter());
        strategies.renew(1, [(MS.times(2), 1)].into_iter());
        assert_eq!(strategies.pop(), Some((1, 1)));
        strategies.renew(0, std::iter::empty());
        assert_eq!((strategies.has(0), strategies.pop()), (false, None));
    }
}
