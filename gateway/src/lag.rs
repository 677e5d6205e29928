//! How long requests and answers wait for this gateway's threads. Deadlines allow for it: a scheduler that defers, or sheds load,
//! has answers executed as late as their deadlines let it, and what a busy gateway adds to that makes them late.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use baton_client::{Nanos, Timing};
use baton_metrics::Metric;

/// Of the difference to a longer wait, the part that is taken over; of that to a shorter one, [`FALL`].
const RISE: u64 = 8;
/// With [`RISE`] it is the expectile of 64/65: a few answers of a hundred wait longer than what is kept.
const FALL: u64 = 512;
/// A single wait counts as no more than twice what is kept and this, for a stop of the whole machine is none of the gateway's.
const JUMP: Nanos = Nanos::from_millis(1);
/// Of the time that a request gives, at most this part is allowed for the gateway.
const PART: u32 = 8;

/// How long answers wait; all threads of a gateway learn it together. Relaxed: a value that is lost is followed by others.
#[derive(Debug, Default)]
pub(crate) struct Lag(AtomicU64);

impl Lag {
    /// The answer of such a task is handed on at `now`.
    pub(crate) fn learn(&self, timing: &Timing, now: Nanos) {
        // Where the execution's end is not known well, from when the answer was seen.
        let since =
            timing.landed.min(Nanos(timing.finished.0.saturating_add(timing.clock_error.0)));
        self.took(now - since);
    }

    fn took(&self, wait: Nanos) {
        let known = self.0.load(Ordering::Relaxed);
        let wait = wait.0.min(2 * known + JUMP.0);
        let next = if wait > known {
            known + (wait - known) / RISE
        } else {
            known - (known - wait) / FALL
        };
        self.0.store(next, Ordering::Relaxed);
    }

    /// How long all but a few of a hundred answers wait at most.
    pub(crate) fn get(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }

    /// As Prometheus scrapes it.
    pub(crate) fn metric(&self) -> Metric {
        let help = "How long all but a few of a hundred answers wait at most for the gateway's threads; twice that is taken off deadlines";
        Metric::gauge("baton_gateway_lag_seconds", help, self.get().as_secs_f64())
    }

    /// What a request that gives `span` leaves to the gateway. It waits for the same threads on its way in as its answer does on
    /// the way out.
    fn allowance(&self, span: Duration) -> Duration {
        (self.get() * 2).min(span / PART)
    }

    /// What is left of a span for a task, of which so much has passed, less what the gateway will take; `None`: nothing.
    pub(crate) fn left(&self, span: Duration, passed: Duration) -> Option<Duration> {
        span.checked_sub(passed + self.allowance(span)).filter(|left| !left.is_zero())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPAN: Duration = Duration::from_millis(100);

    fn after(waits_us: impl IntoIterator<Item = u64>) -> Duration {
        let lag = Lag::default();
        waits_us.into_iter().for_each(|us| lag.took(Nanos::from_micros(us)));
        lag.allowance(SPAN)
    }

    #[test]
    fn the_slowest_answers_count_and_what_has_passed_is_forgotten() {
        assert_eq!(after([]), Duration::ZERO);
        let mixed = || (0..2_000).map(|at| if at % 20 == 0 { 4_000 } else { 300 });
        let allowance = after(mixed()).as_micros();
        assert!((4_000..8_000).contains(&allowance), "{allowance} us both ways");
        let calm = after(mixed().chain([100; 4_000])).as_micros();
        assert!((200..500).contains(&calm), "{calm} us");
    }

    #[test]
    fn one_stop_of_the_machine_is_no_lag() {
        let allowance = after([100; 1_000].into_iter().chain([2_000_000])).as_micros();
        assert!((200..600).contains(&allowance), "{allowance} us");
    }

    #[test]
    fn a_task_has_what_is_left_when_its_answer_has_its_way_back() {
        let (lag, ms) = (Lag::default(), Duration::from_millis);
        (0..1_000).for_each(|_| lag.took(Nanos::from_millis(900)));
        let left = [0, 80, 87, 88, 120].map(|passed| lag.left(SPAN, ms(passed)));
        let expected = [(87, 500), (7, 500), (0, 500)]
            .map(|(whole, us)| Some(ms(whole) + Duration::from_micros(us)));
        assert_eq!((&left[..3], &left[3..]), (&expected[..], &[None, None][..]));
        assert_eq!(Lag::default().left(SPAN, SPAN), None, "nothing is no time");
    }

    #[test]
    fn requests_keep_most_of_their_time() {
        assert_eq!(after([900_000; 1_000]), SPAN / 8);
    }

    #[test]
    fn an_answer_waits_from_the_end_of_its_execution_where_that_is_known() {
        let timing = |finished, clock_error| Timing {
            submitted: Nanos(0),
            started: Nanos(0),
            finished: Nanos::from_micros(finished),
            landed: Nanos::from_micros(1_000),
            deadline: Nanos(0),
            clock_error,
            batch_size: 1,
            gpu: baton_client::GpuId(0),
            variant: 0,
            cold: false,
        };
        let learned = |finished, error| {
            let lag = Lag::default();
            lag.learn(&timing(finished, error), Nanos::from_micros(1_400));
            lag.get().as_micros()
        };
        let cases = [(600, Nanos(0), 100), (600, Nanos::from_micros(200), 75)];
        let unknown = [(600, Nanos::MAX, 50), (1_000, Nanos::MAX, 50)];
        for (finished, error, eighth) in cases.into_iter().chain(unknown) {
            assert_eq!(learned(finished, error), eighth, "{finished} us, {error:?}");
        }
    }
}
