//! What the ControlThread says for a scrape.

use baton_core::SubclusterId;
use baton_rdma::Transport;
use baton_topo::{VariantSpec, per_cent};

use super::window::{Shares, seconds};
use crate::catalog::Entry;
use crate::control::ControlThread;
use crate::metrics::{ClusterState, ModelShown, SubclusterShown};
use crate::roster::Backend;
use baton_core::Nanos;

impl<T: Transport> ControlThread<T> {
    /// Answers the metrics thread. A question that it has given up meanwhile is answered in vain.
    pub(in crate::control) fn answer_scrape(&mut self, now: Nanos) -> usize {
        let Ok(answer) = self.parts.state_asks.try_recv() else { return 0 };
        let _ = answer.try_send(self.cluster_state(now));
        1
    }

    fn cluster_state(&self, now: Nanos) -> ClusterState {
        let served = self.parts.catalog.entries().filter(|(_, entry)| entry.is_served());
        ClusterState {
            models: served.map(|(_, entry)| self.model_shown(entry)).collect(),
            subclusters: self.parts.catalog.subclusters().map(|id| self.shown(now, id)).collect(),
            members: self.members_shown(),
            load_errors: self.parts.levels.as_ref().map(|_| self.status.loads.errors()),
        }
    }

    fn model_shown(&self, entry: &Entry) -> ModelShown {
        let named = |of: &VariantSpec| (of.name.clone(), per_cent(of.accuracy) / 100.0);
        let model = entry.spec.id;
        let boards = (&*self.parts.load, &self.parts.tasks);
        let moment = self.status.since_it_is_served(model, boards);
        ModelShown {
            name: entry.spec.name.clone(),
            subcluster: self.parts.catalog.subcluster_name(entry.spec.subcluster).to_owned(),
            slo_s: seconds(entry.spec.slo),
            queue_capacity: entry.spec.queue_capacity,
            waiting: self.parts.load.of(model).waiting,
            requests: moment.requests(),
            refused: moment.refused(),
            dropped: moment.dropped(),
            queue_full: moment.queue_full(),
            totals: moment.into_totals(),
            variants: entry.spec.variants.iter().map(named).collect(),
            cache: self.cache_of(entry),
        }
    }

    fn shown(&self, now: Nanos, id: SubclusterId) -> SubclusterShown {
        let backends = self.roster.backends().filter(|(_, backend)| backend.subcluster == id);
        let slots = backends.flat_map(|(_, b)| b.gpus.iter().map(|gpu| (gpu.id.0, b.conn)));
        let shares: Vec<Shares> =
            slots.map(|(slot, conn)| self.shares(now, slot, self.joined_at(conn))).collect();
        let mean = |of: fn(&Shares) -> f64| {
            shares.iter().fold(0.0, |sum, shares| sum + of(shares)) / shares.len().max(1) as f64
        };
        SubclusterShown {
            name: self.parts.catalog.subcluster_name(id).to_owned(),
            gpus: self.roster.serving(id),
            gpus_needed: self.autoscale.needed(id),
            busy: mean(|shares| shares.busy),
            loader_busy: self.has_cache(id).then(|| mean(|shares| shares.loader_busy)),
        }
    }

    fn members_shown(&self) -> Vec<(&'static str, &'static str, u32)> {
        let frontends = self.roster.frontends().count() as u32;
        let states = Backend::STATES.map(|state| {
            let in_it = self.roster.backends().filter(|(_, backend)| backend.state() == state);
            ("backend", state, in_it.count() as u32)
        });
        [("frontend", "serving", frontends)].into_iter().chain(states).collect()
    }
}
