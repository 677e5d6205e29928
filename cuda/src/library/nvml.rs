//! NVIDIA's management library, opened at run time: clocks, what holds them down, and who else uses a device.
//!
//! Everything but [`Nvml::lock_clocks`] only looks. A host without the library serves all the same.

use std::ffi::{CString, OsString, c_char, c_int, c_uint};
use std::path::Path;
use std::sync::Arc;

use super::{Handle, functions};

/// Names another library than the driver's.
const VARIABLE: &str = "BATON_NVML";
/// It comes with the driver.
const LIBRARY: &str = "libnvidia-ml.so.1";
/// `NVML_CLOCK_SM`.
const SM: c_uint = 1;
/// `NVML_ERROR_INSUFFICIENT_SIZE`: there are more processes than there was room for.
const INSUFFICIENT_SIZE: c_int = 7;
/// More than share a GPU by mistake.
const PROCESSES_MAX: usize = 64;

functions! {
    init = "nvmlInit_v2" ();
    by_pci = "nvmlDeviceGetHandleByPciBusId_v2" (*const c_char, *mut Handle);
    clock = "nvmlDeviceGetClockInfo" (Handle, c_uint, *mut c_uint);
    clock_max = "nvmlDeviceGetMaxClockInfo" (Handle, c_uint, *mut c_uint);
    held_down = "nvmlDeviceGetCurrentClocksThrottleReasons" (Handle, *mut u64);
    processes = "nvmlDeviceGetComputeRunningProcesses_v3" (Handle, *mut c_uint, *mut Process);
    persistence = "nvmlDeviceGetPersistenceMode" (Handle, *mut c_uint);
    temperature = "nvmlDeviceGetTemperature" (Handle, c_uint, *mut c_uint);
    link_width = "nvmlDeviceGetCurrPcieLinkWidth" (Handle, *mut c_uint);
    link_width_max = "nvmlDeviceGetMaxPcieLinkWidth" (Handle, *mut c_uint);
    mig = "nvmlDeviceGetMigMode" (Handle, *mut c_uint, *mut c_uint);
    lock_clocks = "nvmlDeviceSetGpuLockedClocks" (Handle, c_uint, c_uint);
    unlock_clocks = "nvmlDeviceResetGpuLockedClocks" (Handle);
}

/// `nvmlProcessInfo_v2_t`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Process {
    id: c_uint,
    memory_bytes: u64,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

/// Why NVML does not answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum NvmlError {
    /// There is no library, or not all of it.
    #[error("no NVML found: {problem}; it comes with NVIDIA's driver")]
    Missing {
        /// What is missing.
        problem: String,
    },
    /// A call failed.
    #[error("{call}: {name} ({code})")]
    Call {
        /// The function.
        call: &'static str,
        /// Its `nvmlReturn_t`.
        code: i32,
        /// What that means.
        name: &'static str,
    },
}

impl NvmlError {
    /// Whether only the administrator may do that.
    pub fn is_no_permission(&self) -> bool {
        matches!(self, Self::Call { code: 4, .. })
    }
}

/// A device as it is now. What a device does not tell is `None`.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct GpuState {
    /// The clock of its multiprocessors, MHz.
    pub sm_clock_mhz: Option<u32>,
    /// The highest there is.
    pub sm_clock_max_mhz: Option<u32>,
    /// Why the clock is not higher, the lack of work and of a higher setting left out.
    pub held_down_by: Vec<&'static str>,
    /// Its temperature, °C.
    pub temperature_c: Option<u32>,
    /// Processes that compute there, beside this one.
    pub others: Option<u32>,
    /// Whether the driver keeps it ready without a process.
    pub is_persistent: Option<bool>,
    /// Lanes of its PCI Express link, now and at most.
    pub link_width: Option<(u32, u32)>,
    /// Whether it is cut into MIG devices.
    pub is_mig: Option<bool>,
}

/// The library, opened once.
pub struct Nvml {
    call: Functions,
    _handle: libloading::Library,
}

impl std::fmt::Debug for Nvml {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Nvml")
    }
}

impl Nvml {
    /// The library of this host, or the one that `BATON_NVML` names; of a fake driver, the fake one.
    ///
    /// # Errors
    /// There is none.
    pub fn open(driver: &super::Library) -> Result<Arc<Self>, NvmlError> {
        let named = std::env::var_os(VARIABLE).filter(|name| !name.is_empty());
        let usual = match driver.is_fake() {
            true => driver.path().as_os_str().to_owned(),
            false => OsString::from(LIBRARY),
        };
        Self::open_at(Path::new(&named.unwrap_or(usual)))
    }

    /// A library by its name or path.
    ///
    /// # Errors
    /// There is none, it lacks functions, or it finds no driver.
    pub fn open_at(path: &Path) -> Result<Arc<Self>, NvmlError> {
        let missing = |problem: String| NvmlError::Missing { problem };
        // SAFETY: the library has no initialiser with preconditions; nor has the fake one.
        let handle = unsafe { libloading::Library::new(path) };
        let handle = handle.map_err(|_| missing(format!("{} cannot be opened", path.display())))?;
        let lacks = |symbols: Vec<&str>| format!("{} lacks {}", path.display(), symbols.join(", "));
        let call = Functions::find(&handle).map_err(|symbols| missing(lacks(symbols)))?;
        let nvml = Self { call, _handle: handle };
        // SAFETY: has no arguments; may be called more than once.
        check("nvmlInit_v2", unsafe { (nvml.call.init)() })?;
        Ok(Arc::new(nvml))
    }

