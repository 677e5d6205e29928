//! LOADs on their way to backends, their reports on the way back, and where the weights of models are.

use baton_core::{BackendId, GpuId, ModelId, Nanos, Readiness};
use baton_rdma::wire::{Load, LoadDone, LoadStatus};
use baton_rdma::{ConnId, Transport};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U32;

use super::ModelThread;
use crate::cache::link::{CacheOrder, LoadOrder, LoadReport};
use crate::cache::news::{Failure, LoadEnd};
use crate::catalog::model_id;
use crate::dispatch::{Dispatch, Place};
use crate::peers::Member;

impl<T: Transport> ModelThread<T> {
    /// What the RankThread has decided about weights.
    pub(super) fn take_cache_orders(&mut self, now: Nanos) -> usize {
        let mut taken = 0;
        while let Some(order) = self.out.link.cache.as_ref().and_then(|cache| cache.order()) {
            taken += 1;
            match order {
                CacheOrder::Readiness(model, readiness) => self.on_readiness(now, model, readiness),
                CacheOrder::Load(order) => self.out.send_load(&order),
            }
        }
        taken
    }

    /// If the model has moved, the RankThread tells its new home as soon as it knows that.
    fn on_readiness(&mut self, now: Nanos, model: ModelId, readiness: Readiness) {
        if let Place::Here(at) = self.out.places[model.0 as usize] {
            let state = &mut self.models[at as usize].state;
            match (state.is_ready(), readiness == Readiness::Resident) {
                (false, true) => self.out.cold.ends(model, now),
                (true, false) => self.out.cold.begins(model, now),
                _ => {}
            }
            state.on_readiness(now, readiness, &mut self.out);
            self.retime(at as usize);
        }
    }

    /// Counts the tasks of an executed batch that had come while no slot held its model, and whose batch ended in time.
    pub(super) fn count_cold(&self, model: ModelId, finished: Nanos) {
        let Some(cache) = &self.out.link.cache else { return };
        let in_time = self.returning.iter().filter(|task| finished <= task.deadline);
        let tasks = in_time.filter(|task| self.out.cold.has(model, task)).count() as u64;
        if tasks > 0 {
            cache.levels().cold_in_time(model, tasks);
        }
    }

    pub(super) fn on_load_done(&mut self, conn: ConnId, from: BackendId, done: &LoadDone) {
        let slot = GpuId(done.gpu.get());
        let Some(status) = LoadStatus::from_code(done.status) else {
            return self.refuse(conn, "a LOAD report has an unknown status");
        };
        if !self.out.peers.owns(from, slot) {
            return self.refuse(conn, "a LOAD report names another backend's slot");
        }
        let took = Nanos(done.finished_ns.get()) - Nanos(done.started_ns.get());
        if status == LoadStatus::Loaded {
            self.out.board.loaded(slot, took);
        }
        let end = LoadEnd::reported(status, done.fault, took);
        if !self.out.link.report_load(LoadReport { name: done.load.get(), slot, end }) {
            self.refuse(conn, "more LOADs are reported than there were");
        }
    }
}

impl<T: Transport> Dispatch<T> {
    fn send_load(&mut self, order: &LoadOrder) {
        let LoadOrder { name, model, gpu, latest, ref victims } = *order;
        let id = |model: ModelId| model_id(model, self.lives[model.0 as usize]);
        let victims: Vec<U32> = victims.iter().map(|&victim| id(victim).into()).collect();
        let load = Load {
            load: name.into(),
            latest_ns: latest.0.into(),
            model: id(model).into(),
            gpu: gpu.id.0.into(),
        };
        let owner = self.peers.backend_of(gpu);
        let sent = owner
            .is_some_and(|(_, conn)| self.transport.send(conn, &load, victims.as_bytes()).is_ok());
        if sent {
            return self.counters.loads_sent.add(1);
        }
        self.counters.loads_undelivered.add(1);
        // Its victims are still there: what the backend holds is not known any more, so it has to join again.
        match owner {
            Some((backend, _)) => self.report_missing(Member::Backend(backend)),
            None => self.report_absent(gpu),
        }
        let end = LoadEnd::Failed(Failure::Unsent);
        self.link.report_load(LoadReport { name, slot: gpu.id, end });
    }
}
