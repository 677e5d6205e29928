//! How members become ready, drain, leave, or are lost.

use std::net::SocketAddr;

use baton_core::{BackendId, FrontendId, Gpu};
use baton_rdma::wire::{LeaveAck, PeerDown, ReadyAck, RefuseCode};
use baton_rdma::{CloseReason, ConnId, Transport};

use super::status::{EventKind, LossReason};
use super::{ControlThread, Handled, refuse};
use crate::commands::{ModelCommand, RankCommand};
use crate::peers::{Member, is_farewell};

impl<T: Transport> ControlThread<T> {
    pub(super) fn on_ready(&mut self, conn: ConnId) -> Handled {
        match self.member(conn) {
            Some(Member::Frontend(_)) => Ok(()),
            Some(Member::Backend(id)) => {
                self.backend_ready(id);
                Ok(())
            }
            None => refuse(RefuseCode::UnexpectedMessage, "ready before having joined"),
        }
    }

    fn backend_ready(&mut self, id: BackendId) {
        let Some(backend) = self.roster.backend(id) else { return };
        backend.is_ready = true;
        self.serve_with(id);
    }

    /// The backend's slots get batches from now on, if it is ready and has loaded every model of its sub-cluster.
    pub(super) fn serve_with(&mut self, id: BackendId) {
        let Some(backend) = self.roster.backend(id) else { return };
        let may_serve = backend.is_ready && !backend.is_serving && backend.draining.is_none();
        let (gpus, subcluster, conn) = (backend.gpus.clone(), backend.subcluster, backend.conn);
        let memory = backend.memory.clone();
        let models = self.parts.catalog.served_by(subcluster);
        let has_all = { models }.all(|(_, entry)| backend.loaded.contains(&entry.id()));
        if !may_serve || !has_all {
            return;
        }
        backend.is_serving = true;
        let measured: Vec<u32> = backend.profiles.iter().map(|&(model, _)| model).collect();
        self.adopt_profiles_of(&measured);
        self.announce_serving();
        self.parts.rank.send(RankCommand::Join { gpus, subcluster, memory });
        // Behind the commands: whoever submits because of it finds ModelThreads that know.
        let ack = ReadyAck {};
        self.send_or_drop(conn, |transport| transport.send(conn, &ack, &[]).is_ok());
    }

    pub(super) fn on_leave(&mut self, conn: ConnId) -> Handled {
        match self.member(conn) {
            Some(Member::Frontend(_)) => {
                self.acknowledge_leave(conn);
                Ok(())
            }
            Some(Member::Backend(id)) => {
                self.drain(id);
                Ok(())
            }
            None => refuse(RefuseCode::UnexpectedMessage, "leave before having joined"),
        }
    }

    fn drain(&mut self, id: BackendId) {
        let Some(backend) = self.roster.backend(id) else { return };
        if backend.draining.is_some() {
            return;
        }
        backend.draining = Some(backend.gpus.len());
        let (gpus, is_serving, conn) = (backend.gpus.clone(), backend.is_serving, backend.conn);
        if is_serving {
            self.announce_serving();
            self.parts.rank.send(RankCommand::Drain { gpus });
        } else {
            self.acknowledge_leave(conn);
        }
        self.check_all_loaded();
    }

    fn acknowledge_leave(&mut self, conn: ConnId) {
        self.parts.counters.left.add(1);
        if let Some(conversation) = self.conversations.get_mut(&conn) {
            conversation.left = true;
        }
        let ack = LeaveAck { reserved: 0.into() };
        self.send_or_drop(conn, |transport| transport.send(conn, &ack, &[]).is_ok());
    }

    pub(super) fn on_drained(&mut self, gpu: Gpu) {
        let Some(id) = self.roster.owner(gpu) else { return };
        let backend = self.roster.backend(id).expect("it owns a slot");
        let conn = backend.conn;
        let Some(left) = backend.draining.as_mut() else { return };
        *left = left.saturating_sub(1);
        if *left == 0 {
            self.acknowledge_leave(conn);
        }
    }

    /// A member whose connection to a ModelThread broke, or is missing, is not a member any more. One
    /// that has left properly closes everything at once, and this comes to nothing.
    pub(super) fn evict(&mut self, member: Member) {
        let conn = match member {
            Member::Frontend(id) => self.roster.frontend(id).map(|f| f.conn),
            Member::Backend(id) => self.roster.backend(id).map(|b| b.conn),
        };
        if let Some(conn) = conn {
            let detail = "a connection to a ModelThread broke or is missing; join again";
            self.end_as(conn, RefuseCode::Unauthorised, LossReason::ConnectionBroken, detail);
        }
    }

    pub(super) fn on_closed(&mut self, conn: ConnId, reason: &CloseReason) {
        let Some(conversation) = self.conversations.remove(&conn) else { return };
        let Some(member) = conversation.member else { return };
        if conversation.left || (self.stopping && is_farewell(reason)) {
            self.note_left(member);
        } else if !self.finished {
            let closed = || (LossReason::of_close(reason), reason.to_string());
            let (reason, detail) = conversation.ended.unwrap_or_else(closed);
            self.note_lost(member, conversation.peer.addr, reason, &detail);
        }
        match member {
            Member::Frontend(id) => self.frontend_gone(id),
            Member::Backend(id) => self.backend_gone(id),
        }
    }

    fn note_left(&mut self, member: Member) {
        let name = self.name_of(member);
        self.note_event(EventKind::Left, &name, "");
        if self.log.of_member() {
            tracing::info!(member = name, "left");
        }
    }

    fn note_lost(&mut self, member: Member, addr: SocketAddr, reason: LossReason, detail: &str) {
        let name = self.name_of(member);
        let counters = &self.parts.counters;
        counters.lost.add(1);
        match member {
            Member::Frontend(_) => counters.frontends_lost.add(1),
            Member::Backend(_) => counters.backends_lost.add(1),
        }
        self.note_event(EventKind::Lost(reason), &name, detail);
        if self.log.of_member() {
            tracing::warn!(member = name, %addr, reason = reason.as_str(), detail, "lost");
        }
    }

    /// As people know it.
    fn name_of(&mut self, member: Member) -> String {
        match member {
            Member::Frontend(id) => format!("frontend {}", id.0),
            Member::Backend(id) => match self.roster.backend(id) {
                Some(backend) => format!("backend {}", backend.name),
                None => format!("backend number {}", id.0),
            },
        }
    }

    fn frontend_gone(&mut self, id: FrontendId) {
        if self.roster.remove_frontend(id).is_none() {
            return;
        }
        self.slabs.forget_frontend(id);
        self.tell_model_threads(|| ModelCommand::FrontendDown { frontend: id });
        let down = PeerDown { frontend: u32::from(id.0).into() };
        let backends: Vec<ConnId> = self.roster.backends().map(|(_, b)| b.conn).collect();
        for conn in backends {
            self.send_or_drop(conn, |transport| transport.send(conn, &down, &[]).is_ok());
        }
    }

    fn backend_gone(&mut self, id: BackendId) {
        let Some(backend) = self.roster.remove_backend(id) else { return };
        self.parts.rank.send(RankCommand::Leave { gpus: backend.gpus.clone() });
        self.tell_model_threads(|| ModelCommand::BackendDown { backend: id });
        let measured: Vec<u32> = backend.profiles.iter().map(|&(model, _)| model).collect();
        self.adopt_profiles_of(&measured);
        self.announce_serving();
        self.slabs_without(id);
        self.check_all_loaded();
    }
}
