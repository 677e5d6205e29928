//! The highest rate at which a share of the tasks is answered in time: which rate to try next, and what the trials amount
//! to. It knows no clock and offers no load.
//!
//! The search doubles the rate until a trial is bad, then halves the interval in which the rate must lie, as the simulator's does.
//! Trials of one rate differ by their seeds, and the seeds are the same at every rate. The share of bad tasks has an error, so a
//! rate whose trials do not decide is tried again with the next seed. Under bursts goodput is not monotone: a
//! rate may be bad although a higher one is good. The search finds one such edge and says whether its trials contradict each other.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::tally::Tally;
use super::timeline::Timeline;

/// Trials of one rate that count.
const TRIALS_MAX: usize = 3;
/// Trials of one rate at which the generator was late, before it is given up.
const LATE_MAX: usize = 2;
/// Trials in all.
const ALL_MAX: usize = 64;
/// Standard errors between the share and its bound that make a trial sure.
const SURE: f64 = 2.0;
/// No rate below this part of the first one is tried.
const LOWEST: f64 = 1.0 / 1_024.0;

/// What to try next.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Ask {
    /// Tasks per second of all models together.
    pub rate_rps: f64,
    /// Which trial of this rate, from 0: seeds differ by it.
    pub trial: usize,
}

/// What a trial has shown.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Seen {
    /// Tasks offered.
    pub submitted: u64,
    /// Of the worst model: the share of its tasks that were not answered in time.
    pub bad_rate: f64,
    /// Standard error of that share.
    pub bad_error: f64,
    /// The generator kept its schedule.
    pub schedule_kept: bool,
}

impl Seen {
    /// The worst model decides, as in the simulator.
    pub fn of(tallies: &[Tally], schedule_kept: bool) -> Self {
        let bad = |tally: &Tally| {
            let in_time = tally.completed - tally.late;
            1.0 - in_time as f64 / tally.submitted as f64
        };
        let used = tallies.iter().filter(|tally| tally.submitted > 0);
        let worst = used.max_by(|a, b| bad(a).total_cmp(&bad(b)));
        let error = |tally: &Tally| tally.timeline.as_ref().and_then(Timeline::bad_error);
        Self {
            submitted: worst.map_or(0, |tally| tally.submitted),
            bad_rate: worst.map_or(0.0, bad),
            bad_error: worst.and_then(error).unwrap_or(0.0),
            schedule_kept,
        }
    }
}

/// A rate that was tried.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Point {
    /// Tasks per second of all models together.
    pub rate_rps: f64,
    /// Its trials, those in which the generator was late included.
    pub trials: Vec<Seen>,
    /// Mean of the trials that count; `null` if none does.
    pub bad_rate: Option<f64>,
    /// At most as many tasks were bad as may be.
    pub good: bool,
    /// The trials decide it; otherwise their mean does.
    pub sure: bool,
}

/// The result, with what it rests on.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Knee {
    /// The share of each model's tasks that must be answered in time.
    pub share: f64,
    /// Highest good rate, tasks per second of all models together; 0 if none was.
    pub rate_rps: f64,
    /// Lowest rate above it that was bad; `null` if none was.
    pub bad_above_rps: Option<f64>,
    /// Highest rate that was surely good.
    pub surely_good_rps: f64,
    /// Lowest rate that was surely bad.
    pub surely_bad_rps: Option<f64>,
    /// No rate was bad below one that was good.
    pub monotone: bool,
    /// The generator could not keep its schedule at the next higher rate: the knee is its own, not the server's.
    pub limited_by_generator: bool,
    /// By rate.
    pub points: Vec<Point>,
}

