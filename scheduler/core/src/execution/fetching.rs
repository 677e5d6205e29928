//! How long inputs take to come, as backends measure it: `delay(bs)` of Symphony App. C, and what it means for a slot.
//!
//! The cluster file says what to begin with. From then on a line a + d·b follows the measurements: the time before the
//! first input of a batch, and that of each. So does a margin: by more than that the inputs of one batch in a hundred are
//! late ([`crate::Latency`] has one, too). All fade while nothing is measured.
//!
//! A backend fetches one batch after the other. Where that takes longer than the executions, its slots serve no more than
//! its port carries: a batch is planned behind those whose inputs come before its own ([`Fetching::behind`]).

use crate::execution::network::NetworkDelay;
use baton_types::Nanos;

/// What each new batch leaves of those before it: 64 count.
const KEPT: f64 = 1.0 - 1.0 / 64.0;
/// What is left of all, each time nothing was measured for longer than [`PATIENCE`].
const FADED: f64 = 1.0 - 1.0 / 16.0;
/// Calls of [`Fetching::relax`]: ten seconds. A model whose batches are long has few.
const PATIENCE: u8 = 100;
/// That nothing takes no time counts as such a part of a batch: with batches of one size, each input takes its part.
const NOTHING: f64 = 1.0 / 32.0;
/// The margin moves by 99 steps up or one step down: it settles where 1 % of batches exceed it.
const UP: u64 = 99;

/// See the module documentation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fetching {
    /// As the cluster file has it.
    given: NetworkDelay,
    slo: Nanos,
    /// What the objective leaves a lone task beside everything else. Three quarters of it are the most that is planned for
    /// its input: else it would never be tried, and nothing measured again.
    room: Nanos,
    measured: Sums,
    /// a: before the first input comes. With the margin at most half of the room.
    before: Nanos,
    /// d: for each input. At most a quarter of the room, unless the cluster file says more.
    per_task: Nanos,
    /// p99 of what inputs were late by.
    margin: Nanos,
    /// Calls of [`Fetching::relax`] since the last measurement.
    unmeasured: u8,
}

/// Of least squares, over batches: time in nanoseconds by number of tasks.
#[derive(Clone, Copy, Default, Debug)]
struct Sums {
    batches: f64,
    tasks: f64,
    times: f64,
    tasks_squared: f64,
    tasks_by_times: f64,
}

impl Fetching {
    /// As the cluster file has it until it is measured.
    pub(crate) fn new(given: NetworkDelay, slo: Nanos) -> Self {
        let (measured, per_task) = (Sums::default(), given.data_per_task);
        let (before, margin) = (Nanos::ZERO, Nanos::ZERO);
        Self { given, slo, room: slo, measured, before, per_task, margin, unmeasured: 0 }
    }

    /// Another objective, or another ℓ(1): what was measured stays, within its bounds.
    pub(crate) fn set_objective(&mut self, slo: Nanos, alone: Nanos) {
        let room = slo - self.given.response - self.given.ctrl - alone;
        if (slo, room) != (self.slo, self.room) {
            (self.slo, self.room) = (slo, room);
            self.fit();
        }
    }

    /// Delays to plan with.
    pub(crate) fn network(&self) -> NetworkDelay {
        let ctrl = self.given.ctrl + self.before + self.margin;
        NetworkDelay { ctrl, data_per_task: self.per_task, ..self.given }
    }

    /// The same for a batch whose inputs come behind others, which the port fetches for another `port_wait`.
    #[inline]
    pub(crate) fn behind(&self, port_wait: Nanos) -> NetworkDelay {
        let network = self.network();
        NetworkDelay { ctrl: network.ctrl + (port_wait - self.given.ctrl), ..network }
    }

