//! The load under way: dispatches what is due and counts what became of it, on one thread.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use baton_core::Nanos;
use baton_topo::Clock;
use baton_topo::signature::{Row, TensorRef};
use tokio::sync::Notify;
use tokio::task;
use tokio::time;

use super::deadline::SendDeadline;
use super::link::{Answer, Call, JSON_LENGTH, Link, digits};
use super::outcome::Refused;
use super::request::{Encoded, Encoder, Encoding};
use super::timer::Timer;
use super::{answer, url::Protocol};
use crate::load::{Due, Expected, Inputs, Progress, Supply, Tally, Verdict};

/// Arrivals dispatched before answers are looked at again.
const BURST_MAX: usize = 256;
/// Requests that wait for a connection, or are under way.
const OUTSTANDING_MAX: usize = 65_536;
/// How long past its deadline a request is waited for.
const GIVE_UP: Nanos = Nanos::from_millis(10_000);
/// A server that refuses connections is not asked more often by one of them.
const CONNECT_AGAIN: Duration = Duration::from_millis(10);

/// A model under load.
pub(super) struct Target {
    pub(super) name: String,
    pub(super) path: String,
    pub(super) row: Row,
    pub(super) outputs: Vec<baton_topo::signature::TensorSpec>,
    pub(super) encoder: Encoder,
    pub(super) inputs: Inputs,
    /// How long a task may take if its arrival does not say.
    pub(super) within: Nanos,
    pub(super) tally: Tally,
    pub(super) platform: String,
}

/// A task that waits for a connection.
#[derive(Clone, Copy)]
struct Job {
    model: usize,
    number: u64,
    due: Nanos,
    deadline: Nanos,
}

struct State {
    targets: Vec<Target>,
    supply: Supply,
    queue: VecDeque<Job>,
    outstanding: usize,
}

/// What the generator and its requests share.
pub(super) struct Load {
    clock: Clock,
    protocol: Protocol,
    encoding: Encoding,
    send_deadline: SendDeadline,
    state: RefCell<State>,
    /// A job has come, or none will.
    work: Notify,
    /// A job has ended.
    ended: Notify,
}

impl Load {
    pub(super) fn new(
        clock: Clock,
        (protocol, encoding): (Protocol, Encoding),
        send_deadline: SendDeadline,
        targets: Vec<Target>,
        supply: Supply,
    ) -> Rc<Self> {
        let (queue, outstanding) = (VecDeque::new(), 0);
        let state = RefCell::new(State { targets, supply, queue, outstanding });
        let (work, ended) = (Notify::new(), Notify::new());
        Rc::new(Self { clock, protocol, encoding, send_deadline, state, work, ended })
    }

    /// Offers the load until `end` or `stop`, and waits for what becomes of it. Returns until when it was offered.
    pub(super) async fn run(
        self: &Rc<Self>,
        links: Vec<Link>,
        (start, end): (Nanos, Nanos),
        progress_every: Nanos,
        stop: &AtomicBool,
        progress: &mut impl FnMut(&Progress),
    ) -> io::Result<Nanos> {
        let timer = Timer::new()?;
        let workers: Vec<_> =
            links.into_iter().map(|link| task::spawn_local(Rc::clone(self).work(link))).collect();
        let mut next_progress = start + progress_every;
        let offered = loop {
            let now = self.clock.now();
            let caught_up = self.dispatch(now.min(end));
            if now >= next_progress {
                progress(&self.progress(now - start));
                next_progress = now + progress_every;
            }
            if stop.load(Ordering::Relaxed) || (now >= end && caught_up) {
                break now.min(end);
            }
            if !caught_up {
                task::yield_now().await;
                continue;
            }
            let next_at = self.state.borrow().supply.next_at();
            let until = next_at.min(end).min(next_progress);
            tokio::select! {
                waited = timer.wait(until - self.clock.now()) => waited?,
                // In a closed loop the end of a task brings the next one.
                () = self.ended.notified(), if next_at == Nanos::MAX => {}
            }
        };
        while self.state.borrow().outstanding > 0 {
            self.ended.notified().await;
        }
        workers.iter().for_each(task::JoinHandle::abort);
        progress(&self.progress(self.clock.now() - start));
        Ok(offered)
    }

    /// False if there are more arrivals than one burst takes.
    fn dispatch(&self, until: Nanos) -> bool {
        for _ in 0..BURST_MAX {
            let due = self.state.borrow_mut().supply.take(until);
            let Some(due) = due else { return true };
            self.arrive(due);
        }
        false
    }

