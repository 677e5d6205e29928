//! What a client counted. Writers are the application's threads and the I/O thread; none waits.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use baton_metrics::Metric;
use baton_rdma::TransportCounters;

use crate::end::End;

/// Declares the counters once: as atomics, as a snapshot, and as names.
macro_rules! counters {
    ($($(#[doc = $help:literal])* $name:ident,)*) => {
        /// A snapshot of a client's counters, all since it was connected.
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        pub struct Counters {
            $($(#[doc = $help])* pub $name: u64,)*
            /// The transport's own; up to one heartbeat (100 ms) old.
            pub transport: TransportCounters,
        }

        impl Counters {
            /// As Prometheus scrapes them.
            pub fn metrics(&self) -> Vec<Metric> {
                let counters = [$((stringify!($name), concat!($($help),*), self.$name),)*];
                let own = counters.map(|(name, help, count)| Metric::counter("client", name, help, count));
                own.into_iter().chain(Metric::of_transport("client", self.transport.counts(), self.transport.levels())).collect()
            }

            /// Names and values, without the transport's.
            pub fn pairs(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name),)*]
            }
        }

        #[derive(Default, Debug)]
        pub(crate) struct LiveCounters {
            $(pub(crate) $name: Count,)*
            transport: Mutex<TransportCounters>,
            /// Backends that may answer now.
            pub(crate) backends: AtomicU32,
        }

        impl LiveCounters {
            pub(crate) fn snapshot(&self) -> Counters {
                Counters { $($name: self.$name.get(),)* transport: *self.lock() }
            }
        }
    };
}

counters! {
    /// Tasks accepted by a submit. Each has, or will have, one of the three outcomes below.
    submitted,
    /// Tasks submitted ahead of their inputs; counted as submitted too.
    ahead,
    /// Times that a batch went without a task whose input was still to come.
    inputs_late,
    /// Tasks answered.
    completed,
    /// Tasks answered after their deadline; counted as completed too.
    late,
    /// Tasks dropped.
    dropped,
    /// Tasks dropped with a time to wait before the next submit; counted as dropped too.
    hinted,
    /// Tasks failed.
    failed,
    /// Times this client joined again after its scheduler was lost.
    reconnects,
    /// Tasks submitted again after a lost scheduler, or after a batch went without their input, each time counted.
    resubmitted,
    /// Cancellations asked for, dropped tickets included.
    cancels,
    /// Submits and cancellations that the application's thread sent, because the I/O thread slept.
    sent_by_caller,
    /// Inputs refused because every slot was in use.
    slab_exhausted,
    /// Tickets that a completion queue gave back because it was full.
    completions_full,
    /// Model names that are not in the catalogue.
    unknown_model,
    /// Inputs and submits refused because their model was removed.
    model_removed,
    /// Models that were added while this client was connected, and that it can use.
    models_added,
    /// Models of this client that were removed.
    models_removed,
    /// Models that were added and cannot be used, because there was no memory for their slabs.
    models_unreserved,
    /// Inputs refused for their size.
    wrong_size,
    /// Submits refused because the deadline had passed.
    deadline_passed,
    /// Submits refused because the scheduler is lost.
    scheduler_lost,
    /// Submits refused because the client has left.
    client_closed,
    /// Connections turned away: not a backend, or without this client's token.
    strangers,
    /// Messages that do not fit the conversation; ignored, or the sender turned away.
    unexpected,
    /// Outcomes for tasks that had theirs already, or another id by then.
    duplicates,
    /// Answers that do not have the model's output size.
    wrong_answer_size,
    /// Answers of a variant that the model has not; the task failed.
    wrong_variant,
}

impl LiveCounters {
    pub(crate) fn publish_transport(&self, counters: TransportCounters) {
        *self.lock() = counters;
    }

    pub(crate) fn count_end(&self, end: &End) {
        match end {
            End::Completed(timing) => {
                self.late.add(u64::from(timing.late()));
                self.completed.add(1);
            }
            End::Dropped(..) => self.dropped.add(1),
            End::Failed(..) => self.failed.add(1),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, TransportCounters> {
        self.transport.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One counter. Relaxed: it orders nothing.
#[derive(Default, Debug)]
pub(crate) struct Count(AtomicU64);

impl Count {
    pub(crate) fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
