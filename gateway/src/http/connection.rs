//! One connection: serves it, and ends it when its client asks for nothing or takes no answers.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use baton_client::Nanos;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulConnection;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time;

use super::calls;
use super::preface::begin;
use crate::accept::Open;
use crate::gateway::App;
use crate::limits::Limits;

/// How often a connection is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Bytes that a connection reads at once at most, and that its client may send in one frame of HTTP/2: an image of 224 by 224
/// pixels takes one read of the system, or two. Each connection may keep as many.
const READ: usize = 256 << 10;
/// HTTP/2: bytes that may be under way to a request, and to all of a connection.
const STREAM_WINDOW: u32 = 1 << 20;
const CONNECTION_WINDOW: u32 = 4 << 20;
/// HTTP/2: how often a silent peer has to show that it lives, and within what time.
const PING: Duration = Duration::from_secs(20);

/// Serves a connection until it ends.
pub(crate) async fn serve<S>(open: Open, stream: S)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let app = Arc::clone(&open.app);
    let activity = Arc::new(Activity::new(app.clock.now()));
    let service = {
        let (app, activity) = (Arc::clone(&app), Arc::clone(&activity));
        service_fn(move |request| {
            let answer = calls::answer(&app, &activity, request);
            async move { Ok::<_, Infallible>(answer.await) }
        })
    };
    let mut drains = app.drains.clone();
    let begun = tokio::select! {
        begun = time::timeout(app.limits.first_request, begin(stream)) => begun,
        _ = drains.changed() => return,
    };
    match begun {
        Ok(Ok((true, stream))) => {
            let connection = http2(&app.limits).serve_connection(TokioIo::new(stream), service);
            watch(&app, &activity, connection).await;
        }
        Ok(Ok((false, stream))) => {
            let connection = http1(&app.limits).serve_connection(TokioIo::new(stream), service);
            watch(&app, &activity, connection).await;
        }
        Ok(Err(error)) => tracing::debug!(%error, "a connection broke"),
        Err(_) => app.counters.connections_idle.add(1),
    }
}

/// Until the connection ends, or has to.
async fn watch<C>(app: &App, activity: &Activity, connection: C)
where
    C: GracefulConnection<Error = hyper::Error>,
{
    let mut connection = pin!(connection);
    let mut look = time::interval(LOOK_EVERY);
    let mut drains = app.drains.clone();
    let mut has_drain = *drains.borrow();
    if has_drain {
        connection.as_mut().graceful_shutdown();
    }
    loop {
        tokio::select! {
            biased;
            ended = &mut connection => {
                if let Err(error) = ended {
                    tracing::debug!(%error, "a connection broke");
                }
                return;
            }
            _ = look.tick() => match activity.fault(app.clock.now(), &app.limits) {
                Some(Fault::Idle) => return app.counters.connections_idle.add(1),
                Some(Fault::Stalled) => return app.counters.connections_stalled.add(1),
                None => {}
            },
            _ = drains.changed(), if !has_drain => {
                has_drain = true;
                connection.as_mut().graceful_shutdown();
            }
        }
    }
}

fn http1(limits: &Limits) -> http1::Builder {
    let mut builder = http1::Builder::new();
    // How long headers may take is seen to by `Activity`, without a timer for each request.
    builder.max_header_size(limits.head_bytes as usize).max_buf_size(READ);
    builder
}

fn http2(limits: &Limits) -> http2::Builder<TokioExecutor> {
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .keep_alive_interval(PING)
        .keep_alive_timeout(PING)
        .max_concurrent_streams(limits.streams)
        .max_header_list_size(limits.head_bytes)
        .max_frame_size(READ as u32)
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW);
    builder
}

/// Why a connection is to be closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    /// Its client asks for nothing.
    Idle,
    /// Its client does not take an answer.
    Stalled,
}

/// What a connection's client does.
#[derive(Debug)]
pub(crate) struct Activity(Mutex<State>);

#[derive(Debug)]
struct State {
    /// When the connection began, or a request or an answer was done.
    last: Nanos,
    has_asked: bool,
    /// Requests that are not answered yet.
    requests: usize,
    /// When answers came that are not handed to the system yet, in order; `None`: one was, and an earlier one was not.
    answers: VecDeque<Option<Nanos>>,
    /// The number of the first of them.
    first: u64,
}

impl Activity {
    fn new(now: Nanos) -> Self {
        let (requests, answers, first) = (0, VecDeque::new(), 0);
        Self(Mutex::new(State { last: now, has_asked: false, requests, answers, first }))
    }

    /// A request has come.
    pub(crate) fn asked(&self) {
        let mut state = self.lock();
        state.has_asked = true;
        state.requests += 1;
    }

    /// It is answered, or its client is gone.
    pub(crate) fn answered(&self, now: Nanos) {
        let mut state = self.lock();
        state.requests -= 1;
        state.last = now;
    }

