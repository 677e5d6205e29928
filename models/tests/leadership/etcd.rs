//! etcd as far as an election sees it: leases that end, and one key. It keeps its promises, and no more than these.

use std::net::SocketAddr;

use baton_core::Nanos;
use baton_leader::{EtcdRequest, EtcdResponse, Holder, LeaseId};

use crate::{TICK, TTL_TICKS};

/// A request, and whose address goes with it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Asked {
    pub(crate) request: EtcdRequest,
    pub(crate) addr: SocketAddr,
}

/// See the module documentation.
#[derive(Clone, PartialEq, Eq, Hash, Default, Debug)]
pub(crate) struct Etcd {
    /// Each ends at this tick, the first moment at which it may.
    leases: Vec<(LeaseId, u8)>,
    pub(crate) key: Option<Holder>,
    revision: u64,
    pub(crate) is_away: bool,
}

impl Etcd {
    /// Time has come to this tick. An etcd that is away ends no lease.
    pub(crate) fn tick(&mut self, now: u8) {
        if !self.is_away {
            self.leases.retain(|&(_, ends)| now < ends);
            let leases = &self.leases;
            self.key.take_if(|holder| !leases.iter().any(|lease| lease.0 == holder.lease));
        }
    }

    /// It answers again, and every lease has its full time.
    pub(crate) fn come_back(&mut self, now: u8) {
        self.is_away = false;
        self.leases.iter_mut().for_each(|lease| lease.1 = now + TTL_TICKS);
    }

    /// `None` while it is away.
    pub(crate) fn carry_out(&mut self, now: u8, asked: Asked) -> Option<EtcdResponse> {
        (!self.is_away).then(|| match asked.request {
            EtcdRequest::Look => EtcdResponse::Held(self.key),
            EtcdRequest::Grant => self.grant(now),
            EtcdRequest::Campaign(lease) => self.campaign(lease, asked.addr),
            EtcdRequest::Renew(lease) => self.renew(now, lease),
            EtcdRequest::Revoke(lease) => {
                self.leases.retain(|other| other.0 != lease);
                self.key.take_if(|holder| holder.lease == lease);
                EtcdResponse::Revoked
            }
        })
    }

    fn grant(&mut self, now: u8) -> EtcdResponse {
        self.revision += 1;
        let lease = LeaseId(self.revision.cast_signed());
        self.leases.push((lease, now + TTL_TICKS));
        EtcdResponse::Granted { lease, ttl: TICK.times(u64::from(TTL_TICKS)) }
    }

    fn campaign(&mut self, lease: LeaseId, addr: SocketAddr) -> EtcdResponse {
        match self.key {
            _ if !self.leases.iter().any(|other| other.0 == lease) => EtcdResponse::Gone,
            Some(holder) => EtcdResponse::Held(Some(holder)),
            None => {
                self.revision += 1;
                let epoch = self.revision;
                self.key = Some(Holder { lease, epoch, addr: Some(addr) });
                EtcdResponse::Won { epoch }
            }
        }
    }

    fn renew(&mut self, now: u8, lease: LeaseId) -> EtcdResponse {
        let ttl = Nanos(TICK.0 * u64::from(TTL_TICKS));
        match self.leases.iter_mut().find(|other| other.0 == lease) {
            Some(held) => {
                held.1 = now + TTL_TICKS;
                EtcdResponse::Renewed { ttl }
            }
            None => EtcdResponse::Gone,
        }
    }
}
