//! What the threads count, readable from outside while they run.
//!
//! Every counter has one writing thread, so an increment is a plain load and store; readers see a
//! value that may be a few nanoseconds old.

use std::sync::atomic::{AtomicU64, Ordering};

use baton_core::{DropReason, FailReason, Unserved};
use baton_rdma::TransportCounters;

/// A number that only grows, written by one thread.
#[derive(Default, Debug)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds `n`. One thread only. A count is never worth a panic: it wraps.
    #[inline]
    pub fn add(&self, n: u64) {
        self.0.store(self.0.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
    }

    /// Replaces the value, for numbers kept elsewhere.
    #[inline]
    pub fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }

    /// The value as last written.
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

macro_rules! counters {
    ($(#[$meta:meta])* $name:ident { $($(#[doc = $help:literal])* $field:ident,)* }) => {
        $(#[$meta])*
        #[derive(Default, Debug)]
        pub struct $name { $($(#[doc = $help])* pub $field: Counter,)* }

        impl $name {
            /// Names and values, in order of declaration.
            pub fn pairs(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($field), self.$field.get()),)*]
            }

            /// What each says, in the same order.
            pub(crate) const HELP: &'static [&'static str] = &[$(concat!($($help),*),)*];
        }
    };
}

counters! {
    /// One ModelThread.
    ModelThreadCounters {
        /// Tasks received.
        submitted,
        /// Tasks for a model this thread does not have: failed (`unknown_model`).
        unknown_model,
        /// Tasks cancelled before they were in a batch.
        cancelled,
        /// Cancellations that came too late, or named no waiting task.
        cancelled_late,
        /// Batches sent to backends.
        plans,
        /// Tasks in the batches sent to backends.
        planned_tasks,
        /// Batches whose plan could not be sent: the tasks went back.
        plans_undelivered,
        /// LOADs sent to backends.
        loads_sent,
        /// LOADs that could not be sent: their backends have to join again.
        loads_undelivered,
        /// Batches reported executed.
        batches_executed,
        /// Batches given back as too late.
        batches_expired,
        /// Batches a backend refused.
        batches_refused,
        /// Batches whose engine failed.
        batches_engine_error,
        /// Batches lost with their backend.
        batches_backend_lost,
        /// Reports about batches that are not outstanding.
        stale_reports,
        /// Connections closed for breaking the protocol.
        protocol_errors,
        /// Connections closed because their token belongs to no member.
        unauthorised,
        /// Outcomes that could not be queued to their frontend (it does not read, or is gone).
        outcomes_undelivered,
        /// Tasks dropped: no GPU came soon enough.
        dropped_deadline,
        /// Tasks dropped: given up so that others could share a larger batch.
        dropped_window,
        /// Tasks dropped: their deadline had passed, or was shorter than one execution.
        dropped_deadline_passed,
        /// Tasks dropped: their model's queue was full.
        dropped_queue_full,
        /// Tasks dropped: above a quota.
        dropped_quota,
        /// Tasks dropped because their frontend asks for more than its share of a model that cannot serve
        /// everybody.
        dropped_share,
        /// Tasks dropped: their frontend was lost.
        dropped_frontend_lost,
        /// Tasks dropped: no backend serves their model.
        dropped_no_backend,
        /// Tasks dropped: the scheduler stops.
        dropped_shutdown,
        /// Tasks dropped: their model was removed.
        dropped_model_removed,
        /// Tasks dropped: no variant as accurate as they ask for could answer in time.
        dropped_accuracy,
        /// Tasks failed because their backend died and time was up.
        failed_backend_lost,
        /// Models that came from another ModelThread.
        models_adopted,
        /// Models that went to another ModelThread.
        models_released,
        /// Requests, wishes, reports and grants passed on to where their model had moved.
        passed_on,
        /// Requests, wishes, reports and grants not passed on because the migration channel was full: requests are dropped
        /// (`queue_full`).
        passage_full,
        /// A ModelThread's connections closed for bytes that are no frame.
        malformed,
        /// A ModelThread's connections refused for their protocol version.
        version_refused,
        /// A ModelThread's connections that came to nothing because of TLS.
        tls_refused,
        /// A ModelThread's connections refused at a bound, or silent after connecting.
        connections_refused,
        /// A ModelThread's messages refused because the peer does not read.
        send_queue_full,
    }
}

impl ModelThreadCounters {
    /// Counts a task that ends in this thread.
    pub fn count_end(&self, why: Unserved) {
        let counter = match why {
            Unserved::Dropped(DropReason::Deadline) => &self.dropped_deadline,
            Unserved::Dropped(DropReason::Window) => &self.dropped_window,
            Unserved::Dropped(DropReason::DeadlinePassed) => &self.dropped_deadline_passed,
            Unserved::Dropped(DropReason::QueueFull) => &self.dropped_queue_full,
            Unserved::Dropped(DropReason::Cancelled) => &self.cancelled,
            Unserved::Dropped(DropReason::Quota) => &self.dropped_quota,
            Unserved::Dropped(DropReason::FrontendLost) => &self.dropped_frontend_lost,
            Unserved::Dropped(DropReason::NoBackend) => &self.dropped_no_backend,
            Unserved::Dropped(DropReason::Shutdown) => &self.dropped_shutdown,
            Unserved::Dropped(DropReason::ModelRemoved) => &self.dropped_model_removed,
            Unserved::Dropped(DropReason::Accuracy) => &self.dropped_accuracy,
            Unserved::Failed(FailReason::BackendLost) => &self.failed_backend_lost,
            Unserved::Failed(_) => &self.unknown_model,
        };
        counter.add(1);
    }
}

counters! {
    /// The RankThread.
    RankThreadCounters {
        /// Candidates taken into account.
        candidates,
        /// Candidates ignored as older than the model's last grant.
        superseded,
        /// Grants made.
        grants,
        /// Grants of slots that are slower than the others of their sub-cluster; counted as grants too.
        grants_of_slow,
        /// Candidates that found no slot within their window.
        candidates_expired,
        /// LOADs planned, where backends have not room for every model.
        loads_planned,
        /// LOADs that ended well: a slot has the model.
        loads_done,
        /// LOADs that could not begin in time.
        loads_late,
        /// LOADs that found too few pages, failed, or could not be sent.
        loads_failed,
        /// LOADs that failed because there were too few pages.
        loads_without_pages,
        /// LOADs that failed because the backend could not read the model's file.
        loads_unreadable,
        /// LOADs that failed because the model's file was another one than its table says.
        loads_different,
        /// LOADs that failed because the copy did not end.
        loads_hung,
        /// What happened to LOADs and is not in the answer to an operator, because the ControlThread had too much to read.
        load_news_lost,
        /// Models that left a slot for another.
        models_evicted,
        /// LOADs of models that another slot had already.
        models_copied,
    }
}

counters! {
    /// The ControlThread.
    ControlThreadCounters {
        /// Frontends that joined.
        frontends_joined,
        /// Backends that joined.
        backends_joined,
        /// Members that left after a drain.
        left,
        /// Members lost: connection broken, or silent for too long.
        lost,
        /// Of the members lost, those that were frontends.
        frontends_lost,
        /// Of the members lost, those that were backends.
        backends_lost,
        /// Joins refused: unknown sub-cluster, missing models, bad numbers.
        joins_refused,
        /// Joins refused because the member or its name was there already.
        joins_duplicate,
        /// Joins refused because a bound was met.
        joins_over_limit,
        /// Models moved from one ModelThread to another.
        models_moved,
        /// Models added at run time.
        models_added,
        /// Models removed at run time.
        models_removed,
        /// Changes of the catalogue that were made.
        changes_done,
        /// Changes of the catalogue that were refused, or failed.
        changes_refused,
        /// Trials of other rules.
        trials,
        /// Trials after which a sub-cluster follows other rules.
        rules_changed,
        /// GPUs that the traffic of the last seconds needs, over all sub-clusters: not a count but as of
        /// the last second.
        gpus_needed,
        /// Connections closed for breaking the protocol.
        conversations_refused,
        /// Messages to members that could not be queued: the member does not read.
        undelivered,
        /// The ControlThread's connections closed for bytes that are no frame.
        control_malformed,
        /// The ControlThread's connections refused for their protocol version.
        control_version_refused,
        /// The ControlThread's connections that came to nothing because of TLS.
        control_tls_refused,
        /// The ControlThread's connections refused at a bound, or silent after connecting.
        control_connections_refused,
        /// The ControlThread's messages refused because the peer does not read.
        control_send_queue_full,
    }
}

impl ModelThreadCounters {
    /// Takes over what the thread's transport counted.
    pub fn publish(&self, transport: &TransportCounters) {
        self.malformed.set(transport.malformed);
        self.version_refused.set(transport.version_refused);
        self.tls_refused.set(transport.tls_refused);
        self.connections_refused.set(transport.refused);
        self.send_queue_full.set(transport.send_full);
    }
}

impl ControlThreadCounters {
    /// Takes over what the thread's transport counted.
    pub fn publish(&self, transport: &TransportCounters) {
        self.control_malformed.set(transport.malformed);
        self.control_version_refused.set(transport.version_refused);
        self.control_tls_refused.set(transport.tls_refused);
        self.control_connections_refused.set(transport.refused);
        self.control_send_queue_full.set(transport.send_full);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_transport_counted_is_told_apart() {
        let [malformed, version_refused, tls_refused, refused, send_full] = [1, 2, 3, 4, 5];
        let transport = TransportCounters {
            malformed,
            version_refused,
            tls_refused,
            refused,
            send_full,
            ..TransportCounters::default()
        };
        let of = ModelThreadCounters::default();
        of.publish(&transport);
        let told = [
            &of.malformed,
            &of.version_refused,
            &of.tls_refused,
            &of.connections_refused,
            &of.send_queue_full,
        ];
        assert_eq!(told.map(|counter| counter.get()), [1, 2, 3, 4, 5]);
        let of = ControlThreadCounters::default();
        of.publish(&transport);
        let told = [
            &of.control_malformed,
            &of.control_version_refused,
            &of.control_tls_refused,
            &of.control_connections_refused,
            &of.control_send_queue_full,
        ];
        assert_eq!(told.map(|counter| counter.get()), [1, 2, 3, 4, 5]);
    }
}
