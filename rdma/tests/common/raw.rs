//! A peer that is no transport: a socket that says what a test wants, frame by frame or worse.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};

use baton_rdma::frame::{self, HEADER_LEN};
use baton_rdma::wire::{
    self, Body, FrameHeader, Hello, Kind, Message, RefuseCode, Role, Welcome, decode,
};
use baton_rdma::{ConnId, TcpConfig, TcpTransport, Transport};
use zerocopy::FromBytes;

use super::{Fabric, Node, Tcp, settle};

pub type TcpNode = Node<TcpTransport>;

pub fn node_with(cfg: TcpConfig) -> TcpNode {
    Node::new(Tcp.endpoint(Role::Frontend, 9, cfg))
}

pub fn node() -> TcpNode {
    node_with(TcpConfig::default())
}

/// The bytes of a frame.
pub fn frame_of<B: Body>(body: &B, tail: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame::encode(&mut bytes, body, tail, payload.len());
    bytes.extend_from_slice(payload);
    bytes
}

/// A frame as received: kind, body, payload.
pub type Frame = (Kind, Vec<u8>, Vec<u8>);

/// A peer that is no transport.
pub struct Raw {
    pub stream: TcpStream,
    pub frames: VecDeque<Frame>,
    /// Received, not yet a frame.
    pub bytes: Vec<u8>,
    /// The other side has closed, politely or not.
    pub ended: bool,
}

impl Raw {
    pub fn new(stream: TcpStream) -> Self {
        stream.set_nonblocking(true).unwrap();
        Self { stream, frames: VecDeque::new(), bytes: Vec::new(), ended: false }
    }

    pub fn connect(node: &TcpNode) -> Self {
        Self::new(TcpStream::connect(node.transport.local_addr()).unwrap())
    }

    /// Connects and shakes hands.
    pub fn open(node: &mut TcpNode) -> Self {
        let mut raw = Self::connect(node);
        raw.send(&Hello::new(Role::Backend, 1, 2), &[], &[]);
        raw.until(node, |raw, _| !raw.frames.is_empty());
        assert_eq!(raw.frames.pop_front().unwrap().0, Kind::Welcome);
        raw
    }

    pub fn send<B: Body>(&mut self, body: &B, tail: &[u8], payload: &[u8]) {
        self.stream.write_all(&frame_of(body, tail, payload)).unwrap();
    }

    pub fn receive(&mut self) {
        let mut piece = [0; 64 * 1024];
        match self.stream.read(&mut piece) {
            Ok(0) => self.ended = true,
            Ok(n) => self.bytes.extend_from_slice(&piece[..n]),
            Err(error) => self.ended |= error.kind() != ErrorKind::WouldBlock,
        }
        while let Some(frame) = self.cut() {
            self.frames.push_back(frame);
        }
    }

    fn cut(&mut self) -> Option<Frame> {
        let (header, _) = FrameHeader::read_from_prefix(&self.bytes).ok()?;
        let body_end = HEADER_LEN + usize::from(header.body_len.get());
        let end = body_end + header.payload_len.get() as usize;
        let bytes: Vec<u8> =
            (self.bytes.len() >= end).then(|| self.bytes.drain(..end).collect())?;
        let (body, payload) = (bytes[HEADER_LEN..body_end].to_vec(), bytes[body_end..].to_vec());
        Some((header.check().unwrap(), body, payload))
    }

    /// Polls the node and receives until `done`.
    pub fn until(&mut self, node: &mut TcpNode, mut done: impl FnMut(&mut Self, &TcpNode) -> bool) {
        settle([node], |[node]| {
            self.receive();
            done(self, node)
        });
    }

    /// Waits for the end of the connection; the last frame before must be a refusal.
    pub fn refusal(&mut self, node: &mut TcpNode) -> (RefuseCode, String) {
        self.until(node, |raw, _| raw.ended);
        let (kind, body, _) = self.frames.pop_back().expect("a refusal before the end");
        let Ok(Message::Refuse(refuse, detail)) = decode(kind, &body) else { panic!("{kind:?}") };
        (RefuseCode::from_code(refuse.code.get()).unwrap(), detail.to_owned())
    }
}

/// A node that has connected to a raw peer and is welcome there.
pub fn welcomed(cfg: TcpConfig) -> (TcpNode, ConnId, Raw) {
    let mut node = node_with(cfg);
    let (conn, raw) = welcome(&mut node);
    (node, conn, raw)
}

/// One more such peer of the node.
pub fn welcome(node: &mut TcpNode) -> (ConnId, Raw) {
    let (before, listener) =
        (node.opened().len(), TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let conn = node.connect(listener.local_addr().unwrap());
    let mut raw = Raw::new(listener.accept().unwrap().0);
    raw.until(node, |raw, _| !raw.frames.is_empty());
    assert_eq!(raw.frames.pop_front().unwrap().0, Kind::Hello);
    let version = wire::VERSION_MAX.into();
    let role = Role::Frontend as u8;
    raw.send(&Welcome { version, role, reserved: 0, member: 3.into() }, &[], &[]);
    raw.until(node, |_, node| node.opened().len() == before + 1);
    (conn, raw)
}
