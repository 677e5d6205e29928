//! Recording what arrives for a trial, and following its verdict.

use std::mem;

use baton_core::{Alternative, Enough, Nanos, Recording, Request, SubclusterId};
use baton_rdma::Transport;

use super::ModelThread;
use crate::commands::{Notice, RecordedPart};

impl<T: Transport> ModelThread<T> {
    pub(super) fn begin_recording(&mut self, now: Nanos, subcluster: SubclusterId, enough: Enough) {
        self.recording = Some((subcluster, Recording::new(now, enough)));
    }

    /// A task arrived for a model here.
    #[cold]
    pub(super) fn record(&mut self, now: Nanos, at: usize, request: &Request) {
        let model = &self.models[at];
        let Some((subcluster, recording)) = &mut self.recording else { return };
        let is_of_these = model.subcluster == *subcluster;
        if is_of_these && !recording.arrived(now, model.state.id(), request.deadline) {
            self.end_recording(now);
        }
    }

    /// Recordings end without arrivals, too.
    pub(super) fn check_recording(&mut self, now: Nanos) {
        if self.recording.as_ref().is_some_and(|(_, recording)| recording.is_over(now)) {
            self.end_recording(now);
        }
    }

    /// Hands over what was recorded.
    pub(super) fn end_recording(&mut self, now: Nanos) {
        let Some((subcluster, recording)) = mem::take(&mut self.recording) else { return };
        let models = self.here().filter(|model| model.subcluster == subcluster);
        let models = models.map(|model| model.state.replica()).collect();
        let part = RecordedPart { models, record: recording.end(now) };
        self.out.link.notices.send(Notice::Recorded(Box::new(part)));
    }

    /// The models of the sub-cluster follow these rules from now on; those that come later, too.
    pub(super) fn follow(&mut self, now: Nanos, subcluster: SubclusterId, rules: Alternative) {
        self.rules[subcluster.0 as usize] = Some(rules);
        for at in 0..self.models.len() {
            if self.models[at].subcluster == subcluster {
                let state = &mut self.models[at].state;
                state.set_rules(rules.rules());
                state.reform(now, &mut self.out);
                self.retime(at);
            }
        }
    }
}
