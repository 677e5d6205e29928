//! Where a generator's tasks come from: a schedule, or the end of earlier tasks.

use baton_core::Nanos;

use super::schedule::{Due, Offered, Schedule};

/// Tasks to submit.
#[derive(Debug)]
pub(crate) enum Supply {
    /// Each when it is due, whatever becomes of the others.
    Open(Schedule),
    /// Each when another has ended.
    Closed(ClosedLoop),
}

impl Supply {
    /// From `start` to `end`.
    pub(crate) fn new(offered: &Offered, seed: u64, start: Nanos, end: Nanos) -> Self {
        match offered {
            Offered::Outstanding(models, most) => {
                Self::Closed(ClosedLoop { free: vec![*most; models.len()], end, rests: false })
            }
            Offered::Rates(rates) => {
                let rates: Vec<f64> = rates.iter().map(|(_, rate)| *rate).collect();
                Self::Open(Schedule::poisson(&rates, seed, start))
            }
            Offered::Scenario(scenario, rate) => {
                Self::Open(Schedule::scenario(scenario, *rate, seed, start))
            }
            Offered::Replay(models, replay, rate) => {
                Self::Open(Schedule::replay(replay, models.len(), *rate, seed, start))
            }
        }
    }

    /// The moment of the next one, as far as the clock decides it; otherwise [`Nanos::MAX`].
    pub(crate) fn next_at(&self) -> Nanos {
        match self {
            Self::Open(schedule) => schedule.next_at(),
            Self::Closed(_) => Nanos::MAX,
        }
    }

    /// Takes the next one, if it is due by `now`.
    pub(crate) fn take(&mut self, now: Nanos) -> Option<Due> {
        match self {
            Self::Open(schedule) => schedule.take(now),
            Self::Closed(closed) => closed.take(now),
        }
    }

    /// A task of this model has had its outcome.
    pub(crate) fn ended(&mut self, model: usize) {
        if let Self::Closed(closed) = self {
            closed.free[model] += 1;
        }
    }

    /// The client refused a task of this model on the spot.
    pub(crate) fn refused(&mut self, model: usize) {
        self.ended(model);
        if let Self::Closed(closed) = self {
            closed.rests = true;
        }
    }
}

/// A fixed number of tasks of each model under way.
#[derive(Debug)]
pub(crate) struct ClosedLoop {
    /// Of each model: tasks that may be submitted now.
    free: Vec<u32>,
    end: Nanos,
    /// The client refused a task: the generator rests before the next one, or it would do nothing else.
    rests: bool,
}

impl ClosedLoop {
    fn take(&mut self, now: Nanos) -> Option<Due> {
        if std::mem::take(&mut self.rests) || now >= self.end {
            return None;
        }
        let model = self.free.iter().position(|&free| free > 0)?;
        self.free[model] -= 1;
        Some(Due { at: now, model, within: None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Nanos = Nanos::from_millis(5);
    const END: Nanos = Nanos::from_millis(9);

    fn closed(most: u32) -> Supply {
        let offered = Offered::Outstanding(vec!["a".to_owned(), "b".to_owned()], most);
        Supply::new(&offered, 1, Nanos::ZERO, END)
    }

    fn models(supply: &mut Supply) -> Vec<usize> {
        std::iter::from_fn(|| supply.take(NOW)).map(|due| due.model).collect()
    }

    #[test]
    fn a_closed_loop_submits_so_many_of_each_model_and_then_one_for_each_that_ends() {
        let mut supply = closed(2);
        assert_eq!(models(&mut supply), [0, 0, 1, 1]);
        supply.ended(1);
        assert_eq!(supply.take(NOW), Some(Due { at: NOW, model: 1, within: None }));
        assert_eq!((supply.take(NOW), supply.next_at()), (None, Nanos::MAX));
    }

    #[test]
    fn a_closed_loop_ends_and_rests_after_a_refusal() {
        let mut supply = closed(1);
        assert_eq!(models(&mut supply), [0, 1]);
        supply.refused(0);
        assert_eq!(supply.take(NOW), None, "a rest first");
        assert_eq!(models(&mut supply), [0]);
        supply.ended(0);
        assert_eq!(supply.take(END), None);
    }
}
