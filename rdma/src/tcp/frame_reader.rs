//! A connection's frames that came another way than its socket: cut out of pieces of the stream and
//! acted on as if they had come by it. Answers land in their output slots, messages become events.
//!
//! READs and their replies have no business there: their books are those of the socket.

use super::TcpTransport;
use super::net::Net;
use super::sink::Sink;
use super::target::answer_sink;
use crate::events::{CloseReason, Events};
use crate::protocol::frame::{self, Frame, HEADER_LEN};
use crate::protocol::handshake;
use crate::protocol::wire::{FrameHeader, Message};
use crate::shared::Shared;
use crate::transport::ConnId;
use zerocopy::FromBytes;

/// The receive side of a connection's other stream.
pub(crate) struct FrameReader {
    conn: ConnId,
    /// The beginning of a frame whose end has not come: at most a header and a body.
    partial: Vec<u8>,
    sink: Sink,
    /// Bytes of the payload in progress that have not come.
    payload_left: usize,
}

impl FrameReader {
    pub(crate) fn new(conn: ConnId) -> Self {
        Self { conn, partial: Vec::new(), sink: Sink::Idle, payload_left: 0 }
    }

    /// Acts on the next piece of the stream.
    ///
    /// # Errors
    /// The connection is to be closed for this reason.
    pub(crate) fn take_in<N: Net>(
        &mut self,
        mut bytes: &[u8],
        tcp: &mut TcpTransport<N>,
        events: &mut Events,
    ) -> Result<(), CloseReason> {
        let shared = &mut tcp.shared;
        loop {
            bytes = self.take_payload(bytes);
            if self.payload_left > 0 {
                return Ok(());
            }
            self.finish_payload(shared, events);
            if bytes.is_empty() {
                return Ok(());
            }
            bytes = self.take_frame(bytes, shared, events)?;
        }
    }

    /// Moves what is there of the payload in progress to its place; returns the rest.
    fn take_payload<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        let (payload, rest) = bytes.split_at(self.payload_left.min(bytes.len()));
        if let Sink::Answer(_) = self.sink {
            self.sink.vacant()[0][..payload.len()].copy_from_slice(payload);
        }
        self.sink.advance(payload.len());
        self.payload_left -= payload.len();
        rest
    }

    fn finish_payload(&mut self, shared: &mut Shared, events: &mut Events) {
        if let Sink::Answer(sink) = std::mem::replace(&mut self.sink, Sink::Idle) {
            let len = sink.len as u32;
            sink.output.commit(len);
            shared.counters.answers_rdma += 1;
            events.result(self.conn, sink.result, len);
        }
    }

    /// Acts on the frame that `bytes` begin with or complete, if it is all there; returns the rest.
    fn take_frame<'a>(
        &mut self,
        bytes: &'a [u8],
        shared: &mut Shared,
        events: &mut Events,
    ) -> Result<&'a [u8], CloseReason> {
        if self.partial.is_empty() {
            let found = frame::parse(bytes).map_err(CloseReason::Malformed)?;
            if let Some((frame, len)) = found {
                self.on_frame(&frame, shared, events)?;
                return Ok(&bytes[len..]);
            }
        }
        let missing = self.missing(bytes)?;
        let (piece, rest) = bytes.split_at(missing.min(bytes.len()));
        self.partial.extend_from_slice(piece);
        let partial = std::mem::take(&mut self.partial);
        match frame::parse(&partial).map_err(CloseReason::Malformed)? {
            Some((frame, _)) => self.on_frame(&frame, shared, events)?,
            None => self.partial = partial,
        }
        Ok(rest)
    }

    /// How many of `bytes` belong to the header and body of the frame in progress, or more than there
    /// are.
    fn missing(&self, bytes: &[u8]) -> Result<usize, CloseReason> {
        let mut head = [0; HEADER_LEN];
        let both = self.partial.iter().chain(bytes);
        let there = head.iter_mut().zip(both).map(|(to, from)| *to = *from).count();
        if there < HEADER_LEN {
            return Ok(HEADER_LEN);
        }
        let header = FrameHeader::ref_from_bytes(&head).expect("a header's worth of bytes");
        header.check().map_err(CloseReason::Malformed)?;
        Ok(HEADER_LEN + usize::from(header.body_len.get()) - self.partial.len())
    }

    fn on_frame(
        &mut self,
        frame: &Frame<'_>,
        shared: &mut Shared,
        events: &mut Events,
    ) -> Result<(), CloseReason> {
        match frame.message {
            Message::TaskResult(result) => {
                self.sink = answer_sink(result, frame.payload_len, shared)?;
                self.payload_left = frame.payload_len;
                Ok(())
            }
            Message::Refuse(refuse, detail) => Err(handshake::refused(refuse.code.get(), detail)),
            Message::Read(_)
            | Message::ReadReply(_)
            | Message::Hello(_)
            | Message::Welcome(_)
            | Message::FabricOffer(..)
            | Message::FabricAnswer(..)
            | Message::FabricSlab(_)
            | Message::ControlOffer(..)
            | Message::ControlAnswer(..)
            | Message::ControlStart(_)
            | Message::MemoryOffer(_) => Err(handshake::unexpected(&frame.message)),
            _ => {
                shared.counters.messages_in += 1;
                events.message(self.conn, frame.kind, frame.body);
                Ok(())
            }
        }
    }
}

