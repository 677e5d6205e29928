//! Processes: an agent or several, a clock, and when each is to be polled.

use std::sync::Arc;

use baton_backend::Worker;
use baton_client::io::{ClientIo, Joining};
use baton_client::{Client, ConnectError};
use baton_core::Nanos;
use baton_scheduler::Assembly;
use baton_topo::{Agent, PARK_MAX};
use rand::RngExt;
use rand::rngs::StdRng;

use crate::clock::SkewedClock;
use crate::gpu::SimGpu;
use crate::network::{Bell, HostId};
use crate::world::SimTransport;

/// What an agent tries again so often, it may find done before its timer: room in a connection, for example.
const RETRY: Nanos = Nanos::from_millis(1);
/// From a wake-up to the pass it causes.
const WAKE: Nanos = Nanos::from_micros(3);

/// When an agent is polled.
#[derive(Debug)]
pub struct Line {
    due: Nanos,
    /// Something has asked for the next pass: another agent, the network, its own last pass, or its timer.
    asked_for: bool,
    /// When the agent asked to be polled again; [`Nanos::MAX`]: never.
    timer: Nanos,
    bell: Arc<Bell>,
    /// The agent has a transport: all but the RankThread.
    has_port: bool,
    /// The agent's thread stands still until then.
    frozen_until: Nanos,
    /// When it was polled last.
    pub polled: Nanos,
}

impl Line {
    pub(crate) fn new(now: Nanos) -> Self {
        let (bell, frozen_until) = (Arc::default(), Nanos::ZERO);
        let (asked_for, timer, has_port) = (true, Nanos::MAX, false);
        Self { due: now, asked_for, timer, bell, has_port, frozen_until, polled: now }
    }

    /// For the port of the agent's transport.
    pub(crate) fn bell(&mut self) -> Arc<Bell> {
        self.has_port = true;
        Arc::clone(&self.bell)
    }

    /// Not before `now`, however frozen.
    pub(crate) fn wake(&mut self, at: Nanos) {
        self.due = self.due.min(at);
        self.asked_for = true;
    }

    /// Stands still until then.
    pub fn freeze(&mut self, until: Nanos) {
        self.frozen_until = self.frozen_until.max(until);
    }

    /// Goes on at once.
    pub fn thaw(&mut self, now: Nanos) {
        self.frozen_until = self.frozen_until.min(now);
    }

    /// Until when it stands still, or last did.
    pub fn frozen_until(&self) -> Nanos {
        self.frozen_until
    }

    /// `sooner`: something else it waits for.
    pub(crate) fn is_due(&mut self, now: Nanos, sooner: Option<Nanos>) -> bool {
        if self.bell.take() {
            self.wake(now + WAKE);
        }
        self.asked_for |= sooner.is_some_and(|at| at <= now);
        self.next(sooner) <= now
    }

    pub(crate) fn next(&self, sooner: Option<Nanos>) -> Nanos {
        let rung = self.bell.has_rung().then_some(Nanos::ZERO);
        let due = [Some(self.due), sooner, rung].into_iter().flatten().min().unwrap_or(self.due);
        due.max(self.frozen_until)
    }

    /// One pass; another follows. Where nothing was done, the agent waits as its thread would: a transport that could go
    /// on at once returns from that at once.
    pub(crate) fn poll(
        &mut self,
        agent: &mut impl Agent,
        now: Nanos,
        next: NextPass,
        clock: SkewedClock,
    ) -> Pass {
        self.polled = now;
        // Another agent may have rung in the same moment.
        let has_rung = self.bell.has_rung();
        let is_asked_for = self.asked_for || has_rung || self.timer <= now + RETRY;
        let work = agent.poll(clock.at(now));
        // It hears every wake from now on.
        agent.waker().prepare_sleep();
        let goes_on =
            work > 0 || self.has_port && !self.bell.sleeps(|| agent.wait(Some(Nanos::ZERO)));
        self.timer = agent.next_timer().map_or(Nanos::MAX, |due| clock.when(due));
        let at_latest = now + next.early.unwrap_or_else(|| agent.sleep_max());
        let idle = self.timer.min(at_latest).max(now + next.with_work);
        self.due = if goes_on { now + next.with_work } else { idle };
        self.asked_for = goes_on;
        Pass { work, overslept: work > 0 && !is_asked_for }
    }
}

/// How soon a pass follows another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextPass {
    /// After one with work.
    pub(crate) with_work: Nanos,
    /// After one without, where not even a timer asks for it; `None`: when the agent's thread would wake by itself.
    early: Option<Nanos>,
}

impl NextPass {
    /// Sometimes much sooner than in production: an agent that is not asked for must have nothing to do.
    pub(crate) fn draw(rng: &mut StdRng) -> Self {
        let with_work = Nanos(rng.random_range(1_000..10_000));
        let early = match rng.random_range(0..16) {
            0 => Some(Nanos(rng.random_range(10_000..PARK_MAX.0))),
            _ => None,
        };
        Self { with_work, early }
    }
}

