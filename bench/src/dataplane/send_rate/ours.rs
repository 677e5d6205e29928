//! Plans over the production transport, there and back.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use baton_core::Nanos;
use baton_rdma::wire::{Hello, Message, Plan, Role};
use baton_rdma::{ConnId, Event, Events, Identity, TcpConfig, TcpTransport, Transport};
use baton_topo::{Clock, Idle, Placement, Waker, prepare_thread};

use super::super::PullError;
use super::{PLAN_LEN, SendRate, TASK_LEN, Turn, place};

/// Connecting, or an answer, on a busy machine.
const PATIENCE: Nanos = Nanos::from_millis(10_000);
/// A side that waits looks this often whether it is to end.
const LOOK: Nanos = Nanos::from_millis(50);

/// The sender's side.
pub(super) struct Ours {
    clock: Clock,
    idle: Idle,
    depth: u64,
    transport: TcpTransport,
    conn: ConnId,
    events: Events,
    /// The tasks of every plan, as they travel.
    tasks: Vec<u8>,
    /// Number of the next plan to send, and of the next expected back.
    sent: u64,
    answered: u64,
    turn: Arc<Turn>,
    waker: Waker,
    responder: Option<JoinHandle<()>>,
}

impl Ours {
    pub(super) fn start(run: &SendRate, clock: Clock) -> Result<Self, PullError> {
        let system = |what| move |source| PullError::System { what, source };
        let here = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let bind = |listen, role| {
            TcpTransport::bind(listen, Identity { role, member: 0 }, TcpConfig::default())
        };
        let responder =
            bind(Some(here), Role::Backend).map_err(system("the responder's socket"))?;
        let mut transport = bind(None, Role::ModelThread).map_err(system("the sender's socket"))?;
        let hello = Hello::new(Role::ModelThread, 0, 0);
        let conn =
            transport.connect(responder.local_addr(), hello).map_err(system("connecting"))?;
        let (turn, waker) = (Arc::<Turn>::default(), responder.waker());
        let (placement, their_turn) = (place(run, "bench-responder", 1), Arc::clone(&turn));
        let name = placement.name.clone();
        let respond = move || respond(responder, clock, &placement, &their_turn);
        let thread = thread::Builder::new().name(name).spawn(respond);
        let tasks = (0..(run.bytes - PLAN_LEN) / TASK_LEN).flat_map(|n| u64::from(n).to_le_bytes());
        Ok(Self {
            clock,
            idle: run.idle,
            depth: run.depth.into(),
            transport,
            conn,
            events: Events::new(),
            tasks: tasks.collect(),
            sent: 0,
            answered: 0,
            turn,
            waker,
            responder: Some(thread.map_err(system("the responder's thread"))?),
        })
    }

    /// Sends `count` plans, `depth` of them under way, until all are back; how long that took.
    pub(super) fn stretch(&mut self, count: u64) -> Result<Nanos, PullError> {
        self.give(Turn::WORK);
        let (start, end) = (self.clock.now(), self.sent + count);
        let mut heard = start;
        self.send(self.depth.min(count))?;
        while self.answered < end {
            let now = self.clock.now();
            let came = self.take_answers(now)?;
            if came > 0 {
                heard = now;
            } else if now > heard + PATIENCE {
                return Err(PullError::NotUp);
            }
            self.send(came.min(end - self.sent))?;
            if came == 0 {
                rest(&mut self.transport, self.idle);
            }
        }
        let took = self.clock.now() - start;
        self.give(Turn::REST);
        Ok(took)
    }

    fn send(&mut self, count: u64) -> Result<(), PullError> {
        for _ in 0..count {
            let sent = self.transport.send(self.conn, &plan(self.sent), &self.tasks);
            sent.map_err(|_| PullError::NotUp)?;
            self.sent += 1;
        }
        self.transport.flush();
        Ok(())
    }

    /// How many plans have come back since the last call, each compared with what was sent.
    fn take_answers(&mut self, now: Nanos) -> Result<u64, PullError> {
        let before = self.answered;
        self.transport.poll(now, &mut self.events);
        for event in self.events.drain() {
            match event {
                Event::Message { message: Message::Plan(plan, _), .. }
                    if plan.batch.get() == self.answered =>
                {
                    self.answered += 1;
                }
                Event::Opened { .. } => {}
                Event::Closed { .. } => return Err(PullError::NotUp),
                _ => return Err(PullError::Changed),
            }
        }
        Ok(self.answered - before)
    }

    fn give(&self, turn: u8) {
        let responder = self.responder.as_ref().expect("it ends in drop");
        self.turn.set(turn, responder.thread());
        self.waker.wake();
    }
}

impl Drop for Ours {
    fn drop(&mut self) {
        self.give(Turn::END);
        if self.responder.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the responder panicked");
        }
    }
}

/// Sends back what comes.
fn respond(mut transport: TcpTransport, clock: Clock, placement: &Placement, turn: &Turn) {
    prepare_thread(placement);
    let mut events = Events::new();
    while turn.await_turn() {
        // Only handshakes look at the time.
        if transport.poll(clock.now(), &mut events) == 0 {
            rest(&mut transport, placement.idle);
        }
        for event in events.drain() {
            if let Event::Message { conn, message: Message::Plan(plan, tasks) } = event
                && let Err(error) = transport.send(conn, plan, zerocopy::IntoBytes::as_bytes(tasks))
            {
                tracing::error!(%error, "could not answer");
            }
        }
        transport.flush();
    }
}

fn rest(transport: &mut TcpTransport, idle: Idle) {
    match idle {
        Idle::Spin => std::hint::spin_loop(),
        Idle::Yield => thread::yield_now(),
        Idle::Park => transport.wait(Some(LOOK)),
    }
}

fn plan(batch: u64) -> Plan {
    let zero = 0.into();
    Plan {
        batch: batch.into(),
        exec_at_ns: zero,
        invalid_after_ns: zero,
        model: 0.into(),
        gpu: 0.into(),
    }
}
