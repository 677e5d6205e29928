//! One device, through the library.

use std::ffi::{CString, c_void};
use std::sync::Arc;

use baton_types::Nanos;

use super::pinned::{Context, Pinning};
use super::{Graph, Handle, Library, OpenError, Recorder};
use crate::KernelSource;
use crate::driver::{
    CudaError, DeviceBlock, DeviceMemory, Driver, Event, HostBlock, HostSource, Kernel, Lane,
    RowsAt, Stream,
};
use crate::kernel::{COPY, THREADS, copy_blocks};

/// `CU_STREAM_NON_BLOCKING`: has no order with the default stream.
const NON_BLOCKING: u32 = 1;
/// Lower is more urgent; the driver takes what is beyond its range for the end of it.
const COPIES_FIRST: i32 = -8;
/// `CUDA_ERROR_INVALID_VALUE` and `CUDA_ERROR_NOT_READY`.
const INVALID_VALUE: i32 = 1;
const NOT_READY: i32 = 600;
/// Arguments of a kernel.
const ARGUMENTS_MAX: usize = 8;

/// A device and everything that was made on it, by one thread.
pub struct Gpu {
    context: Arc<Context>,
    streams: Vec<Handle>,
    events: Vec<Handle>,
    /// Address and bytes; `None` once given back.
    device: Vec<Option<(u64, usize)>>,
    host: Vec<Option<(Handle, usize)>>,
    modules: Vec<Handle>,
    /// The function and how many arguments it takes.
    kernels: Vec<(Handle, usize)>,
    /// Copies rows.
    copier: Kernel,
    allocations: u64,
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gpu({:?})", Pinning(Arc::clone(&self.context)))
    }
}

impl Gpu {
    /// The device with this number, for the calling thread.
    ///
    /// # Errors
    /// There are not that many, or the driver refuses.
    pub fn open(library: Arc<Library>, number: u32) -> Result<Self, OpenError> {
        let context = Context::retain(library, number)?;
        context.set_current().map_err(|error| OpenError::Start { error })?;
        let (streams, events, device, host) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (modules, kernels, allocations, copier) = (Vec::new(), Vec::new(), 0, Kernel(0));
        let mut gpu =
            Self { context, streams, events, device, host, modules, kernels, copier, allocations };
        gpu.copier = gpu.load(&COPY).map_err(|error| OpenError::Start { error })?;
        Ok(gpu)
    }

    /// What registers memory with it.
    pub fn pinning(&self) -> Pinning {
        Pinning(Arc::clone(&self.context))
    }

    /// What captures work on it.
    ///
    /// # Errors
    /// The driver's.
    pub fn recorder(&self) -> Result<Recorder, CudaError> {
        Recorder::new(Arc::clone(&self.context))
    }

    fn check(&self, call: &'static str, code: i32) -> Result<(), CudaError> {
        self.context.library.check(call, code)
    }

    fn stream_of(&self, stream: Stream) -> Handle {
        self.streams[stream.0 as usize]
    }

    fn event_of(&self, event: Event) -> Handle {
        self.events[event.0 as usize]
    }

    /// The address of a block with at least that many bytes.
    fn device_at(&self, block: DeviceBlock, bytes: usize) -> u64 {
        let (address, length) = self.device[block.0 as usize].expect("not given back");
        assert!(bytes <= length, "beyond the device's block");
        address
    }

    /// Where the first of those rows begins.
    fn rows_at(&self, at: RowsAt, bytes: usize, rows: u32) -> u64 {
        let end = at.offset + at.stride * (rows as usize).saturating_sub(1) + bytes;
        match at.memory {
            DeviceMemory::Block(block) => self.device_at(block, end) + at.offset as u64,
            DeviceMemory::At(address) => address + at.offset as u64,
        }
    }