    fn arrive(&self, Due { at: due, model, within }: Due) {
        let mut state = self.state.borrow_mut();
        let target = &mut state.targets[model];
        let number = target.tally.submitted;
        within.into_iter().for_each(|within| target.tally.asks_for(within));
        target.tally.arrival(due, self.clock.now());
        let deadline = due + within.unwrap_or(target.within);
        if state.outstanding >= OUTSTANDING_MAX {
            state.targets[model].tally.refuse_for(due, "generator_full");
            return state.supply.refused(model);
        }
        state.outstanding += 1;
        state.queue.push_back(Job { model, number, due, deadline });
        self.work.notify_one();
    }

    /// Sends one request after the other over a connection.
    async fn work(self: Rc<Self>, link: Link) {
        loop {
            let job = self.state.borrow_mut().queue.pop_front();
            let Some(job) = job else {
                self.work.notified().await;
                continue;
            };
            let end = self.send(&link, job).await;
            let no_connection = end == Err(Refused::Failed("connect_failed".to_owned()));
            self.count(job, end);
            if no_connection {
                time::sleep(CONNECT_AGAIN).await;
            }
        }
    }

    /// The verdict on the answer, and when it came.
    async fn send(&self, link: &Link, job: Job) -> Result<(Verdict, Nanos), Refused> {
        let now = self.clock.now();
        let left = job.deadline - now;
        if self.send_deadline != SendDeadline::No && left == Nanos::ZERO {
            return Err(Refused::Failed("no_connection_in_time".to_owned()));
        }
        let patience = job.deadline + GIVE_UP - now;
        let (call, expected) = self.call(job, left.0.div_ceil(1_000));
        let answer = time::timeout(Duration::from_nanos(patience.0), link.call(call)).await;
        let Ok(answer) = answer else {
            link.cut().await;
            return Err(Refused::Failed("no_answer".to_owned()));
        };
        let answer = answer?;
        let landed = self.clock.now();
        Ok((self.judge(job.model, expected, &answer), landed))
    }

    fn call(&self, job: Job, left_us: u64) -> (Call, Expected) {
        let state = self.state.borrow();
        let target = &state.targets[job.model];
        let mut row = vec![0; target.row.bytes_max() as usize];
        let expected = target.inputs.fill(job.number, &mut row);
        row.truncate(target.inputs.bytes(job.number, row.len()));
        let tensors: Vec<TensorRef<'_>> =
            target.row.unpack(&row).expect("inputs are made for this row");
        let timeout_us = self.send_deadline.parameter(left_us);
        let Encoded { body, json_bytes } = target.encoder.encode(&tensors, timeout_us);
        let mut headers = self.send_deadline.headers(self.protocol, left_us);
        if let Some(bytes) = json_bytes {
            headers.insert(JSON_LENGTH, digits(bytes as u64));
        }
        (Call { path: target.path.clone(), is_get: false, headers, body }, expected)
    }

    fn judge(&self, model: usize, expected: Expected, answer: &Answer) -> Verdict {
        let state = self.state.borrow();
        let Target { inputs, outputs, name, .. } = &state.targets[model];
        if expected == Expected::Unknown {
            return Verdict::Unchecked;
        }
        let tensors = match self.encoding {
            Encoding::Grpc => answer::grpc(answer.body.clone(), outputs),
            Encoding::Json | Encoding::Binary => {
                answer::http(&answer.body, answer.json_bytes, outputs)
            }
        };
        let verdict = tensors.map_or(Verdict::Wrong, |tensors| inputs.judge(expected, 0, &tensors));
        if verdict == Verdict::Wrong {
            tracing::error!(model = name, "wrong answer");
        }
        verdict
    }

    fn count(&self, job: Job, end: Result<(Verdict, Nanos), Refused>) {
        let mut state = self.state.borrow_mut();
        let tally = &mut state.targets[job.model].tally;
        match end {
            Ok((verdict, landed)) => tally.answer_at(job.due, landed, job.deadline, verdict),
            Err(Refused::Shed(reason)) => tally.shed_for(job.due, &reason),
            Err(Refused::Failed(reason)) => tally.refuse_for(job.due, &reason),
        }
        state.supply.ended(job.model);
        state.outstanding -= 1;
        self.ended.notify_one();
    }

    fn progress(&self, since: Nanos) -> Progress {
        let state = self.state.borrow();
        Progress::of(since, state.targets.iter().map(|target| &target.tally))
    }

    /// The models, once the load is over.
    pub(super) fn take_targets(&self) -> Vec<Target> {
        std::mem::take(&mut self.state.borrow_mut().targets)
    }
}
