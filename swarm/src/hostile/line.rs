//! One connection of an attacker: bytes out, as far as the peer takes them, and what it says.

use std::io::{ErrorKind, IoSlice};
use std::net::IpAddr;

use baton_rdma::NetStream;
use baton_rdma::frame::{self, FrameBuffer};
use baton_rdma::wire::{Body, Message};
use rand::RngExt;
use rand::rngs::StdRng;

use super::knowledge::Learned;
/// Who is at the other end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Whom {
    /// The ControlThread, to join.
    Control,
    /// A ModelThread, as the member it is.
    Thread,
    /// A backend that has connected to read inputs.
    Backend,
    /// Any listener, in any role.
    Anybody,
}

pub(super) struct Line<S> {
    stream: S,
    /// The host at the other end.
    host: IpAddr,
    pub(super) whom: Whom,
    /// Never reads.
    deaf: bool,
    rx: FrameBuffer,
    out: Vec<u8>,
    sent: usize,
    pub(super) over: bool,
    /// It is over, and the peer has said why.
    pub(super) refused: bool,
}

impl<S: NetStream> Line<S> {
    pub(super) fn new(stream: S, host: IpAddr, whom: Whom, deaf: bool) -> Self {
        let (rx, out) = (FrameBuffer::new(), Vec::new());
        Self { stream, host, whom, deaf, rx, out, sent: 0, over: false, refused: false }
    }

    pub(super) fn out(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    pub(super) fn backlog(&self) -> usize {
        self.out.len() - self.sent
    }

    pub(super) fn say<B: Body>(&mut self, body: &B, tail: &[u8]) {
        frame::encode(&mut self.out, body, tail, 0);
    }

    /// Sends a part of what is left to say, and lets go.
    pub(super) fn cut(&mut self, rng: &mut StdRng) {
        let left = self.backlog();
        self.out.truncate(self.sent + rng.random_range(0..=left));
        self.flush();
        self.over = true;
    }

    /// Returns how many bytes the peer's kernel took.
    pub(super) fn flush(&mut self) -> u64 {
        let before = self.sent;
        while self.sent < self.out.len() {
            match self.stream.send(&[IoSlice::new(&self.out[self.sent..])]) {
                Ok(n) => self.sent += n,
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                // What the peer said before is still to be read.
                Err(_) => {
                    self.over |= self.deaf;
                    self.sent = self.out.len();
                    break;
                }
            }
        }
        let taken = self.sent - before;
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
        }
        taken as u64
    }

    /// What has come and matters.
    pub(super) fn listen(&mut self) -> Vec<Learned> {
        let mut heard = Vec::new();
        while !self.deaf && !self.over {
            let spare = self.rx.spare(usize::MAX);
            match self.stream.read(spare) {
                Ok(0) => self.over = true,
                Ok(n) => self.rx.filled(n),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(_) => self.over = true,
            }
            self.take_in(&mut heard);
        }
        heard
    }

    fn take_in(&mut self, heard: &mut Vec<Learned>) {
        loop {
            self.rx.skip_payload();
            match self.rx.next_frame() {
                Ok(Some(frame)) => {
                    self.refused |= matches!(frame.message, Message::Refuse(..));
                    heard.extend(Learned::of(&frame.message, self.host));
                }
                Ok(None) => return,
                Err(error) => unreachable!("our processes write frames: {error}"),
            }
        }
    }
}
