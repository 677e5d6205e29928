//! What the simulated driver works on: time, streams, events, memory.

use std::collections::VecDeque;

use baton_cuda::{CudaError, Event, Stream};

use super::memory::{Clock, Memory, Place};
use super::{BYTES_PER_NS, COPY_FIXED_NS, error};

const HOST: usize = 0;

/// What an operation of a stream does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    Copy { to: Place, from: Place },
    Execute { rows: Place, header: Place, answers: Place, blocks: u32 },
    Record { event: u32, nth: u64 },
    Wait { event: u32, nth: u64 },
}

#[derive(Debug)]
pub(super) struct Op {
    action: Action,
    /// Beside what the header of a batch says.
    takes_ns: u64,
    enqueued_at: u64,
    /// What the host knew when it made the call.
    clock: Clock,
    /// The call's number.
    call: u64,
}

impl Op {
    pub(super) fn new(action: Action, takes_ns: u64) -> Self {
        Self { action, takes_ns, enqueued_at: 0, clock: Clock::default(), call: 0 }
    }
}

#[derive(Default)]
struct StreamState {
    ops: VecDeque<Op>,
    free_at: u64,
    clock: Clock,
}

#[derive(Default)]
struct EventState {
    /// How often it was recorded, and how many of these have ended.
    recorded: u64,
    ended: u64,
    /// When, and what was known then, by number of the record.
    ends: Vec<(u64, Clock)>,
}

/// A device and a host.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) now: u64,
    host: Clock,
    streams: Vec<StreamState>,
    events: Vec<EventState>,
    memory: Memory,
    blocks: u32,
    /// Calls so far.
    pub(crate) calls: u64,
    pub(crate) allocations: u64,
    /// Blocks that were not given back.
    pub(crate) blocks_held: i64,
    /// The call with this number fails with this code.
    pub(crate) fail: Option<(u64, i32)>,
    /// Every call fails with this from now on.
    lost: Option<i32>,
    /// When executions began and ended.
    pub(crate) executions: Vec<(u64, u64)>,
}

impl World {
    /// What was not in order so far.
    pub(crate) fn violations(&self) -> &[String] {
        &self.memory.violations
    }

    pub(super) fn begin_call(&mut self, call: &'static str) -> Result<(), CudaError> {
        self.calls += 1;
        if let Some((at, code)) = self.fail
            && at == self.calls
        {
            if error(call, code).is_sticky() {
                self.lost = Some(code);
                self.streams.iter_mut().for_each(|stream| stream.ops.clear());
            }
            return Err(error(call, code));
        }
        self.lost.map_or(Ok(()), |code| Err(error(call, code)))
    }

    pub(super) fn add_stream(&mut self) -> Stream {
        self.streams.push(StreamState::default());
        Stream(self.streams.len() as u32 - 1)
    }

    pub(super) fn add_event(&mut self) -> Event {
        self.events.push(EventState::default());
        Event(self.events.len() as u32 - 1)
    }

    pub(super) fn allocate(&mut self, bytes: usize) -> u32 {
        assert!(bytes > 0, "the driver refuses 0 bytes");
        self.allocations += 1;
        self.blocks_held += 1;
        self.blocks += 1;
        self.blocks - 1
    }

    pub(super) fn free(&mut self, place: Place) {
        self.blocks_held -= 1;
        self.memory.forget(place);
    }

    /// The host writes memory: rows have landed, or a header.
    pub(crate) fn host_write(&mut self, place: Place, content: Vec<u8>) {
        self.host.tick(HOST);
        let call = format!("the host at {}", self.now);
        self.memory.write(place, content, (HOST, &self.host), &call);
    }

    pub(super) fn host_read(&mut self, place: Place) -> Vec<u8> {
        self.host.tick(HOST);
        let call = format!("the host at {}", self.now);
        self.memory.read(place, HOST, &self.host, &call)
    }

    pub(super) fn copy(&mut self, stream: Stream, to: Place, from: Place, bytes: usize) {
        let takes_ns = COPY_FIXED_NS + bytes as u64 / BYTES_PER_NS;
        self.enqueue(stream, Op::new(Action::Copy { to, from }, takes_ns));
    }

    pub(super) fn enqueue(&mut self, stream: Stream, mut op: Op) {
        if let Action::Copy { to, .. } | Action::Execute { answers: to, .. } = op.action {
            self.memory.poison(to);
        }
        self.host.tick(HOST);
        op.clock = self.host.clone();
        (op.enqueued_at, op.call) = (self.now, self.calls);
        self.streams[stream.0 as usize].ops.push_back(op);
    }

