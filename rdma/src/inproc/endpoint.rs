//! One endpoint: the [`Transport`] a frontend, backend or scheduler thread owns.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use baton_topo::Waker;
use baton_types::Nanos;

use super::link::Link;
use super::{InprocNetwork, Pipe, Port, lock};
use crate::events::{CloseReason, Events};
use crate::memory::landing::BatchBuffer;
use crate::memory::slab::SlabSet;
use crate::protocol::credit::RoundRobin;
use crate::protocol::handshake;
use crate::protocol::wire::{BODY_MAX, Body, Hello, PAYLOAD_MAX, RefuseCode, TaskResult, Versions};
use crate::shared::{Shared, credit_of};
use crate::table::Table;
use crate::tcp::TcpConfig;
use crate::transport::{
    ConnId, Identity, READ_DEPTH, Read, ReadStatus, SendError, Transport, TransportCounters,
};

/// The [`Transport`] between endpoints of one process.
pub struct InprocTransport {
    network: InprocNetwork,
    port: Arc<Port>,
    waker: Waker,
    cfg: TcpConfig,
    table: Table<Link>,
    shared: Shared,
    /// READs not asked for yet.
    waiting: RoundRobin<Read>,
    /// READs asked for, with the place of their connection; carried out by the next poll.
    asked: Vec<(usize, Read)>,
}

impl InprocTransport {
    pub(super) fn new(
        network: InprocNetwork,
        port: Arc<Port>,
        identity: Identity,
        cfg: TcpConfig,
    ) -> Self {
        let bell = Arc::clone(&port);
        Self {
            network,
            port,
            waker: Waker::new(move || bell.ring()),
            table: Table::new(cfg.connections_max),
            shared: Shared::new(identity, cfg.credit_bytes),
            cfg,
            waiting: RoundRobin::default(),
            asked: Vec::new(),
        }
    }

    /// As [`TcpTransport::claiming`](crate::TcpTransport::claiming).
    #[must_use]
    pub fn claiming(mut self, versions: Versions) -> Self {
        self.shared.versions = versions;
        self
    }

    fn accept(&mut self) {
        let incoming = lock(&self.port.incoming).as_mut().map(std::mem::take);
        for pipe in incoming.unwrap_or_default() {
            if let Some((_, id)) = self.table.reserve() {
                self.shared.counters.opened += 1;
                self.table.insert(id, Link::new(id, pipe, 1));
                continue;
            }
            let mut link = Link::new(ConnId(0), pipe, 1);
            link.refuse(RefuseCode::Limit, "no more connections are taken");
            link.hang_up();
            self.shared.counters.refused += 1;
        }
    }

    /// Lets every connection act, and ends those that failed.
    fn visit(&mut self, mut act: impl FnMut(&mut Link, &mut Shared) -> Result<(), CloseReason>) {
        let mut ended = Vec::new();
        for (place, link) in self.table.iter_mut() {
            if let Err(reason) = act(link, &mut self.shared) {
                ended.push((place, reason));
            }
        }
        for (place, reason) in ended {
            self.tear_down(place, reason, None);
        }
    }

    /// Carries out the READs that an earlier flush asked for.
    fn carry_out(&mut self) {
        for (place, mut read) in std::mem::take(&mut self.asked) {
            self.shared.credit.put_back(credit_of(read.row.len()));
            let Some(link) = self.table.at(place) else { continue };
            link.asked -= 1;
            let status = link.carry_out(&mut read);
            self.shared.finish(read, status);
        }
    }

    /// Asks for waiting inputs, source by source, as far as the window reaches.
    fn ask(&mut self) {
        let Self { waiting, table, shared, asked, .. } = self;
        let mut exhausted = false;
        loop {
            let next = waiting.pop(|place, read| {
                let link = table.at(place);
                let ready = !exhausted && link.is_some_and(|l| l.is_open() && l.asked < READ_DEPTH);
                // A READ without credit keeps its turn: small inputs must not starve a large one.
                exhausted |= ready && !shared.credit.try_take(credit_of(read.row.len()));
                ready && !exhausted
            });
            let Some((place, read)) = next else { return };
            if let Some(link) = table.at(place) {
                link.asked += 1;
            }
            asked.push((place, read));
        }
    }

    fn queue<B: Body>(
        &mut self,
        conn: ConnId,
        body: &B,
        tail: &[u8],
        payload: &[u8],
    ) -> Result<(), SendError> {
        let place = self.table.place_of(conn).ok_or(SendError::Closed)?;
        let link = self.table.at(place).ok_or(SendError::Closed)?;
        if !link.push(body, tail, payload, self.cfg.send_queue_bytes) {
            self.shared.counters.send_full += 1;
            return Err(SendError::Full);
        }
        self.shared.counters.messages_out += 1;
        Ok(())
    }

    /// Ends a connection: tells the peer why, completes its READs, and tells the owner last.
    fn tear_down(&mut self, place: usize, reason: CloseReason, told: Option<(RefuseCode, &str)>) {
        let Some((id, mut link)) = self.table.remove(place) else { return };
        let refusal = handshake::refusal(&reason);
        let refusal =
            told.or_else(|| refusal.as_ref().map(|(code, detail)| (*code, detail.as_str())));
        if let Some((code, detail)) = refusal {
            link.refuse(code, detail);
        }
        link.hang_up();
        for (_, read) in self.asked.extract_if(.., |(at, _)| *at == place) {
            self.shared.credit.put_back(credit_of(read.row.len()));
            self.shared.finish(read, ReadStatus::PeerLost);
        }
        while let Some(read) = self.waiting.remove(place, |_| true) {
            self.shared.finish(read, ReadStatus::PeerLost);
        }
        handshake::count(&mut self.shared.counters, &reason);
        if link.is_known() {
            self.shared.backlog.closed(id, reason);
        }
    }
}

