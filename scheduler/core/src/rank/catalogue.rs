//! Model numbers change hands: a model that was removed leaves its number to one that is added.

use super::{Demand, RankState, Waited};
use baton_types::{ModelId, SubclusterId};

impl RankState {
    /// The sub-cluster serves this model from now on. The number is one that [`RankState::new`] made room for, and that
    /// no model had or [`RankState::forget`] has freed.
    pub fn serve(&mut self, model: ModelId, subcluster: SubclusterId) {
        let entry = &mut self.models[model.0 as usize];
        assert!(entry.candidate.is_none(), "the number is free");
        entry.subcluster = subcluster;
    }

    /// The model is removed: its candidate goes, and it gets no more grants. Returns how many it got, from which the
    /// next model with this number counts on ([`ModelState::after`](crate::ModelState::after)).
    pub fn forget(&mut self, model: ModelId) -> u32 {
        let entry = &mut self.models[model.0 as usize];
        let (subcluster, grants) = (entry.subcluster, entry.grants);
        entry.candidate = None;
        entry.demand = Demand::default();
        entry.work.leave(&mut self.reserves[subcluster.0 as usize]);
        entry.waited = Waited::default();
        self.waiting.remove(model.0);
        self.changed.remove(model.0);
        self.retract(model, subcluster);
        self.residency.bind(model, false);
        grants
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::rank::{RankLimits, Reserve};
    use baton_types::Nanos;

    #[test]
    fn models_that_are_removed_compete_no_more() {
        let limits = RankLimits { gpus: 2, subclusters: 1, copies: 0 };
        let mut rank = RankState::new(limits, &[SubclusterId(0); 3]);
        let reserve: &mut Reserve = &mut rank.reserves[0];
        reserve.refresh(Nanos::from_millis(100), 2);
        for model in &mut rank.models {
            model.work.planned(reserve, &model.demand, 1, (Nanos(9), Nanos(9)));
        }
        assert!(rank.reserves[0].models_compete());
        rank.forget(ModelId(1));
        assert!(!rank.reserves[0].models_compete());
    }

    /// The next one with its number would start its batches early for another's waits.
    #[test]
    fn nothing_is_left_of_how_long_a_removed_model_waited() {
        let limits = RankLimits { gpus: 2, subclusters: 1, copies: 0 };
        let mut rank = RankState::new(limits, &[SubclusterId(0); 2]);
        for model in &mut rank.models {
            model.waited.begins(Nanos(100));
            model.waited.ends(Nanos(900));
        }
        rank.forget(ModelId(1));
        let waited = rank.models.iter().map(|model| model.waited.mean());
        assert!(waited.eq([Nanos(100), Nanos::ZERO]), "the first few count as eight");
    }

    #[test]
    fn a_number_that_is_free_serves_another_subcluster() {
        let limits = RankLimits { gpus: 2, subclusters: 2, copies: 0 };
        let mut rank = RankState::new(limits, &[SubclusterId(0); 3]);
        rank.forget(ModelId(1));
        rank.serve(ModelId(1), SubclusterId(1));
        let of = rank.models.iter().map(|model| model.subcluster.0);
        assert!(of.eq([0, 1, 0]));
    }
}
