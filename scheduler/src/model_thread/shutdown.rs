//! The end: every task that waits is dropped, and every member has a last word.

use baton_core::{DropReason, Nanos};
use baton_rdma::wire::RefuseCode;
use baton_rdma::{CloseReason, ConnId, Transport};

use super::ModelThread;
use super::migration::Arrival;
use crate::peers::{Member, is_farewell};

impl<T: Transport> ModelThread<T> {
    pub(super) fn shut_down(&mut self, now: Nanos) {
        self.shutdown = true;
        for at in 0..self.models.len() {
            self.models[at].state.drop_all(now, DropReason::Shutdown, &mut self.out);
            self.retime(at);
        }
        self.out.transport.flush();
    }

    /// Once every batch is reported after a shutdown: the last word to everybody.
    pub(super) fn say_farewell(&mut self) {
        let done = self.out.in_flight.len() == 0 && self.arrivals.iter().all(Arrival::has_come);
        if self.shutdown && !self.farewell && done {
            self.farewell = true;
            let connections: Vec<ConnId> = self.out.peers.connections().collect();
            for conn in connections {
                let detail = "the scheduler is shutting down";
                self.out.transport.close(conn, RefuseCode::Shutdown, detail);
            }
        }
    }

    /// Whom another thread has sent away, which has ended, is not missing: it says goodbye to the ControlThread itself.
    pub(super) fn report_gone(&mut self, member: Member, reason: &CloseReason) {
        if !(self.shutdown && is_farewell(reason)) {
            self.out.report_missing(member);
        }
    }
}
