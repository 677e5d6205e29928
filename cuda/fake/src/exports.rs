//! The functions of the CUDA driver that Baton calls.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::fs::File;
use std::io::Write;
use std::os::fd::{FromRawFd, IntoRawFd};

use crate::device::{
    ILLEGAL_ADDRESS, INVALID_HANDLE, INVALID_VALUE, NO_DEVICE, NOT_FOUND, NOT_READY, NOT_SUPPORTED,
    OK, OUT_OF_MEMORY, Op, world,
};

const NAME: &CStr = c"Baton fake GPU";
/// The kernels, and what their handles are.
const KERNELS: [(&CStr, usize); 2] = [(c"checksum_rows", CHECKSUM), (c"copy_rows", COPY)];
const CHECKSUM: usize = 0x40;
const COPY: usize = 0x50;

/// Of most hosts.
const PAGE: usize = 4096;

unsafe extern "C" {
    fn memfd_create(name: *const c_char, flags: c_uint) -> c_int;
}

/// A file in memory that holds what this memory of a device holds.
fn dma_buf(from: usize, bytes: usize) -> Option<c_int> {
    // SAFETY: the name is a C string; the descriptor is nobody else's.
    let file = unsafe { memfd_create(c"baton-fake-dma-buf".as_ptr(), 0) };
    // SAFETY: it was opened just now.
    let mut file = (file >= 0).then(|| unsafe { File::from_raw_fd(file) })?;
    // SAFETY: the caller has found these bytes in a block of the device.
    let memory = unsafe { std::slice::from_raw_parts(from as *const u8, bytes) };
    file.write_all(memory).ok()?;
    Some(file.into_raw_fd())
}

macro_rules! exports {
    ($(fn $name:ident($($arg:ident: $type:ty),*) $body:block)*) => {
        $(
            /// As the CUDA driver's.
            // SAFETY: no other library of the process exports this name, unless it is the driver itself, which Baton does
            // not open beside this one.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $type),*) -> c_int $body
        )*
    };
}

/// Writes what a function returns.
fn put<T>(to: *mut T, value: T) -> c_int {
    // SAFETY: the caller of the CUDA function promises room for what it writes.
    unsafe { to.write_unaligned(value) };
    OK
}

fn known(is_known: bool) -> c_int {
    if is_known { OK } else { INVALID_HANDLE }
}

/// An error once the device is lost, as from any function then.
fn alive(code: c_int) -> c_int {
    let world = world();
    if world.lost { world.lost_code() } else { code }
}

/// Each side by its address and the distance of its rows.
fn copy_rows(
    to: (usize, usize),
    from: (usize, usize),
    bytes: usize,
    rows: usize,
    stream: usize,
) -> c_int {
    let mut world = world();
    for row in 0..rows {
        let (to, from) = (to.0 + row * to.1, from.0 + row * from.1);
        if !world.is_device(to, bytes) || !world.is_device(from, bytes) {
            return ILLEGAL_ADDRESS;
        }
        let code = world.enqueue(stream, Op::Within { to, from, bytes });
        if code != OK {
            return code;
        }
    }
    OK
}