impl fmt::Display for Knee {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { share, rate_rps, surely_good_rps, points, .. } = self;
        let beyond = |rate: Option<f64>| {
            rate.map_or_else(|| "no rate".to_owned(), |rate| format!("{rate:.1}/s"))
        };
        let (bad, surely_bad) = (beyond(self.bad_above_rps), beyond(self.surely_bad_rps));
        let trials: usize = points.iter().map(|point| point.trials.len()).sum();
        writeln!(
            f,
            "goodput: {rate_rps:.1} tasks/s with {} % of each model's in time; bad at {bad}\n\
             surely good up to {surely_good_rps:.1}/s, surely bad at {surely_bad} ({} rates, {trials} trials)",
            share * 100.0,
            points.len()
        )?;
        if !self.monotone {
            writeln!(
                f,
                "NOT MONOTONE: a lower rate was bad; longer trials may say which is right"
            )?;
        }
        if self.limited_by_generator {
            writeln!(
                f,
                "LIMITED BY THE GENERATOR: beyond it could not keep its schedule, so the server may carry more"
            )?;
        }
        Ok(())
    }
}

/// A search under way.
#[derive(Clone, Debug)]
pub struct Search {
    share: f64,
    /// It ends when it knows the rate to this part of it.
    resolution: f64,
    ceiling_rps: f64,
    first_rps: f64,
    /// In the order in which they were tried.
    points: Vec<Point>,
    trials: usize,
}

impl Search {
    /// For a share of good tasks, from `first_rps` on, no further than `ceiling_rps`.
    pub fn new(share: f64, resolution: f64, first_rps: f64, ceiling_rps: f64) -> Self {
        assert!((0.0..1.0).contains(&(1.0 - share)), "a share of the tasks");
        assert!(resolution > 0.0 && first_rps > 0.0, "it must make progress");
        let first_rps = first_rps.min(ceiling_rps);
        Self { share, resolution, ceiling_rps, first_rps, points: Vec::new(), trials: 0 }
    }

    /// The next trial; `None` once the search is over.
    pub fn next(&self) -> Option<Ask> {
        if self.trials >= ALL_MAX {
            return None;
        }
        if let Some(open) = self.points.last().filter(|point| !self.is_decided(point)) {
            return Some(Ask { rate_rps: open.rate_rps, trial: open.trials.len() });
        }
        self.next_rate().map(|rate_rps| Ask { rate_rps, trial: 0 })
    }

    /// Takes in what the trial that [`Search::next`] asked for has shown.
    pub fn saw(&mut self, ask: Ask, seen: Seen) {
        self.trials += 1;
        if ask.trial == 0 {
            let Ask { rate_rps, .. } = ask;
            let trials = Vec::new();
            self.points.push(Point { rate_rps, trials, bad_rate: None, good: false, sure: false });
        }
        let most = 1.0 - self.share;
        let point = self.points.last_mut().expect("a trial belongs to a point");
        point.trials.push(seen);
        let counted: Vec<&Seen> = point.trials.iter().filter(|seen| seen.schedule_kept).collect();
        let tasks: u64 = counted.iter().map(|seen| seen.submitted).sum();
        if tasks == 0 {
            return;
        }
        let count = counted.len() as f64;
        let mean = counted.iter().map(|seen| seen.bad_rate).sum::<f64>() / count;
        let spread = counted.iter().map(|seen| seen.bad_error.powi(2)).sum::<f64>().sqrt() / count;
        // Chance alone, where no part of a trial differs from another.
        let chance = (most.max(1e-6) * self.share / tasks as f64).sqrt();
        point.bad_rate = Some(mean);
        point.good = mean <= most;
        point.sure = (mean - most).abs() > SURE * spread.max(chance);
    }

    /// The trials so far.
    pub fn knee(&self) -> Knee {
        let mut points = self.points.clone();
        points.sort_by(|a, b| a.rate_rps.total_cmp(&b.rate_rps));
        let good = points.iter().filter(|point| point.good);
        let rate_rps = good.clone().map(|point| point.rate_rps).fold(0.0, f64::max);
        let is_bad = |point: &&Point| point.bad_rate.is_some() && !point.good;
        let lowest_bad = |from: f64, sure: bool| {
            let bad = points.iter().filter(is_bad).filter(|point| point.rate_rps > from);
            bad.filter(|point| point.sure || !sure).map(|point| point.rate_rps).next()
        };
        let bad_above_rps = lowest_bad(rate_rps, false);
        let unmeasured = |point: &Point| point.rate_rps > rate_rps && point.bad_rate.is_none();
        let limit = points.iter().find(|point| unmeasured(point)).map(|point| point.rate_rps);
        Knee {
            share: self.share,
            rate_rps,
            bad_above_rps,
            surely_good_rps: good.filter(|p| p.sure).map(|p| p.rate_rps).fold(0.0, f64::max),
            surely_bad_rps: lowest_bad(0.0, true),
            monotone: lowest_bad(0.0, false).is_none_or(|bad| bad > rate_rps),
            limited_by_generator: limit
                .is_some_and(|limit| bad_above_rps.is_none_or(|bad| limit < bad)),
            points,
        }
    }

