//! A peer that the backend talks to: an endpoint and everything it heard, in order.

use baton_rdma::InprocTransport;
use baton_rdma::wire::{Body, LoadStatus, Message};
use baton_rdma::{ConnId, Event, Events, Peer, SendError, Transport};
use baton_types::Nanos;

/// How a LOAD ended.
pub(crate) const LOADED: u8 = LoadStatus::Loaded as u8;
pub(crate) const LATE: u8 = LoadStatus::Late as u8;
pub(crate) const NO_PAGES: u8 = LoadStatus::NoPages as u8;
pub(crate) const FAILED: u8 = LoadStatus::Failed as u8;

/// What was heard, owned.
#[derive(Clone, PartialEq, Debug)]
pub(crate) enum Said {
    Opened(Peer),
    Closed(String),
    Profile { model: u32, table: Vec<u64> },
    Join { subcluster: u32, gpus: u32, name: String },
    Ready,
    Ping(u64),
    Leave,
    Done { batch: u64, gpu: u32, rows: u16, status: u8, ran: [u64; 2], stale: Vec<u16> },
    Result { task: u64, batch_size: u32, gpu: u32, started: u64, finished: u64, is_cold: bool },
    End { task: u64, kind: u8, reason: u8 },
    Loaded { load: u64, status: u8, fault: u8, pages_free: u32 },
    Memory { pages: u32, models: Vec<u32> },
    Failed { model: u32, why: String },
    Known { frontend: u32, first_slot: u32 },
    Other(String),
}

pub(crate) struct Party<T = InprocTransport> {
    pub(crate) transport: T,
    pub(crate) heard: Vec<Said>,
    /// The backend's latest connection.
    pub(crate) conn: Option<ConnId>,
    events: Events,
}

impl<T: Transport> Party<T> {
    pub(crate) fn new(transport: T) -> Self {
        Self { transport, heard: Vec::new(), conn: None, events: Events::new() }
    }

    /// Polls once; returns what it heard in this pass, by the backend's latest connection: a backend that
    /// has given up an attempt has no use for answers to it.
    pub(crate) fn poll(&mut self, now: Nanos) -> Vec<Said> {
        self.transport.poll(now, &mut self.events);
        let mut latest = Vec::new();
        for event in self.events.drain() {
            let conn = conn_of(&event);
            if matches!(event, Event::Opened { .. }) {
                self.conn = conn;
                latest.clear();
            }
            let said = owned(event);
            if conn == self.conn {
                latest.push(said.clone());
            }
            self.heard.push(said);
        }
        latest
    }

    /// Sends to the backend. If that has just closed the connection, the message is lost, as it is on any network.
    pub(crate) fn tell<B: Body>(&mut self, body: &B, tail: &[u8]) {
        let conn = self.conn.expect("the backend has connected");
        match self.transport.send(conn, body, tail) {
            Ok(()) | Err(SendError::Closed) => self.transport.flush(),
            Err(error) => panic!("{error}"),
        }
    }

    /// What was heard since the last call, without pings and openings.
    pub(crate) fn take(&mut self) -> Vec<Said> {
        let heard = std::mem::take(&mut self.heard);
        heard.into_iter().filter(|said| !matches!(said, Said::Ping(_) | Said::Opened(_))).collect()
    }
}

fn conn_of(event: &Event<'_>) -> Option<ConnId> {
    match event {
        Event::Opened { conn, .. } | Event::Message { conn, .. } => Some(*conn),
        Event::Result { conn, .. } | Event::Closed { conn, .. } => Some(*conn),
        Event::Read(_) => None,
    }
}

fn owned(event: Event<'_>) -> Said {
    match event {
        Event::Opened { peer, .. } => Said::Opened(peer),
        Event::Closed { reason, .. } => Said::Closed(reason.to_string()),
        Event::Result { result, .. } => Said::Result {
            task: result.task.get(),
            batch_size: result.batch_size.get().into(),
            gpu: result.gpu.get(),
            started: result.started_ns.get(),
            finished: result.finished_ns.get(),
            is_cold: result.is_cold(),
        },
        Event::Read(done) => Said::Other(format!("{done:?}")),
        Event::Message { message, .. } => said(message),
    }
}

fn said(message: Message<'_>) -> Said {
    match message {
        Message::ProfileDesc(desc, table) => Said::Profile {
            model: desc.model.get(),
            table: table.iter().map(|latency| latency.get()).collect(),
        },
        Message::JoinBackend(join, name) => Said::Join {
            subcluster: join.subcluster.get(),
            gpus: join.gpus.get(),
            name: name.to_owned(),
        },
        Message::Ready(_) => Said::Ready,
        Message::Ping(ping) => Said::Ping(ping.sent_ns.get()),
        Message::Leave(_) => Said::Leave,
        Message::ActionDone(done, stale) => Said::Done {
            batch: done.action.get(),
            gpu: done.gpu.get(),
            rows: done.rows.get(),
            status: done.status,
            ran: [done.started_ns.get(), done.finished_ns.get()],
            stale: stale.iter().map(|row| row.get()).collect(),
        },
        Message::LoadDone(done) => Said::Loaded {
            load: done.load.get(),
            status: done.status,
            fault: done.fault,
            pages_free: done.pages_free.get(),
        },
        Message::SlotMemory(memory, models) => Said::Memory {
            pages: memory.pages.get(),
            models: models.iter().map(|model| model.get()).collect(),
        },
        Message::TaskEnd(end) => {
            Said::End { task: end.task.get(), kind: end.kind, reason: end.reason }
        }
        Message::ModelFailed(failed, why) => {
            Said::Failed { model: failed.model.get(), why: why.to_owned() }
        }
        Message::SlabKnown(known) => {
            Said::Known { frontend: known.frontend.get(), first_slot: known.first_slot.get() }
        }
        other => Said::Other(format!("{other:?}")),
    }
}
