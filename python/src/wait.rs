//! Waiting: without the interpreter, and with a look at its signals.

use std::future::Future;
use std::pin::Pin;
use std::time::Duration;

use baton_client::{Clock, Nanos, wait_for};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// Ctrl-C is noticed after this long at most.
const ROUND: Duration = Duration::from_millis(100);

/// Seconds, as Python gives them. `None`: for ever.
pub(crate) fn timeout(seconds: Option<f64>, argument: &str) -> PyResult<Duration> {
    seconds.map_or(Ok(Duration::MAX), |seconds| span(seconds, argument))
}

/// Longer than a duration can be is as long as one can be.
pub(crate) fn span(seconds: f64, argument: &str) -> PyResult<Duration> {
    if seconds.is_nan() || seconds < 0.0 {
        let words = format!("{argument} is {seconds}: give seconds, 0 or more");
        return Err(PyValueError::new_err(words));
    }
    Ok(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX))
}

/// Looks in rounds until there is something or the timeout has passed. Between them the interpreter handles signals,
/// whose exception ends the wait.
pub(crate) fn in_rounds<T: Send>(
    py: Python<'_>,
    timeout: Duration,
    mut look: impl FnMut(Duration) -> Option<T> + Send,
) -> PyResult<Option<T>> {
    let clock = Clock::start();
    let until = clock.now() + Nanos(u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
    loop {
        let left = Duration::from_nanos((until - clock.now()).0);
        if let Some(found) = py.detach(|| look(left.min(ROUND))) {
            return Ok(Some(found));
        }
        py.check_signals()?;
        if left <= ROUND && clock.now() >= until {
            return Ok(None);
        }
    }
}

/// [`in_rounds`] for a future, which stays the same one.
pub(crate) fn for_future<F: Future + Send>(
    py: Python<'_>,
    timeout: Duration,
    mut future: Pin<Box<F>>,
) -> PyResult<Option<F::Output>>
where
    F::Output: Send,
{
    in_rounds(py, timeout, |round| wait_for(future.as_mut(), round))
}
