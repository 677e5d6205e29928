//! Plays a file of arrivals, faster or slower, lap after lap.

use std::sync::Arc;

use baton_core::Nanos;

use crate::arrivals::Arrived;
use crate::random::{Concern, Stream};
use crate::replay::{Recorded, Replay, Task};
use crate::scenario::{Scenario, SimModel};

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct ReplayedArrivals {
    replay: Arc<Replay>,
    /// Time of the run over time in the file.
    scale: f64,
    end: Nanos,
    /// The task that is next, of the file or of the minute, and the whole laps before it.
    next: usize,
    laps: u64,
    minute: Minute,
    slos: Vec<Nanos>,
    /// `popularity[m]`: share of the models up to m, for tasks without a model.
    popularity: Vec<f64>,
    stream: Stream,
}

/// Of a file of counts: the minute that is played, counted on in the next lap, and its tasks.
#[derive(Debug)]
struct Minute {
    number: u64,
    tasks: Vec<Task>,
    times: Stream,
}

impl Minute {
    fn first(recorded: &Recorded, seed: u64) -> Self {
        let times = Stream::new(seed, Concern::Minutes);
        let mut minute = Self { number: 0, tasks: Vec::new(), times };
        if let Recorded::Counts(counts) = recorded {
            minute.number = counts.draw(0, &mut minute.times, &mut minute.tasks);
        }
        minute
    }
}

impl ReplayedArrivals {
    /// `rate_rps` is the mean over a lap, the whole file.
    pub(crate) fn new(scenario: &Scenario, replay: Arc<Replay>, rate_rps: f64, seed: u64) -> Self {
        let mut sum = 0.0;
        let up_to = |model: &SimModel| {
            sum += model.share;
            sum
        };
        Self {
            end: scenario.end(),
            slos: scenario.models.iter().map(SimModel::slo).collect(),
            popularity: scenario.models.iter().map(up_to).collect(),
            ..Self::endless(replay, 0, rate_rps, seed)
        }
    }

    /// Without a scenario and without an end. A task without a model is any of `models`, each as likely; one without an
    /// objective has none.
    pub(crate) fn endless(replay: Arc<Replay>, models: usize, rate_rps: f64, seed: u64) -> Self {
        Self {
            scale: replay.rate_rps() / rate_rps,
            end: Nanos::MAX,
            next: 0,
            laps: 0,
            minute: Minute::first(&replay.recorded, seed),
            slos: vec![Nanos::MAX; models],
            popularity: (1..=models).map(|up_to| up_to as f64 / models as f64).collect(),
            stream: Stream::new(seed, Concern::Popularity),
            replay,
        }
    }

    /// The tasks of the file, or of the minute.
    fn tasks(&self) -> &[Task] {
        match &self.replay.recorded {
            Recorded::Tasks(tasks) => tasks,
            Recorded::Counts(_) => &self.minute.tasks,
        }
    }

    /// The moment of the next arrival; [`Nanos::MAX`] when there is none.
    pub(crate) fn due(&self) -> Nanos {
        let in_file_ns = self.laps as f64 * self.replay.lap_ns + self.tasks()[self.next].after_ns;
        let at = Nanos((in_file_ns * self.scale) as u64);
        if at < self.end { at } else { Nanos::MAX }
    }

    /// Takes the next arrival.
    pub(crate) fn take(&mut self) -> Option<Arrived> {
        let at = Some(self.due()).filter(|&at| at != Nanos::MAX)?;
        let task = self.tasks()[self.next];
        self.next += 1;
        if self.next == self.tasks().len() {
            self.turn();
        }
        let model = task.model.unwrap_or_else(|| self.any_model());
        let slo = task.slo.unwrap_or(self.slos[model as usize]);
        Some(Arrived { at, model, deadline: at + slo })
    }

