//! How much earlier than at the last moment a batch is due, because it may find no slot then.

use super::RankState;
use crate::rank::reserve::PARTS;
use baton_types::{ModelId, Nanos, SubclusterId};

/// The mean is over about this many batches.
const BATCHES: u64 = 64;
/// The first few are counted as if there were this many, and the others had not waited: one alone may be chance.
const FEW: u64 = 8;
/// Means in a slot wait: if waits are distributed exponentially, one in e⁶ is longer, the quarter of a
/// per cent from which a model counts as losing tasks.
const MEANS: u64 = 6;

/// For how long one model's batches wait for a slot once they are due.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Waited {
    /// Since when its candidate has been due; `None` while there is none that is, and if it got its
    /// slot before.
    since: Option<Nanos>,
    /// Mean × `batches`, ns.
    sum: u64,
    /// How many the mean is over, at most [`BATCHES`].
    batches: u64,
}

impl Waited {
    pub(super) fn begins(&mut self, now: Nanos) {
        self.since.get_or_insert(now);
    }

    /// There is a slot, or the batch is lost.
    pub(super) fn ends(&mut self, now: Nanos) {
        let Some(since) = self.since.take() else { return };
        if self.batches < BATCHES {
            self.batches += 1;
        } else {
            self.sum -= self.sum / BATCHES;
        }
        self.sum = self.sum.saturating_add((now - since).0);
    }

    pub(super) fn mean(&self) -> Nanos {
        Nanos(self.sum / self.batches.max(FEW))
    }
}

impl RankState {
    /// For how long the model's next batches may wait for a slot: longer than all but a few of the
    /// last ones did, and at most a turn for each other model. None of them waits if there is a slot
    /// for each batch that the models have at a time.
    pub(super) fn slot_wait(&mut self, subcluster: SubclusterId, model: ModelId) -> Nanos {
        let reserve = &self.reserves[subcluster.0 as usize];
        if !reserve.models_compete() {
            return Nanos::ZERO;
        }
        let entry = &mut self.models[model.0 as usize];
        let turns = entry.work.others(reserve);
        let each_once = Nanos(self.gpus.turn(subcluster).0.saturating_mul(turns) / PARTS);
        entry.waited.mean().times(MEANS).min(each_once)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::candidate::Candidate;
    use crate::rank::RankLimits;

    #[test]
    fn the_mean_is_of_the_last_waits() {
        let (mut waited, mut now) = (Waited::default(), Nanos(100));
        let mut wait = |ns: u64| {
            waited.begins(now);
            waited.begins(now + Nanos(3));
            now = now + Nanos(ns);
            waited.ends(now);
            waited.mean().0
        };
        assert_eq!(wait(640), 80, "of the first few none is typical");
        assert!((0..7).map(|_| wait(640)).eq([160, 240, 320, 400, 480, 560, 640]));
        assert!((0..56).all(|_| wait(640) == 640));
        assert_eq!(wait(64_640), 1_640, "the last 64");
        assert!(
            (0..1_000).map(|_| wait(640)).last().is_some_and(|mean| (630..=640).contains(&mean))
        );
        assert!((0..1_000).map(|_| wait(0)).last().is_some_and(|mean| mean <= 1));
    }

    #[test]
    fn a_batch_that_starts_before_it_is_due_has_not_waited() {
        let mut waited = Waited::default();
        waited.ends(Nanos(9));
        assert_eq!(waited.mean(), Nanos::ZERO);
    }

    /// The next batch's wait does not count from when one was due that is none any more.
    #[test]
    fn a_batch_that_is_given_up_waits_no_longer() {
        let limits = RankLimits { gpus: 1, subclusters: 1, copies: 0 };
        let mut rank = RankState::new(limits, &[SubclusterId(0)]);
        let due = Candidate {
            batch: 1,
            exec_at: Nanos::ZERO,
            invalid_after: Nanos(9_000),
            urgency: Nanos(9_000),
            bad_rate: 0,
            delay: Nanos::ZERO,
            latest: Nanos(9_000),
            latency: Nanos(10),
            alone: Nanos(10),
            slack: Nanos::ZERO,
            dispersion: 16,
            excess: Candidate::NOT_EARLY,
            run: 0,
        };
        for (now, candidate) in [(100, Some(due)), (900, None), (5_000, Some(due))] {
            rank.note_candidate(Nanos(now), ModelId(0), candidate, 0);
        }
        assert_eq!(rank.models[0].waited.mean(), Nanos(100), "the first few count as eight");
    }
}
