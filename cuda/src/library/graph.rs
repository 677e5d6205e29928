//! Work that another library puts into a stream, captured once and launched as a whole.

use std::sync::Arc;

use super::Handle;
use super::pinned::Context;
use crate::driver::CudaError;

/// `CU_STREAM_NON_BLOCKING`: has no order with the default stream.
const NON_BLOCKING: u32 = 1;
/// Later than copies and executions of batches, where the driver can choose.
const LAST: i32 = 0;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`: calls that cannot be captured, such as taking memory, happen at once.
const RELAXED: i32 = 2;

/// A stream of its own, for a library that puts its work there, and what captures that.
///
/// Its owner may be another thread than those that execute batches: they do not see the stream.
pub struct Recorder {
    context: Arc<Context>,
    stream: Handle,
}

// SAFETY: the driver takes streams from any thread, and `Recorder` gives its own to one library at a time.
unsafe impl Send for Recorder {}

impl std::fmt::Debug for Recorder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Recorder({:?})", self.stream)
    }
}

impl Recorder {
    pub(super) fn new(context: Arc<Context>) -> Result<Self, CudaError> {
        let mut stream: Handle = std::ptr::null_mut();
        // SAFETY: writes one handle.
        let made =
            unsafe { (context.library.call.create_stream)(&raw mut stream, NON_BLOCKING, LAST) };
        context.library.check("cuStreamCreateWithPriority", made)?;
        Ok(Self { context, stream })
    }

    /// The stream, as the driver knows it. It lives as long as this.
    pub fn stream(&self) -> *mut () {
        self.stream.cast()
    }

    /// Writes memory of the device, by an address that its owner vouches for, once the stream is empty.
    ///
    /// # Errors
    /// The driver's.
    pub fn write(&self, to: u64, bytes: &[u8]) -> Result<(), CudaError> {
        self.synchronize()?;
        let call = self.context.library.call.write_device;
        // SAFETY: the owner of that memory vouches for it; the copy has ended when the call returns.
        let written = unsafe { call(to, bytes.as_ptr().cast(), bytes.len()) };
        self.context.library.check("cuMemcpyHtoD", written)
    }

    /// Reads memory of the device, by an address that its owner vouches for, once the stream is empty.
    ///
    /// # Errors
    /// The driver's.
    pub fn read(&self, from: u64, bytes: &mut [u8]) -> Result<(), CudaError> {
        self.synchronize()?;
        let call = self.context.library.call.read_device;
        // SAFETY: as above, and there is room for as many bytes.
        let read = unsafe { call(bytes.as_mut_ptr().cast(), from, bytes.len()) };
        self.context.library.check("cuMemcpyDtoH", read)
    }

    /// Executes a graph on this stream.
    ///
    /// # Errors
    /// The driver's.
    pub fn replay(&self, graph: &Graph) -> Result<(), CudaError> {
        graph.launch(self.stream)
    }

    /// Waits until the stream is empty.
    ///
    /// # Errors
    /// The driver's, also one of an operation before.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        // SAFETY: the stream was made here and lives as long as this.
        let ended = unsafe { (self.context.library.call.synchronize_stream)(self.stream) };
        self.context.library.check("cuStreamSynchronize", ended)
    }

    /// What `work` puts into the stream, which is not executed but becomes a graph.
    ///
    /// # Errors
    /// The driver's, or those of `work`.
    pub fn capture<E: From<CudaError>>(
        &self,
        work: impl FnOnce() -> Result<(), E>,
    ) -> Result<Graph, E> {
        let library = &self.context.library;
        // SAFETY: the stream was made here and lives as long as this; nothing else is captured from it.
        let begun = unsafe { (library.call.begin_capture)(self.stream, RELAXED) };
        library.check("cuStreamBeginCapture", begun)?;
        let worked = work();
        let mut graph: Handle = std::ptr::null_mut();
        // SAFETY: the capture was begun just now; writes one handle, or null if it was broken off.
        let ended = unsafe { (library.call.end_capture)(self.stream, &raw mut graph) };
        // What broke the capture off is the better reason.
        let worked = worked.and_then(|()| Ok(library.check("cuStreamEndCapture", ended)?));
        let instance = worked.and_then(|()| Ok(self.instantiate(graph)?));
        if !graph.is_null() {
            // SAFETY: made by the capture, and not used any more: an instance is a copy.
            let _ = unsafe { (library.call.destroy_graph)(graph) };
        }
        Ok(Graph { context: Arc::clone(&self.context), instance: instance? })
    }

    fn instantiate(&self, graph: Handle) -> Result<Handle, CudaError> {
        let (library, mut instance) = (&self.context.library, std::ptr::null_mut());
        // SAFETY: writes one handle; the graph is whole.
        let made = unsafe { (library.call.instantiate)(&raw mut instance, graph, 0) };
        library.check("cuGraphInstantiate", made).map(|()| instance)
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        if !self.context.is_abandoned() {
            // SAFETY: made here and destroyed only here; the driver lets it end what it has.
            let _ = unsafe { (self.context.library.call.destroy_stream)(self.stream) };
        }
    }
}

/// Work that was captured. The memory that it reads and writes must outlive it.
pub struct Graph {
    context: Arc<Context>,
    instance: Handle,
}

// SAFETY: the driver takes graphs from any thread; launches of one are ordered by the stream they are put into.
unsafe impl Send for Graph {}
// SAFETY: as above; a launch does not change it.
unsafe impl Sync for Graph {}

impl std::fmt::Debug for Graph {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Graph({:?})", self.instance)
    }
}

impl Graph {
    pub(super) fn launch(&self, stream: Handle) -> Result<(), CudaError> {
        let library = &self.context.library;
        // SAFETY: made by a capture and not destroyed; the stream is the caller's.
        let launched = unsafe { (library.call.launch_graph)(self.instance, stream) };
        library.check("cuGraphLaunch", launched)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        if !self.context.is_abandoned() {
            // SAFETY: made by a capture and destroyed only here; no launch of it is under way, by `Driver::launch_graph`.
            let _ = unsafe { (self.context.library.call.destroy_instance)(self.instance) };
        }
    }
}
