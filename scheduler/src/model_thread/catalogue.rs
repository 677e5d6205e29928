//! Models that are added, changed and removed while this thread serves others.
//!
//! A removal has two halves. Here, where the model lives, its last tasks are served and none is accepted any more
//! ([`ModelThread::retire`]). When RankState has forgotten it, every thread does ([`ModelThread::forget`]): those too where
//! it lived before, which may still have batches of it with backends, or pass on what arrives for it.

use std::mem;

use baton_core::{DropReason, GpuUpdate, ModelId, Nanos, Quota, Unserved};
use baton_rdma::Transport;

use super::{Model, ModelThread};
use crate::commands::Notice;
use crate::dispatch::Place;
use crate::migration::channel::{MigrationMessage, ModelInTransit};

/// How far the removal of a model on this thread has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Service {
    /// It is not removed.
    Open,
    /// No more tasks are accepted; those that wait are served.
    Closing,
    /// None waits and none is with a backend. The ControlThread knows.
    Closed,
}

impl<T: Transport> ModelThread<T> {
    /// The model lives here from its first task on.
    pub(super) fn serve(&mut self, model: ModelId, added: ModelInTransit) {
        self.out.in_flight.reserve_batches(added.state.latency().batch_max() as usize);
        let moves = added.last.moves;
        let (_, former) = self.take_in(model, added, moves);
        debug_assert_eq!(former, Place::Elsewhere, "all is forgotten");
        self.out.link.notices.send(Notice::Served(model));
    }

    /// Another objective or quota. The model is here: a change waits for a model on its way.
    pub(super) fn set(
        &mut self,
        now: Nanos,
        model: ModelId,
        slo: Nanos,
        quota: Option<Option<Box<Quota>>>,
    ) {
        let Some(at) = self.resident(model.0) else { return };
        let entry = &mut self.models[at];
        entry.state.set_objective(slo);
        entry.quota = quota.unwrap_or_else(|| entry.quota.take());
        self.models[at].state.reform(now, &mut self.out);
        self.retime(at);
    }

    /// No more tasks are accepted for the model.
    pub(super) fn retire(&mut self, model: ModelId) {
        let Some(at) = self.resident(model.0) else { return };
        self.models[at].service = Service::Closing;
        self.leaving.push(model);
    }

    /// Tells of each model that is removed once it has no task left. At the end of a pass.
    pub(super) fn tell_retired(&mut self) {
        let Self { leaving, models, out, .. } = self;
        leaving.retain(|&model| {
            let Place::Here(at) = out.places[model.0 as usize] else { return false };
            let entry = &mut models[at as usize];
            let is_empty = entry.state.waiting() == 0 && out.with_backends[model.0 as usize] == 0;
            if is_empty {
                entry.service = Service::Closed;
                out.link.notices.send(Notice::Retired(model));
            }
            !is_empty
        });
    }

    /// Nothing of the model stays here but batches that backends have.
    pub(super) fn forget(&mut self, model: ModelId) {
        let place = &mut self.out.places[model.0 as usize];
        match mem::replace(place, Place::Elsewhere) {
            Place::Here(at) => {
                debug_assert_eq!(self.models[at as usize].service, Service::Closed);
                self.models[at as usize] = Model::vacant(model);
                self.timers.remove(at);
                self.vacant.push(at);
            }
            Place::Moved(migration) => self.migrations[migration as usize] = None,
            Place::Elsewhere => {}
        }
        self.forgetting.push(model);
    }

    /// Tells of each model of which no trace is left. At the end of a pass that has taken all grants, once everything was
    /// handed to the RankThread: nothing that this thread says later is about the model.
    pub(super) fn tell_forgotten(&mut self, all_announced: bool) {
        if !all_announced {
            return;
        }
        let Self { forgetting, arrivals, out, .. } = self;
        forgetting.retain(|&model| {
            let is_followed = arrivals.iter().any(|arrival| arrival.is_of(model));
            let is_forgotten = out.with_backends[model.0 as usize] == 0 && !is_followed;
            if is_forgotten {
                out.link.notices.send(Notice::Forgotten(model));
            }
            !is_forgotten
        });
    }

    /// What still arrives for a model that was removed.
    pub(super) fn on_late(&mut self, model: ModelId, item: &MigrationMessage) {
        let removed = Unserved::Dropped(DropReason::ModelRemoved);
        match *item {
            MigrationMessage::Submit(request) | MigrationMessage::Requeue(request, _) => {
                self.out.tell(request.task, removed);
            }
            MigrationMessage::Grant(grant) => {
                self.out.link.update(model, GpuUpdate::Returned { gpu: grant.gpu });
            }
            MigrationMessage::Cancel(_) => self.out.counters.cancelled_late.add(1),
            MigrationMessage::Measured(..) => {}
            MigrationMessage::Model(_) => unreachable!("a model is not removed on its way"),
        }
    }
}
