//! Reliable-connected queue pairs.
#![expect(unsafe_code, reason = "calls libibverbs")]

use std::ffi::c_int;
use std::io;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use baton_topo::VerbsConfig;

use super::error::VerbsError;
use super::ffi::{self, PostSend, QpAttr, QpCap, QpInitAttr, SendWr, Sge, mask};
use super::memory::ProtectionDomain;
use super::queue::CompletionQueue;
use super::receives::SharedReceives;
use crate::verbs::control;
use crate::verbs::engine::{CHAIN_MAX, Piece, Request};

/// 0.64 ms: what a sender waits for a receiver that is not ready. None ever is not: READs take no
/// receive, and SENDs have their credits.
const MIN_RNR_TIMER: u8 = 12;
/// Retries against a receiver that is not ready; finite.
const RNR_RETRIES: u8 = 3;

/// Bytes of a SEND that are wanted to be taken at posting: the credits, and most messages without a
/// long answer.
const INLINE_WANTED: u32 = 188;

/// What the two ends of a queue pair must know of each other.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PairAddr {
    /// The queue pair's number.
    pub(crate) number: u32,
    /// Sequence number of its first packet, 24 bits.
    pub(crate) first_psn: u32,
    /// The port's GID.
    pub(crate) gid: [u8; 16],
    /// The port's LID; 0 on Ethernet.
    pub(crate) lid: u16,
}

impl PairAddr {
    /// No queue pair.
    pub(crate) const NONE: Self = Self { number: 0, first_psn: 0, gid: [0; 16], lid: 0 };
}

/// What the two ends agreed on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct QpParams {
    /// The largest packet both take, as verbs number it.
    pub(crate) mtu: u8,
    /// READs that may be under way.
    pub(crate) read_depth: u8,
}

/// What a queue pair is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// It READs; peers can do nothing through it.
    Initiator,
    /// Peers READ through it.
    Target,
    /// Both sides SEND through it; neither READs.
    Control,
}

/// A queue pair.
pub(crate) struct QueuePair {
    pd: Arc<ProtectionDomain>,
    /// Kept alive: the queue pair's completions go there, its messages come from there.
    _queue: Arc<CompletionQueue>,
    _receives: Option<Arc<SharedReceives>>,
    qp: NonNull<ffi::Qp>,
    post_send: PostSend,
    side: Side,
    first_psn: u32,
    /// SENDs of up to this size are posted inline.
    inline_bytes: u32,
}

// SAFETY: libibverbs allows every call on it from any thread.
unsafe impl Send for QueuePair {}