    fn device(&self, pci: &str) -> Result<Handle, NvmlError> {
        let mut device: Handle = std::ptr::null_mut();
        let pci = CString::new(pci).unwrap_or_default();
        // SAFETY: reads the text up to its zero, writes one handle.
        let found = unsafe { (self.call.by_pci)(pci.as_ptr(), &raw mut device) };
        check("nvmlDeviceGetHandleByPciBusId_v2", found).map(|()| device)
    }

    /// How the device at this PCI address is.
    ///
    /// # Errors
    /// There is no such device.
    pub fn look(&self, pci: &str) -> Result<GpuState, NvmlError> {
        let device = self.device(pci)?;
        let number = |call: unsafe extern "C" fn(Handle, *mut c_uint) -> c_int| {
            let mut value = 0;
            // SAFETY: writes one number.
            (unsafe { call(device, &raw mut value) } == 0).then_some(value)
        };
        let numbered = |call: unsafe extern "C" fn(Handle, c_uint, *mut c_uint) -> c_int, which| {
            let mut value = 0;
            // SAFETY: writes one number.
            (unsafe { call(device, which, &raw mut value) } == 0).then_some(value)
        };
        let call = &self.call;
        Ok(GpuState {
            sm_clock_mhz: numbered(call.clock, SM),
            sm_clock_max_mhz: numbered(call.clock_max, SM),
            held_down_by: self.held_down_by(device),
            temperature_c: numbered(call.temperature, 0),
            others: self.others(device),
            is_persistent: number(call.persistence).map(|mode| mode != 0),
            link_width: number(call.link_width).zip(number(call.link_width_max)),
            is_mig: self.is_mig(device),
        })
    }

    fn held_down_by(&self, device: Handle) -> Vec<&'static str> {
        const REASONS: [(u64, &str); 6] = [
            (0x4, "power cap"),
            (0x8, "hardware slowdown"),
            (0x10, "sync boost"),
            (0x20, "temperature"),
            (0x40, "hardware temperature limit"),
            (0x80, "power brake"),
        ];
        let mut bits = 0;
        // SAFETY: writes one number.
        let told = unsafe { (self.call.held_down)(device, &raw mut bits) };
        let bits = if told == 0 { bits } else { 0 };
        REASONS.into_iter().filter(|(bit, _)| bits & bit != 0).map(|(_, name)| name).collect()
    }

    fn others(&self, device: Handle) -> Option<u32> {
        let mut found = [Process::default(); PROCESSES_MAX];
        let mut count = PROCESSES_MAX as c_uint;
        // SAFETY: writes at most `count` processes, and how many there are.
        let told = unsafe { (self.call.processes)(device, &raw mut count, found.as_mut_ptr()) };
        let own = std::process::id();
        match told {
            0 => {
                let known = &found[..(count as usize).min(PROCESSES_MAX)];
                Some(known.iter().filter(|process| process.id != own).count() as u32)
            }
            INSUFFICIENT_SIZE => Some(count.saturating_sub(1)),
            _ => None,
        }
    }

    fn is_mig(&self, device: Handle) -> Option<bool> {
        let (mut now, mut pending) = (0, 0);
        // SAFETY: writes two numbers.
        let told = unsafe { (self.call.mig)(device, &raw mut now, &raw mut pending) };
        (told == 0).then_some(now != 0)
    }

    /// Holds the device at its highest clock until what this returns is dropped.
    ///
    /// # Errors
    /// This process is not the administrator's, or the device cannot.
    pub fn lock_clocks(self: &Arc<Self>, pci: &str) -> Result<LockedClocks, NvmlError> {
        let device = self.device(pci)?;
        let mut mhz = 0;
        // SAFETY: writes one number.
        let told = unsafe { (self.call.clock_max)(device, SM, &raw mut mhz) };
        check("nvmlDeviceGetMaxClockInfo", told)?;
        // SAFETY: takes numbers alone.
        let locked = unsafe { (self.call.lock_clocks)(device, mhz, mhz) };
        check("nvmlDeviceSetGpuLockedClocks", locked)?;
        Ok(LockedClocks { nvml: Arc::clone(self), device: device as usize, mhz })
    }
}

/// A device whose clock is held. Dropping it gives the clock back to the driver.
#[derive(Debug)]
pub struct LockedClocks {
    nvml: Arc<Nvml>,
    device: usize,
    mhz: u32,
}

impl LockedClocks {
    /// At which clock, MHz.
    pub fn mhz(&self) -> u32 {
        self.mhz
    }
}

impl Drop for LockedClocks {
    fn drop(&mut self) {
        // SAFETY: the handle is the library's, which is open.
        let _ = unsafe { (self.nvml.call.unlock_clocks)(self.device as Handle) };
    }
}

fn check(call: &'static str, code: c_int) -> Result<(), NvmlError> {
    let name = match code {
        0 => return Ok(()),
        2 => "invalid argument",
        3 => "not supported",
        4 => "no permission",
        6 => "not found",
        9 => "the driver is not loaded",
        15 => "the GPU has fallen off the bus",
        _ => "unknown error",
    };
    Err(NvmlError::Call { call, code, name })
}
