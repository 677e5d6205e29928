//! Streams, events and memory.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

pub(crate) const OK: i32 = 0;
pub(crate) const INVALID_VALUE: i32 = 1;
pub(crate) const OUT_OF_MEMORY: i32 = 2;
pub(crate) const NO_DEVICE: i32 = 100;
pub(crate) const INVALID_HANDLE: i32 = 400;
pub(crate) const NOT_FOUND: i32 = 500;
pub(crate) const NOT_SUPPORTED: i32 = 801;
pub(crate) const NOT_READY: i32 = 600;
pub(crate) const ILLEGAL_ADDRESS: i32 = 700;

/// An operation of a stream.
#[derive(Clone, Copy)]
pub(crate) enum Op {
    Copy {
        to: usize,
        from: usize,
        bytes: usize,
    },
    /// From one place of the device to another, whose users the stream orders.
    Within {
        to: usize,
        from: usize,
        bytes: usize,
    },
    Checksum {
        rows: usize,
        header: usize,
        answers: usize,
        blocks: u32,
    },
    Record {
        event: usize,
        nth: u64,
    },
    Wait {
        event: usize,
        nth: u64,
    },
}

#[derive(Default)]
struct Stream {
    ops: VecDeque<Op>,
    /// What is put into it meanwhile becomes a graph.
    captured: Option<Vec<Op>>,
    /// When the kernel at its head ends.
    until: Option<Instant>,
}

#[derive(Default)]
struct Event {
    recorded: u64,
    ended: u64,
    at: Option<Instant>,
}

/// Everything; one device's streams do not know the other's.
pub(crate) struct World {
    random: u64,
    handles: usize,
    streams: BTreeMap<usize, Stream>,
    events: BTreeMap<usize, Event>,
    graphs: BTreeMap<usize, Vec<Op>>,
    /// By address.
    pub(crate) device: BTreeMap<usize, Vec<u8>>,
    pub(crate) host: BTreeMap<usize, Box<[u8]>>,
    pub(crate) registered: BTreeMap<usize, usize>,
    launches: u64,
    pub(crate) lost: bool,
    pub(crate) faults: Faults,
}

/// From `BATON_FAKE_CUDA`.
pub(crate) struct Faults {
    pub(crate) no_device: bool,
    pub(crate) is_old: bool,
    pub(crate) devices: i32,
    pub(crate) memory: usize,
    fault_at: Option<u64>,
    fault_code: i32,
    /// The clocks are held down, and another process computes.
    pub(crate) is_hot: bool,
    /// The attribute says that no memory is given out.
    pub(crate) no_dma_buf: bool,
    /// What giving it out is refused with.
    pub(crate) dma_buf_code: i32,
    /// Clocks cannot be locked.
    pub(crate) no_root: bool,
    seed: u64,
}

impl Faults {
    fn read() -> Self {
        let text = std::env::var("BATON_FAKE_CUDA").unwrap_or_default();
        let words: Vec<&str> = text.split(',').collect();
        let number = |key: &str| -> Option<u64> {
            words.iter().find_map(|word| word.strip_prefix(key)?.strip_prefix('=')?.parse().ok())
        };
        Self {
            no_device: words.contains(&"no-device"),
            is_old: words.contains(&"old"),
            devices: visible().or_else(|| number("devices")).unwrap_or(8) as i32,
            memory: number("memory").unwrap_or(1 << 30) as usize,
            fault_at: number("fault"),
            fault_code: number("fault-code").unwrap_or(ILLEGAL_ADDRESS as u64) as i32,
            no_dma_buf: words.contains(&"no-dma-buf"),
            dma_buf_code: number("dma-buf-code").unwrap_or(0) as i32,
            is_hot: words.contains(&"hot"),
            no_root: words.contains(&"no-root"),
            seed: number("seed").unwrap_or(1),
        }
    }
}

/// How many devices `CUDA_VISIBLE_DEVICES` leaves, if it says so.
fn visible() -> Option<u64> {
    let names = std::env::var("CUDA_VISIBLE_DEVICES").ok()?;
    Some(names.split(',').filter(|name| !name.is_empty()).count() as u64)
}

pub(crate) fn world() -> Locked {
    let mut locked = WORLD.lock().unwrap_or_else(PoisonError::into_inner);
    locked.get_or_insert_with(|| {
        let faults = Faults::read();
        World {
            random: faults.seed,
            handles: 0x1000,
            streams: BTreeMap::new(),
            events: BTreeMap::new(),
            graphs: BTreeMap::new(),
            device: BTreeMap::new(),
            host: BTreeMap::new(),
            registered: BTreeMap::new(),
            launches: 0,
            lost: false,
            faults,
        }
    });
    Locked(locked)
}

static WORLD: Mutex<Option<World>> = Mutex::new(None);

