//! The library, loaded at run time, and the symbols it exports.
#![expect(unsafe_code, reason = "loads a C library")]

use std::ffi::{c_char, c_int, c_void};

use super::{
    Ah, AhAttr, CompChannel, Context, Cq, Device, DeviceAttr, GidEntry, Mr, Pd, PortAttr, Qp,
    QpAttr, QpInitAttr, Srq, SrqInitAttr,
};
use crate::verbs::error::VerbsError;

/// What the dynamic linker is asked for.
const LIBRARY: &str = "libibverbs.so.1";

/// From rdma-core 34 on.
const REG_DMABUF_MR: &str = "ibv_reg_dmabuf_mr";
/// Domain, where in the file the memory begins, its bytes, the address that peers and requests name it by, the file, access.
type RegDmabufMr = unsafe extern "C" fn(*mut Pd, u64, usize, u64, c_int, c_int) -> *mut Mr;

impl Library {
    /// What registers memory of another device.
    ///
    /// # Errors
    /// The library is older than it.
    pub(in crate::verbs) fn reg_dmabuf_mr(&self) -> Result<RegDmabufMr, VerbsError> {
        self.reg_dmabuf_mr.ok_or(VerbsError::OldLibrary { symbol: REG_DMABUF_MR })
    }
}

/// Declares the library's functions once: the table, and how it is filled.
macro_rules! library {
    ($($name:ident = $symbol:literal ($($arg:ty),*) $(-> $ret:ty)?;)*) => {
        /// The loaded library's functions. They stay valid as long as this lives.
        pub(in crate::verbs) struct Library {
            $(pub(in crate::verbs) $name: unsafe extern "C" fn($($arg),*) $(-> $ret)?,)*
            /// No transport needs it.
            reg_dmabuf_mr: Option<RegDmabufMr>,
            _handle: libloading::Library,
        }

        impl Library {
            /// Loads the library and finds every function.
            ///
            /// # Errors
            /// It is not installed, or so old that a function is missing.
            pub(in crate::verbs) fn load() -> Result<Self, VerbsError> {
                // SAFETY: libibverbs has no initialiser with preconditions.
                let handle = unsafe { libloading::Library::new(LIBRARY) };
                let handle = handle.map_err(|error| VerbsError::NoLibrary {
                    library: LIBRARY,
                    problem: error.to_string(),
                })?;
                $(let $name = {
                    // SAFETY: the symbol, where it exists, is the C function of this signature.
                    let symbol = unsafe { handle.get($symbol.as_bytes()) };
                    *symbol.map_err(|_| VerbsError::OldLibrary { symbol: $symbol })?
                };)*
                // SAFETY: the symbol, where it exists, is the C function of this signature.
                let reg_dmabuf_mr = unsafe { handle.get::<RegDmabufMr>(REG_DMABUF_MR.as_bytes()) };
                let reg_dmabuf_mr = reg_dmabuf_mr.map(|found| *found).ok();
                Ok(Self { $($name,)* reg_dmabuf_mr, _handle: handle })
            }
        }
    };
}

library! {
    get_device_list = "ibv_get_device_list" (*mut c_int) -> *mut *mut Device;
    free_device_list = "ibv_free_device_list" (*mut *mut Device);
    get_device_name = "ibv_get_device_name" (*mut Device) -> *const c_char;
    open_device = "ibv_open_device" (*mut Device) -> *mut Context;
    close_device = "ibv_close_device" (*mut Context) -> c_int;
    query_device = "ibv_query_device" (*mut Context, *mut DeviceAttr) -> c_int;
    query_port = "ibv_query_port" (*mut Context, u8, *mut PortAttr) -> c_int;
    query_gid = "_ibv_query_gid_ex" (*mut Context, u32, u32, *mut GidEntry, u32, usize) -> c_int;
    alloc_pd = "ibv_alloc_pd" (*mut Context) -> *mut Pd;
    dealloc_pd = "ibv_dealloc_pd" (*mut Pd) -> c_int;
    reg_mr = "ibv_reg_mr_iova2" (*mut Pd, *mut c_void, usize, u64, u32) -> *mut Mr;
    dereg_mr = "ibv_dereg_mr" (*mut Mr) -> c_int;
    create_channel = "ibv_create_comp_channel" (*mut Context) -> *mut CompChannel;
    destroy_channel = "ibv_destroy_comp_channel" (*mut CompChannel) -> c_int;
    create_cq = "ibv_create_cq" (*mut Context, c_int, *mut c_void, *mut CompChannel, c_int) -> *mut Cq;
    destroy_cq = "ibv_destroy_cq" (*mut Cq) -> c_int;
    get_cq_event = "ibv_get_cq_event" (*mut CompChannel, *mut *mut Cq, *mut *mut c_void) -> c_int;
    ack_cq_events = "ibv_ack_cq_events" (*mut Cq, u32);
    create_srq = "ibv_create_srq" (*mut Pd, *mut SrqInitAttr) -> *mut Srq;
    destroy_srq = "ibv_destroy_srq" (*mut Srq) -> c_int;
    create_qp = "ibv_create_qp" (*mut Pd, *mut QpInitAttr) -> *mut Qp;
    modify_qp = "ibv_modify_qp" (*mut Qp, *mut QpAttr, c_int) -> c_int;
    destroy_qp = "ibv_destroy_qp" (*mut Qp) -> c_int;
    create_ah = "ibv_create_ah" (*mut Pd, *mut AhAttr) -> *mut Ah;
    destroy_ah = "ibv_destroy_ah" (*mut Ah) -> c_int;
    fork_init = "ibv_fork_init" () -> c_int;
    status_text = "ibv_wc_status_str" (u32) -> *const c_char;
}
