//! The backend's side of the conversation: offering a queue pair, taking the answer, doing without.

use baton_types::Nanos;

use super::super::engine::RemoteSlab;
use super::super::pair::{PairAddr, QpParams, Side};
use super::{Fabric, Offered, find, micros};
use crate::events::{CloseReason, Peer};
use crate::protocol::wire::{FabricAnswer, FabricOffer, FabricSlab, Kind, Role};
use crate::tcp::TcpTransport;
use crate::transport::{ConnId, Transport};

/// How long a frontend may take to answer an offer: it may be waiting for its scheduler's word.
pub(super) const ANSWER_TIMEOUT: Nanos = Nanos::from_millis(5_000);

impl Fabric {
    pub(super) fn on_opened(&mut self, conn: ConnId, peer: &Peer, tcp: &mut TcpTransport) {
        let Some(place) = self.place_of(conn) else { return };
        if peer.role != Role::Frontend {
            // Schedulers' threads have no inputs.
            return self.leave_to_tcp(place, tcp);
        }
        if let Some(link) = self.links[place].as_mut() {
            link.addr = Some(peer.addr);
        }
        if !self.is_strict && self.breaker.is_open(peer.addr, self.clock.now()) {
            let why =
                "RDMA with it has failed repeatedly; check its port, firewall and traffic class";
            return self.unusable(place, why, tcp);
        }
        self.offer(place, tcp);
    }

    /// Offers a fresh queue pair.
    pub(super) fn offer(&mut self, place: usize, tcp: &mut TcpTransport) {
        let addr = match self.device.make_pair(place) {
            Ok(addr) => addr,
            Err(error) => return self.unusable(place, &error.to_string(), tcp),
        };
        let params = self.device.params(Side::Initiator);
        let now = self.clock.now();
        let Some(link) = self.links[place].as_mut() else { return };
        link.epoch += 1;
        link.offered = Some(Offered { params, answer_by: now + ANSWER_TIMEOUT });
        let message = FabricOffer {
            epoch: link.epoch.into(),
            pair: addr.number.into(),
            first_psn: addr.first_psn.into(),
            lid: addr.lid.into(),
            read_depth: params.read_depth,
            mtu: params.mtu,
            gid: addr.gid,
            read_timeout_us: micros(self.device.cfg.read_timeout).into(),
            reserved: 0.into(),
        };
        // If it cannot be queued there will be no answer, and that is noticed.
        let _ = tcp.send_own(link.conn, &message, self.device.device_name().as_bytes());
    }

    /// A slab of the frontend's, with its answer to an offer or exposed since.
    pub(super) fn on_slab(&mut self, conn: ConnId, slab: &FabricSlab, tcp: &mut TcpTransport) {
        let slab = RemoteSlab {
            first_slot: slab.first_slot.get(),
            slots: slab.slots.get(),
            stride: slab.stride.get(),
            input_bytes: slab.input_bytes.get(),
            addr: slab.addr.get(),
            rkey: slab.rkey.get(),
        };
        let Self { links, places, read_engine, .. } = self;
        let place = find(places, conn);
        let link = place.and_then(|place| Some((place, links[place].as_mut()?)));
        let is_taken = match link {
            Some(_) if !slab.makes_sense() => false,
            Some((_, link)) if link.offered.is_some() => RemoteSlab::put(&mut link.slabs, slab),
            Some((place, link)) if link.epoch > 0 => read_engine.put_slab(place, slab),
            Some(_) => false,
            None => self.left.binary_search(&conn).is_ok(),
        };
        if !is_taken {
            tcp.end(conn, CloseReason::Unexpected(Kind::FabricSlab));
        }
    }

    pub(super) fn on_answer(
        &mut self,
        conn: ConnId,
        answer: &FabricAnswer,
        text: &str,
        tcp: &mut TcpTransport,
    ) {
        let unexpected = CloseReason::Unexpected(Kind::FabricAnswer);
        let Some(place) = self.place_of(conn) else { return tcp.end(conn, unexpected) };
        let Some(link) = self.links[place].as_mut() else { return };
        let mut slabs = std::mem::take(&mut link.slabs);
        if link.epoch != answer.epoch.get() {
            return;
        }
        let Some(offered) = link.offered.take() else { return tcp.end(conn, unexpected) };
        if answer.pair.get() == 0 {
            let why = format!("the frontend has no RDMA: {text}");
            return self.unusable(place, &why, tcp);
        }
        // Before them may be some that were exposed while the offer was under way.
        let others = slabs.len().checked_sub(answer.slabs.get() as usize);
        let params = QpParams { mtu: answer.mtu, read_depth: answer.read_depth };
        let timeout = Nanos(u64::from(answer.read_timeout_us.get()) * 1_000);
        let fits = (1..=offered.params.mtu).contains(&params.mtu)
            && (1..=offered.params.read_depth).contains(&params.read_depth)
            && (Nanos(1)..=self.device.cfg.read_timeout).contains(&timeout);
        let Some(others) = others.filter(|_| fits) else { return tcp.end(conn, unexpected) };
        slabs.drain(..others);
        let peer = PairAddr {
            number: answer.pair.get(),
            first_psn: answer.first_psn.get(),
            gid: answer.gid,
            lid: answer.lid.get(),
        };
        if let Err(error) = self.device.connect(place, &peer, params) {
            return self.unusable(place, &error.to_string(), tcp);
        }
        self.linked += 1;
        tracing::info!(
            conn = conn.0,
            device = self.device.device_name(),
            peer_device = text,
            read_depth = params.read_depth,
            mtu = 128u32 << params.mtu,
            "transport: rdma with this frontend"
        );
        self.read_engine.up(place, slabs, params.read_depth, timeout);
        self.offer_control(conn, tcp);
    }

    pub(super) fn expire_offers(&mut self, now: Nanos, tcp: &mut TcpTransport) {
        for place in 0..self.links.len() {
            let offered = self.links[place].as_ref().and_then(|link| link.offered.as_ref());
            if offered.is_some_and(|offered| offered.answer_by < now) {
                let why =
                    format!("no answer to the offer within {} ms", ANSWER_TIMEOUT.0 / 1_000_000);
                self.unusable(place, &why, tcp);
            }
        }
    }

    /// There will be no RDMA with this frontend: an error where it was insisted on, otherwise TCP.
    fn unusable(&mut self, place: usize, why: &str, tcp: &mut TcpTransport) {
        let Some(link) = self.links[place].as_mut() else { return };
        link.offered = None;
        let conn = link.conn;
        if self.is_strict {
            if self.log.allows(self.clock.now()) {
                tracing::error!(conn = conn.0, reason = why, "transport = \"rdma\" cannot be kept");
            }
            return tcp.end(conn, CloseReason::Fabric(why.to_owned()));
        }
        tracing::info!(conn = conn.0, reason = why, "transport: tcp with this frontend");
        self.leave_to_tcp(place, tcp);
    }

    fn leave_to_tcp(&mut self, place: usize, tcp: &mut TcpTransport) {
        let mut held = self.read_engine.withdraw(place);
        self.device.drop_pair(place);
        if let Some(link) = self.links[place].take() {
            self.places.retain(|(conn, _)| *conn != link.conn);
            if let Err(at) = self.left.binary_search(&link.conn)
                && link.epoch > 0
            {
                self.left.insert(at, link.conn);
            }
        }
        tcp.post_reads(&mut held);
    }
}
