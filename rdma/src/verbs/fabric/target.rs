//! The frontend's side: which peers may read, and how long unanswered slots rest.

use std::collections::VecDeque;
use std::sync::Arc;

use baton_types::Nanos;

use super::super::error::VerbsError;
use super::super::memory::MemoryRegion;
use super::super::mixed::decline;
use super::super::pair::{PairAddr, QpParams, Side};
use super::super::verbs_device::VerbsDevice;
use super::{Fabric, micros};
use crate::events::CloseReason;
use crate::memory::slab::{Exposed, SlabSet};
use crate::protocol::wire::{FabricAnswer, FabricOffer, FabricSlab};
use crate::tcp::TcpTransport;
use crate::transport::ConnId;

/// What this side lets others do.
pub(super) struct Targets {
    /// Connections whose peers may be given keys, ascending.
    trusted: Vec<ConnId>,
    /// The last offer of each connection that is not trusted yet, or came before there was anything
    /// to read.
    offers: Vec<(ConnId, FabricOffer)>,
    slabs: Exposed,
    /// Slots that rest, and until when.
    resting: VecDeque<(Nanos, u32)>,
    /// Registrations of slabs that were withdrawn, and until when they stay: a READ that comes now finds no
    /// task of its name there; without the registration it would cost its queue pair.
    withdrawn: VecDeque<(Nanos, Vec<MemoryRegion>)>,
    rest: Nanos,
    /// Queue pairs connected so far.
    pub(super) linked: u64,
}

impl Targets {
    /// Slots rest for as long as a READ may take, `rest`.
    pub(super) fn new(rest: Nanos) -> Self {
        Self {
            trusted: Vec::new(),
            offers: Vec::new(),
            slabs: Exposed::default(),
            resting: VecDeque::new(),
            withdrawn: VecDeque::new(),
            rest,
            linked: 0,
        }
    }

    pub(super) fn on_offer(
        &mut self,
        conn: ConnId,
        offer: &FabricOffer,
        device: &mut VerbsDevice,
        tcp: &mut TcpTransport,
    ) {
        if self.trusts(conn) && self.slabs.is_frontend() {
            self.linked += u64::from(answer(conn, offer, device, tcp));
            return;
        }
        self.offers.retain(|(of, _)| *of != conn);
        self.offers.push((conn, *offer));
    }

    /// True if the peer may be given keys.
    pub(super) fn trusts(&self, conn: ConnId) -> bool {
        self.trusted.binary_search(&conn).is_ok()
    }

    pub(super) fn on_closed(&mut self, conn: ConnId, device: &mut VerbsDevice) {
        device.expel(conn);
        self.trusted.retain(|of| *of != conn);
        self.offers.retain(|(of, _)| *of != conn);
    }

    /// Lets rested slots go, and withdrawn memory.
    pub(super) fn poll(&mut self, now: Nanos) {
        for slabs in self.slabs.iter() {
            while let Some(slot) = slabs.take_resting() {
                self.resting.push_back((now + self.rest, slot));
            }
        }
        while let Some((_, slot)) = self.resting.pop_front_if(|(until, _)| *until < now) {
            if let Some(slabs) = self.slabs.of(slot) {
                slabs.end_rest(slot);
            }
        }
        while self.withdrawn.pop_front_if(|(until, _)| *until < now).is_some() {}
    }

    pub(super) fn next_timer(&self) -> Option<Nanos> {
        let resting = self.resting.front().map(|(until, _)| *until);
        resting.into_iter().chain(self.withdrawn.front().map(|(until, _)| *until)).min()
    }

    /// Takes the set out. Its slots do not come back from their rest: their numbers may be another set's.
    fn forget(&mut self, slabs: &Arc<SlabSet>) -> bool {
        let slots = slabs.slots();
        let is_here = self.slabs.remove(slabs);
        if is_here {
            self.resting.retain(|(_, slot)| !slots.contains(slot));
        }
        is_here
    }
}

