//! The functions of NVIDIA's management library that Baton calls, of a card that is a constant.
//!
//! `BATON_FAKE_NVML_LOG` names a file that gets a line whenever clocks are locked or given back.

use std::ffi::{c_char, c_int, c_uint};
use std::io::Write;

use crate::device::world;

const OK: c_int = 0;
const NO_PERMISSION: c_int = 4;
/// MHz.
const CLOCK: c_uint = 1_980;
const CLOCK_HOT: c_uint = 1_200;
/// `nvmlClocksThrottleReasonSwThermalSlowdown`.
const TOO_HOT: u64 = 0x20;

/// `nvmlProcessInfo_v2_t`.
#[repr(C)]
#[derive(Debug)]
pub struct Process {
    id: c_uint,
    memory_bytes: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

fn is_hot() -> bool {
    world().faults.is_hot
}

fn put<T>(to: *mut T, value: T) -> c_int {
    // SAFETY: the caller of the function promises room for what it writes.
    unsafe { to.write_unaligned(value) };
    OK
}

fn log(line: &str) -> c_int {
    let file = std::env::var_os("BATON_FAKE_NVML_LOG");
    let file =
        file.and_then(|path| std::fs::File::options().append(true).create(true).open(path).ok());
    // Who set the variable sees that the line is missing.
    file.map(|mut file| writeln!(file, "{line}"));
    OK
}

macro_rules! exports {
    ($(fn $name:ident($($arg:ident: $type:ty),*) $body:block)*) => {
        $(
            /// As NVML's.
            // SAFETY: no other library of the process exports this name, unless it is NVML itself, which Baton does not open
            // beside this one.
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($arg: $type),*) -> c_int $body
        )*
    };
}

exports! {
    fn nvmlInit_v2() { OK }
    fn nvmlDeviceGetHandleByPciBusId_v2(_pci: *const c_char, device: *mut usize) { put(device, 0x50) }
    fn nvmlDeviceGetClockInfo(_device: usize, _kind: c_uint, mhz: *mut c_uint) { put(mhz, if is_hot() { CLOCK_HOT } else { CLOCK }) }
    fn nvmlDeviceGetMaxClockInfo(_device: usize, _kind: c_uint, mhz: *mut c_uint) { put(mhz, CLOCK) }
    fn nvmlDeviceGetCurrentClocksThrottleReasons(_device: usize, reasons: *mut u64) { put(reasons, if is_hot() { TOO_HOT } else { 0 }) }
    fn nvmlDeviceGetComputeRunningProcesses_v3(_device: usize, count: *mut c_uint, processes: *mut Process) {
        let others = c_uint::from(is_hot());
        if others == 1 {
            put(processes, Process { id: 1, memory_bytes: 1 << 30, gpu_instance: !0, compute_instance: !0 });
        }
        put(count, others)
    }
    fn nvmlDeviceGetPersistenceMode(_device: usize, mode: *mut c_uint) { put(mode, c_uint::from(!is_hot())) }
    fn nvmlDeviceGetTemperature(_device: usize, _sensor: c_uint, celsius: *mut c_uint) { put(celsius, if is_hot() { 91 } else { 40 }) }
    fn nvmlDeviceGetCurrPcieLinkWidth(_device: usize, lanes: *mut c_uint) { put(lanes, if is_hot() { 8 } else { 16 }) }
    fn nvmlDeviceGetMaxPcieLinkWidth(_device: usize, lanes: *mut c_uint) { put(lanes, 16) }
    fn nvmlDeviceGetMigMode(_device: usize, now: *mut c_uint, pending: *mut c_uint) {
        put(now, 0);
        put(pending, 0)
    }
    fn nvmlDeviceSetGpuLockedClocks(_device: usize, least: c_uint, most: c_uint) {
        if world().faults.no_root { return NO_PERMISSION }
        log(&format!("locked {least} {most}"))
    }
    fn nvmlDeviceResetGpuLockedClocks(_device: usize) { log("given back") }
}
