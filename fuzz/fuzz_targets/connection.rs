//! A connection of the TCP transport, over a network in memory, to a hostile peer.
//!
//! The first byte of the input says how the rest is cut into pieces, the second whether the peer says
//! hello properly first; the rest is what it sends. The transport is a frontend's: it serves READs of
//! its slabs and takes answers. However it is cut, the same must come of it, the connection must end,
//! and nothing may stay behind.
#![no_main]

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::{self, IoSlice, Read};
use std::net::SocketAddr;
use std::rc::Rc;

use baton_types::{FrontendId, ModelId, Nanos};
use baton_rdma::wire::{Hello, RefuseCode, Role};
use baton_rdma::{
    Edge, Event, Events, Identity, Net, NetStream, SlabSet, SlabSpec, TcpConfig, TcpTransport,
    Transport, frame,
};
use baton_topo::Waker;
use libfuzzer_sys::fuzz_target;

/// Pieces a stream is cut into at most: what comes then, comes at once.
const PIECES: usize = 64;

fuzz_target!(|input: &[u8]| {
    let Some(([cut, opens], rest)) = input.split_first_chunk::<2>() else { return };
    let mut stream = Vec::new();
    if opens % 4 > 0 {
        frame::encode(&mut stream, &Hello::new(Role::Backend, 1, 7), &[], 0);
    }
    stream.extend_from_slice(rest);
    let whole = talk(&stream, stream.len().max(1));
    let piece = (usize::from(*cut) + 1).max(stream.len() / PIECES);
    assert_eq!(whole, talk(&stream, piece));
});

/// What comes of a stream that arrives in pieces of `piece` bytes: events as text, bytes sent.
fn talk(stream: &[u8], piece: usize) -> (Vec<String>, usize) {
    let wire = Rc::new(RefCell::new(Wire::default()));
    let identity = Identity { role: Role::Frontend, member: 3 };
    let mut transport =
        TcpTransport::over(MemNet(Rc::clone(&wire)), identity, TcpConfig::default());
    let spec = SlabSpec { model: ModelId(0), slots: 4, input_bytes: 24, output_bytes: 8 };
    let slabs = SlabSet::new(&[spec], 0).expect("four slots");
    slabs.set_frontend(FrontendId(3));
    transport.expose(slabs.clone()).expect("memory is memory");
    let mut heard = Vec::new();
    for bytes in stream.chunks(piece) {
        wire.borrow_mut().arrived.extend(bytes);
        poll(&mut transport, &wire, &mut heard);
    }
    wire.borrow_mut().over = true;
    poll(&mut transport, &wire, &mut heard);
    let counters = transport.counters();
    assert_eq!((counters.opened, counters.closed), (1, 1), "the connection has ended");
    assert_eq!((slabs.leases(), counters.credit_held), (0, 0), "and has left nothing");
    let sent = wire.borrow().sent;
    (heard, sent)
}

fn poll(transport: &mut TcpTransport<MemNet>, wire: &Rc<RefCell<Wire>>, heard: &mut Vec<String>) {
    let mut events = Events::new();
    // What follows a hello is taken in by the poll after it.
    for _ in 0..4 {
        wire.borrow_mut().news = true;
        transport.poll(Nanos(1), &mut events);
        let mut unwelcome = Vec::new();
        for event in events.drain() {
            match event {
                Event::Message { conn, message } => {
                    heard.push(format!("{message:?}"));
                    unwelcome.push(conn);
                }
                // How far a stream came before it broke depends on the pieces; that it broke does not.
                Event::Closed { .. } => heard.push("closed".into()),
                other => heard.push(format!("{other:?}")),
            }
        }
        // Backends send a frontend only what the transport deals with itself.
        if heard.len() > 1000 {
            unwelcome.iter().for_each(|&conn| transport.close(conn, RefuseCode::Limit, "enough"));
        }
    }
}

#[derive(Default)]
struct Wire {
    accepted: bool,
    arrived: VecDeque<u8>,
    over: bool,
    sent: usize,
    news: bool,
}

struct MemNet(Rc<RefCell<Wire>>);

struct MemStream(Rc<RefCell<Wire>>);

fn nowhere() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], 1))
}

impl Net for MemNet {
    type Stream = MemStream;

    fn local_addr(&self) -> SocketAddr {
        nowhere()
    }

    fn listens(&self) -> bool {
        true
    }

    fn accept(&mut self) -> io::Result<(MemStream, SocketAddr)> {
        if std::mem::replace(&mut self.0.borrow_mut().accepted, true) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        Ok((MemStream(Rc::clone(&self.0)), nowhere()))
    }

    fn connect(&mut self, _: SocketAddr) -> io::Result<MemStream> {
        Err(io::ErrorKind::ConnectionRefused.into())
    }

    fn register(&mut self, _: &mut MemStream, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn collect(&mut self, mut on_edge: impl FnMut(Edge)) {
        let mut wire = self.0.borrow_mut();
        if std::mem::take(&mut wire.news) {
            on_edge(Edge::Acceptable);
            // The first place of a table.
            on_edge(Edge::Stream { place: 0, readable: true, writable: true, hung_up: wire.over });
        }
    }

    fn wait(&mut self, _: Option<Nanos>) {}

    fn waker(&self) -> Waker {
        Waker::new(|| ())
    }
}

impl Read for MemStream {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let mut wire = self.0.borrow_mut();
        if wire.arrived.is_empty() && !wire.over {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut n = 0;
        while n < buf.len() && !wire.arrived.is_empty() {
            n += wire.arrived.read(&mut buf[n..])?;
        }
        Ok(n)
    }
}

impl NetStream for MemStream {
    fn finish_connect(&mut self) -> io::Result<bool> {
        Ok(true)
    }

    fn send(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let len = slices.iter().map(|slice| slice.len()).sum();
        self.0.borrow_mut().sent += len;
        Ok(len)
    }

    fn finish_sending(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn has_unread(&self) -> bool {
        false
    }
}
