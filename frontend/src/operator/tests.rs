//! A scripted scheduler on the in-process network.

use baton_rdma::status::{GpuStatus, Record};
use baton_rdma::wire::{
    CatalogEnd, Hello, Message, RefuseCode, Role, StatusPart, ThreadDesc, WireAddr,
};
use baton_rdma::{ConnId, Event, Events, Identity, InprocNetwork, InprocTransport, Transport};
use baton_topo::Agent;
use baton_types::Nanos;

use super::OperatorIo;

const SCHEDULER: Identity = Identity { role: Role::Control, member: 0 };
const OPERATOR: Identity = Identity { role: Role::Operator, member: 0 };
const STRANGER: Identity = Identity { role: Role::Backend, member: 0 };
const NOW: Nanos = Nanos::from_millis(1_000);

struct Pair {
    scheduler: InprocTransport,
    conn: ConnId,
    operator: OperatorIo<InprocTransport>,
    /// A peer that has found the operator's port.
    stranger: (InprocTransport, ConnId),
}

/// An operator that is connected and has asked.
fn asked() -> Pair {
    let network = InprocNetwork::new();
    let mut scheduler = network.endpoint(SCHEDULER);
    let addr = scheduler.local_addr();
    let (endpoint, mut stranger) = (network.endpoint(OPERATOR), network.endpoint(STRANGER));
    let hello = Hello::new(Role::Backend, 0, 0);
    let stranger_conn = stranger.connect(endpoint.local_addr(), hello).expect("it is there");
    let mut operator = OperatorIo::new(endpoint, addr).expect("it is there");
    operator.poll(NOW);
    let conn = opened(&mut scheduler).expect("it has connected");
    let end = CatalogEnd { scheduler_epoch: 1.into() };
    scheduler.send(conn, &end, &[]).expect("it reads");
    scheduler.flush();
    operator.poll(NOW);
    operator.poll(NOW);
    assert!(operator.is_connected());
    operator.ask_status().expect("it is connected");
    Pair { scheduler, conn, operator, stranger: (stranger, stranger_conn) }
}

fn opened(scheduler: &mut impl Transport) -> Option<ConnId> {
    let mut events = Events::new();
    scheduler.poll(NOW, &mut events);
    scheduler.flush();
    let conns = events.drain().filter_map(|event| match event {
        Event::Opened { conn, .. } => Some(conn),
        _ => None,
    });
    conns.last()
}

impl Pair {
    /// Where the part begins that the scheduler is asked for.
    fn ask(&mut self) -> Option<u64> {
        self.operator.poll(NOW);
        let mut events = Events::new();
        self.scheduler.poll(NOW, &mut events);
        let asks = events.drain().filter_map(|event| match event {
            Event::Message { message: Message::StatusAsk(ask), .. } => Some(ask.from.get()),
            _ => None,
        });
        asks.last()
    }

    fn say(&mut self, next: u64, text: &str) {
        let part = StatusPart { next: next.into() };
        self.scheduler.send(self.conn, &part, text.as_bytes()).expect("it reads");
        self.scheduler.flush();
        self.operator.poll(NOW);
    }
}

fn gpu(slot: u32) -> GpuStatus {
    GpuStatus { slot, ..GpuStatus::default() }
}

#[test]
fn the_answer_is_put_together_from_its_parts() {
    let mut pair = asked();
    for (from, next) in [(0, 5), (5, 9), (9, 0)] {
        assert_eq!(pair.ask(), Some(from));
        assert!(
            !pair.operator.has_status() && pair.operator.take_status().is_none(),
            "there is more"
        );
        pair.say(next, &Record::Gpu(gpu(from as u32)).line());
    }
    assert_eq!(pair.ask(), None);
    assert!(pair.operator.has_status());
    assert_eq!(pair.operator.next_timer(), None, "only the scheduler wakes it");
    let status = pair.operator.take_status().expect("complete").expect("sound");
    assert_eq!(status.gpus, [gpu(0), gpu(5), gpu(9)]);
    pair.operator.ask_status().expect("it is connected");
    assert_eq!(pair.ask(), Some(0));
    pair.say(0, &Record::Gpu(gpu(1)).line());
    let again = pair.operator.take_status().expect("complete").expect("sound");
    assert_eq!(again.gpus, [gpu(1)], "the answer before is not in this one");
}

#[test]
fn an_answer_that_makes_no_sense_or_no_end_is_an_error() {
    for (next, text, problem) in [(0, "[1]\n", "no record"), (3, "", "does not come to an end")] {
        let mut pair = asked();
        pair.ask();
        pair.say(3, &Record::Gpu(gpu(0)).line());
        pair.ask();
        pair.say(next, text);
        let error = pair.operator.take_status().expect("over").expect_err("it is none");
        assert!(error.contains(problem), "{error}");
        pair.operator.ask_status().expect("it is connected");
        pair.ask();
        pair.say(0, &Record::Gpu(gpu(1)).line());
        let status = pair.operator.take_status().expect("complete").expect("sound");
        assert_eq!(status.gpus, [gpu(1)], "nothing of the answer before");
    }
}

#[test]
fn a_stranger_neither_answers_nor_ends_the_conversation() {
    let mut pair = asked();
    let (stranger, conn) = &mut pair.stranger;
    stranger.poll(NOW, &mut Events::new());
    let part = StatusPart { next: 0.into() };
    stranger.send(*conn, &part, Record::Gpu(gpu(7)).line().as_bytes()).expect("it reads");
    stranger.flush();
    pair.operator.poll(NOW);
    assert!(pair.operator.take_status().is_none());
    let (stranger, conn) = &mut pair.stranger;
    stranger.close(*conn, RefuseCode::Limit, "go away");
    stranger.flush();
    pair.operator.poll(NOW);
    pair.operator.poll(NOW);
    assert_eq!(pair.operator.closed(), None);
    pair.say(0, &Record::Gpu(gpu(1)).line());
    assert_eq!(pair.operator.take_status().expect("complete").expect("sound").gpus, [gpu(1)]);
}

#[test]
fn a_scheduler_that_refuses_is_quoted() {
    let mut pair = asked();
    pair.scheduler.close(pair.conn, RefuseCode::Limit, "too many operators");
    pair.scheduler.flush();
    pair.operator.poll(NOW);
    assert_eq!(pair.operator.closed(), Some("too many operators"));
}

/// The scheduler tells clients of a model that was added; an operator has the catalogue that it connected with.
#[test]
fn what_is_added_later_changes_nothing() {
    let mut pair = asked();
    let thread = ThreadDesc { thread: 7.into(), addr: WireAddr::new(pair.scheduler.local_addr()) };
    for _ in 0..2 {
        pair.scheduler.send(pair.conn, &thread, &[]).expect("it reads");
        pair.scheduler.flush();
        pair.operator.poll(NOW);
    }
    assert_eq!(pair.operator.closed(), None);
}
