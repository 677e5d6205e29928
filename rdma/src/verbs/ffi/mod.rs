//! The part of libibverbs this crate calls: layouts, constants, and the library loaded at run time.
//!
//! Nothing here links against libibverbs, so the same binary starts on a host without rdma-core.
//! The layouts are those of the library's stable ABI; the assertions below hold them to the offsets
//! a C compiler gives. The verbs of the data path are not exported symbols: they are entries of the
//! context's table of operations, which the driver fills in.

mod library;

use std::ffi::{c_int, c_void};
use std::mem::offset_of;

pub(super) use library::Library;

/// An object only the library looks into.
macro_rules! opaque {
    ($($name:ident)*) => { $(#[repr(C)] pub(super) struct $name { _opaque: [u8; 0] })* };
}

opaque! { Device Pd Ah Srq }

/// Post a chain of work requests: queue pair, first request, out: the first one refused.
pub(super) type PostSend = unsafe extern "C" fn(*mut Qp, *mut SendWr, *mut *mut SendWr) -> c_int;
/// Post a chain of receives: shared queue, first receive, out: the first one refused.
pub(super) type PostSrqRecv =
    unsafe extern "C" fn(*mut Srq, *mut RecvWr, *mut *mut RecvWr) -> c_int;
/// Take completions: queue, how many at most, where to. Negative on failure.
pub(super) type PollCq = unsafe extern "C" fn(*mut Cq, c_int, *mut Wc) -> c_int;
/// Ask for an event on the next completion.
pub(super) type ReqNotifyCq = unsafe extern "C" fn(*mut Cq, c_int) -> c_int;

/// The driver's table of operations.
#[repr(C)]
pub(super) struct ContextOps {
    compat: [*const c_void; 11],
    pub(super) poll_cq: Option<PollCq>,
    pub(super) req_notify_cq: Option<ReqNotifyCq>,
    unused: [*const c_void; 7],
    pub(super) post_srq_recv: Option<PostSrqRecv>,
    unused_too: [*const c_void; 4],
    pub(super) post_send: Option<PostSend>,
    rest: [*const c_void; 6],
}

/// An open device.
#[repr(C)]
pub(super) struct Context {
    device: *mut Device,
    pub(super) ops: ContextOps,
    cmd_fd: c_int,
    async_fd: c_int,
}

/// A completion queue; only its beginning.
#[repr(C)]
pub(super) struct Cq {
    pub(super) context: *mut Context,
}

/// A completion channel; only its beginning.
#[repr(C)]
pub(super) struct CompChannel {
    context: *mut Context,
    pub(super) fd: c_int,
}

/// A queue pair; only its beginning.
#[repr(C)]
pub(super) struct Qp {
    pub(super) context: *mut Context,
    unused: [*const c_void; 5],
    handle: u32,
    pub(super) qp_num: u32,
}

/// A memory region; only its beginning.
#[repr(C)]
pub(super) struct Mr {
    context: *mut Context,
    pd: *mut Pd,
    addr: *mut c_void,
    length: usize,
    handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

/// A completion.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Wc {
    pub(super) wr_id: u64,
    pub(super) status: u32,
    opcode: u32,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    imm_data: u32,
    pub(super) qp_num: u32,
    src_qp: u32,
    wc_flags: u32,
    rest: [u16; 4],
}

/// A piece of local memory.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Sge {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

/// A work request for a send queue.
#[repr(C)]
pub(super) struct SendWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut SendWr,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
    pub(super) opcode: u32,
    pub(super) send_flags: u32,
    imm_data: u32,
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
    rest: [u32; 19],
}

impl SendWr {
    /// A READ of nothing from nowhere; fill in the rest.
    pub(super) const READ: Self = Self {
        wr_id: 0,
        next: std::ptr::null_mut(),
        sg_list: std::ptr::null_mut(),
        num_sge: 0,
        opcode: WR_RDMA_READ,
        send_flags: 0,
        imm_data: 0,
        remote_addr: 0,
        rkey: 0,
        rest: [0; 19],
    };
}

/// A receive.
#[repr(C)]
pub(super) struct RecvWr {
    pub(super) wr_id: u64,
    pub(super) next: *mut RecvWr,
    pub(super) sg_list: *mut Sge,
    pub(super) num_sge: c_int,
}

/// What a shared receive queue is made of.
#[repr(C)]
pub(super) struct SrqInitAttr {
    pub(super) srq_context: *mut c_void,
    pub(super) max_wr: u32,
    pub(super) max_sge: u32,
    pub(super) srq_limit: u32,
}

/// Bounds of a queue pair.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct QpCap {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

/// What a queue pair is made of.
#[repr(C)]
pub(super) struct QpInitAttr {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut Cq,
    pub(super) recv_cq: *mut Cq,
    pub(super) srq: *mut Srq,
    pub(super) cap: QpCap,
    pub(super) qp_type: u32,
    pub(super) sq_sig_all: c_int,
}

/// The network part of a path. The GID is a union with 64-bit halves in C.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
pub(super) struct GlobalRoute {
    pub(super) dgid: [u8; 16],
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
}

/// A path.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct AhAttr {
    pub(super) grh: GlobalRoute,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
}

