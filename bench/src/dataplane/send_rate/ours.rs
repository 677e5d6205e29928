//! Messages over the production transport, there and back.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use baton_core::{ModelId, Nanos};
use baton_rdma::wire::{Hello, Message, ModelDesc, Role};
use baton_rdma::{
    ConnId, Event, Events, Identity, MixedTransport, SlabSet, SlabSpec, TcpConfig, TcpTransport,
    Transport,
};
use baton_topo::{Clock, Idle, Placement, TransportChoice, VerbsConfig, Waker, prepare_thread};

use super::super::PullError;
use super::super::harness::{UP_TIMEOUT, patient};
use super::{LEN_MIN, SendRate, Turn, place};

/// A side that waits looks this often whether it is to end.
const LOOK: Nanos = Nanos::from_millis(50);

/// The sender's side.
pub(super) struct Ours<T> {
    clock: Clock,
    idle: Idle,
    depth: u64,
    transport: T,
    conn: ConnId,
    events: Events,
    /// What follows the fixed part of every message.
    tail: Vec<u8>,
    /// Number of the next message to send, and of the next expected back.
    sent: u64,
    answered: u64,
    turn: Arc<Turn>,
    waker: Waker,
    responder: Option<JoinHandle<()>>,
}

impl Ours<TcpTransport> {
    /// As a ModelThread and a backend.
    pub(super) fn over_tcp(run: &SendRate, clock: Clock) -> Result<Self, PullError> {
        let bind = |listen, role| {
            TcpTransport::bind(listen, Identity { role, member: 0 }, TcpConfig::default())
        };
        let responder = bind(Some(here()), Role::Backend);
        let responder = responder.map_err(system("the responder's socket"))?;
        let sender = bind(None, Role::ModelThread).map_err(system("the sender's socket"))?;
        Self::start(run, clock, sender, responder, Role::ModelThread)
    }
}

impl Ours<MixedTransport> {
    /// As a backend and a frontend: the two that have queue pairs. Returns once messages travel there.
    pub(super) fn over_rdma(run: &SendRate, clock: Clock) -> Result<Self, PullError> {
        let verbs = patient(VerbsConfig::default());
        let bind = |listen, role| {
            let (identity, tcp) = (Identity { role, member: 0 }, TcpConfig::default());
            MixedTransport::bind(listen, identity, tcp, TransportChoice::Rdma, &verbs, None, clock)
        };
        let mut responder = bind(Some(here()), Role::Frontend)?;
        // Who has nothing to be read is given no queue pair.
        let spec = SlabSpec { model: ModelId(0), slots: 1, input_bytes: 8, output_bytes: 8 };
        let slabs = SlabSet::new(&[spec], 0)?;
        responder.expose(slabs).map_err(system("the responder's memory"))?;
        let mut ours =
            Self::start(run, clock, bind(None, Role::Backend)?, responder, Role::Backend)?;
        let until = clock.now() + UP_TIMEOUT;
        while ours.transport.counters().messages_rdma == 0 {
            ours.stretch(1)?;
            if clock.now() > until {
                return Err(PullError::NotUp);
            }
        }
        Ok(ours)
    }
}

impl<T: Transport + Send + 'static> Ours<T> {
    fn start(
        run: &SendRate,
        clock: Clock,
        mut transport: T,
        responder: T,
        role: Role,
    ) -> Result<Self, PullError> {
        let conn = transport.connect(responder.local_addr(), Hello::new(role, 0, 0));
        let conn = conn.map_err(system("connecting"))?;
        let (turn, waker) = (Arc::<Turn>::default(), responder.waker());
        let (placement, their_turn) = (place(run, "bench-responder", 1), Arc::clone(&turn));
        let name = placement.name.clone();
        let respond = move || respond(responder, clock, &placement, &their_turn);
        let thread = thread::Builder::new().name(name).spawn(respond);
        Ok(Self {
            clock,
            idle: run.idle,
            depth: run.depth.into(),
            transport,
            conn,
            events: Events::new(),
            tail: vec![b'x'; (run.bytes - LEN_MIN) as usize],
            sent: 0,
            answered: 0,
            turn,
            waker,
            responder: Some(thread.map_err(system("the responder's thread"))?),
        })
    }

    /// Sends `count` messages, `depth` of them under way, until all are back; how long that took.
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
            } else if now > heard + UP_TIMEOUT {
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
            let sent = self.transport.send(self.conn, &numbered(self.sent), &self.tail);
            sent.map_err(|_| PullError::NotUp)?;
            self.sent += 1;
        }
        self.transport.flush();
        Ok(())
    }

    /// How many messages have come back since the last call, each compared with what was sent.
    fn take_answers(&mut self, now: Nanos) -> Result<u64, PullError> {
        let before = self.answered;
        self.transport.poll(now, &mut self.events);
        for event in self.events.drain() {
            match event {
                Event::Message { message: Message::ModelDesc(desc, _), .. }
                    if desc.slo_ns.get() == self.answered =>
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
}

impl<T> Ours<T> {
    fn give(&self, turn: u8) {
        let responder = self.responder.as_ref().expect("it ends in drop");
        self.turn.set(turn, responder.thread());
        self.waker.wake();
    }
}

impl<T> Drop for Ours<T> {
    fn drop(&mut self) {
        self.give(Turn::END);
        if self.responder.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the responder panicked");
        }
    }
}

fn here() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

fn system(what: &'static str) -> impl Fn(io::Error) -> PullError {
    move |source| PullError::System { what, source }
}

/// Sends back what comes.
fn respond(mut transport: impl Transport, clock: Clock, placement: &Placement, turn: &Turn) {
    prepare_thread(placement);
    let mut events = Events::new();
    while turn.await_turn() {
        // Only handshakes look at the time.
        if transport.poll(clock.now(), &mut events) == 0 {
            rest(&mut transport, placement.idle);
        }
        for event in events.drain() {
            match event {
                Event::Opened { conn, .. } => transport.trust(conn),
                Event::Message { conn, message: Message::ModelDesc(desc, tail) } => {
                    if let Err(error) = transport.send(conn, desc, tail.as_bytes()) {
                        tracing::error!(%error, "could not answer");
                    }
                }
                _ => {}
            }
        }
        transport.flush();
    }
}

fn rest(transport: &mut impl Transport, idle: Idle) {
    match idle {
        Idle::Spin => std::hint::spin_loop(),
        Idle::Yield => thread::yield_now(),
        Idle::Park => transport.wait(Some(LOOK)),
    }
}

/// A message of any kind that may have any length; it means nothing here.
fn numbered(number: u64) -> ModelDesc {
    let zero = 0.into();
    ModelDesc {
        model: zero,
        thread: zero,
        subcluster: zero,
        batch_max: zero,
        input_bytes: zero,
        output_bytes: zero,
        slo_ns: number.into(),
    }
}