pub(crate) struct Locked(MutexGuard<'static, Option<World>>);

impl std::ops::Deref for Locked {
    type Target = World;
    fn deref(&self) -> &World {
        self.0.as_ref().expect("made when it was locked")
    }
}

impl std::ops::DerefMut for Locked {
    fn deref_mut(&mut self) -> &mut World {
        self.0.as_mut().expect("made when it was locked")
    }
}

impl World {
    fn handle(&mut self) -> usize {
        self.handles += 16;
        self.handles
    }

    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.random >> 33
    }

    pub(crate) fn add_stream(&mut self) -> usize {
        let handle = self.handle();
        self.streams.insert(handle, Stream::default());
        handle
    }

    pub(crate) fn drop_stream(&mut self, stream: usize) -> bool {
        self.streams.remove(&stream).is_some()
    }

    pub(crate) fn add_event(&mut self) -> usize {
        let handle = self.handle();
        self.events.insert(handle, Event::default());
        handle
    }

    pub(crate) fn drop_event(&mut self, event: usize) -> bool {
        self.events.remove(&event).is_some()
    }

    pub(crate) fn free_memory(&self) -> usize {
        self.faults.memory.saturating_sub(self.device.values().map(Vec::len).sum())
    }

    pub(crate) fn is_page_locked(&self, address: usize, bytes: usize) -> bool {
        let registered = self.registered.range(..=address).next_back();
        let own = self.host.range(..=address).next_back();
        registered.is_some_and(|(&start, &length)| address + bytes <= start + length)
            || own.is_some_and(|(&start, block)| address + bytes <= start + block.len())
    }

    pub(crate) fn is_device(&self, address: usize, bytes: usize) -> bool {
        let block = self.device.range(..=address).next_back();
        block.is_some_and(|(&start, block)| address + bytes <= start + block.len())
    }

    pub(crate) fn enqueue(&mut self, stream: usize, op: Op) -> i32 {
        if let Op::Checksum { .. } = op {
            self.launches += 1;
            self.lost |= self.faults.fault_at == Some(self.launches);
        }
        match self.streams.get_mut(&stream) {
            Some(_) if self.lost => self.lost_code(),
            Some(Stream { captured: Some(captured), .. }) => {
                captured.push(op);
                OK
            }
            Some(stream) => {
                op.poison();
                stream.ops.push_back(op);
                OK
            }
            None => INVALID_HANDLE,
        }
    }

    pub(crate) fn begin_capture(&mut self, stream: usize) -> i32 {
        let Some(stream) = self.streams.get_mut(&stream) else { return INVALID_HANDLE };
        stream.captured = Some(Vec::new());
        OK
    }

    /// The graph's handle.
    pub(crate) fn end_capture(&mut self, stream: usize) -> Option<usize> {
        let ops = self.streams.get_mut(&stream)?.captured.take()?;
        Some(self.add_graph(ops))
    }

    fn add_graph(&mut self, ops: Vec<Op>) -> usize {
        let handle = self.handle();
        self.graphs.insert(handle, ops);
        handle
    }

    pub(crate) fn instantiate(&mut self, graph: usize) -> Option<usize> {
        let ops = self.graphs.get(&graph)?.clone();
        Some(self.add_graph(ops))
    }

    pub(crate) fn drop_graph(&mut self, graph: usize) -> bool {
        self.graphs.remove(&graph).is_some()
    }

    pub(crate) fn launch_graph(&mut self, graph: usize, stream: usize) -> i32 {
        let Some(ops) = self.graphs.get(&graph).cloned() else { return INVALID_HANDLE };
        ops.into_iter().map(|op| self.enqueue(stream, op)).find(|&code| code != OK).unwrap_or(OK)
    }

    /// What every call says once the device is lost.
    pub(crate) fn lost_code(&self) -> i32 {
        self.faults.fault_code
    }

    pub(crate) fn record(&mut self, event: usize, stream: usize) -> i32 {
        let Some(state) = self.events.get_mut(&event) else { return INVALID_HANDLE };
        state.recorded += 1;
        let nth = state.recorded;
        self.enqueue(stream, Op::Record { event, nth })
    }

    pub(crate) fn wait(&mut self, stream: usize, event: usize) -> i32 {
        let Some(state) = self.events.get(&event) else { return INVALID_HANDLE };
        let nth = state.recorded;
        self.enqueue(stream, Op::Wait { event, nth })
    }

    pub(crate) fn has_ended(&mut self, event: usize) -> i32 {
        if self.lost {
            return self.lost_code();
        }
        self.step();
        match self.events.get(&event) {
            Some(state) if state.ended == state.recorded => OK,
            Some(_) => NOT_READY,
            None => INVALID_HANDLE,
        }
    }

    pub(crate) fn elapsed(&self, from: usize, to: usize) -> Option<Duration> {
        let at = |event| self.events.get(&event)?.at;
        Some(at(to)?.saturating_duration_since(at(from)?))
    }

    pub(crate) fn is_empty(&self, stream: usize) -> bool {
        self.lost || self.streams.get(&stream).is_none_or(|stream| stream.ops.is_empty())
    }

    /// Carries out one operation that may be, of any stream. False if there is none.
    pub(crate) fn step(&mut self) -> bool {
        let now = device_clock();
        let may: Vec<usize> = self
            .streams
            .iter()
            .filter(|(_, stream)| self.may_run(stream, now))
            .map(|(&handle, _)| handle)
            .collect();
        if may.is_empty() || self.lost {
            return false;
        }
        let chosen = may[self.next_random() as usize % may.len()];
        let stream = self.streams.get_mut(&chosen).expect("just found");
        let op = *stream.ops.front().expect("it may run");
        if let (Op::Checksum { header, .. }, None) = (op, stream.until) {
            stream.until = Some(now + op.takes(header));
            return true;
        }
        stream.until = None;
        stream.ops.pop_front();
        match op {
            Op::Record { event, nth } => {
                if let Some(state) = self.events.get_mut(&event) {
                    (state.ended, state.at) = (nth, Some(now));
                }
            }
            Op::Wait { .. } => {}
            _ => op.carry_out(),
        }
        true
    }

    fn may_run(&self, stream: &Stream, now: Instant) -> bool {
        match stream.ops.front() {
            Some(Op::Wait { event, nth }) => {
                self.events.get(event).is_none_or(|state| state.ended >= *nth)
            }
            Some(_) => stream.until.is_none_or(|until| until <= now),
            None => false,
        }
    }
}

