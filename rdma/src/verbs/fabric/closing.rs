//! Links that end, because their connection is gone or by themselves: who learns of it, and when.

use baton_types::Nanos;

use super::super::engine::{LinkFailure, Notice};
use super::Fabric;
use crate::events::CloseReason;
use crate::tcp::TcpTransport;
use crate::transport::ConnId;

/// A connection that is gone; its owner learns of it when its queue pairs are drained.
pub(super) struct Closing {
    pub(super) conn: ConnId,
    reason: CloseReason,
    /// Queue pairs that are not.
    parts: u8,
}

impl Fabric {
    pub(super) fn on_closed(&mut self, conn: ConnId, reason: &CloseReason) -> bool {
        self.targets.on_closed(conn, &mut self.device);
        self.left.retain(|of| *of != conn);
        let mut parts = u8::from(self.close_control(conn, reason));
        if let Some(place) = self.place_of(conn) {
            parts += 1;
            if let Some(link) = self.links[place].as_mut() {
                (link.is_closed, link.offered) = (true, None);
            }
            self.read_engine.close(place, &mut self.device);
        }
        if parts > 0 {
            self.closing.push(Closing { conn, reason: reason.clone(), parts });
        }
        parts == 0
    }

    /// A queue pair of this connection is gone. Returns the connection if it is closed and this was
    /// its last one: its owner learns of the end now.
    pub(super) fn part_closed(&mut self, conn: ConnId) -> Option<(ConnId, CloseReason)> {
        let at = self.closing.iter().position(|closing| closing.conn == conn)?;
        self.closing[at].parts -= 1;
        if self.closing[at].parts > 0 {
            return None;
        }
        let Closing { conn, reason, .. } = self.closing.swap_remove(at);
        Some((conn, reason))
    }

    /// Acts on the end of a link; returns the connection whose end its owner learns now.
    pub(super) fn act_on(
        &mut self,
        notice: Notice,
        now: Nanos,
        tcp: &mut TcpTransport,
    ) -> Option<(ConnId, CloseReason)> {
        match notice {
            Notice::Relink(place) => {
                self.device.drop_pair(place);
                let is_open = self.links[place].as_ref().is_some_and(|link| !link.is_closed);
                if is_open {
                    tracing::debug!(now = now.0, place, "a queue pair is replaced");
                    self.offer(place, tcp);
                }
                None
            }
            Notice::Gone(place) => self.forget(place, None, tcp),
            Notice::Lost(place, why) => self.forget(place, Some(why), tcp),
        }
    }

    fn forget(
        &mut self,
        place: usize,
        why: Option<LinkFailure>,
        tcp: &mut TcpTransport,
    ) -> Option<(ConnId, CloseReason)> {
        self.device.drop_pair(place);
        let link = self.links[place].take()?;
        self.places.retain(|(conn, _)| *conn != link.conn);
        if link.is_closed {
            return self.part_closed(link.conn);
        }
        let problem = self.problem(why.unwrap_or(LinkFailure::Closed));
        tracing::warn!(conn = link.conn.0, problem, "the RDMA link to a frontend failed");
        if let Some(addr) = link.addr {
            self.breaker.strike(addr, self.clock.now());
        }
        tcp.end(link.conn, CloseReason::Fabric(problem));
        None
    }

    pub(super) fn problem(&self, why: LinkFailure) -> String {
        match why {
            LinkFailure::Device(status) => self.device.queue.status_text(status),
            why => why.to_string(),
        }
    }
}
