//! The calls of the CUDA driver that the pipeline makes.
//!
//! Handles are numbers that the driver's owner gave out, so that no call can be handed a pointer. A call that names a
//! handle which was never given out is a bug and panics.

use baton_types::Nanos;

/// An order of operations on the device: each begins when the one before has ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Stream(pub u32);

/// A point in a stream, as it was when [`Driver::record`] was called last.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Event(pub u32);

/// Memory of the device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct DeviceBlock(pub u32);

/// Page-locked memory of the host that belongs to the driver.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct HostBlock(pub u32);

/// A function that the device executes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Kernel(pub u32);

/// Memory of the device that rows are copied from or to by the device itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeviceMemory {
    /// A block of the driver's.
    Block(DeviceBlock),
    /// By its address, of a library that shares the device: its owner vouches for it.
    At(u64),
}

/// Where rows lie on the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RowsAt {
    /// In what.
    pub memory: DeviceMemory,
    /// Where in it the first begins, bytes.
    pub offset: usize,
    /// From one row's beginning to the next's, bytes.
    pub stride: usize,
}

/// What is copied to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostSource {
    /// The beginning of a block.
    Block(HostBlock),
    /// Memory that was registered with the driver, by its address.
    Registered(usize),
}

/// What a stream is for; copies to the device come before executions where both could begin.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lane {
    /// Rows to the device.
    In,
    /// Executions.
    Run,
    /// Answers to the host.
    Out,
}

/// A call that the driver refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{call}: {name} ({code})")]
pub struct CudaError {
    /// The driver's function.
    pub call: &'static str,
    /// Its `CUresult`.
    pub code: i32,
    /// The name of that.
    pub name: String,
}

/// `CUDA_ERROR_OUT_OF_MEMORY`.
const OUT_OF_MEMORY: i32 = 2;
/// Errors of a context that no call can use again: an uncorrectable ECC error, a fault of NVLink, an illegal address and
/// the faults of kernels, a launch that timed out or failed, a context that is gone, and what the driver has no word for, such
/// as a card that has fallen off the bus.
const STICKY: [i32; 13] = [214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 999];

impl CudaError {
    /// Whether the device's memory is too small.
    pub fn is_out_of_memory(&self) -> bool {
        self.code == OUT_OF_MEMORY
    }

    /// Whether every later call of this process for the device fails as well.
    pub fn is_sticky(&self) -> bool {
        STICKY.contains(&self.code)
    }
}

/// One device, as its executor's thread uses it.
///
/// Copies and launches return before they have happened. They read and write memory at some moment between the call and the
/// end of an event that is recorded behind them.
pub trait Driver {
    /// Work that was captured once and is launched as a whole.
    type Graph;

    /// A new stream.
    ///
    /// # Errors
    /// The driver's.
    fn stream(&mut self, lane: Lane) -> Result<Stream, CudaError>;

    /// A new event, which counts as ended until it is recorded.
    ///
    /// # Errors
    /// The driver's.
    fn event(&mut self) -> Result<Event, CudaError>;

    /// Memory of the device.
    ///
    /// # Errors
    /// The driver's; [`CudaError::is_out_of_memory`] among them.
    fn allocate(&mut self, bytes: usize) -> Result<DeviceBlock, CudaError>;

    /// Gives it back. Waits for whatever uses it.
    ///
    /// # Errors
    /// The driver's.
    fn free(&mut self, block: DeviceBlock) -> Result<(), CudaError>;

    /// Page-locked memory of the host.
    ///
    /// # Errors
    /// The driver's.
    fn allocate_host(&mut self, bytes: usize) -> Result<HostBlock, CudaError>;

    /// Gives it back.
    ///
    /// # Errors
    /// The driver's.
    fn free_host(&mut self, block: HostBlock) -> Result<(), CudaError>;

    /// The host writes the beginning of a block, which no operation reads meanwhile.
    fn write(&mut self, block: HostBlock, bytes: &[u8]);