/// What came of polling an agent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pass {
    /// How much there was to do.
    pub(crate) work: usize,
    /// There was work although nothing had asked for the pass: in production the agent's thread would have slept on.
    pub(crate) overslept: bool,
}

impl BackendProcess {
    /// Whether one of its slots loads a model.
    pub(crate) fn is_loading(&self) -> bool {
        self.gpus.iter().any(SimGpu::is_loading)
    }
}

/// The scheduler.
pub struct SchedulerProcess {
    /// Its agents.
    pub assembly: Assembly<SimTransport>,
    /// Which life.
    pub host: HostId,
    /// Its clock.
    pub clock: SkewedClock,
    pub(crate) control_line: Line,
    pub(crate) rank_line: Line,
    pub(crate) thread_lines: Vec<Line>,
}

impl SchedulerProcess {
    pub(crate) fn new(
        assembly: Assembly<SimTransport>,
        host: HostId,
        clock: SkewedClock,
        control_line: Line,
        thread_lines: Vec<Line>,
        now: Nanos,
    ) -> Self {
        let rank_line = Line::new(now);
        Self { assembly, host, clock, control_line, rank_line, thread_lines }
    }

    pub(crate) fn lines(&self) -> impl Iterator<Item = &Line> {
        [&self.control_line, &self.rank_line].into_iter().chain(&self.thread_lines)
    }

    /// The threads: control, rank, and the ModelThreads.
    pub fn lines_mut(&mut self) -> impl Iterator<Item = &mut Line> {
        [&mut self.control_line, &mut self.rank_line].into_iter().chain(&mut self.thread_lines)
    }

    /// When the thread that was frozen longest goes on, or did.
    pub fn frozen_until(&self) -> Nanos {
        self.lines().map(Line::frozen_until).max().unwrap_or(Nanos::ZERO)
    }
}

/// A backend.
pub struct BackendProcess {
    /// Its I/O agent.
    pub worker: Worker<SimTransport, SimGpu>,
    /// Its GPU slots.
    pub gpus: Vec<SimGpu>,
    /// Its position in the cluster file.
    pub at: usize,
    /// Which life.
    pub host: HostId,
    /// Its clock.
    pub clock: SkewedClock,
    /// When it is polled.
    pub line: Line,
    /// It was asked to leave.
    pub(crate) is_leaving: bool,
}

/// A client.
pub struct FrontendProcess {
    /// Its I/O agent.
    pub io: ClientIo<SimTransport>,
    joining: Option<Joining>,
    client: Option<Client>,
    departed: bool,
    /// Why it could not join.
    pub refused: Option<ConnectError>,
    /// What the application calls it.
    pub number: usize,
    /// Which life.
    pub host: HostId,
    /// Its clock.
    pub clock: SkewedClock,
    /// When it is polled.
    pub line: Line,
    /// Its last passes had work: there may be outcomes.
    pub(crate) news: bool,
    /// Its client was open after its last pass.
    is_open: bool,
    /// The life of the scheduler that its client was let in by last; 0: by none yet.
    pub(crate) life: usize,
}

impl FrontendProcess {
    /// How often its client has joined or is about to.
    pub(crate) fn lives(&self) -> u64 {
        self.client.as_ref().map_or(0, |client| client.counters().reconnects + 2)
    }

    pub(crate) fn new(
        io: ClientIo<SimTransport>,
        joining: Joining,
        number: usize,
        host: HostId,
        clock: SkewedClock,
        line: Line,
    ) -> Self {
        let (joining, client, refused) = (Some(joining), None, None);
        let departed = false;
        Self {
            io,
            joining,
            client,
            departed,
            refused,
            number,
            host,
            clock,
            line,
            news: false,
            is_open: false,
            life: 0,
        }
    }

    /// The application's handle; `None` until it has joined, and after it has let go.
    pub fn client(&self) -> Option<&Client> {
        self.client.as_ref()
    }

    /// The application has no more use for it.
    pub fn let_go(&mut self) {
        self.departed = true;
        self.client = None;
    }

    /// It has joined, or has no need to.
    pub fn is_settled(&self) -> bool {
        self.departed || self.client.is_some()
    }

    /// After a pass: notes who has let its client in, if that was just now; `scheduler` is the life of the present one.
    pub(crate) fn note_life(&mut self, scheduler: usize) {
        let is_open = self.client.as_ref().is_some_and(|client| client.loss().is_none());
        if is_open && !self.is_open {
            self.life = scheduler;
        }
        self.is_open = is_open;
    }

    pub(crate) fn take_client(&mut self) {
        if let Some(result) = self.joining.as_ref().and_then(Joining::poll) {
            self.joining = None;
            match result {
                Ok(client) => self.client = Some(client),
                Err(error) => self.refused = Some(error),
            }
        }
    }
}
