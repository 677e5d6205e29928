//! Recording what arrives for a trial, and following its verdict.

use std::mem;

use baton_core::{
    Alternative, Enough, ModelId, Nanos, Recent, Recorded, Recording, Request, SubclusterId,
};
use baton_rdma::Transport;

use super::ModelThread;
use crate::commands::{Notice, RecordedPart};
use crate::dispatch::Place;

/// What arrives, for trials.
#[derive(Default, Debug)]
pub(super) struct Recorder {
    /// For all models here, lately …
    recent: Recent,
    /// … and for those of a sub-cluster, while the ControlThread wants to know.
    recording: Option<(SubclusterId, Recording)>,
}

impl<T: Transport> ModelThread<T> {
    pub(super) fn begin_recording(&mut self, now: Nanos, subcluster: SubclusterId, enough: Enough) {
        let is_of_these = |model: ModelId| match self.out.places[model.0 as usize] {
            Place::Here(at) => self.models[at as usize].subcluster == subcluster,
            Place::Moved(_) | Place::Elsewhere => false,
        };
        let recording = Recording::new(now, enough, &self.recorder.recent, is_of_these);
        self.recorder.recording = Some((subcluster, recording));
    }

    /// A task arrived for a model here.
    #[inline]
    pub(super) fn record(&mut self, now: Nanos, at: usize, request: &Request) {
        let model = self.models[at].state.id();
        let task = Recorded { at: now, model, budget: request.deadline - now };
        self.recorder.recent.arrived(task);
        if self.recorder.recording.is_some() {
            self.record_for_trial(at, task);
        }
    }

    #[cold]
    fn record_for_trial(&mut self, at: usize, task: Recorded) {
        let Some((subcluster, recording)) = &mut self.recorder.recording else { return };
        let is_of_these = self.models[at].subcluster == *subcluster;
        if is_of_these && !recording.arrived(task) {
            self.end_recording(task.at);
        }
    }

    /// Recordings end without arrivals, too.
    pub(super) fn check_recording(&mut self, now: Nanos) {
        if self.recorder.recording.as_ref().is_some_and(|(_, recording)| recording.is_over(now)) {
            self.end_recording(now);
        }
    }

    /// Hands over what was recorded.
    pub(super) fn end_recording(&mut self, now: Nanos) {
        let Some((subcluster, recording)) = mem::take(&mut self.recorder.recording) else { return };
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