    /// An answer is to be handed to the system. Returns its number.
    pub(crate) fn begins(&self, now: Nanos) -> u64 {
        let mut state = self.lock();
        state.answers.push_back(Some(now));
        state.first + state.answers.len() as u64 - 1
    }

    /// It was.
    pub(crate) fn delivered(&self, number: u64, now: Nanos) {
        let mut state = self.lock();
        let at = (number - state.first) as usize;
        state.answers[at] = None;
        while state.answers.front().is_some_and(Option::is_none) {
            state.answers.pop_front();
            state.first += 1;
        }
        state.last = now;
    }

    fn fault(&self, now: Nanos, limits: &Limits) -> Option<Fault> {
        let state = self.lock();
        let is_over = |since: Nanos, span: Duration| u128::from((now - since).0) > span.as_nanos();
        let oldest = state.answers.front().copied().flatten();
        if oldest.is_some_and(|since| is_over(since, limits.answer)) {
            return Some(Fault::Stalled);
        }
        let span = if state.has_asked { limits.idle } else { limits.first_request };
        let is_busy = state.requests > 0 || !state.answers.is_empty();
        (!is_busy && is_over(state.last, span)).then_some(Fault::Idle)
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Nanos {
        Nanos::from_millis(1_000 * seconds)
    }

    #[test]
    fn who_never_asks_has_less_time_than_who_has_asked() {
        let limits = Limits::default();
        let activity = Activity::new(at(0));
        let fault = |now| activity.fault(at(now), &limits);
        assert_eq!((fault(10), fault(11)), (None, Some(Fault::Idle)));
        activity.asked();
        assert_eq!(fault(1_000), None, "it waits for its answer");
        activity.answered(at(1_000));
        assert_eq!((fault(1_060), fault(1_061)), (None, Some(Fault::Idle)));
    }

    #[test]
    fn an_answer_that_is_not_taken_ends_the_connection_whatever_else_happens_on_it() {
        let limits = Limits::default();
        let activity = Activity::new(at(0));
        activity.asked();
        let first = activity.begins(at(5));
        activity.answered(at(5));
        let second = activity.begins(at(20));
        activity.delivered(second, at(21));
        activity.asked();
        assert_eq!(activity.fault(at(35), &limits), None);
        assert_eq!(activity.fault(at(36), &limits), Some(Fault::Stalled));
        activity.delivered(first, at(36));
        assert_eq!(activity.fault(at(36), &limits), None);
        let third = activity.begins(at(37));
        assert_eq!(activity.fault(at(68), &limits), Some(Fault::Stalled));
        activity.delivered(third, at(68));
        assert_eq!(activity.fault(at(68), &limits), None);
    }

    #[test]
    fn a_connection_is_idle_once_its_last_answer_has_been_taken() {
        let limits = Limits::default();
        let activity = Activity::new(at(0));
        activity.asked();
        let answer = activity.begins(at(5));
        activity.answered(at(5));
        activity.delivered(answer, at(25));
        let fault = |now| activity.fault(at(now), &limits);
        assert_eq!((fault(85), fault(86)), (None, Some(Fault::Idle)));
    }

    /// Of three requests one is still executed and the answer of another is being taken when the last one is over.
    #[test]
    fn what_is_asked_for_or_taken_is_not_idle_however_long_that_lasts() {
        let [idle, answer] = [1, 100].map(Duration::from_secs);
        let limits = Limits { idle, first_request: answer, answer, ..Limits::default() };
        let activity = Activity::new(at(0));
        let fault = |now| activity.fault(at(now), &limits);
        (0..3).for_each(|_| activity.asked());
        assert_eq!(fault(90), None, "three are executed");
        let [slow, quick] = [10, 20].map(|now| activity.begins(at(now)));
        [10, 20].into_iter().for_each(|now| activity.answered(at(now)));
        activity.delivered(quick, at(30));
        assert_eq!(fault(90), None, "one is executed, one taken");
        activity.answered(at(50));
        assert_eq!((fault(110), fault(111)), (None, Some(Fault::Stalled)), "one is taken");
        activity.delivered(slow, at(112));
        assert_eq!((fault(113), fault(114)), (None, Some(Fault::Idle)));
    }

    #[test]
    fn an_answer_that_is_taken_leaves_the_next_one_under_way() {
        let limits = Limits { answer: Duration::from_secs(10), ..Limits::default() };
        let activity = Activity::new(at(0));
        (0..2).for_each(|_| activity.asked());
        let [first, second] = [5, 7].map(|now| activity.begins(at(now)));
        (0..2).for_each(|_| activity.answered(at(7)));
        activity.delivered(first, at(8));
        let fault = |now| activity.fault(at(now), &limits);
        assert_eq!((fault(17), fault(18)), (None, Some(Fault::Stalled)));
        activity.delivered(second, at(18));
        assert_eq!(fault(18), None);
    }
}