    pub(super) fn record(&mut self, event: Event, stream: Stream) {
        let state = &mut self.events[event.0 as usize];
        state.recorded += 1;
        let action = Action::Record { event: event.0, nth: state.recorded };
        self.enqueue(stream, Op::new(action, 0));
    }

    /// Of the record before this call; none is no wait.
    pub(super) fn wait(&mut self, stream: Stream, event: Event) {
        let nth = self.events[event.0 as usize].recorded;
        self.enqueue(stream, Op::new(Action::Wait { event: event.0, nth }, 0));
    }

    pub(super) fn host_sees(&mut self, event: Event) -> bool {
        let state = &self.events[event.0 as usize];
        if state.ended < state.recorded {
            return false;
        }
        if let Some((_, clock)) = state.ends.last() {
            self.host.join(clock);
        }
        true
    }

    pub(super) fn ended_at(&self, event: Event) -> u64 {
        self.events[event.0 as usize].ends.last().map_or(0, |(at, _)| *at)
    }

    pub(super) fn synchronize(&mut self, stream: Stream) {
        let index = stream.0 as usize;
        while !self.streams[index].ops.is_empty() {
            assert!(self.step(u64::MAX), "a stream waits for ever");
        }
        self.now = self.now.max(self.streams[index].free_at);
        let clock = self.streams[index].clock.clone();
        self.host.join(&clock);
    }

    /// Time passes.
    pub(crate) fn advance(&mut self, ns: u64) {
        let until = self.now + ns;
        while self.step(until) {}
        self.now = until;
    }

    /// The next operation that ends by then. False if there is none.
    fn step(&mut self, until: u64) -> bool {
        let spans = (0..self.streams.len()).filter_map(|index| Some((self.span(index)?, index)));
        let Some(((start, end), index)) = spans.min_by_key(|&((_, end), _)| end) else {
            return false;
        };
        if end > until {
            return false;
        }
        let op = self.streams[index].ops.pop_front().expect("it has one");
        self.carry_out(index, &op, start, end);
        true
    }

    /// When the first operation of a stream begins and ends, if it may begin.
    fn span(&self, index: usize) -> Option<(u64, u64)> {
        let stream = &self.streams[index];
        let op = stream.ops.front()?;
        let start = stream.free_at.max(op.enqueued_at);
        match op.action {
            Action::Wait { nth: 0, .. } => Some((start, start)),
            Action::Wait { event, nth } => {
                let (ended, _) = self.events[event as usize].ends.get(nth as usize - 1)?;
                Some((start.max(*ended), start.max(*ended)))
            }
            Action::Execute { header, .. } => {
                let header = self.peek(header);
                Some((start, start + op.takes_ns + header))
            }
            _ => Some((start, start + op.takes_ns)),
        }
    }

    /// How long the batch with this header executes.
    fn peek(&self, header: Place) -> u64 {
        let content = self.memory.content(header);
        content.first_chunk::<8>().map_or(0, |bytes| u64::from_le_bytes(*bytes).min(1 << 24))
    }

    fn carry_out(&mut self, index: usize, op: &Op, start: u64, end: u64) {
        let (stream, actor) = (&mut self.streams[index], index + 1);
        stream.free_at = end;
        stream.clock.join(&op.clock);
        if let Action::Wait { event, nth } = op.action
            && nth > 0
        {
            stream.clock.join(&self.events[event as usize].ends[nth as usize - 1].1);
        }
        stream.clock.tick(actor);
        let (clock, call) = (stream.clock.clone(), format!("call {} ({:?})", op.call, op.action));
        let (memory, by) = (&mut self.memory, (actor, &clock));
        match op.action {
            Action::Copy { to, from } => {
                let content = memory.read(from, actor, &clock, &call);
                memory.write(to, content, by, &call);
            }
            Action::Execute { rows, header, answers, blocks } => {
                let content = memory.read(rows, actor, &clock, &call);
                memory.read(header, actor, &clock, &call);
                let tag = content.first_chunk::<8>().copied().unwrap_or([0xcd; 8]);
                memory.write(answers, tag.repeat(blocks as usize), by, &call);
                self.executions.push((start, end));
            }
            Action::Record { event, nth } => {
                let state = &mut self.events[event as usize];
                state.ended = nth;
                state.ends.push((end, clock));
            }
            Action::Wait { .. } => {}
        }
    }
}
