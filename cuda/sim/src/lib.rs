//! A CUDA driver in virtual time: streams, events, copies and kernels with durations, and errors at any call.
//!
//! Vector clocks say what is ordered before what, by streams, events and what the host has seen, whatever happened to be
//! fast or slow. A read that is not ordered after the write before it, or a write not after the reads before it, is a
//! violation that names both calls. Blocks of memory are watched as wholes.
//!
//! Property tests walk over it, and `baton bench gpu --simulated` rehearses on it.
//!
//! Contents are followed, too: a block that an operation is to write holds something else from the call to the
//! operation's end.

mod memory;
mod world;

use std::cell::{Ref, RefCell, RefMut};
use std::rc::Rc;

use baton_cuda::{
    CudaError, DeviceBlock, DeviceMemory, Driver, Event, HostBlock, HostSource, Kernel,
    KernelSource, Lane, RowsAt, Stream,
};
use baton_types::Nanos;

pub use memory::Place;
use world::{Action, Op};
pub use world::{Execution, World};

/// Copies begin with this, whatever their size.
pub const COPY_FIXED_NS: u64 = 7_000;
/// 25 GB/s.
pub const BYTES_PER_NS: u64 = 25;
/// A copy from one place of the device to another.
pub const DEVICE_COPY_NS: u64 = 3_000;
/// From one kernel to the next.
pub const LAUNCH_NS: u64 = 1_000;
/// `CUDA_ERROR_INVALID_VALUE`.
const INVALID_VALUE: i32 = 1;
/// Memory of the device, bytes.
const MEMORY_BYTES: u64 = 80 << 30;

/// A copy of rows from one place of the device to another.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowCopy {
    /// Where to.
    pub to: RowsAt,
    /// Where from.
    pub from: RowsAt,
    /// Of each row.
    pub bytes: usize,
    /// How many.
    pub rows: u32,
}

/// A graph: what it reads becomes what it writes.
#[derive(Clone, Copy, Debug)]
pub struct SimGraph {
    /// Where it reads.
    pub input: u64,
    /// Where it writes.
    pub output: u64,
    /// How long it executes.
    pub takes: Nanos,
}

/// The driver; the world that it works on is also its test's.
#[derive(Clone, Default, Debug)]
pub struct SimDriver(Rc<RefCell<World>>);

impl SimDriver {
    /// To change it, or to let time pass.
    pub fn world(&self) -> RefMut<'_, World> {
        self.0.borrow_mut()
    }

    /// To look at it.
    pub fn look(&self) -> Ref<'_, World> {
        self.0.borrow()
    }

    /// A call of the driver: counted, named, and failed if it is its turn.
    fn call<T>(
        &self,
        call: &'static str,
        made: impl FnOnce(&mut World) -> T,
    ) -> Result<T, CudaError> {
        let mut world = self.world();
        world.begin_call(call)?;
        Ok(made(&mut world))
    }
}

impl Driver for SimDriver {
    type Graph = SimGraph;

    fn stream(&mut self, _: Lane) -> Result<Stream, CudaError> {
        self.call("stream", World::add_stream)
    }

    fn event(&mut self) -> Result<Event, CudaError> {
        self.call("event", World::add_event)
    }

    fn allocate(&mut self, bytes: usize) -> Result<DeviceBlock, CudaError> {
        self.call("allocate", |world| {
            world.device_bytes += bytes as u64;
            DeviceBlock(world.allocate(bytes))
        })
    }

    fn free(&mut self, block: DeviceBlock) -> Result<(), CudaError> {
        self.call("free", |world| world.free(Place::Device(block.0)))
    }

    fn allocate_host(&mut self, bytes: usize) -> Result<HostBlock, CudaError> {
        self.call("allocate_host", |world| HostBlock(world.allocate(bytes)))
    }

    fn free_host(&mut self, block: HostBlock) -> Result<(), CudaError> {
        self.call("free_host", |world| world.free(Place::Host(block.0)))
    }

    fn write(&mut self, block: HostBlock, bytes: &[u8]) {
        self.world().host_write(Place::Host(block.0), bytes.to_vec());
    }