impl Op {
    /// What it will write is undefined until it has ended.
    fn poison(self) {
        let (to, bytes) = match self {
            Self::Copy { to, bytes, .. } => (to, bytes),
            Self::Checksum { answers, blocks, .. } => (answers, 8 * blocks as usize),
            Self::Within { .. } | Self::Record { .. } | Self::Wait { .. } => return,
        };
        // SAFETY: the caller of the CUDA function promises that this memory is there to be written.
        unsafe { std::ptr::write_bytes(to as *mut u8, 0xcd, bytes) };
    }

    fn takes(self, header: usize) -> Duration {
        // SAFETY: a header begins with two words.
        let words = unsafe { std::ptr::read_unaligned(header as *const [u32; 2]) };
        let ns = u64::from(words[1]) << 32 | u64::from(words[0]);
        // Where the header has not come yet, it holds something long.
        Duration::from_nanos(ns.min(1_000_000_000))
    }

    fn carry_out(self) {
        match self {
            Self::Copy { to, from, bytes } | Self::Within { to, from, bytes } => {
                // SAFETY: the caller of the copy promises both ranges until its event has ended.
                unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
            }
            Self::Checksum { rows, header, answers, blocks } => {
                for row in 0..blocks as usize {
                    let word = |index: usize| {
                        // SAFETY: a header has four words and one for each row.
                        unsafe { std::ptr::read_unaligned((header + 4 * index) as *const u32) }
                    };
                    let (stride, len) = (word(2) as usize, word(4 + row) as usize);
                    // A header that has not come yet says anything; then so does the answer.
                    let sum = if len > stride || stride == 0xcdcd_cdcd {
                        !0
                    } else {
                        // SAFETY: the row lies in the rows' memory, which the launch's caller promises.
                        let row = unsafe {
                            std::slice::from_raw_parts((rows + row * stride) as *const u8, len)
                        };
                        u64::from(checksum(row))
                    };
                    // SAFETY: there is room for an answer to each block.
                    unsafe { std::ptr::write_unaligned((answers + 8 * row) as *mut u64, sum) };
                }
            }
            Self::Record { .. } | Self::Wait { .. } => {}
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "stands for a device, whose clock is its own")]
fn device_clock() -> Instant {
    Instant::now()
}

/// CRC-32 (IEEE), eight bits at a time.
fn checksum(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = table();
    let step = |sum: u32, &byte: &u8| (sum >> 8) ^ TABLE[((sum ^ u32::from(byte)) & 0xff) as usize];
    !bytes.iter().fold(!0, step)
}

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let (mut entry, mut bit) = (byte as u32, 0);
        while bit < 8 {
            entry = (entry >> 1) ^ if entry & 1 == 1 { 0xedb8_8320 } else { 0 };
            bit += 1;
        }
        table[byte] = entry;
        byte += 1;
    }
    table
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_checksum_is_the_usual_one() {
        assert_eq!(super::checksum(b"123456789"), 0xcbf4_3926);
    }
}
