//! Inputs and messages over verbs where both ends have it, over TCP otherwise; without RDMA, inputs of this host out of
//! shared memory.
//!
//! The same conversation, handshake and membership as over TCP alone; what changes is how an input
//! gets into its row, and an answer to its slot. Which way that is, is decided per connection, and said: see
//! [`TransportChoice`].

use std::io;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Once};

use baton_topo::{Clock, TransportChoice, VerbsConfig, Waker};
use baton_types::Nanos;

use super::error::VerbsError;
use super::fabric::Fabric;
use super::verbs_device::VerbsDevice;
use crate::events::{EventView, Events};
use crate::memory::landing::BatchBuffer;
use crate::memory::slab::{Backing, SlabSet};
use crate::protocol::wire::{Body, FabricAnswer, Hello, Message, RefuseCode, Role, TaskResult};
use crate::same_host::SameHost;
use crate::tcp::{TcpConfig, TcpTransport};
use crate::tls::Credentials;
use crate::transport::{ConnId, Identity, Read, SendError, Transport, TransportCounters};

/// A thread that spins while READs are under way looks at its sockets only once per this number of
/// passes: asking the kernel takes as long as a short READ.
const PASSES_PER_LOOK: u32 = 16;

/// Why a [`MixedTransport`] cannot start.
#[derive(Debug, thiserror::Error)]
pub enum MixedError {
    /// The TCP side: address or descriptors.
    #[error(transparent)]
    Tcp(#[from] io::Error),
    /// RDMA was asked for and cannot be had.
    #[error("transport = \"rdma\", but {0}")]
    Verbs(#[from] VerbsError),
}

/// The [`Transport`] of backends and frontends.
pub struct MixedTransport {
    /// The fabric, or why there is none. Dropped first: what it was given to send arrives before the
    /// sockets say that this side is gone.
    fabric: Result<Box<Fabric>, String>,
    /// Where there is no fabric, and TCP alone was not asked for.
    same_host: Option<SameHost>,
    tcp: TcpTransport,
    /// Passes since the sockets were last looked at.
    passes: u32,
}

impl MixedTransport {
    /// A transport that accepts connections on `listen`, if given, and can connect. `clock` times
    /// READs over verbs, whose proof needs the time *after* a completion was seen. With `credentials`
    /// every connection is TLS, and memory keys travel only over it; READs over verbs are not
    /// encrypted.
    ///
    /// # Errors
    /// The address cannot be listened on; or RDMA was chosen and this host cannot.
    pub fn bind(
        listen: Option<SocketAddr>,
        identity: Identity,
        tcp: TcpConfig,
        choice: TransportChoice,
        verbs: &VerbsConfig,
        credentials: Option<&Credentials>,
        clock: Clock,
    ) -> Result<Self, MixedError> {
        let mut transport = TcpTransport::bind_with(listen, identity, tcp, credentials)?;
        let device = match choice {
            TransportChoice::Tcp => None,
            TransportChoice::Rdma => Some(VerbsDevice::open(verbs.clone())?),
            TransportChoice::Auto => match VerbsDevice::open(verbs.clone()) {
                Ok(device) => Some(device),
                Err(error) => {
                    let same_host = same_host(identity.role, &transport);
                    let nearby =
                        if same_host.is_some() { "shared memory on this host, " } else { "" };
                    static TOLD: Once = Once::new();
                    TOLD.call_once(|| {
                        tracing::info!(reason = %error, "transport: {nearby}tcp, because RDMA cannot be used");
                    });
                    let fabric = Err(error.to_string());
                    return Ok(Self { tcp: transport, passes: 0, fabric, same_host });
                }
            },
        };
        let passes = 0;
        let Some(device) = device else {
            static TOLD: Once = Once::new();
            TOLD.call_once(|| tracing::info!("transport: tcp, as configured"));
            let fabric = Err("it is set to transport = \"tcp\"".into());
            return Ok(Self { tcp: transport, passes, fabric, same_host: None });
        };
        tracing::info!(%choice, device = device.describe(), "this host has RDMA");
        transport.watch(device.queue.as_fd())?;
        let is_strict = choice == TransportChoice::Rdma;
        if is_strict {
            transport.refuse_reads();
        }
        let fabric = Fabric::new(device, is_strict, tcp.credit_bytes, clock);
        let fabric = Ok(Box::new(fabric));
        Ok(Self { tcp: transport, passes, fabric, same_host: None })
    }

    /// True if RDMA is in use on this side.
    pub fn has_rdma(&self) -> bool {
        self.fabric.is_ok()
    }
}

/// Looks at what TCP brought; false for what is not the owner's business, or not yet.
fn on_event(
    view: EventView<'_>,
    fabric: &mut Result<Box<Fabric>, String>,
    same_host: &mut Option<SameHost>,
    tcp: &mut TcpTransport,
) -> bool {
    if let EventView::Message(_, Message::MemoryOffer(_)) = view {
        tcp.received_own();
    }
    match (fabric, view) {
        (Ok(fabric), view) => fabric.on_event(view, tcp),
        (Err(reason), EventView::Message(conn, Message::FabricOffer(offer, _))) => {
            tcp.received_own();
            decline(tcp, conn, offer.epoch.get(), reason);
            false
        }
        (Err(_), view) => match (same_host, view) {
            (Some(same_host), view) => same_host.on_event(view, tcp),
            (None, EventView::Message(_, Message::MemoryOffer(_))) => false,
            (None, _) => true,
        },
    }
}

/// This side of shared memory; `None`, and a word, where the kernel has none.
fn same_host(role: Role, tcp: &TcpTransport) -> Option<SameHost> {
    let made = SameHost::new(role).and_then(|same_host| {
        same_host.watched().map_or(Ok(()), |fd| tcp.watch(fd))?;
        Ok(same_host)
    });
    made.inspect_err(|error| {
        tracing::info!(%error, "inputs of this host come over TCP, because memory cannot be shared");
    })
    .ok()
}

/// Answers an offer where there is no fabric.
pub(super) fn decline(tcp: &mut TcpTransport, conn: ConnId, epoch: u32, reason: &str) {
    let answer = FabricAnswer {
        epoch: epoch.into(),
        pair: 0.into(),
        first_psn: 0.into(),
        lid: 0.into(),
        read_depth: 0,
        mtu: 0,
        gid: [0; 16],
        read_timeout_us: 0.into(),
        slabs: 0.into(),
    };
    let end = reason.floor_char_boundary(512);
    // A peer that does not read is dealt with by its own timeout.
    let _ = tcp.send_own(conn, &answer, &reason.as_bytes()[..end]);
}

impl Transport for MixedTransport {
    fn local_addr(&self) -> SocketAddr {
        self.tcp.local_addr()
    }

    fn identify(&mut self, identity: Identity) {
        self.tcp.identify(identity);
    }

    fn connect(&mut self, addr: SocketAddr, hello: Hello) -> io::Result<ConnId> {
        let conn = self.tcp.connect(addr, hello)?;
        if let Ok(fabric) = &mut self.fabric {
            fabric.hold(conn);
        }
        Ok(conn)
    }

    fn close(&mut self, conn: ConnId, code: RefuseCode, detail: &str) {
        if let Ok(fabric) = &mut self.fabric {
            fabric.hang_up(conn);
        }
        self.tcp.close(conn, code, detail);
    }

    fn send<B: Body>(&mut self, conn: ConnId, body: &B, tail: &[u8]) -> Result<(), SendError> {
        let Self { fabric, tcp, .. } = self;
        let fabric = fabric.as_mut().ok();
        let said = fabric.and_then(|fabric| fabric.say(conn, (body, tail, &[]), tcp));
        said.unwrap_or_else(|| tcp.send(conn, body, tail))
    }

    fn post_reads(&mut self, reads: &mut Vec<Read>) {
        if let Ok(fabric) = &mut self.fabric {
            fabric.take_reads(reads);
        }
        if let Some(same_host) = &mut self.same_host {
            same_host.take_reads(reads);
        }
        if !reads.is_empty() {
            self.tcp.post_reads(reads);
        }
    }

    fn abort_read(&mut self, conn: ConnId, tag: u64) {
        if self.same_host.as_mut().is_some_and(|same_host| same_host.abort(conn, tag)) {
            return;
        }
        match &mut self.fabric {
            Ok(fabric) if fabric.carries(conn) => fabric.abort(conn, tag),
            _ => self.tcp.abort_read(conn, tag),
        }
    }

    fn reply(&mut self, conn: ConnId, result: &TaskResult, output: &[u8]) -> Result<(), SendError> {
        let Self { fabric, tcp, .. } = self;
        let fabric = fabric.as_mut().ok();
        let said = fabric.and_then(|fabric| fabric.say(conn, (result, &[], output), tcp));
        said.unwrap_or_else(|| tcp.reply(conn, result, output))
    }

    fn expose(&mut self, slabs: Arc<SlabSet>) -> io::Result<()> {
        self.tcp.expose(Arc::clone(&slabs))?;
        if let Ok(fabric) = &mut self.fabric
            && let Err(error) = fabric.expose(&slabs, &mut self.tcp)
        {
            self.tcp.withdraw(&slabs);
            return Err(io::Error::other(error));
        }
        if let Some(same_host) = &mut self.same_host {
            same_host.expose(&slabs);
        }
        Ok(())
    }

    fn backing(&self) -> Backing {
        match &self.same_host {
            Some(same_host) if same_host.shares() => Backing::Shared,
            _ => Backing::Private,
        }
    }

    fn withdraw(&mut self, slabs: &Arc<SlabSet>) {
        self.tcp.withdraw(slabs);
        if let Ok(fabric) = &mut self.fabric {
            fabric.withdraw(slabs);
        }
        if let Some(same_host) = &mut self.same_host {
            same_host.withdraw(slabs);
        }
    }

    fn land_in(&mut self, buffer: &Arc<BatchBuffer>) -> io::Result<()> {
        if let Ok(fabric) = &mut self.fabric {
            fabric.land_in(buffer).map_err(io::Error::other)?;
        }
        self.tcp.land_in(buffer)
    }

    fn release(&mut self, buffer: &Arc<BatchBuffer>) {
        if let Ok(fabric) = &mut self.fabric {
            fabric.release(buffer);
        }
        self.tcp.release(buffer);
    }

    fn trust(&mut self, conn: ConnId) {
        if let Ok(fabric) = &mut self.fabric {
            fabric.trust(conn, &mut self.tcp);
        }
        if let Some(same_host) = &mut self.same_host {
            same_host.trust(conn);
        }
    }

    fn poll(&mut self, now: Nanos, events: &mut Events) -> usize {
        let before = events.len();
        let Self { tcp, passes, fabric, same_host } = self;
        let is_reading = fabric.as_ref().is_ok_and(|fabric| fabric.is_reading());
        if let Some(same_host) = same_host {
            same_host.copy(tcp, events);
        }
        *passes += 1;
        let in_full = !is_reading || *passes > PASSES_PER_LOOK;
        let before_tcp = events.len();
        if in_full {
            *passes = 0;
            tcp.poll(now, events);
        }
        events.sift(before_tcp, |view| on_event(view, fabric, same_host, tcp));
        if let Some(same_host) = same_host {
            same_host.poll(tcp, events);
        }
        if let Ok(fabric) = fabric {
            fabric.poll(in_full, tcp, events);
        }
        events.len() - before
    }

    fn flush(&mut self) {
        if let Ok(fabric) = &mut self.fabric {
            fabric.flush();
        }
        if let Some(same_host) = &mut self.same_host {
            same_host.flush();
        }
        self.tcp.flush();
    }

    fn wait(&mut self, timeout: Option<Nanos>) {
        if let Some(bound) = self.prepare_wait(timeout) {
            self.tcp.wait(bound);
        }
    }

    fn pollable(&self) -> Option<BorrowedFd<'_>> {
        self.tcp.pollable()
    }

    fn prepare_wait(&mut self, timeout: Option<Nanos>) -> Option<Option<Nanos>> {
        // Whatever ends the wait, the next pass looks at everything.
        self.passes = PASSES_PER_LOOK;
        let timeout = match &mut self.fabric {
            Err(_) => timeout,
            Ok(fabric) => fabric.before_wait(timeout)?,
        };
        let timeout = match &self.same_host {
            None => timeout,
            Some(same_host) => same_host.before_wait(timeout)?,
        };
        self.tcp.prepare_wait(timeout)
    }

    fn waker(&self) -> Waker {
        self.tcp.waker()
    }

    fn has_unsent(&self) -> bool {
        self.tcp.has_unsent() || self.fabric.as_ref().is_ok_and(|fabric| fabric.has_unsent())
    }

    /// While READs are out, TCP is not looked at in every pass; what comes over RDMA is.
    fn has_unread(&self, conn: ConnId) -> bool {
        let by_tcp = !self.fabric.as_ref().is_ok_and(|fabric| fabric.carries(conn));
        (by_tcp && self.passes > 0) || self.tcp.has_unread(conn)
    }

    fn owes(&self, conn: ConnId) -> bool {
        self.tcp.owes(conn)
    }

    fn counters(&self) -> TransportCounters {
        let mut counters = self.tcp.counters();
        if let Ok(fabric) = &self.fabric {
            fabric.count(&mut counters);
        }
        if let Some(same_host) = &self.same_host {
            same_host.count(&mut counters);
        }
        counters
    }
}
