//! What the simulated driver works on: time, streams, events, memory.

use std::collections::VecDeque;

use baton_cuda::{CudaError, Event, Stream};

use super::memory::{Clock, Memory, Place};
use super::{BYTES_PER_NS, COPY_FIXED_NS, RowCopy, error};

const HOST: usize = 0;
/// Rows that a graph answers.
const GRAPH_ROWS: usize = 64;

/// What an operation of a stream does.
#[derive(Clone, Copy, Debug)]
pub(super) enum Action {
    Copy {
        to: Place,
        from: Place,
    },
    Execute {
        rows: Place,
        header: Place,
        answers: Place,
        blocks: u32,
    },
    /// A graph, which lasts so long.
    Replay {
        to: Place,
        from: Place,
        takes_ns: u64,
    },
    Record {
        event: u32,
        nth: u64,
    },
    Wait {
        event: u32,
        nth: u64,
    },
}

impl Action {
    fn uses(self, place: Place) -> bool {
        match self {
            Self::Copy { to, from } | Self::Replay { to, from, .. } => [to, from].contains(&place),
            Self::Execute { rows, header, answers, .. } => [rows, header, answers].contains(&place),
            Self::Record { .. } | Self::Wait { .. } => false,
        }
    }
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

#[derive(Default, Debug)]
struct StreamState {
    ops: VecDeque<Op>,
    free_at: u64,
    clock: Clock,
}

#[derive(Default, Debug)]
struct EventState {
    /// How often it was recorded, and how many of these have ended.
    recorded: u64,
    ended: u64,
    /// When, and what was known then, by number of the record.
    ends: Vec<(u64, Clock)>,
}

/// A device and a host. Times are nanoseconds.
#[derive(Default, Debug)]
pub struct World {
    /// The time.
    pub now: u64,
    host: Clock,
    streams: Vec<StreamState>,
    events: Vec<EventState>,
    memory: Memory,
    blocks: u32,
    /// By block.
    sizes: Vec<u64>,
    /// Memory of the device that is taken.
    pub(super) device_bytes: u64,
    /// Calls so far.
    pub calls: u64,
    /// Blocks that were taken, of the device and of the host.
    pub allocations: u64,
    /// Blocks that were not given back.
    pub blocks_held: i64,
    /// The call with this number fails with this code.
    pub fail: Option<(u64, i32)>,
    /// Every call fails with this from now on.
    lost: Option<i32>,
    /// Those that have ended, in that order.
    pub executions: Vec<Execution>,
    /// Copies of rows that were called for, in that order.
    pub row_copies: Vec<RowCopy>,
    /// Executions last this many hundredths longer than their batches say.
    pub slower_percent: u64,
    /// No execution ends from now on.
    pub hangs: bool,
    /// The driver's owner has given the device up.
    pub is_abandoned: bool,
}

/// An execution that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Execution {
    /// When the host launched it.
    pub launched_at: u64,
    /// When it began.
    pub start: u64,
    /// When it ended.
    pub end: u64,
}

impl World {
    /// What was not in order so far.
    pub fn violations(&self) -> &[String] {
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
        self.sizes.push(bytes as u64);
        self.blocks - 1
    }

    pub(super) fn free(&mut self, place: Place) {
        self.blocks_held -= 1;
        self.watch_free(place);
        if let Place::Device(block) = place {
            self.device_bytes -= self.sizes[block as usize];
        }
        self.memory.forget(place);
    }

    /// The driver's owner promises that nothing uses what it gives back.
    fn watch_free(&mut self, place: Place) {
        let mut ops = self.streams.iter().flat_map(|stream| &stream.ops);
        if let Some(op) = ops.find(|op| op.action.uses(place)) {
            let words = format!("{place:?} is given back under call {} ({:?})", op.call, op.action);
            self.memory.violations.push(words);
        }
    }

    /// The host writes memory: rows have landed, or a header.
    pub fn host_write(&mut self, place: Place, content: Vec<u8>) {
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
        if let Action::Copy { to, .. }
        | Action::Replay { to, .. }
        | Action::Execute { answers: to, .. } = op.action
        {
            self.poison(to);
        }
        self.host.tick(HOST);
        op.clock = self.host.clone();
        (op.enqueued_at, op.call) = (self.now, self.calls);
        self.streams[stream.0 as usize].ops.push_back(op);
    }

    /// Memory of graphs is written in its turn: what is under way reads it still.
    fn poison(&mut self, place: Place) {
        if !matches!(place, Place::Foreign(_)) {
            self.memory.poison(place);
        }
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

    /// The driver refuses events that have not ended.
    pub(super) fn elapsed(&mut self, from: Event, to: Event) -> u64 {
        let [from, to] = [from, to].map(|event| {
            let state = &self.events[event.0 as usize];
            match state.ends.last() {
                Some((at, _)) if state.ended == state.recorded => *at,
                _ => {
                    let words = format!("{event:?} is asked for its time and has not ended");
                    self.memory.violations.push(words);
                    0
                }
            }
        });
        to.saturating_sub(from)
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
    pub fn advance(&mut self, ns: u64) {
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
            Action::Execute { .. } | Action::Replay { .. } if self.hangs => None,
            Action::Replay { takes_ns, .. } => {
                let slower = takes_ns * self.slower_percent / 100;
                Some((start, start + op.takes_ns + takes_ns + slower))
            }
            Action::Execute { header, .. } => {
                let header = self.peek(header);
                let slower = header * self.slower_percent / 100;
                Some((start, start + op.takes_ns + header + slower))
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
                let launched_at = op.enqueued_at;
                self.executions.push(Execution { launched_at, start, end });
            }
            Action::Replay { to, from, .. } => {
                let content = memory.read(from, actor, &clock, &call);
                let tag = content.first_chunk::<8>().copied().unwrap_or([0xcd; 8]);
                memory.write(to, tag.repeat(GRAPH_ROWS), by, &call);
                let launched_at = op.enqueued_at;
                self.executions.push(Execution { launched_at, start, end });
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
