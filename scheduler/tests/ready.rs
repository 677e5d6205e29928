//! When a backend's confirmation that it serves reaches it, every ModelThread takes tasks for it: also one that stands in the
//! middle of a pass then.

mod stage;

use std::cell::RefCell;
use std::io;
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;

use baton_core::{Nanos, Policy};
use baton_rdma::wire::{
    Body, Hello, JoinBackend, JoinFrontend, ProfileDesc, Ready, RefuseCode, Role, TaskResult,
    WireAddr,
};
use baton_rdma::{
    BatchBuffer, ConnId, Events, Identity, InprocNetwork, InprocTransport, Read, SendError,
    SlabSet, Transport, TransportCounters,
};
use baton_scheduler::Assembly;
use baton_topo::{Agent, Waker};
use stage::{Member, Told, cluster, ms};

/// What happens elsewhere while an agent is about to look at its connections.
type Meanwhile = Rc<RefCell<Option<Box<dyn FnOnce()>>>>;

/// A transport whose next poll comes after something else.
struct Paused {
    inner: InprocTransport,
    meanwhile: Meanwhile,
}

impl Transport for Paused {
    fn poll(&mut self, now: Nanos, events: &mut Events) -> usize {
        if let Some(meanwhile) = self.meanwhile.take() {
            meanwhile();
        }
        self.inner.poll(now, events)
    }

    fn connect(&mut self, addr: SocketAddr, hello: Hello) -> io::Result<ConnId> {
        self.inner.connect(addr, hello)
    }
    fn send<B: Body>(&mut self, conn: ConnId, body: &B, tail: &[u8]) -> Result<(), SendError> {
        self.inner.send(conn, body, tail)
    }
    fn local_addr(&self) -> SocketAddr {
        self.inner.local_addr()
    }
    fn waker(&self) -> Waker {
        self.inner.waker()
    }
    fn expose(&mut self, slabs: Arc<SlabSet>) -> io::Result<()> {
        self.inner.expose(slabs)
    }
    fn counters(&self) -> TransportCounters {
        self.inner.counters()
    }
    fn identify(&mut self, identity: Identity) {
        self.inner.identify(identity);
    }
    fn close(&mut self, conn: ConnId, code: RefuseCode, detail: &str) {
        self.inner.close(conn, code, detail);
    }
    fn post_reads(&mut self, reads: &mut Vec<Read>) {
        self.inner.post_reads(reads);
    }
    fn abort_read(&mut self, conn: ConnId, mark: u64) {
        self.inner.abort_read(conn, mark);
    }
    fn reply(&mut self, conn: ConnId, body: &TaskResult, row: &[u8]) -> Result<(), SendError> {
        self.inner.reply(conn, body, row)
    }
    fn withdraw(&mut self, slabs: &Arc<SlabSet>) {
        self.inner.withdraw(slabs);
    }
    fn land_in(&mut self, memory: &Arc<BatchBuffer>) -> io::Result<()> {
        self.inner.land_in(memory)
    }
    fn release(&mut self, memory: &Arc<BatchBuffer>) {
        self.inner.release(memory);
    }
    fn flush(&mut self) {
        self.inner.flush();
    }
    fn wait(&mut self, timeout: Option<Nanos>) {
        self.inner.wait(timeout);
    }
}

const NOW: Nanos = Nanos(1_000_000_000);

/// Takes part in a conversation until it rests, with agents that a test polls.
fn exchange(member: &mut Member, poll: &mut impl FnMut()) -> Vec<Told> {
    let mut told = Vec::new();
    for _ in 0..4 {
        member.transport.flush();
        (0..4).for_each(|_| poll());
        told.extend(member.listen(NOW));
    }
    told
}

#[test]
fn a_task_submitted_on_the_confirmation_is_queued_by_a_thread_in_the_middle_of_its_pass() {
    let network = InprocNetwork::new();
    let paused = |role| {
        let meanwhile = Meanwhile::default();
        let inner = network.endpoint(Identity { role, member: 0 });
        (Paused { inner, meanwhile: Rc::clone(&meanwhile) }, meanwhile)
    };
    let ((control, _), (thread, meanwhile)) = (paused(Role::Control), paused(Role::ModelThread));
    let addr = control.local_addr();
    let mut scheduler = Assembly::new(&cluster(Policy::Symphony, 1), control, vec![thread]);
    let mut model_threads = std::mem::take(&mut scheduler.model_threads);

    let join = |role, poll: &mut dyn FnMut()| {
        let transport = network.endpoint(Identity { role, member: 0 });
        let mut member = Member::new(transport, role, addr);
        exchange(&mut member, &mut || poll());
        if role == Role::Backend {
            member.send(&ProfileDesc { model: 0.into(), pages: 0.into() }, &[]);
            member.send(&JoinBackend { subcluster: 0.into(), gpus: 1.into() }, b"b");
        } else {
            let addr = WireAddr::new(member.transport.local_addr());
            member.send(&JoinFrontend { addr, slabs: 0.into() }, &[]);
        }
        let told = exchange(&mut member, &mut || poll());
        member.joined(&told);
        exchange(&mut member, &mut || poll());
        member
    };
    let mut poll = || {
        scheduler.control.poll(NOW);
        model_threads[0].poll(NOW);
    };
    let mut frontend = join(Role::Frontend, &mut poll);
    let mut backend = join(Role::Backend, &mut poll);

    // 1. The ModelThread has looked for commands; only now does the ControlThread hear that the backend is ready.
    let confirmed = Rc::new(RefCell::new(0));
    let others = Rc::new(RefCell::new(None));
    let back = Rc::clone(&others);
    let heard = Rc::clone(&confirmed);
    *meanwhile.borrow_mut() = Some(Box::new(move || {
        backend.send(&Ready { reserved: 0.into() }, &[]);
        backend.transport.flush();
        scheduler.control.poll(NOW);
        backend.listen(NOW);
        *heard.borrow_mut() = backend.confirmed;
        // 2. A frontend that knows of the confirmation submits.
        let task = frontend.task(0, 0);
        frontend.submit_to(0, 0, task, NOW + ms(30));
        frontend.transport.flush();
        // They live on.
        *back.borrow_mut() = Some((scheduler, backend, frontend));
    }));
    model_threads[0].poll(NOW);
    assert_eq!(*confirmed.borrow(), 1, "the backend knows that it serves");
    assert_eq!(model_threads[0].waiting(), 1, "and the task waits for it");
}
