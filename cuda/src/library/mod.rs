//! The driver's library, opened at run time, and the functions of it that Baton calls.
//!
//! Nothing here links against CUDA, so the same binary starts on a host without a driver. Every function is looked up when
//! the library is opened, and all that are missing are reported at once. The names are those of CUDA 12.0, which later
//! drivers still have.
#![expect(unsafe_code, reason = "calls a C library")]

mod export;
mod gpu;
mod graph;
mod nvml;
mod pinned;

use std::error::Error as _;
use std::ffi::{CStr, OsString, c_char, c_int, c_uint, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

pub use export::{DeviceExport, ExportError};
pub use gpu::Gpu;
pub use graph::{Graph, Recorder};
pub use nvml::{GpuState, LockedClocks, Nvml, NvmlError};
pub use pinned::{Pinned, Pinning};

use crate::driver::CudaError;

/// Names another library than the driver's; Baton's own fake one, for trying things out.
const VARIABLE: &str = "BATON_CUDA_DRIVER";
/// What the dynamic linker is asked for: the driver's own name. The name without a number would find a toolkit's stub.
const LIBRARY: &str = "libcuda.so.1";
/// CUDA 12.0 came with driver 525, the first that reads our PTX.
const VERSION_MIN: c_int = 12_000;
/// What the fake driver has and no other.
const FAKE: &[u8] = b"baton_fake_gpu";

/// Why the driver cannot be used.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum OpenError {
    /// There is no library.
    #[error(
        "no CUDA driver found: {problem}; install NVIDIA's driver (525 or later) on this host, or use another engine"
    )]
    Missing {
        /// The dynamic linker's words.
        problem: String,
    },
    /// The library lacks functions.
    #[error("the CUDA driver {} lacks {}; install driver 525 or later", library.display(), symbols.join(", "))]
    Symbols {
        /// What was opened.
        library: PathBuf,
        /// All that are missing.
        symbols: Vec<&'static str>,
    },
    /// The driver is of an older CUDA.
    #[error("the CUDA driver is for CUDA {}.{}, and Baton needs 12.0; install driver 525 or later", version / 1000, version % 1000 / 10)]
    Old {
        /// Its version, as the driver says it.
        version: i32,
    },
    /// The driver works with no device.
    #[error(
        "the CUDA driver cannot start: {error}; `nvidia-smi` should list a GPU that this process may use"
    )]
    Start {
        /// Its words.
        error: CudaError,
    },
    /// There are not that many devices.
    #[error(
        "GPU slot {device} has no device: this host has {count} that this process may use; lower `gpus` of its [[backend]]"
    )]
    Device {
        /// The number that was asked for.
        device: u32,
        /// How many there are.
        count: u32,
    },
}

/// What is known of a device without using it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeviceFacts {
    /// As its maker calls it.
    pub name: String,
    /// Its memory, bytes.
    pub memory_bytes: u64,
    /// Compute capability.
    pub capability: (u32, u32),
    /// Its PCI address, as NVML knows it too.
    pub pci: String,
    /// Whether it can give memory to network cards at all (GPUDirect). [`Library::export`] tries one way.
    pub direct: bool,
}

type Handle = *mut c_void;

/// Declares the library's functions once: the table, and how it is filled.
macro_rules! functions {
    ($($name:ident = $symbol:literal ($($arg:ty),*);)*) => {
        /// They stay valid as long as the library is open.
        pub(super) struct Functions {
            $($name: unsafe extern "C" fn($($arg),*) -> c_int,)*
        }

        impl Functions {
            /// Finds every function, or says which are missing.
            pub(super) fn find(library: &libloading::Library) -> Result<Self, Vec<&'static str>> {
                let mut missing = Vec::new();
                $(
                    // SAFETY: the symbol, where it exists, is the C function of this signature.
                    let $name = unsafe {
                        library.get::<unsafe extern "C" fn($($arg),*) -> c_int>($symbol.as_bytes())
                    };
                    let $name = $name.map(|found| *found).map_err(|_| missing.push($symbol)).ok();
                )*
                $(let Some($name) = $name else { return Err(missing) };)*
                Ok(Self { $($name,)* })
            }
        }
    };
}

use functions;