    /// Launches a kernel in a grid of blocks.
    fn start(
        &self,
        stream: Stream,
        kernel: Kernel,
        (across, down): (u32, u32),
        arguments: &mut [u64],
    ) -> Result<(), CudaError> {
        let (function, count) = self.kernels[kernel.0 as usize];
        assert_eq!(arguments.len(), count, "arguments of a kernel");
        let mut pointers = [std::ptr::null_mut::<c_void>(); ARGUMENTS_MAX];
        for (pointer, value) in pointers.iter_mut().zip(arguments) {
            *pointer = std::ptr::from_mut(value).cast();
        }
        let (stream, none) = (self.stream_of(stream), std::ptr::null_mut());
        let (call, arguments) = (self.context.library.call.launch, pointers.as_mut_ptr());
        // SAFETY: the kernel takes `count` words, by its `KernelSource`; addresses among them are of memory that is there, the
        // driver's own or one that its owner vouches for; the driver copies them before it returns.
        let launched =
            unsafe { call(function, across, down, 1, THREADS, 1, 1, 0, stream, arguments, none) };
        self.check("cuLaunchKernel", launched)
    }

    fn host_at(&self, block: HostBlock, bytes: usize) -> Handle {
        let (address, length) = self.host[block.0 as usize].expect("not given back");
        assert!(bytes <= length, "beyond the host's block");
        address
    }
}

impl Driver for Gpu {
    type Graph = Graph;

    fn stream(&mut self, lane: Lane) -> Result<Stream, CudaError> {
        let priority = if lane == Lane::In { COPIES_FIRST } else { 0 };
        let mut stream: Handle = std::ptr::null_mut();
        let call = self.context.library.call.create_stream;
        // SAFETY: writes one handle.
        let made = unsafe { call(&raw mut stream, NON_BLOCKING, priority) };
        self.check("cuStreamCreateWithPriority", made)?;
        self.streams.push(stream);
        Ok(Stream(self.streams.len() as u32 - 1))
    }

    fn event(&mut self) -> Result<Event, CudaError> {
        let mut event: Handle = std::ptr::null_mut();
        // SAFETY: writes one handle.
        let made = unsafe { (self.context.library.call.create_event)(&raw mut event, 0) };
        self.check("cuEventCreate", made)?;
        self.events.push(event);
        Ok(Event(self.events.len() as u32 - 1))
    }

    fn allocate(&mut self, bytes: usize) -> Result<DeviceBlock, CudaError> {
        let mut address = 0;
        // SAFETY: writes one address.
        let made = unsafe { (self.context.library.call.allocate)(&raw mut address, bytes) };
        self.check("cuMemAlloc", made)?;
        self.allocations += 1;
        self.device.push(Some((address, bytes)));
        Ok(DeviceBlock(self.device.len() as u32 - 1))
    }

    fn free(&mut self, block: DeviceBlock) -> Result<(), CudaError> {
        let address = self.device_at(block, 0);
        self.device[block.0 as usize] = None;
        // SAFETY: allocated once, and forgotten just now.
        let freed = unsafe { (self.context.library.call.free)(address) };
        self.check("cuMemFree", freed)
    }

    fn allocate_host(&mut self, bytes: usize) -> Result<HostBlock, CudaError> {
        let mut address: Handle = std::ptr::null_mut();
        // SAFETY: writes one address.
        let made = unsafe { (self.context.library.call.allocate_host)(&raw mut address, bytes) };
        self.check("cuMemAllocHost", made)?;
        self.allocations += 1;
        // SAFETY: as many bytes were just allocated; all of them are initialised from here on.
        unsafe { address.cast::<u8>().write_bytes(0, bytes) };
        self.host.push(Some((address, bytes)));
        Ok(HostBlock(self.host.len() as u32 - 1))
    }

    fn free_host(&mut self, block: HostBlock) -> Result<(), CudaError> {
        let address = self.host_at(block, 0);
        self.host[block.0 as usize] = None;
        // SAFETY: allocated once, and forgotten just now.
        let freed = unsafe { (self.context.library.call.free_host)(address) };
        self.check("cuMemFreeHost", freed)
    }