    /// When the inputs of a batch that is planned now will be there, by the mean. `None` until it was measured: the cluster
    /// file says how long an input takes, not how many come at a time.
    #[inline]
    pub(crate) fn fetched_at(&self, now: Nanos, batch: u32, port_wait: Nanos) -> Option<Nanos> {
        let begins = now + self.given.ctrl.max(port_wait);
        (self.measured.batches > 0.0).then(|| begins + self.expected(batch))
    }

    /// The inputs of a batch of `batch` tasks took `time` of the port's, and were there `late` after they should have been.
    pub(crate) fn observe(&mut self, batch: u32, time: Nanos, late: Nanos) {
        debug_assert!(batch > 0, "a batch has tasks");
        self.follow_lateness(late);
        self.measured.scale(KEPT);
        self.measured.add(f64::from(batch), time.min(self.slo).0 as f64);
        self.unmeasured = 0;
        self.fit();
    }

    /// Called ten times a second while tasks arrive. What was measured fades if nothing has been for long: it may be what
    /// keeps every task from being tried, and then no measurement would ever take it back.
    pub(crate) fn relax(&mut self) {
        self.unmeasured = self.unmeasured.saturating_add(1);
        if self.measured.batches > 0.0 && self.unmeasured > PATIENCE {
            self.measured.scale(FADED);
            self.margin = Nanos(self.margin.0 / 2);
            if self.measured.batches < 0.25 {
                self.measured = Sums::default();
            }
            self.fit();
        }
    }

    fn expected(&self, batch: u32) -> Nanos {
        self.before + self.per_task.times(batch.into())
    }

    fn follow_lateness(&mut self, late: Nanos) {
        let step = Nanos((self.slo.0 >> 15).max(1));
        self.margin =
            if late > self.margin { self.margin + step.times(UP) } else { self.margin - step };
    }

    /// Neither number is negative: the line falls nowhere, and begins at zero or above.
    fn fit(&mut self) {
        let most = Nanos(self.room.0 / 2);
        if self.measured.batches > 0.0 {
            let mut all = self.measured;
            all.batches += NOTHING;
            let (before, per_task) = all.line();
            let dearest = Nanos(self.room.0 / 4).max(self.given.data_per_task);
            self.per_task = Nanos(per_task as u64).min(dearest);
            self.before = Nanos(before as u64).min(most);
        } else {
            (self.before, self.per_task) = (Nanos::ZERO, self.given.data_per_task);
        }
        self.margin = self.margin.min(most - self.before);
    }
}

impl Sums {
    fn scale(&mut self, factor: f64) {
        let Self { batches, tasks, times, tasks_squared, tasks_by_times } = self;
        for sum in [batches, tasks, times, tasks_squared, tasks_by_times] {
            *sum *= factor;
        }
    }

    fn add(&mut self, tasks: f64, time: f64) {
        self.batches += 1.0;
        self.tasks += tasks;
        self.times += time;
        self.tasks_squared += tasks * tasks;
        self.tasks_by_times += tasks * time;
    }