exports! {
    fn baton_fake_gpu() { OK }
    fn cuInit(_flags: c_uint) { if world().faults.no_device { NO_DEVICE } else { OK } }
    fn cuDriverGetVersion(version: *mut c_int) {
        let is_old = world().faults.is_old;
        put(version, if is_old { 11_080 } else { 12_000 })
    }
    fn cuGetErrorName(code: c_int, name: *mut *const c_char) {
        let text = match code {
            INVALID_VALUE => c"CUDA_ERROR_INVALID_VALUE",
            OUT_OF_MEMORY => c"CUDA_ERROR_OUT_OF_MEMORY",
            NO_DEVICE => c"CUDA_ERROR_NO_DEVICE",
            INVALID_HANDLE => c"CUDA_ERROR_INVALID_HANDLE",
            NOT_FOUND => c"CUDA_ERROR_NOT_FOUND",
            NOT_READY => c"CUDA_ERROR_NOT_READY",
            ILLEGAL_ADDRESS => c"CUDA_ERROR_ILLEGAL_ADDRESS",
            NOT_SUPPORTED => c"CUDA_ERROR_NOT_SUPPORTED",
            719 => c"CUDA_ERROR_LAUNCH_FAILED",
            999 => c"CUDA_ERROR_UNKNOWN",
            _ => return INVALID_VALUE,
        };
        put(name, text.as_ptr())
    }
    fn cuDeviceGetCount(count: *mut c_int) { put(count, world().faults.devices) }
    fn cuDeviceGet(device: *mut c_int, number: c_int) { put(device, number) }
    fn cuDeviceGetName(name: *mut c_char, room: c_int, _device: c_int) {
        let bytes = NAME.to_bytes_with_nul();
        if bytes.len() > room as usize { return INVALID_VALUE }
        // SAFETY: the caller says that there is room for as many bytes.
        unsafe { name.cast::<u8>().copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
        OK
    }
    fn cuDeviceGetPCIBusId(address: *mut c_char, room: c_int, device: c_int) {
        let text = format!("0000:{device:02X}:00.0\0");
        if text.len() > room as usize { return INVALID_VALUE }
        // SAFETY: the caller says that there is room for as many bytes.
        unsafe { address.cast::<u8>().copy_from_nonoverlapping(text.as_ptr(), text.len()) };
        OK
    }
    fn cuDeviceTotalMem_v2(bytes: *mut usize, _device: c_int) { put(bytes, world().faults.memory) }
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, _device: c_int) {
        let gives_memory = c_int::from(!world().faults.no_dma_buf);
        put(value, match attribute { 75 => 7, 76 => 5, 124 => gives_memory, _ => 0 })
    }
    fn cuDevicePrimaryCtxRetain(context: *mut usize, device: c_int) { put(context, 0xc0 + device as usize) }
    fn cuDevicePrimaryCtxRelease_v2(_device: c_int) { OK }
    fn cuCtxSetCurrent(_context: usize) { OK }
    fn cuStreamCreateWithPriority(stream: *mut usize, _flags: c_uint, _priority: c_int) { put(stream, world().add_stream()) }
    fn cuStreamDestroy_v2(stream: usize) { known(world().drop_stream(stream)) }
    fn cuStreamSynchronize(stream: usize) {
        while !world().is_empty(stream) {
            if !world().step() { std::thread::yield_now() }
        }
        alive(OK)
    }
    fn cuStreamWaitEvent(stream: usize, event: usize, _flags: c_uint) { world().wait(stream, event) }
    fn cuEventCreate(event: *mut usize, _flags: c_uint) { put(event, world().add_event()) }
    fn cuEventDestroy_v2(event: usize) { known(world().drop_event(event)) }
    fn cuEventRecord(event: usize, stream: usize) { world().record(event, stream) }
    fn cuEventQuery(event: usize) { world().has_ended(event) }
    fn cuEventElapsedTime(ms: *mut f32, from: usize, to: usize) {
        let elapsed = world().elapsed(from, to);
        elapsed.map_or(INVALID_HANDLE, |elapsed| put(ms, elapsed.as_secs_f32() * 1e3))
    }
    fn cuMemAlloc_v2(address: *mut u64, bytes: usize) {
        let mut world = world();
        if bytes == 0 { return INVALID_VALUE }
        if bytes > world.free_memory() { return OUT_OF_MEMORY }
        let mut block = vec![0xee; bytes];
        let at = block.as_mut_ptr() as usize;
        world.device.insert(at, block);
        put(address, at as u64)
    }
    fn cuMemGetInfo_v2(free: *mut usize, all: *mut usize) {
        let world = world();
        put(free, world.free_memory());
        put(all, world.faults.memory)
    }
    fn cuMemFree_v2(address: u64) {
        if world().device.remove(&(address as usize)).is_some() { OK } else { INVALID_VALUE }
    }
    fn cuMemGetHandleForAddressRange(handle: *mut c_int, address: u64, bytes: usize, kind: c_int, flags: u64) {
        let (from, world) = (address as usize, world());
        let is_aligned = from.is_multiple_of(PAGE) && bytes.is_multiple_of(PAGE);
        if kind != 1 || flags != 0 || !is_aligned || !world.is_device(from, bytes) { return INVALID_VALUE }
        match world.faults.dma_buf_code {
            OK => dma_buf(from, bytes).map_or(OUT_OF_MEMORY, |file| put(handle, file)),
            refusal => refusal,
        }
    }
    fn cuMemAllocHost_v2(address: *mut usize, bytes: usize) {
        let mut block = vec![0xee; bytes].into_boxed_slice();
        let at = block.as_mut_ptr() as usize;
        world().host.insert(at, block);
        put(address, at)
    }
    fn cuMemFreeHost(address: usize) {
        if world().host.remove(&address).is_some() { OK } else { INVALID_VALUE }
    }
    fn cuMemHostRegister_v2(address: usize, bytes: usize, _flags: c_uint) {
        world().registered.insert(address, bytes);
        OK
    }
    fn cuMemHostUnregister(address: usize) {
        if world().registered.remove(&address).is_some() { OK } else { INVALID_VALUE }
    }
    fn cuMemcpyHtoDAsync_v2(to: u64, from: usize, bytes: usize, stream: usize) {
        let (to, mut world) = (to as usize, world());
        if !world.is_device(to, bytes) || !world.is_page_locked(from, bytes) { return INVALID_VALUE }
        world.enqueue(stream, Op::Copy { to, from, bytes })
    }
    fn cuMemcpyDtoHAsync_v2(to: usize, from: u64, bytes: usize, stream: usize) {
        let (from, mut world) = (from as usize, world());
        if !world.is_device(from, bytes) || !world.is_page_locked(to, bytes) { return INVALID_VALUE }
        world.enqueue(stream, Op::Copy { to, from, bytes })
    }
    fn cuMemcpyHtoD_v2(to: u64, from: usize, bytes: usize) {
        if !world().is_device(to as usize, bytes) { return INVALID_VALUE }
        // SAFETY: the caller promises the host's side, and that nothing uses the device's meanwhile.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
        alive(OK)
    }
    fn cuMemcpyDtoH_v2(to: usize, from: u64, bytes: usize) {
        if !world().is_device(from as usize, bytes) { return INVALID_VALUE }
        // SAFETY: as above.
        unsafe { std::ptr::copy(from as *const u8, to as *mut u8, bytes) };
        alive(OK)
    }
    // Not called by Baton: work that another library puts into a stream, for tests of captures.
    fn cuMemcpyDtoDAsync_v2(to: u64, from: u64, bytes: usize, stream: usize) {
        let (to, from, mut world) = (to as usize, from as usize, world());
        if !world.is_device(to, bytes) || !world.is_device(from, bytes) { return INVALID_VALUE }
        world.enqueue(stream, Op::Within { to, from, bytes })
    }
    fn cuStreamBeginCapture_v2(stream: usize, _mode: c_int) { world().begin_capture(stream) }
    fn cuStreamEndCapture(stream: usize, graph: *mut usize) {
        let captured = world().end_capture(stream);
        captured.map_or(INVALID_HANDLE, |handle| put(graph, handle))
    }
    fn cuGraphInstantiateWithFlags(instance: *mut usize, graph: usize, _flags: u64) {
        let made = world().instantiate(graph);
        made.map_or(INVALID_HANDLE, |handle| put(instance, handle))
    }
    fn cuGraphLaunch(instance: usize, stream: usize) { world().launch_graph(instance, stream) }
    fn cuGraphDestroy(graph: usize) { known(world().drop_graph(graph)) }
    fn cuGraphExecDestroy(instance: usize) { known(world().drop_graph(instance)) }
    fn cuModuleLoadData(module: *mut usize, _image: *const c_void) { put(module, 0x30) }
    fn cuModuleUnload(_module: usize) { OK }
    fn cuModuleGetFunction(function: *mut usize, _module: usize, name: *const c_char) {
        // SAFETY: the caller gives a C string.
        let name = unsafe { CStr::from_ptr(name) };
        let found = KERNELS.iter().find(|(known, _)| *known == name);
        found.map_or(NOT_FOUND, |&(_, handle)| put(function, handle))
    }
    fn cuTensorMapEncodeTiled() { NOT_SUPPORTED }
    fn cuLaunchKernel(function: usize, blocks: c_uint, rows: c_uint, _z: c_uint, _threads: c_uint, _ty: c_uint, _tz: c_uint, _shared: c_uint, stream: usize, arguments: *const *const usize, _extra: *const c_void) {
        let argument = |index| {
            // SAFETY: the caller gives a pointer to each of the kernel's arguments.
            let pointer = unsafe { *arguments.wrapping_add(index) };
            // SAFETY: each of them is a word.
            unsafe { *pointer }
        };
        if function == COPY {
            let (to, from, bytes) = ((argument(0), argument(1)), (argument(2), argument(3)), argument(4));
            return copy_rows(to, from, bytes, rows as usize, stream);
        }
        let (rows, header, answers) = (argument(0), argument(1), argument(2));
        world().enqueue(stream, Op::Checksum { rows, header, answers, blocks })
    }
}