/// The state of a queue pair.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct QpAttr {
    pub(super) qp_state: u32,
    pub(super) cur_qp_state: u32,
    pub(super) path_mtu: u32,
    pub(super) path_mig_state: u32,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: u32,
    pub(super) cap: QpCap,
    pub(super) ah_attr: AhAttr,
    pub(super) alt_ah_attr: AhAttr,
    pub(super) pkey_index: u16,
    pub(super) alt_pkey_index: u16,
    pub(super) en_sqd_async_notify: u8,
    pub(super) sq_draining: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) alt_port_num: u8,
    pub(super) alt_timeout: u8,
    pub(super) rate_limit: u32,
}

/// Limits of a device.
#[repr(C)]
pub(super) struct DeviceAttr {
    fw_ver: [u8; 64],
    guids: [u64; 2],
    pub(super) max_mr_size: u64,
    unused: [u32; 5],
    pub(super) max_qp: c_int,
    pub(super) max_qp_wr: c_int,
    flags: u32,
    pub(super) max_sge: c_int,
    pub(super) max_sge_rd: c_int,
    max_cq: c_int,
    pub(super) max_cqe: c_int,
    max_mr: c_int,
    max_pd: c_int,
    pub(super) max_qp_rd_atom: c_int,
    max_ee_rd_atom: c_int,
    pub(super) max_res_rd_atom: c_int,
    pub(super) max_qp_init_rd_atom: c_int,
    unused_too: [u32; 14],
    pub(super) max_srq_wr: c_int,
    rest: [u32; 3],
}

/// State of a port. Newer libraries write no more than this through the exported symbol.
#[repr(C)]
#[derive(Default)]
pub(super) struct PortAttr {
    pub(super) state: u32,
    max_mtu: u32,
    pub(super) active_mtu: u32,
    pub(super) gid_tbl_len: c_int,
    unused: [u32; 4],
    pkey_tbl_len: u16,
    pub(super) lid: u16,
    sm_lid: u16,
    rest: [u8; 8],
    pub(super) link_layer: u8,
    flags: u8,
    tail: [u16; 2],
}