    /// Behind the last task of the file, or of the minute.
    fn turn(&mut self) {
        self.next = 0;
        match &self.replay.recorded {
            Recorded::Tasks(_) => self.laps += 1,
            Recorded::Counts(counts) => {
                let Minute { number, tasks, times } = &mut self.minute;
                *number = counts.draw(*number + 1, times, tasks);
            }
        }
    }

    fn any_model(&mut self) -> u32 {
        let part = self.stream.unit();
        let model = self.popularity.partition_point(|&up_to| up_to < part);
        model.min(self.popularity.len() - 1) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Nanos = Nanos::from_millis(1);

    fn scenario() -> Scenario {
        let text = "gpus = 1\nduration_s = 0.1\npopularity = { kind = 'zipf', s = 1.0 }\n\
                    [[model]]\nname = 'm'\nalpha_ms = 1\nbeta_ms = 1\nslo_ms = 9\ncopies = 3";
        Scenario::parse(text).unwrap()
    }

    /// Tasks, each with its milliseconds after the first; a lap is 10 ms.
    fn replay(tasks: &[(f64, Option<u32>, Option<Nanos>)]) -> Arc<Replay> {
        let task = |&(after_ms, model, slo): &(f64, Option<u32>, Option<Nanos>)| Task {
            after_ns: after_ms * 1e6,
            model,
            slo,
        };
        let tasks = tasks.iter().map(task).collect();
        let recorded = Recorded::Tasks(tasks);
        Arc::new(Replay { recorded, lap_ns: 1e7, longest_slo: Nanos::ZERO })
    }

    fn play(replay: Arc<Replay>, rate_rps: f64, seed: u64) -> Vec<Arrived> {
        let mut replayed = ReplayedArrivals::new(&scenario(), replay, rate_rps, seed);
        std::iter::from_fn(|| replayed.take()).collect()
    }

    #[test]
    fn the_file_is_stretched_to_the_rate_and_repeated_to_the_end() {
        let file = replay(&[(0.0, Some(2), None), (4.0, Some(0), Some(MS))]);
        // 200 tasks/s in the file; half of it makes a lap 20 ms long.
        let played = play(file, 100.0, 1);
        assert_eq!(played.len(), 10);
        for (lap, pair) in (0..).zip(played.chunks(2)) {
            let at = MS.times(20 * lap);
            assert_eq!(pair[0], Arrived { at, model: 2, deadline: at + MS.times(9) });
            let at = at + MS.times(8);
            assert_eq!(pair[1], Arrived { at, model: 0, deadline: at + MS });
        }
    }

    #[test]
    fn without_a_scenario_the_file_goes_on_for_ever_and_has_no_other_objectives() {
        let file = replay(&[(0.0, Some(1), None), (4.0, Some(0), Some(MS))]);
        let mut replayed = ReplayedArrivals::endless(file, 2, 200.0, 1);
        let played: Vec<Arrived> = std::iter::from_fn(|| replayed.take()).take(2_001).collect();
        assert_eq!(played[0], Arrived { at: Nanos::ZERO, model: 1, deadline: Nanos::MAX });
        assert_eq!(played[1], Arrived { at: MS.times(4), model: 0, deadline: MS.times(5) });
        assert_eq!(played[2_000].at, MS.times(10_000));
    }

    #[test]
    fn tasks_without_a_model_are_spread_by_popularity_and_seed() {
        let file = replay(&[(0.0, None, None), (5.0, None, None)]);
        let played = play(Arc::clone(&file), 660_000.0, 1);
        let mut counts = [0usize; 3];
        played.iter().for_each(|arrived| counts[arrived.model as usize] += 1);
        // 1 : 1/2 : 1/3
        for (count, expected) in counts.into_iter().zip([36_000, 18_000, 12_000]) {
            assert!(count.abs_diff(expected) < 500, "{counts:?}");
        }
        assert_eq!(played, play(Arc::clone(&file), 660_000.0, 1));
        assert_ne!(played, play(file, 660_000.0, 2));
    }
}