impl Fabric {
    pub(in super::super) fn expose(
        &mut self,
        slabs: &Arc<SlabSet>,
        tcp: &mut TcpTransport,
    ) -> Result<(), VerbsError> {
        let Self { targets, device, .. } = self;
        let known = device.slabs().len();
        device.expose(slabs)?;
        slabs.rest();
        // The same sets are exposed over TCP, which has refused one whose slots are another's.
        targets.slabs.add(slabs).expect("TCP has the same sets and has taken it");
        tell(known, device, tcp);
        let trusted = &targets.trusted;
        let ready = |(of, _): &mut (ConnId, _)| trusted.binary_search(of).is_ok();
        for (conn, offer) in targets.offers.extract_if(.., ready) {
            targets.linked += u64::from(answer(conn, &offer, device, tcp));
        }
        Ok(())
    }

    /// Offers name these slabs no longer. Peers can read them until READs of before are over.
    pub(in super::super) fn withdraw(&mut self, slabs: &Arc<SlabSet>) {
        let Self { targets, device, clock, .. } = self;
        if targets.forget(slabs) {
            let until = clock.now() + targets.rest;
            targets.withdrawn.push_back((until, device.withdraw(slabs)));
        }
    }

    pub(in super::super) fn trust(&mut self, conn: ConnId, tcp: &mut TcpTransport) {
        let Self { targets, device, .. } = self;
        if let Err(at) = targets.trusted.binary_search(&conn) {
            targets.trusted.insert(at, conn);
        }
        if !targets.slabs.is_frontend() {
            return;
        }
        for (conn, offer) in targets.offers.extract_if(.., |(of, _)| *of == conn) {
            targets.linked += u64::from(answer(conn, &offer, device, tcp));
        }
    }
}

/// Tells every peer that can read of the slabs behind the first `known`.
fn tell(known: usize, device: &VerbsDevice, tcp: &mut TcpTransport) {
    for conn in device.readers() {
        let mut slabs = device.slabs().skip(known);
        if !slabs.all(|slab| tcp.send_own(conn, slab, &[]).is_ok()) {
            // It would ask for inputs of which it does not know where they are; it learns all anew.
            tcp.end(conn, CloseReason::SendQueueFull);
        }
    }
}

/// Connects a queue pair to the one offered and says so, or says why not. Returns whether it did.
fn answer(
    conn: ConnId,
    offer: &FabricOffer,
    device: &mut VerbsDevice,
    tcp: &mut TcpTransport,
) -> bool {
    let (epoch, mine) = (offer.epoch.get(), device.params(Side::Target));
    if !(1..=5).contains(&offer.mtu) || offer.read_depth == 0 {
        decline(tcp, conn, epoch, "the offer names no packet size or READ depth");
        return false;
    }
    let params = QpParams {
        mtu: offer.mtu.min(mine.mtu),
        read_depth: offer.read_depth.min(mine.read_depth),
    };
    let peer = PairAddr {
        number: offer.pair.get(),
        first_psn: offer.first_psn.get(),
        gid: offer.gid,
        lid: offer.lid.get(),
    };
    match device.admit(conn, &peer, params) {
        Ok(addr) => {
            accept(conn, offer, addr, params, device, tcp);
            true
        }
        Err(error) => {
            tracing::warn!(conn = conn.0, %error, "a backend cannot read over RDMA");
            decline(tcp, conn, epoch, &error.to_string());
            false
        }
    }
}

fn accept(
    conn: ConnId,
    offer: &FabricOffer,
    addr: PairAddr,
    params: QpParams,
    device: &VerbsDevice,
    tcp: &mut TcpTransport,
) {
    let slabs: Vec<FabricSlab> = device.slabs().copied().collect();
    let read_timeout_us = offer.read_timeout_us.get().min(micros(device.cfg.read_timeout));
    let message = FabricAnswer {
        epoch: offer.epoch,
        pair: addr.number.into(),
        first_psn: addr.first_psn.into(),
        lid: addr.lid.into(),
        read_depth: params.read_depth,
        mtu: params.mtu,
        gid: addr.gid,
        read_timeout_us: read_timeout_us.into(),
        slabs: (slabs.len() as u32).into(),
    };
    // What does not fit its send queue is not answered, which the backend notices.
    let sent = slabs.iter().all(|slab| tcp.send_own(conn, slab, &[]).is_ok());
    if sent && tcp.send_own(conn, &message, device.device_name().as_bytes()).is_ok() {
        tracing::info!(
            conn = conn.0,
            device = device.device_name(),
            "transport: rdma with this backend"
        );
    }
}