impl<N: Net> TcpTransport<N> {
    /// Counts a message that another way than a socket took, or had no room for.
    pub(crate) fn count_sent(&mut self, queued: bool) {
        let counters = &mut self.shared.counters;
        counters.messages_out += u64::from(queued);
        counters.messages_rdma += u64::from(queued);
        counters.send_full += u64::from(!queued);
    }
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, SocketAddr};
    use std::sync::Arc;

    use baton_types::{FrontendId, ModelId, TaskId};
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::protocol::wire::{self, BODY_MAX, Body, Kind, Ping, Role, TaskResult};
    use crate::transport::{Identity, Transport};
    use crate::{Event, SlabSet, SlabSpec, TcpConfig};

    fn frontend() -> (TcpTransport, Arc<SlabSet>) {
        let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let identity = Identity { role: Role::Frontend, member: 1 };
        let mut tcp = TcpTransport::bind(Some(any), identity, TcpConfig::default()).unwrap();
        let spec = SlabSpec { model: ModelId(0), slots: 4, input_bytes: 8, output_bytes: 3_000 };
        let slabs = SlabSet::new(&[spec], 0).unwrap();
        slabs.set_frontend(FrontendId(0));
        tcp.expose(Arc::clone(&slabs)).unwrap();
        (tcp, slabs)
    }

    fn result(task: TaskId) -> TaskResult {
        TaskResult {
            task: task.0.into(),
            started_ns: 1.into(),
            finished_ns: 2.into(),
            batch_size: 3.into(),
            variant: 0.into(),
            gpu: 4.into(),
        }
    }

    fn frame_of<B: Body>(body: &B, tail: &[u8], payload: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::new();
        frame::encode(&mut bytes, body, tail, payload.len());
        bytes.extend_from_slice(payload);
        bytes
    }

    /// However the stream is cut, what comes out is the same, and answers are where they belong.
    #[test]
    fn frames_are_found_however_the_stream_is_cut() {
        for step in [1, 2, 7, 8, 9, 41, 100, 4_092, 1 << 20] {
            let (mut tcp, slabs) = frontend();
            let tasks = [0, 1].map(|_| slabs.acquire(ModelId(0)).unwrap().submit());
            let output: Vec<u8> = (0..3_000u32).map(|at| at as u8).collect();
            let mut stream = frame_of(&Ping { sent_ns: 1.into() }, &[], &[]);
            stream.extend(frame_of(&result(tasks[0]), &[], &output));
            stream.extend(frame_of(&result(tasks[1]), &[], &[]));
            let stale = TaskId::new(FrontendId(0), 3, 9);
            stream.extend(frame_of(&result(stale), &[], &output));
            stream.extend(frame_of(&Ping { sent_ns: 2.into() }, &[], &[]));
            let (mut frame_reader, mut events) = (FrameReader::new(ConnId(5)), Events::new());
            for piece in stream.chunks(step) {
                frame_reader.take_in(piece, &mut tcp, &mut events).unwrap();
            }
            let mut seen = Vec::new();
            for event in events.drain() {
                match event {
                    Event::Message { conn, message: Message::Ping(ping) } => {
                        assert_eq!(conn, ConnId(5));
                        seen.push((ping.sent_ns.get(), 0));
                    }
                    Event::Result { result, len, .. } => seen.push((result.task.get(), len)),
                    other => panic!("{other:?}"),
                }
            }
            assert_eq!(seen, [(1, 0), (tasks[0].0, 3_000), (tasks[1].0, 0), (2, 0)], "{step}");
            assert!(slabs.complete(tasks[0]));
            assert_eq!(slabs.output(tasks[0]).unwrap()[..], output[..]);
            let counters = tcp.counters();
            assert_eq!((counters.answers_rdma, counters.results_stale), (2, 1));
        }
    }

    /// The piece that ends an answer may be the last one for a long time.
    #[test]
    fn each_frame_is_acted_on_as_soon_as_its_last_byte_is_here() {
        let (_, slabs) = frontend();
        let tasks = [0, 1].map(|_| slabs.acquire(ModelId(0)).unwrap().submit());
        let ping = |sent_ns: u64| frame_of(&Ping { sent_ns: sent_ns.into() }, &[], &[]);
        let answer = |task, payload: &[u8]| frame_of(&result(task), &[], payload);
        let frames = [ping(1), answer(tasks[0], &[7; 20]), ping(2), answer(tasks[1], &[])];
        let stream = frames.concat();
        for cut in 0..=stream.len() {
            let (mut tcp, slabs) = frontend();
            tasks.iter().for_each(|_| _ = slabs.acquire(ModelId(0)).unwrap().submit());
            let (mut frame_reader, mut events) = (FrameReader::new(ConnId(5)), Events::new());
            frame_reader.take_in(&stream[..cut], &mut tcp, &mut events).unwrap();
            let ends = (1..=frames.len()).map(|count| frames[..count].concat().len());
            assert_eq!(events.len(), ends.filter(|&end| end <= cut).count(), "cut at {cut}");
        }
    }

    proptest! {
        /// Bytes of a peer that are anything at all end the connection or do nothing bad.
        #[test]
        fn no_bytes_do_harm(
            frames in vec((0..80u8, 0..60u16, vec(any::<u8>(), 0..120)), 1..8),
            step in 1..90usize,
        ) {
            let (mut tcp, _slabs) = frontend();
            let mut stream = Vec::new();
            for (kind, body_len, rest) in frames {
                stream.extend([kind, 0, body_len as u8, 0, rest.len() as u8, 0, 0, 0]);
                stream.extend(rest);
            }
            let (mut frame_reader, mut events) = (FrameReader::new(ConnId(5)), Events::new());
            for piece in stream.chunks(step) {
                if frame_reader.take_in(piece, &mut tcp, &mut events).is_err() {
                    break;
                }
                prop_assert!(frame_reader.partial.len() < HEADER_LEN + BODY_MAX);
            }
            // What was taken for a message is one.
            let count = events.len();
            prop_assert_eq!(events.drain().count(), count);
        }
    }

    #[test]
    fn what_does_not_belong_ends_the_connection() {
        let (mut tcp, slabs) = frontend();
        let task = slabs.acquire(ModelId(0)).unwrap().submit();
        let mut refused = |bytes: &[u8]| {
            let mut frame_reader = FrameReader::new(ConnId(5));
            frame_reader.take_in(bytes, &mut tcp, &mut Events::new()).unwrap_err()
        };
        let read = wire::Read { task: 0.into(), tag: 0.into(), len: 0.into() };
        assert_eq!(refused(&frame_of(&read, &[], &[])), CloseReason::Unexpected(Kind::Read));
        assert!(matches!(refused(&[255; 8]), CloseReason::Malformed(_)));
        let long = frame_of(&result(task), &[], &[0; 3_001]);
        assert!(matches!(refused(&long), CloseReason::Malformed(_)));
    }
}