    fn write(&mut self, block: HostBlock, bytes: &[u8]) {
        let to = self.host_at(block, bytes.len()).cast::<u8>();
        // SAFETY: in bounds, of memory that only this driver and the device know; a device that reads it meanwhile reads
        // something else than it should, which is the caller's promise to exclude.
        unsafe { to.copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
    }

    fn read(&mut self, block: HostBlock, bytes: &mut [u8]) {
        let from = self.host_at(block, bytes.len()).cast::<u8>();
        // SAFETY: in bounds and initialised; a device that writes meanwhile is the caller's promise to exclude.
        unsafe { from.copy_to_nonoverlapping(bytes.as_mut_ptr(), bytes.len()) };
    }

    fn load(&mut self, source: &KernelSource) -> Result<Kernel, CudaError> {
        let (mut module, mut kernel): (Handle, Handle) =
            (std::ptr::null_mut(), std::ptr::null_mut());
        assert!(source.ptx.ends_with('\0'), "PTX for the driver ends with a zero");
        let call = self.context.library.call.load_module;
        // SAFETY: reads the text up to its zero, writes one handle.
        let loaded = unsafe { call(&raw mut module, source.ptx.as_ptr().cast()) };
        self.check("cuModuleLoadData", loaded)?;
        self.modules.push(module);
        let name = CString::new(source.name).expect("a kernel's name has no zero");
        let call = self.context.library.call.find_kernel;
        // SAFETY: reads the name up to its zero, writes one handle.
        let found = unsafe { call(&raw mut kernel, module, name.as_ptr()) };
        self.check("cuModuleGetFunction", found)?;
        self.kernels.push((kernel, source.arguments));
        Ok(Kernel(self.kernels.len() as u32 - 1))
    }

    fn copy_in(
        &mut self,
        stream: Stream,
        to: DeviceBlock,
        from: HostSource,
        bytes: usize,
    ) -> Result<(), CudaError> {
        let from = match from {
            HostSource::Block(block) => self.host_at(block, bytes).cast_const(),
            HostSource::Registered(address) if self.context.is_registered(address, bytes) => {
                address as *const c_void
            }
            // Memory that is not registered is copied by the host, which would wait for it.
            HostSource::Registered(_) => {
                let name = "the rows are not registered with the driver".to_owned();
                return Err(CudaError { call: "cuMemcpyHtoDAsync", code: INVALID_VALUE, name });
            }
        };
        let (to, stream) = (self.device_at(to, bytes), self.stream_of(stream));
        // SAFETY: in bounds on both sides; the host's side is page-locked by the driver, so it stays while it is read.
        let copied = unsafe { (self.context.library.call.copy_in)(to, from, bytes, stream) };
        self.check("cuMemcpyHtoDAsync", copied)
    }

    fn copy_out(
        &mut self,
        stream: Stream,
        to: HostBlock,
        from: DeviceBlock,
        bytes: usize,
    ) -> Result<(), CudaError> {
        let (to, from) = (self.host_at(to, bytes), self.device_at(from, bytes));
        let call = self.context.library.call.copy_out;
        // SAFETY: in bounds on both sides; the host's side is the driver's own and read through `read` alone.
        let copied = unsafe { call(to, from, bytes, self.stream_of(stream)) };
        self.check("cuMemcpyDtoHAsync", copied)
    }

    fn launch(
        &mut self,
        stream: Stream,
        kernel: Kernel,
        blocks: u32,
        arguments: &[DeviceBlock],
    ) -> Result<(), CudaError> {
        let mut values = [0; ARGUMENTS_MAX];
        for (value, &block) in values.iter_mut().zip(arguments) {
            *value = self.device_at(block, 0);
        }
        self.start(stream, kernel, (blocks, 1), &mut values[..arguments.len()])
    }

    fn copy_rows(
        &mut self,
        stream: Stream,
        to: RowsAt,
        from: RowsAt,
        bytes: usize,
        rows: u32,
    ) -> Result<(), CudaError> {
        let [there, here] = [to, from].map(|at| self.rows_at(at, bytes, rows));
        let [to_stride, from_stride, each] = [to.stride, from.stride, bytes].map(|n| n as u64);
        // One row behind the other on both sides is one long row.
        let (each, rows) = match to_stride == each && from_stride == each {
            true => (each * u64::from(rows), 1),
            false => (each, rows),
        };
        let grid = (copy_blocks(each as usize), rows);
        let mut arguments = [there, to_stride, here, from_stride, each];
        self.start(stream, self.copier, grid, &mut arguments)
    }

    fn launch_graph(&mut self, stream: Stream, graph: &Graph) -> Result<(), CudaError> {
        graph.launch(self.stream_of(stream))
    }

    fn record(&mut self, event: Event, stream: Stream) -> Result<(), CudaError> {
        let (event, stream) = (self.event_of(event), self.stream_of(stream));
        // SAFETY: both were made here and live as long as this.
        let recorded = unsafe { (self.context.library.call.record_event)(event, stream) };
        self.check("cuEventRecord", recorded)
    }

    fn wait(&mut self, stream: Stream, event: Event) -> Result<(), CudaError> {
        let (event, stream) = (self.event_of(event), self.stream_of(stream));
        // SAFETY: both were made here and live as long as this.
        let waits = unsafe { (self.context.library.call.wait_event)(stream, event, 0) };
        self.check("cuStreamWaitEvent", waits)
    }

    fn has_ended(&mut self, event: Event) -> Result<bool, CudaError> {
        // SAFETY: the event was made here and lives as long as this.
        match unsafe { (self.context.library.call.query_event)(self.event_of(event)) } {
            NOT_READY => Ok(false),
            code => self.check("cuEventQuery", code).map(|()| true),
        }
    }

    fn elapsed(&mut self, from: Event, to: Event) -> Result<Nanos, CudaError> {
        let mut milliseconds = 0_f32;
        let (from, to) = (self.event_of(from), self.event_of(to));
        // SAFETY: writes one number; both events were made here and live as long as this.
        let told = unsafe { (self.context.library.call.elapsed)(&raw mut milliseconds, from, to) };
        self.check("cuEventElapsedTime", told)?;
        Ok(Nanos::from_millis_f64(f64::from(milliseconds).max(0.0)))
    }

    fn synchronize(&mut self, stream: Stream) -> Result<(), CudaError> {
        let stream = self.stream_of(stream);
        // SAFETY: the stream was made here and lives as long as this.
        let ended = unsafe { (self.context.library.call.synchronize_stream)(stream) };
        self.check("cuStreamSynchronize", ended)
    }

    fn free_bytes(&mut self) -> Result<u64, CudaError> {
        let (mut free, mut all) = (0, 0);
        // SAFETY: writes two numbers.
        let told = unsafe { (self.context.library.call.memory_info)(&raw mut free, &raw mut all) };
        self.check("cuMemGetInfo", told).map(|()| free as u64)
    }

    fn allocations(&self) -> u64 {
        self.allocations
    }

    fn abandon(&mut self) {
        self.context.abandon();
    }
}

impl Drop for Gpu {
    /// What a lost context refuses to give back goes with the process.
    fn drop(&mut self) {
        if self.context.is_abandoned() {
            return;
        }
        let call = &self.context.library.call;
        for &stream in &self.streams {
            // SAFETY: made here; nothing uses memory of this device once its streams are empty.
            let _ = unsafe { (call.synchronize_stream)(stream) };
            // SAFETY: made here and destroyed only here.
            let _ = unsafe { (call.destroy_stream)(stream) };
        }
        for &event in &self.events {
            // SAFETY: made here and destroyed only here.
            let _ = unsafe { (call.destroy_event)(event) };
        }
        for &(address, _) in self.device.iter().flatten() {
            // SAFETY: allocated here and not given back.
            let _ = unsafe { (call.free)(address) };
        }
        for &(address, _) in self.host.iter().flatten() {
            // SAFETY: allocated here and not given back.
            let _ = unsafe { (call.free_host)(address) };
        }
        for &module in &self.modules {
            // SAFETY: loaded here and unloaded only here; no stream executes anything of it.
            let _ = unsafe { (call.unload_module)(module) };
        }
    }
}