    fn read(&mut self, block: HostBlock, bytes: &mut [u8]) {
        let found = self.world().host_read(Place::Host(block.0));
        let len = bytes.len().min(found.len());
        bytes[..len].copy_from_slice(&found[..len]);
    }

    fn load(&mut self, _: &KernelSource) -> Result<Kernel, CudaError> {
        self.call("load", |_| Kernel(0))
    }

    fn copy_in(
        &mut self,
        stream: Stream,
        to: DeviceBlock,
        from: HostSource,
        bytes: usize,
    ) -> Result<(), CudaError> {
        let from = match from {
            HostSource::Block(block) => Place::Host(block.0),
            HostSource::Registered(address) => Place::Rows(address),
        };
        self.call("copy_in", |world| world.copy(stream, Place::Device(to.0), from, bytes))
    }

    fn copy_out(
        &mut self,
        stream: Stream,
        to: HostBlock,
        from: DeviceBlock,
        bytes: usize,
    ) -> Result<(), CudaError> {
        let (to, from) = (Place::Host(to.0), Place::Device(from.0));
        self.call("copy_out", |world| world.copy(stream, to, from, bytes))
    }

    fn launch(
        &mut self,
        stream: Stream,
        _: Kernel,
        blocks: u32,
        arguments: &[DeviceBlock],
    ) -> Result<(), CudaError> {
        let &[rows, header, answers] = arguments else { panic!("three arguments: {arguments:?}") };
        let [rows, header, answers] = [rows, header, answers].map(|block| Place::Device(block.0));
        let action = Action::Execute { rows, header, answers, blocks };
        self.call("launch", |world| world.enqueue(stream, Op::new(action, LAUNCH_NS)))
    }

    fn copy_rows(
        &mut self,
        stream: Stream,
        to: RowsAt,
        from: RowsAt,
        bytes: usize,
        rows: u32,
    ) -> Result<(), CudaError> {
        let copy = RowCopy { to, from, bytes, rows };
        let [to, from] = [to, from].map(|at| match at.memory {
            DeviceMemory::Block(block) => Place::Device(block.0),
            DeviceMemory::At(address) => Place::Foreign(address),
        });
        let op = Op::new(Action::Copy { to, from }, DEVICE_COPY_NS);
        self.call("copy_rows", |world| {
            world.row_copies.push(copy);
            world.enqueue(stream, op);
        })
    }

    fn launch_graph(&mut self, stream: Stream, graph: &SimGraph) -> Result<(), CudaError> {
        let [from, to] = [graph.input, graph.output].map(Place::Foreign);
        let op = Op::new(Action::Replay { to, from, takes_ns: graph.takes.0 }, LAUNCH_NS);
        self.call("launch_graph", |world| world.enqueue(stream, op))
    }

    fn record(&mut self, event: Event, stream: Stream) -> Result<(), CudaError> {
        self.call("record", |world| world.record(event, stream))
    }

    fn wait(&mut self, stream: Stream, event: Event) -> Result<(), CudaError> {
        self.call("wait", |world| world.wait(stream, event))
    }

    fn has_ended(&mut self, event: Event) -> Result<bool, CudaError> {
        self.call("has_ended", |world| world.host_sees(event))
    }

    fn elapsed(&mut self, from: Event, to: Event) -> Result<Nanos, CudaError> {
        self.call("elapsed", |world| Nanos(world.elapsed(from, to)))
    }

    fn synchronize(&mut self, stream: Stream) -> Result<(), CudaError> {
        // What a lost device had begun has ended then, too.
        let called = self.call("synchronize", |_| ());
        self.world().synchronize(stream);
        called
    }

    fn free_bytes(&mut self) -> Result<u64, CudaError> {
        self.call("free_bytes", |world| MEMORY_BYTES - world.device_bytes)
    }

    fn allocations(&self) -> u64 {
        self.look().allocations
    }

    fn abandon(&mut self) {
        self.world().is_abandoned = true;
    }
}

fn error(call: &'static str, code: i32) -> CudaError {
    let name = if code == INVALID_VALUE { "INVALID_VALUE" } else { "PLANTED" };
    CudaError { call, code, name: name.into() }
}