impl QueuePair {
    /// A queue pair for READs, in its initial state. `first_psn` should be hard to guess.
    ///
    /// # Errors
    /// The driver refuses, for example because there are too many.
    pub(crate) fn new(
        pd: &Arc<ProtectionDomain>,
        queue: &Arc<CompletionQueue>,
        side: Side,
        requests: u32,
        first_psn: u32,
    ) -> Result<Self, VerbsError> {
        let cap = QpCap {
            max_send_wr: requests,
            max_recv_wr: 1,
            max_send_sge: 2,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        Self::make(pd, queue, None, side, cap, first_psn)
    }

    /// A queue pair for messages, which takes its receives from `receives`. Short SENDs are taken
    /// at posting.
    ///
    /// # Errors
    /// As [`QueuePair::new`].
    pub(crate) fn for_messages(
        pd: &Arc<ProtectionDomain>,
        queue: &Arc<CompletionQueue>,
        receives: &Arc<SharedReceives>,
        requests: u32,
        first_psn: u32,
    ) -> Result<Self, VerbsError> {
        let make = |max_inline_data| {
            let (max_send_wr, max_send_sge) = (requests, 1);
            let cap = QpCap { max_send_wr, max_send_sge, max_inline_data, ..QpCap::default() };
            Self::make(pd, queue, Some(receives), Side::Control, cap, first_psn)
        };
        // Devices differ in what they take, and say no more than no.
        make(INLINE_WANTED).or_else(|_| make(0))
    }

    fn make(
        pd: &Arc<ProtectionDomain>,
        queue: &Arc<CompletionQueue>,
        receives: Option<&Arc<SharedReceives>>,
        side: Side,
        cap: QpCap,
        first_psn: u32,
    ) -> Result<Self, VerbsError> {
        let device = &pd.device;
        // SAFETY: the context is open.
        let ops = unsafe { &device.context.as_ref().ops };
        let post_send = ops.post_send.ok_or_else(|| device.failed("its data path", 95))?;
        let mut attr = QpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: queue.cq.as_ptr(),
            recv_cq: queue.cq.as_ptr(),
            srq: receives.map_or(ptr::null_mut(), |receives| receives.srq.as_ptr()),
            cap,
            qp_type: ffi::QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain and queues live as long as the pair, which holds them.
        let qp = unsafe { (device.library.create_qp)(pd.pd.as_ptr(), &raw mut attr) };
        let qp = NonNull::new(qp).ok_or_else(|| device.refused("a queue pair"))?;
        let (pd, _queue, _receives) = (Arc::clone(pd), Arc::clone(queue), receives.cloned());
        // What was asked for is granted, unless it was nothing: then the driver may say more.
        let inline_bytes = cap.max_inline_data.min(attr.cap.max_inline_data);
        let first_psn = first_psn & 0xff_ffff;
        let pair = Self { pd, _queue, _receives, qp, post_send, side, first_psn, inline_bytes };
        pair.initialise()?;
        Ok(pair)
    }

    /// Its number.
    pub(crate) fn number(&self) -> u32 {
        // SAFETY: the library made it, and it lives until we destroy it.
        unsafe { self.qp.as_ref() }.qp_num
    }

    /// What the peer must know. `gid` is the one to speak from.
    pub(crate) fn addr(&self, gid: [u8; 16]) -> PairAddr {
        let lid = self.pd.device().limits().lid;
        PairAddr { number: self.number(), first_psn: self.first_psn, gid, lid }
    }

    /// Connects it to `peer`, from the GID in `gid_index`. From now on READs may arrive or be posted.
    ///
    /// # Errors
    /// The peer's address makes no sense to the driver.
    pub(crate) fn connect(
        &self,
        peer: &PairAddr,
        params: QpParams,
        gid_index: u32,
        cfg: &VerbsConfig,
    ) -> Result<(), VerbsError> {
        let path = self.pd.device().path(peer.gid, peer.lid, gid_index, cfg);
        let target_depth = if self.side == Side::Target { params.read_depth } else { 0 };
        let mut attr = QpAttr {
            qp_state: ffi::QPS_RTR,
            path_mtu: params.mtu.into(),
            rq_psn: peer.first_psn,
            dest_qp_num: peer.number,
            ah_attr: path,
            max_dest_rd_atomic: target_depth,
            min_rnr_timer: MIN_RNR_TIMER,
            ..QpAttr::default()
        };
        let ready_to_receive = mask::STATE
            | mask::PATH
            | mask::PATH_MTU
            | mask::RQ_PSN
            | mask::DEST_QPN
            | mask::RESPONDER_DEPTH
            | mask::MIN_RNR_TIMER;
        self.modify(&mut attr, ready_to_receive, "connecting a queue pair")?;
        if self.side == Side::Target { Ok(()) } else { self.ready_to_send(params, cfg) }
    }

    /// Moves it to the error state: what is posted completes as flushed, and nothing else moves.
    ///
    /// # Errors
    /// The driver refuses; then the device is broken.
    pub(crate) fn fail(&self) -> Result<(), VerbsError> {
        let mut attr = QpAttr { qp_state: ffi::QPS_ERR, ..QpAttr::default() };
        self.modify(&mut attr, mask::STATE, "stopping a queue pair")
    }

    /// Posts READs in order, at most [`CHAIN_MAX`], with one doorbell.
    ///
    /// # Errors
    /// How many were taken before the driver refused one.
    ///
    /// # Safety
    /// The local places of every request belong to the device, and stay registered, until its
    /// completion or that of a later request has been polled.
    pub(crate) unsafe fn post(&self, chain: &[Request]) -> Result<(), (usize, io::Error)> {
        assert!(chain.len() <= CHAIN_MAX, "a chain is bounded by its builder");
        // Only what the chain needs is written: the whole is 3 KB.
        let mut pieces = [const { MaybeUninit::<[Sge; 2]>::uninit() }; CHAIN_MAX];
        let mut wrs = [const { MaybeUninit::<SendWr>::uninit() }; CHAIN_MAX];
        for (at, request) in chain.iter().enumerate() {
            let sge = |Piece { addr, len: length, lkey }| Sge { addr, length, lkey };
            let sges = pieces[at].write(request.local.map(sge));
            let wr = wrs[at].write(SendWr::READ);
            wr.wr_id = request.id;
            wr.sg_list = sges.as_mut_ptr();
            // A trailer comes behind data, and a mark has neither.
            wr.num_sge = request.local.iter().map(|piece| c_int::from(piece.len > 0)).sum();
            wr.send_flags = if request.signalled { ffi::SEND_SIGNALED } else { 0 };
            wr.remote_addr = request.remote_addr;
            wr.rkey = request.rkey;
        }
        // SAFETY: as many were written.
        self.submit(unsafe { wrs[..chain.len()].assume_init_mut() })
    }

    /// Posts SENDs of one piece each in order, at most [`control::CHAIN_MAX`], with one doorbell.
    ///
    /// # Errors
    /// How many were taken before the driver refused one.
    ///
    /// # Safety
    /// The piece of every request is readable, stays registered, and is not written, until its
    /// completion or that of a later request has been polled.
    pub(crate) unsafe fn send(
        &self,
        chain: &[(u64, Piece, bool)],
    ) -> Result<(), (usize, io::Error)> {
        assert!(chain.len() <= control::CHAIN_MAX, "a chain is bounded by its builder");
        let mut pieces = [Sge::default(); control::CHAIN_MAX];
        let mut wrs = [const { SendWr::READ }; control::CHAIN_MAX];
        for (at, &(id, Piece { addr, len: length, lkey }, signalled)) in chain.iter().enumerate() {
            pieces[at] = Sge { addr, length, lkey };
            wrs[at].wr_id = id;
            wrs[at].opcode = ffi::WR_SEND;
            wrs[at].sg_list = &raw mut pieces[at];
            wrs[at].num_sge = c_int::from(length > 0);
            let inline = if length <= self.inline_bytes { ffi::SEND_INLINE } else { 0 };
            wrs[at].send_flags = inline | if signalled { ffi::SEND_SIGNALED } else { 0 };
        }
        self.submit(&mut wrs[..chain.len()])
    }

    /// Links the requests to a chain and posts it. What they name is the caller's promise.
    fn submit(&self, wrs: &mut [SendWr]) -> Result<(), (usize, io::Error)> {
        for at in (1..wrs.len()).rev() {
            wrs[at - 1].next = &raw mut wrs[at];
        }
        let Some(first) = wrs.first_mut() else { return Ok(()) };
        let (first, mut refused) = (&raw mut *first, ptr::null_mut());
        // SAFETY: the chain outlives the call; what it names is the caller's promise.
        let errno = unsafe { (self.post_send)(self.qp.as_ptr(), first, &raw mut refused) };
        if errno == 0 {
            return Ok(());
        }
        let taken = wrs.iter().position(|wr| ptr::eq(wr, refused)).unwrap_or(0);
        Err((taken, io::Error::from_raw_os_error(errno.abs())))
    }

    fn initialise(&self) -> Result<(), VerbsError> {
        let access = if self.side == Side::Target { ffi::ACCESS_REMOTE_READ } else { 0 };
        let mut attr = QpAttr {
            qp_state: ffi::QPS_INIT,
            qp_access_flags: access,
            port_num: self.pd.device().port(),
            ..QpAttr::default()
        };
        let initial = mask::STATE | mask::PKEY_INDEX | mask::PORT | mask::ACCESS;
        self.modify(&mut attr, initial, "initialising a queue pair")
    }

    fn ready_to_send(&self, params: QpParams, cfg: &VerbsConfig) -> Result<(), VerbsError> {
        let mut attr = QpAttr {
            qp_state: ffi::QPS_RTS,
            sq_psn: self.first_psn,
            max_rd_atomic: params.read_depth,
            timeout: cfg.ack_timeout,
            retry_cnt: cfg.retries,
            rnr_retry: RNR_RETRIES,
            ..QpAttr::default()
        };
        let ready_to_send = mask::STATE
            | mask::SQ_PSN
            | mask::INITIATOR_DEPTH
            | mask::TIMEOUT
            | mask::RETRY
            | mask::RNR_RETRY;
        self.modify(&mut attr, ready_to_send, "connecting a queue pair")
    }

    fn modify(&self, attr: &mut QpAttr, fields: u32, what: &'static str) -> Result<(), VerbsError> {
        let device = self.pd.device();
        // SAFETY: the pair lives, and the fields the mask names are filled in.
        let errno =
            unsafe { (device.library.modify_qp)(self.qp.as_ptr(), attr, fields.cast_signed()) };
        if errno == 0 { Ok(()) } else { Err(device.failed(what, errno)) }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        let device = self.pd.device();
        // SAFETY: ours, destroyed only here. What it might still write to is not given back by
        // this: the owner waits for the completions, or deregisters the memory.
        let errno = unsafe { (device.library.destroy_qp)(self.qp.as_ptr()) };
        if errno != 0 {
            tracing::error!(device = device.name(), errno, "a queue pair could not be destroyed");
        }
    }
}