functions! {
    init = "cuInit" (c_uint);
    driver_version = "cuDriverGetVersion" (*mut c_int);
    error_name = "cuGetErrorName" (c_int, *mut *const c_char);
    device_count = "cuDeviceGetCount" (*mut c_int);
    device = "cuDeviceGet" (*mut c_int, c_int);
    device_name = "cuDeviceGetName" (*mut c_char, c_int, c_int);
    device_memory = "cuDeviceTotalMem_v2" (*mut usize, c_int);
    device_attribute = "cuDeviceGetAttribute" (*mut c_int, c_int, c_int);
    device_pci = "cuDeviceGetPCIBusId" (*mut c_char, c_int, c_int);
    retain = "cuDevicePrimaryCtxRetain" (*mut Handle, c_int);
    release = "cuDevicePrimaryCtxRelease_v2" (c_int);
    set_current = "cuCtxSetCurrent" (Handle);
    create_stream = "cuStreamCreateWithPriority" (*mut Handle, c_uint, c_int);
    destroy_stream = "cuStreamDestroy_v2" (Handle);
    synchronize_stream = "cuStreamSynchronize" (Handle);
    wait_event = "cuStreamWaitEvent" (Handle, Handle, c_uint);
    create_event = "cuEventCreate" (*mut Handle, c_uint);
    destroy_event = "cuEventDestroy_v2" (Handle);
    record_event = "cuEventRecord" (Handle, Handle);
    query_event = "cuEventQuery" (Handle);
    elapsed = "cuEventElapsedTime" (*mut f32, Handle, Handle);
    memory_info = "cuMemGetInfo_v2" (*mut usize, *mut usize);
    allocate = "cuMemAlloc_v2" (*mut u64, usize);
    free = "cuMemFree_v2" (u64);
    allocate_host = "cuMemAllocHost_v2" (*mut Handle, usize);
    free_host = "cuMemFreeHost" (Handle);
    register = "cuMemHostRegister_v2" (Handle, usize, c_uint);
    unregister = "cuMemHostUnregister" (Handle);
    copy_in = "cuMemcpyHtoDAsync_v2" (u64, *const c_void, usize, Handle);
    copy_out = "cuMemcpyDtoHAsync_v2" (*mut c_void, u64, usize, Handle);
    write_device = "cuMemcpyHtoD_v2" (u64, *const c_void, usize);
    read_device = "cuMemcpyDtoH_v2" (*mut c_void, u64, usize);
    begin_capture = "cuStreamBeginCapture_v2" (Handle, c_int);
    end_capture = "cuStreamEndCapture" (Handle, *mut Handle);
    instantiate = "cuGraphInstantiateWithFlags" (*mut Handle, Handle, u64);
    launch_graph = "cuGraphLaunch" (Handle, Handle);
    destroy_graph = "cuGraphDestroy" (Handle);
    destroy_instance = "cuGraphExecDestroy" (Handle);
    load_module = "cuModuleLoadData" (*mut Handle, *const c_void);
    unload_module = "cuModuleUnload" (Handle);
    find_kernel = "cuModuleGetFunction" (*mut Handle, Handle, *const c_char);
    launch = "cuLaunchKernel" (Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void, *mut *mut c_void);
}

/// The driver, opened once by this process and never closed.
pub struct Library {
    call: Functions,
    /// Only what gives out memory needs it.
    get_handle: Option<export::GetHandle>,
    path: PathBuf,
    version: i32,
    is_fake: bool,
    _handle: libloading::Library,
}

impl std::fmt::Debug for Library {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Library({}, {})", self.path.display(), self.version)
    }
}

impl Library {
    /// The library of this process: that of the driver, or the one that `BATON_CUDA_DRIVER` names.
    ///
    /// # Errors
    /// There is none, or it is too old, or finds no device. The same error each time: it is opened once.
    pub fn open() -> Result<Arc<Self>, OpenError> {
        static OPENED: OnceLock<Result<Arc<Library>, OpenError>> = OnceLock::new();
        let named = || std::env::var_os(VARIABLE).filter(|name| !name.is_empty());
        let name = || named().unwrap_or_else(|| OsString::from(LIBRARY));
        OPENED.get_or_init(|| Self::open_at(Path::new(&name())).map(Arc::new)).clone()
    }

    /// A library by its name or path, whatever this process uses.
    ///
    /// # Errors
    /// As [`Library::open`].
    pub fn open_at(path: &Path) -> Result<Self, OpenError> {
        // SAFETY: the driver's library has no initialiser with preconditions; nor has the fake one.
        let handle = unsafe { libloading::Library::new(path) };
        let handle = handle.map_err(|error| {
            let words = error.source().map_or_else(|| error.to_string(), ToString::to_string);
            OpenError::Missing { problem: words }
        })?;
        let missing = |symbols| OpenError::Symbols { library: path.to_owned(), symbols };
        let call = Functions::find(&handle).map_err(missing)?;
        // SAFETY: the symbol, where it exists, is the C function of this signature.
        let get_handle = unsafe { handle.get::<export::GetHandle>(export::SYMBOL.as_bytes()) };
        let get_handle = get_handle.map(|found| *found).ok();
        // SAFETY: the symbol is looked for, not called.
        let is_fake = unsafe { handle.get::<unsafe extern "C" fn()>(FAKE) }.is_ok();
        let mut library =
            Self { call, get_handle, path: path.to_owned(), version: 0, is_fake, _handle: handle };
        library.start()?;
        Ok(library)
    }