    /// The host reads the beginning of a block, which no operation writes meanwhile.
    fn read(&mut self, block: HostBlock, bytes: &mut [u8]);

    /// A kernel from its PTX.
    ///
    /// # Errors
    /// The driver's.
    fn load(&mut self, source: &crate::KernelSource) -> Result<Kernel, CudaError>;

    /// Copies `bytes` bytes to the beginning of a block.
    ///
    /// # Errors
    /// The driver's.
    fn copy_in(
        &mut self,
        stream: Stream,
        to: DeviceBlock,
        from: HostSource,
        bytes: usize,
    ) -> Result<(), CudaError>;

    /// Copies `bytes` bytes from the beginning of a block.
    ///
    /// # Errors
    /// The driver's.
    fn copy_out(
        &mut self,
        stream: Stream,
        to: HostBlock,
        from: DeviceBlock,
        bytes: usize,
    ) -> Result<(), CudaError>;

    /// Executes a kernel in `blocks` blocks of threads. Its arguments are the addresses of the blocks of memory.
    ///
    /// # Errors
    /// The driver's.
    fn launch(
        &mut self,
        stream: Stream,
        kernel: Kernel,
        blocks: u32,
        arguments: &[DeviceBlock],
    ) -> Result<(), CudaError>;

    /// Copies the first `bytes` of each of `rows` rows from one place of the device to another.
    ///
    /// # Errors
    /// The driver's.
    fn copy_rows(
        &mut self,
        stream: Stream,
        to: RowsAt,
        from: RowsAt,
        bytes: usize,
        rows: u32,
    ) -> Result<(), CudaError>;

    /// Executes a graph, which must not be given up before it has ended.
    ///
    /// # Errors
    /// The driver's.
    fn launch_graph(&mut self, stream: Stream, graph: &Self::Graph) -> Result<(), CudaError>;

    /// The event ends when what is in the stream now has ended.
    ///
    /// # Errors
    /// The driver's.
    fn record(&mut self, event: Event, stream: Stream) -> Result<(), CudaError>;

    /// What is put into the stream from now on begins after the event's end.
    ///
    /// # Errors
    /// The driver's.
    fn wait(&mut self, stream: Stream, event: Event) -> Result<(), CudaError>;

    /// Whether the event has ended. Does not wait.
    ///
    /// # Errors
    /// The driver's, also one of an operation before.
    fn has_ended(&mut self, event: Event) -> Result<bool, CudaError>;

    /// From the end of one event to the end of another; both have ended.
    ///
    /// # Errors
    /// The driver's.
    fn elapsed(&mut self, from: Event, to: Event) -> Result<Nanos, CudaError>;

    /// Waits until the stream is empty.
    ///
    /// # Errors
    /// The driver's, also one of an operation before.
    fn synchronize(&mut self, stream: Stream) -> Result<(), CudaError>;

    /// Memory of the device that no process has, bytes.
    ///
    /// # Errors
    /// The driver's.
    fn free_bytes(&mut self) -> Result<u64, CudaError>;

    /// How often memory was taken, of the device and of the host.
    fn allocations(&self) -> u64;

    /// The device answers nothing any more: nothing of it is given back from now on, because that would wait for it.
    fn abandon(&mut self);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_the_call_and_whether_the_device_is_lost() {
        let error = |code| CudaError { call: "cuMemAlloc_v2", code, name: "NAME".into() };
        assert_eq!(error(700).to_string(), "cuMemAlloc_v2: NAME (700)");
        for code in [214, 220, 700, 702, 709, 710, 714, 715, 716, 717, 718, 719, 999] {
            assert!(error(code).is_sticky(), "{code}");
        }
        // Not enough memory, a wrong handle, not ready, not supported: the device goes on.
        for code in [1, 2, 100, 101, 400, 500, 600, 701, 712, 801] {
            assert!(!error(code).is_sticky(), "{code}");
        }
        assert!(error(2).is_out_of_memory() && !error(1).is_out_of_memory());
    }
}