    fn is_decided(&self, point: &Point) -> bool {
        let late = point.trials.iter().filter(|seen| !seen.schedule_kept).count();
        let counted = point.trials.len() - late;
        point.sure
            || counted >= TRIALS_MAX
            || (late >= LATE_MAX && counted == 0)
            || (counted > 0 && point.trials.len() >= TRIALS_MAX + LATE_MAX)
    }

    /// The rate behind those that are decided.
    fn next_rate(&self) -> Option<f64> {
        let rates = |good: bool| {
            self.points.iter().filter(move |point| point.good == good).map(|point| point.rate_rps)
        };
        let low = rates(true).fold(0.0, f64::max);
        let high = rates(false).filter(|&rate| rate > low).fold(f64::INFINITY, f64::min);
        match (low > 0.0, high.is_finite()) {
            (false, false) => Some(self.first_rps),
            (true, false) if low >= self.ceiling_rps => None,
            (true, false) => Some((2.0 * low).min(self.ceiling_rps)),
            (false, true) if high <= self.first_rps * LOWEST => None,
            (false, true) => Some(high / 2.0),
            (true, true) if high - low <= self.resolution * high => None,
            (true, true) => Some(f64::midpoint(low, high)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use baton_core::Nanos;

    use super::*;

    fn seen(bad_rate: f64) -> Seen {
        Seen { submitted: 100_000, bad_rate, bad_error: 0.0, schedule_kept: true }
    }

    /// The search over a server whose share of bad tasks is this function of rate and trial.
    fn search(first_rps: f64, of: impl Fn(Ask) -> Seen) -> (Knee, usize) {
        let mut search = Search::new(0.99, 0.02, first_rps, 1e6);
        let mut trials = 0;
        while let Some(ask) = search.next() {
            search.saw(ask, of(ask));
            trials += 1;
            assert!(trials <= ALL_MAX);
        }
        (search.knee(), trials)
    }

    #[test]
    fn the_worst_model_decides() {
        let mut tallies = vec![Tally::new("a", Duration::from_millis(9)); 3];
        for (tally, lost) in tallies.iter_mut().zip([1, 3, 0]) {
            (0..10).for_each(|_| tally.arrival(Nanos::ZERO, Nanos::ZERO));
            (0..lost).for_each(|_| tally.refuse_for(Nanos::ZERO, "x"));
            tally.completed = 10 - lost;
        }
        tallies[2] = Tally::default();
        let Seen { submitted, bad_rate, schedule_kept, .. } = Seen::of(&tallies, true);
        assert_eq!((submitted, schedule_kept), (10, true));
        assert!((bad_rate - 0.3).abs() < 1e-12);
        assert_eq!(Seen::of(&[], true).submitted, 0);
    }

    #[test]
    fn the_edge_is_found_from_below_and_from_above() {
        for first_rps in [10.0, 730.0, 50_000.0] {
            let edge = |ask: Ask| seen(if ask.rate_rps <= 1_234.0 { 0.002 } else { 0.3 });
            let (knee, trials) = search(first_rps, edge);
            let Knee { rate_rps, bad_above_rps, surely_good_rps, .. } = knee;
            assert!(rate_rps <= 1_234.0 && bad_above_rps.unwrap() > 1_234.0, "{knee:?}");
            assert!(bad_above_rps.unwrap() - rate_rps <= 0.02 * 1_300.0, "{knee:?}");
            assert_eq!((surely_good_rps, knee.surely_bad_rps), (rate_rps, bad_above_rps));
            assert!(knee.monotone && !knee.limited_by_generator && trials < 20, "{trials}");
        }
    }

    /// Three trials at a rate whose share is within the error, the mean decides, and the result says that it does.
    #[test]
    fn what_one_trial_does_not_decide_is_tried_again_with_other_seeds() {
        let unsure = |ask: Ask| {
            let bad_rate = match ask.rate_rps {
                ..=1_000.0 => 0.0,
                ..=1_100.0 => [0.012, 0.009, 0.006][ask.trial],
                _ => 0.2,
            };
            Seen { bad_error: 0.005, ..seen(bad_rate) }
        };
        let (knee, _) = search(1_000.0, unsure);
        assert!((1_070.0..=1_100.0).contains(&knee.rate_rps), "{knee:?}");
        assert_eq!(knee.surely_good_rps, 1_000.0);
        let point = knee.points.iter().find(|point| point.rate_rps == knee.rate_rps).unwrap();
        assert_eq!((point.trials.len(), point.sure, point.good), (3, false, true));
        assert!((point.bad_rate.unwrap() - 0.009).abs() < 1e-12);
    }

    /// The mean's error falls with the square root of their number.
    #[test]
    fn three_trials_are_surer_than_each_of_them() {
        let mut search = Search::new(0.99, 0.02, 100.0, 1e6);
        let sure = [0, 1, 2].map(|trial| {
            search.saw(Ask { rate_rps: 100.0, trial }, Seen { bad_error: 0.005, ..seen(0.017) });
            search.points[0].sure
        });
        assert_eq!(sure, [false, false, true]);
        let ask = Ask { rate_rps: 50.0, trial: 0 };
        assert_eq!(search.next(), Some(ask), "a third trial decides");
    }

    #[test]
    fn a_rate_that_is_bad_below_one_that_is_good_is_named() {
        let hole = |ask: Ask| {
            let bad = (300.0..500.0).contains(&ask.rate_rps) || ask.rate_rps > 900.0;
            seen(if bad { 0.5 } else { 0.0 })
        };
        let mut search = Search::new(0.99, 0.02, 100.0, 1e6);
        for rate_rps in [400.0, 800.0] {
            let ask = Ask { rate_rps, trial: 0 };
            search.saw(ask, hole(ask));
        }
        while let Some(ask) = search.next() {
            search.saw(ask, hole(ask));
        }
        let knee = search.knee();
        assert!(knee.to_string().contains("NOT MONOTONE"), "{knee}");
        assert!(!knee.monotone && (880.0..=900.0).contains(&knee.rate_rps), "{knee:?}");
        assert_eq!(knee.surely_bad_rps, Some(400.0));
    }

    /// A generator that is late says nothing about the server: its trials do not count.
    #[test]
    fn a_generator_that_cannot_keep_up_ends_the_search_and_is_named() {
        let late = |ask: Ask| Seen { schedule_kept: ask.rate_rps <= 500.0, ..seen(0.0) };
        let (knee, _) = search(100.0, late);
        assert!(knee.limited_by_generator && (490.0..=500.0).contains(&knee.rate_rps), "{knee:?}");
        assert_eq!((knee.bad_above_rps, knee.surely_bad_rps), (None, None));
        let once = |ask: Ask| Seen {
            schedule_kept: ask.trial > 0,
            ..seen(f64::from(u8::from(ask.rate_rps > 500.0)))
        };
        let (knee, _) = search(100.0, once);
        assert!(!knee.limited_by_generator && (490.0..=500.0).contains(&knee.rate_rps), "{knee:?}");
    }

    #[test]
    fn a_server_that_is_never_good_or_never_bad_ends_the_search() {
        let (knee, trials) = search(1_000.0, |_| seen(1.0));
        assert_eq!((knee.rate_rps, knee.bad_above_rps.is_some()), (0.0, true));
        assert!(trials <= 12, "{trials}");
        let (knee, _) = search(1_000.0, |_| seen(0.0));
        assert_eq!((knee.rate_rps, knee.bad_above_rps), (1e6, None));
        let (knee, trials) = search(1_000.0, |_| Seen { submitted: 0, ..seen(0.0) });
        assert!(knee.rate_rps == 0.0 && trials <= ALL_MAX, "no task, no figure");
    }
}