    fn start(&mut self) -> Result<(), OpenError> {
        // SAFETY: the one argument must be 0.
        let started = unsafe { (self.call.init)(0) };
        self.check("cuInit", started).map_err(|error| OpenError::Start { error })?;
        // SAFETY: writes one number.
        let told = unsafe { (self.call.driver_version)(&raw mut self.version) };
        self.check("cuDriverGetVersion", told).map_err(|error| OpenError::Start { error })?;
        if self.version < VERSION_MIN {
            return Err(OpenError::Old { version: self.version });
        }
        Ok(())
    }

    /// The file or name that was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The CUDA version that the driver is for: 12040 is 12.4.
    pub fn version(&self) -> i32 {
        self.version
    }

    /// Whether it is Baton's fake driver: nothing of what it says was measured on a GPU.
    pub fn is_fake(&self) -> bool {
        self.is_fake
    }

    /// The devices that this process may use, in the driver's order.
    ///
    /// # Errors
    /// The driver's.
    pub fn devices(&self) -> Result<Vec<DeviceFacts>, CudaError> {
        (0..self.device_count()?).map(|device| self.facts(device)).collect()
    }

    fn device_count(&self) -> Result<c_int, CudaError> {
        let mut count = 0;
        // SAFETY: writes one number.
        let told = unsafe { (self.call.device_count)(&raw mut count) };
        self.check("cuDeviceGetCount", told).map(|()| count)
    }

    /// What the driver calls the device with this number.
    fn device(&self, number: c_int) -> Result<c_int, CudaError> {
        let mut device = 0;
        // SAFETY: writes one number.
        let told = unsafe { (self.call.device)(&raw mut device, number) };
        self.check("cuDeviceGet", told).map(|()| device)
    }

    fn facts(&self, number: c_int) -> Result<DeviceFacts, CudaError> {
        let device = self.device(number)?;
        let name = self.text("cuDeviceGetName", self.call.device_name, device)?;
        let pci = self.text("cuDeviceGetPCIBusId", self.call.device_pci, device)?;
        let mut memory = 0;
        // SAFETY: writes one number.
        let told = unsafe { (self.call.device_memory)(&raw mut memory, device) };
        self.check("cuDeviceTotalMem", told)?;
        // The numbers of the two attributes in cuda.h.
        let capability = (self.attribute(75, device)?, self.attribute(76, device)?);
        // Drivers that do not know this attribute do not have what it asks for.
        let direct = self.attribute(116, device).is_ok_and(|value| value != 0);
        Ok(DeviceFacts { name, memory_bytes: memory as u64, capability, pci, direct })
    }

    fn text(
        &self,
        call: &'static str,
        function: unsafe extern "C" fn(*mut c_char, c_int, c_int) -> c_int,
        device: c_int,
    ) -> Result<String, CudaError> {
        let mut text = [0_u8; 128];
        // SAFETY: the driver writes at most as many bytes as it is given, the last of them 0.
        let told = unsafe { function(text.as_mut_ptr().cast(), 127, device) };
        self.check(call, told)?;
        let text = CStr::from_bytes_until_nul(&text).map(CStr::to_string_lossy);
        Ok(text.unwrap_or_default().into_owned())
    }

    fn attribute(&self, attribute: c_int, device: c_int) -> Result<u32, CudaError> {
        let mut value = 0;
        // SAFETY: writes one number.
        let told = unsafe { (self.call.device_attribute)(&raw mut value, attribute, device) };
        self.check("cuDeviceGetAttribute", told).map(|()| value.unsigned_abs())
    }

    /// An error unless the call went well.
    fn check(&self, call: &'static str, code: c_int) -> Result<(), CudaError> {
        if code == 0 {
            return Ok(());
        }
        let mut text = std::ptr::null();
        // SAFETY: writes one pointer: to a text that is never freed, or null for an unknown code.
        let named = unsafe { (self.call.error_name)(code, &raw mut text) };
        let is_named = named == 0 && !text.is_null();
        // SAFETY: not null, and a C string by the driver's promise.
        let name = is_named.then(|| unsafe { CStr::from_ptr(text) }.to_string_lossy());
        let name = name.map_or_else(|| "unknown error".to_owned(), |name| name.into_owned());
        Err(CudaError { call, code, name })
    }
}
