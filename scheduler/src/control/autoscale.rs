//! How many GPUs the traffic of each sub-cluster needs: what an autoscaler reads.

use baton_core::{Nanos, SubclusterId, gpus_needed};
use baton_rdma::Transport;

use super::{ControlParts, ControlThread};

/// At least this long passes between two reports of a change.
const TELL_EVERY: Nanos = Nanos::from_millis(10_000);

/// What was known at the last look, by sub-cluster.
#[derive(Debug)]
pub(super) struct Autoscale {
    /// Requests and lost tasks in total.
    seen: Vec<(u64, u64)>,
    needed: Vec<u32>,
    told: Vec<u32>,
    next_tell: Nanos,
}

impl Autoscale {
    pub(super) fn new(parts: &ControlParts) -> Self {
        let subclusters = parts.catalog.subclusters().count();
        let seen = vec![(0, 0); subclusters];
        let nothing = vec![0; subclusters];
        Self { seen, needed: nothing.clone(), told: nothing, next_tell: Nanos::ZERO }
    }

    /// GPUs that each sub-cluster needs, as of the last look.
    pub(super) fn needed(&self) -> &[u32] {
        &self.needed
    }

    /// The part of the requests since the last look that was lost, in 1/65536.
    fn bad_rate(&mut self, subcluster: usize, requests: u64, lost: u64) -> u32 {
        let (requests_seen, lost_seen) =
            std::mem::replace(&mut self.seen[subcluster], (requests, lost));
        // What a removed model had is not counted any more.
        let requests = requests.saturating_sub(requests_seen);
        let lost = lost.saturating_sub(lost_seen);
        ((lost << 16) / requests.max(1)).min(u32::MAX.into()) as u32
    }
}

impl<T: Transport> ControlThread<T> {
    /// Counts the GPUs that are needed, and writes down what has changed.
    pub(super) fn check_needs(&mut self, now: Nanos) {
        let subclusters: Vec<SubclusterId> = self.parts.catalog.subclusters().collect();
        let needed: Vec<u32> = subclusters.iter().map(|&id| self.needed(id)).collect();
        self.parts.counters.gpus_needed.set(needed.iter().map(|&needed| u64::from(needed)).sum());
        self.autoscale.needed.clone_from(&needed);
        if now < self.autoscale.next_tell || self.autoscale.told == needed {
            return;
        }
        self.autoscale.next_tell = now + TELL_EVERY;
        for (&id, &gpus_needed) in subclusters.iter().zip(&needed) {
            let (subcluster, gpus) =
                (self.parts.catalog.subcluster_name(id), self.roster.serving(id));
            if self.autoscale.told[id.0 as usize] != gpus_needed {
                tracing::info!(subcluster, gpus_needed, gpus, "what the traffic needs has changed");
            }
        }
        self.autoscale.told = needed;
    }

    fn needed(&mut self, subcluster: SubclusterId) -> u32 {
        let models = self.parts.catalog.served_by(subcluster);
        let (mut requests, mut lost, mut slots) = (0, 0, 0);
        for load in models.map(|(model, _)| self.parts.load.of(model)) {
            requests += load.requests;
            lost += load.lost;
            slots += load.slots;
        }
        let bad_rate = self.autoscale.bad_rate(subcluster.0 as usize, requests, lost);
        gpus_needed(slots, bad_rate, self.roster.serving(subcluster))
    }
}