/// One entry of a port's GID table.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct GidEntry {
    pub(super) gid: [u8; 16],
    pub(super) gid_index: u32,
    port_num: u32,
    pub(super) gid_type: u32,
    pub(super) ndev_ifindex: u32,
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(offset_of!(Context, ops) == 8 && size_of::<ContextOps>() == 256);
    assert!(offset_of!(ContextOps, poll_cq) == 88 && offset_of!(ContextOps, req_notify_cq) == 96);
    assert!(offset_of!(ContextOps, post_srq_recv) == 160);
    assert!(offset_of!(ContextOps, post_send) == 200 && offset_of!(Context, async_fd) == 268);
    assert!(offset_of!(Qp, qp_num) == 52 && offset_of!(CompChannel, fd) == 8);
    assert!(offset_of!(Mr, lkey) == 36 && offset_of!(Mr, rkey) == 40);
    assert!(
        size_of::<Wc>() == 48 && offset_of!(Wc, qp_num) == 28 && offset_of!(Wc, byte_len) == 20
    );
    assert!(size_of::<RecvWr>() == 32 && offset_of!(RecvWr, num_sge) == 24);
    assert!(size_of::<SrqInitAttr>() == 24 && offset_of!(SrqInitAttr, max_wr) == 8);
    assert!(size_of::<Sge>() == 16 && size_of::<SendWr>() == 128);
    assert!(offset_of!(SendWr, remote_addr) == 40 && offset_of!(SendWr, rkey) == 48);
    assert!(size_of::<QpInitAttr>() == 64 && offset_of!(QpInitAttr, cap) == 32);
    assert!(size_of::<QpAttr>() == 144 && offset_of!(QpAttr, ah_attr) == 56);
    assert!(offset_of!(QpAttr, max_rd_atomic) == 126 && offset_of!(QpAttr, rnr_retry) == 132);
    assert!(size_of::<AhAttr>() == 32 && offset_of!(AhAttr, port_num) == 30);
    assert!(size_of::<GlobalRoute>() == 24 && offset_of!(GlobalRoute, traffic_class) == 22);
    assert!(size_of::<DeviceAttr>() == 232 && offset_of!(DeviceAttr, max_mr_size) == 80);
    assert!(offset_of!(DeviceAttr, max_qp) == 108 && offset_of!(DeviceAttr, max_cqe) == 132);
    assert!(offset_of!(DeviceAttr, max_qp_rd_atom) == 144);
    assert!(offset_of!(DeviceAttr, max_qp_init_rd_atom) == 156);
    assert!(offset_of!(DeviceAttr, max_srq_wr) == 216);
    assert!(size_of::<PortAttr>() == 52 && offset_of!(PortAttr, lid) == 34);
    assert!(offset_of!(PortAttr, link_layer) == 46 && size_of::<GidEntry>() == 32);
};

pub(super) const WR_SEND: u32 = 2;
pub(super) const WR_RDMA_READ: u32 = 4;
pub(super) const SEND_SIGNALED: u32 = 2;
/// The bytes are taken at posting, not from memory later.
pub(super) const SEND_INLINE: u32 = 8;
pub(super) const QPT_RC: u32 = 2;
pub(super) const PORT_ACTIVE: u32 = 4;
pub(super) const LINK_ETHERNET: u8 = 2;
pub(super) const QPS_INIT: u32 = 1;
pub(super) const QPS_RTR: u32 = 2;
pub(super) const QPS_RTS: u32 = 3;
pub(super) const QPS_ERR: u32 = 6;
pub(super) const ACCESS_LOCAL_WRITE: u32 = 1;
pub(super) const ACCESS_REMOTE_READ: u32 = 4;
/// Optional: drivers that do not know it ignore it.
pub(super) const ACCESS_RELAXED_ORDERING: u32 = 1 << 20;
pub(super) const WC_SUCCESS: u32 = 0;
pub(super) const WC_FLUSHED: u32 = 5;
pub(super) const WC_REMOTE_ACCESS: u32 = 10;

/// Which fields of [`QpAttr`] a call sets.
pub(super) mod mask {
    pub(in super::super) const STATE: u32 = 1;
    pub(in super::super) const ACCESS: u32 = 8;
    pub(in super::super) const PKEY_INDEX: u32 = 16;
    pub(in super::super) const PORT: u32 = 32;
    pub(in super::super) const PATH: u32 = 128;
    pub(in super::super) const PATH_MTU: u32 = 256;
    pub(in super::super) const TIMEOUT: u32 = 512;
    pub(in super::super) const RETRY: u32 = 1 << 10;
    pub(in super::super) const RNR_RETRY: u32 = 1 << 11;
    pub(in super::super) const RQ_PSN: u32 = 1 << 12;
    pub(in super::super) const INITIATOR_DEPTH: u32 = 1 << 13;
    pub(in super::super) const MIN_RNR_TIMER: u32 = 1 << 15;
    pub(in super::super) const SQ_PSN: u32 = 1 << 16;
    pub(in super::super) const RESPONDER_DEPTH: u32 = 1 << 17;
    pub(in super::super) const DEST_QPN: u32 = 1 << 20;
}