    /// a and d of the line a + d·b that is nearest, of those that neither begin below zero nor fall. There are batches
    /// of two sizes, of which nothing may be one.
    fn line(&self) -> (f64, f64) {
        let spread = self.batches * self.tasks_squared - self.tasks * self.tasks;
        debug_assert!(spread > 0.0, "batches of two sizes");
        let slope = (self.batches * self.tasks_by_times - self.tasks * self.times) / spread;
        let slope = slope.clamp(0.0, self.times / self.tasks);
        (((self.times - slope * self.tasks) / self.batches).max(0.0), slope)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SLO: Nanos = Nanos::from_millis(40);

    fn us(us: u64) -> Nanos {
        Nanos::from_micros(us)
    }

    fn given() -> NetworkDelay {
        NetworkDelay { ctrl: us(50), data_per_task: us(20), ..NetworkDelay::default() }
    }

    /// After batches of these sizes, over and over, which took `time` of their size.
    fn measured(sizes: &[u32], time: impl Fn(u32) -> Nanos) -> Fetching {
        let mut fetching = Fetching::new(given(), SLO);
        let sizes = sizes.iter().cycle().take(200);
        sizes.for_each(|&batch| fetching.observe(batch, time(batch), Nanos::ZERO));
        fetching
    }

    fn is_near(got: Nanos, expected: Nanos) {
        let allowed = Nanos(expected.0 / 10 + 2_000);
        assert!(got.0.abs_diff(expected.0) <= allowed.0, "{got:?} is not {expected:?}");
    }

    #[test]
    fn an_objective_leaves_inputs_what_nothing_else_takes() {
        let given = NetworkDelay { response: us(70), ..given() };
        let mut fetching = Fetching::new(given, SLO);
        fetching.set_objective(us(10_000), us(3_000));
        assert_eq!(fetching.room, us(10_000 - 70 - 50 - 3_000));
        fetching.set_objective(us(10_000), us(5_000));
        assert_eq!(fetching.room, us(10_000 - 70 - 50 - 5_000), "another profile");
    }

    #[test]
    fn until_it_is_measured_the_cluster_file_says_and_no_time_is_known() {
        let fetching = Fetching::new(given(), SLO);
        assert_eq!(fetching.network(), given());
        assert_eq!(fetching.fetched_at(us(7), 16, Nanos::ZERO), None);
    }

    #[test]
    fn it_follows_a_network_that_takes_another_time() {
        for (before, per_task) in [(us(0), us(1)), (us(80), us(60)), (us(500), us(300))] {
            let took = |batch: u32| before + per_task.times(batch.into());
            let fetching = measured(&[4, 60, 17], took);
            is_near(fetching.network().data_per_task, per_task);
            is_near(fetching.network().before(30), given().ctrl + took(30));
            is_near(fetching.fetched_at(us(7), 30, Nanos::ZERO).unwrap(), us(57) + took(30));
        }
    }

    #[test]
    fn batches_of_one_size_take_what_they_took() {
        for size in [1, 16, 256] {
            let fetching = measured(&[size], |batch| us(60).times(batch.into()));
            is_near(fetching.expected(size), us(60).times(size.into()));
        }
    }

    #[test]
    fn what_stalls_small_batches_does_not_make_inputs_dear() {
        let fetching = measured(&[1, 4, 2, 3], |_| us(4_500));
        assert!(fetching.network().data_per_task < us(20), "{:?}", fetching.network());
        assert!(fetching.expected(64) < us(6_000));
    }

    #[test]
    fn behind_others_a_batch_begins_to_be_fetched_when_they_are_there() {
        let fetching = measured(&[4, 60, 17], |batch| us(60).times(batch.into()));
        for wait in [0, 50, 400] {
            let begins = us(wait).max(given().ctrl);
            is_near(fetching.behind(us(wait)).before(10), begins + us(600));
            is_near(fetching.fetched_at(us(7), 10, us(wait)).unwrap(), us(607) + begins);
        }
    }

    #[test]
    fn the_margin_is_what_the_inputs_of_one_batch_in_a_hundred_exceed() {
        let mut fetching = measured(&[16, 32], |batch| us(20).times(batch.into()));
        let without = fetching.network().ctrl;
        let late = |i: u32| if i.is_multiple_of(50) { us(900) } else { us(100) };
        (0..9_000).for_each(|i| fetching.observe(16, us(320), late(i)));
        let margin = fetching.network().ctrl - without;
        assert!((us(800)..us(1_100)).contains(&margin), "one in fifty is 900 µs late: {margin:?}");
        (0..9_000).for_each(|_| fetching.observe(16, us(320), Nanos::ZERO));
        is_near(fetching.network().ctrl, without);
    }

    #[test]
    fn without_measurements_it_returns_to_the_cluster_file() {
        let mut fetching = measured(&[60, 4], |batch| us(200).times(batch.into()));
        (0..PATIENCE).for_each(|_| fetching.relax());
        is_near(fetching.network().data_per_task, us(200));
        (0..200).for_each(|_| fetching.relax());
        assert_eq!(fetching.network(), given());
        assert_eq!(fetching.fetched_at(us(7), 16, Nanos::ZERO), None);
    }

    #[test]
    fn a_silence_that_is_over_makes_nothing_fade() {
        let mut fetching = measured(&[60, 4], |batch| us(200).times(batch.into()));
        (0..=PATIENCE).for_each(|_| fetching.relax());
        fetching.observe(60, us(12_000), Nanos::ZERO);
        let measured = fetching.network();
        (0..PATIENCE).for_each(|_| fetching.relax());
        assert_eq!(fetching.network(), measured);
    }

    proptest! {
        #[test]
        fn a_lone_task_always_has_time_left_for_its_execution(
            samples in prop::collection::vec((1..300u32, any::<u64>(), any::<u64>()), 1..300),
            slo_us in 1..1_000_000u64,
        ) {
            let (slo, mut fetching) = (us(slo_us), Fetching::new(given(), SLO));
            for (batch, time, late) in samples {
                fetching.observe(batch, Nanos(time), Nanos(late));
            }
            let alone = Nanos(slo.0 / 3);
            fetching.set_objective(slo, alone);
            let room = slo - given().ctrl - alone;
            let most = Nanos(room.0 / 4 * 3 + 3).max(Nanos(room.0 / 2) + given().data_per_task);
            prop_assert!(fetching.network().before(1) - given().ctrl <= most);
        }
    }

    #[test]
    fn what_was_measured_long_ago_counts_less() {
        let mut fetching = measured(&[4, 60, 17], |batch| us(300).times(batch.into()));
        let sizes = [4, 60, 17].into_iter().cycle().take(400);
        sizes.for_each(|batch| fetching.observe(batch, us(60).times(batch.into()), Nanos::ZERO));
        is_near(fetching.network().data_per_task, us(60));
    }

    #[test]
    fn a_line_begins_where_batches_of_nothing_would() {
        let fetching = measured(&[4, 60, 17], |batch| us(500) + us(20).times(batch.into()));
        is_near(fetching.before, us(500));
        assert_eq!(fetching.network().ctrl, given().ctrl + fetching.before);
    }

    /// A line that began below zero would ask nothing of small batches, and too much of large ones.
    #[test]
    fn no_input_takes_longer_than_the_mean() {
        let fetching = measured(&[30, 60], |batch| if batch == 30 { us(0) } else { us(6_000) });
        is_near(fetching.network().data_per_task, us(6_000 / 90));
    }

    #[test]
    fn what_was_measured_fades_slowly_once_nothing_has_been_for_long() {
        let mut fetching = measured(&[60, 4], |batch| us(200).times(batch.into()));
        fetching.observe(60, us(12_000), us(9_000));
        let margin = fetching.margin;
        assert_eq!(fetching.network().ctrl, given().ctrl + fetching.before + margin);
        (0..PATIENCE).for_each(|_| fetching.relax());
        assert_eq!(fetching.margin, margin, "not yet");
        fetching.relax();
        assert_eq!(fetching.margin, Nanos(margin.0 / 2));
        (0..20).for_each(|_| fetching.relax());
        is_near(fetching.network().data_per_task, us(200));
        assert!(fetching.fetched_at(us(7), 16, Nanos::ZERO).is_some());
    }

    #[test]
    fn what_is_in_time_needs_no_margin() {
        let mut fetching = measured(&[4, 60, 17], |batch| us(60).times(batch.into()));
        for _ in 0..3 {
            fetching.observe(4, us(240), Nanos::ZERO);
            assert_eq!(fetching.margin, Nanos::ZERO);
        }
    }

    #[test]
    fn no_input_takes_more_than_a_quarter_of_what_an_objective_leaves() {
        let fetching = measured(&[1, 2], |batch| us(15_000).times(batch.into()));
        assert_eq!(fetching.network().data_per_task, us(10_000));
    }
}