impl Transport for InprocTransport {
    fn local_addr(&self) -> SocketAddr {
        self.port.addr
    }

    fn identify(&mut self, identity: Identity) {
        self.shared.identity = identity;
    }

    fn connect(&mut self, addr: SocketAddr, hello: Hello) -> io::Result<ConnId> {
        let limit = || io::Error::new(io::ErrorKind::QuotaExceeded, "too many connections");
        let (_, id) = self.table.reserve().ok_or_else(limit)?;
        self.shared.counters.opened += 1;
        let target = self.network.find(addr);
        let pipe = target.as_ref().map(|target| Pipe::new(&self.port, target));
        let offered = target.zip(pipe.clone()).is_some_and(|(target, pipe)| target.offer(pipe));
        if let Some(pipe) = pipe.filter(|_| offered) {
            let mut link = Link::new(id, pipe, 0);
            let _always_fits = link.push(&hello, &[], &[], usize::MAX);
            self.table.insert(id, link);
        } else {
            let reason = CloseReason::Reset(io::ErrorKind::ConnectionRefused);
            handshake::count(&mut self.shared.counters, &reason);
            self.shared.backlog.closed(id, reason);
        }
        Ok(id)
    }

    fn close(&mut self, conn: ConnId, code: RefuseCode, detail: &str) {
        if let Some(place) = self.table.place_of(conn) {
            self.tear_down(place, CloseReason::Local, Some((code, detail)));
        }
    }

    fn send<B: Body>(&mut self, conn: ConnId, body: &B, tail: &[u8]) -> Result<(), SendError> {
        if size_of::<B>() + tail.len() > BODY_MAX {
            return Err(SendError::TooLong);
        }
        self.queue(conn, body, tail, &[])
    }

    fn post_reads(&mut self, reads: &mut Vec<Read>) {
        for read in reads.drain(..) {
            match self.table.place_of(read.conn) {
                Some(place) => self.waiting.push(place, read),
                None => self.shared.finish(read, ReadStatus::PeerLost),
            }
        }
    }

    fn abort_read(&mut self, conn: ConnId, tag: u64) {
        let Some(place) = self.table.place_of(conn) else { return };
        let mut aborted = self.waiting.remove(place, |read| read.tag == tag);
        let asked = self.asked.iter().position(|(at, read)| *at == place && read.tag == tag);
        if let (None, Some(asked), Some(link)) = (&aborted, asked, self.table.at(place)) {
            let (_, read) = self.asked.remove(asked);
            self.shared.credit.put_back(credit_of(read.row.len()));
            link.asked -= 1;
            aborted = Some(read);
        }
        if let Some(read) = aborted {
            self.shared.finish(read, ReadStatus::Aborted);
        }
    }

    fn reply(&mut self, conn: ConnId, result: &TaskResult, output: &[u8]) -> Result<(), SendError> {
        if output.len() > PAYLOAD_MAX {
            return Err(SendError::TooLong);
        }
        self.queue(conn, result, &[], output)
    }

    fn expose(&mut self, slabs: Arc<SlabSet>) -> io::Result<()> {
        self.shared.expose(&slabs)?;
        lock(&self.port.slabs).add(&slabs)
    }

    fn withdraw(&mut self, slabs: &Arc<SlabSet>) {
        lock(&self.port.slabs).remove(slabs);
        self.shared.withdraw(slabs);
    }

    fn land_in(&mut self, buffer: &Arc<BatchBuffer>) -> io::Result<()> {
        self.shared.counters.add_memory(buffer.memory_bytes());
        Ok(())
    }

    fn release(&mut self, buffer: &Arc<BatchBuffer>) {
        self.shared.counters.remove_memory(buffer.memory_bytes());
    }

    fn poll(&mut self, now: Nanos, events: &mut Events) -> usize {
        let before = events.len();
        self.accept();
        self.visit(|link, shared| link.receive(shared, events));
        self.carry_out();
        let timeout = self.cfg.handshake_timeout;
        self.visit(|link, _| {
            let late = !link.is_open() && *link.open_by.get_or_insert(now + timeout) <= now;
            if late { Err(CloseReason::HandshakeTimeout) } else { Ok(()) }
        });
        self.flush();
        events.take_from(&mut self.shared.backlog);
        events.len() - before
    }

    fn flush(&mut self) {
        self.ask();
        self.table.iter_mut().for_each(|(_, link)| link.flush());
    }

    fn wait(&mut self, timeout: Option<Nanos>) {
        let held = self.table.iter_mut().any(|(_, link)| link.wants_pass());
        if held || !self.asked.is_empty() || !self.shared.backlog.is_empty() {
            return;
        }
        self.port.listen(timeout);
    }

    fn waker(&self) -> Waker {
        self.waker.clone()
    }

    fn counters(&self) -> TransportCounters {
        TransportCounters {
            reads_served: self.port.reads_served.load(Ordering::Relaxed),
            reads_refused: self.port.reads_refused.load(Ordering::Relaxed),
            credit_held: self.shared.credit.in_flight(),
            ..self.shared.counters
        }
    }
}

impl Drop for InprocTransport {
    fn drop(&mut self) {
        let unseen = lock(&self.port.incoming).take();
        unseen.into_iter().flatten().for_each(|pipe| pipe.close(1));
        self.table.iter_mut().for_each(|(_, link)| link.hang_up());
    }
}
