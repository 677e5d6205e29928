//! What a backend counted since it started. Plain numbers, written by the I/O thread only; every
//! bound and every refusal of the backend has one.

use baton_metrics::Metric;
use baton_rdma::TransportCounters;
use baton_types::FailReason;

use crate::execute::EngineError;

macro_rules! counters {
    ($($(#[doc = $help:literal])* $name:ident,)*) => {
        /// Counted since start. `plans = batches_executed + engine_errors + batches_expired + batches_abandoned +
        /// refused (by reason) + those still in progress`.
        #[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
        pub struct Counters {
            $($(#[doc = $help])* pub $name: u64,)*
            /// What the transport counted.
            pub transport: TransportCounters,
        }

        impl Counters {
            /// As Prometheus scrapes them.
            pub fn metrics(&self) -> Vec<Metric> {
                let counters = [$((stringify!($name), concat!($($help),*), self.$name),)*];
                let own = counters.map(|(name, help, count)| Metric::counter("backend", name, help, count));
                own.into_iter().chain(Metric::of_transport("backend", self.transport.counts(), self.transport.levels())).collect()
            }

            /// The backend's own counters by name, for tables and JSON.
            pub fn pairs(&self) -> Vec<(&'static str, u64)> {
                let mut pairs = vec![$((stringify!($name), self.$name),)*];
                pairs.extend(transport_pairs(&self.transport));
                pairs
            }
        }
    };
}

counters! {
    /// Actions received.
    plans,
    /// Batches executed and answered, also those that lost every row.
    batches_executed,
    /// Rows executed and answered for by the engine.
    rows_executed,
    /// Batches whose execution the engine reported as failed.
    engine_errors,
    /// Batches given back because they could no longer start in time.
    batches_expired,
    /// Batches submitted behind one that executed, so that the executor need not wait for the next.
    batches_behind,
    /// Models loaded because the scheduler asked for it.
    loads,
    /// Models unloaded because the scheduler asked for it.
    unloads,
    /// LOADs that the engine reported as failed.
    load_errors,
    /// Models loaded while this backend served, because they were added to the catalogue or missing here.
    models_added,
    /// Models unloaded because they were removed from the catalogue, replaced by a table of the same name, or unknown to the
    /// next scheduler.
    models_removed,
    /// Models of the catalogue that could not be loaded; the scheduler knows why.
    model_load_failures,
    /// Models that were not loaded, for a LOAD or for the catalogue, because they do not fit into `model_memory_mib`.
    models_beyond_memory,
    /// Model files pulled from servers.
    model_files_pulled,
    /// Bytes of them.
    model_bytes_pulled,
    /// Models whose files could not be pulled; the scheduler knows why.
    model_pulls_failed,
    /// LOADs given back because they could no longer start in time.
    loads_expired,
    /// Batches abandoned unexecuted because the scheduler was lost; no client was notified about them.
    batches_abandoned,
    /// Plans refused because their GPU slot's queue was full.
    plans_queue_full,
    /// Plans refused because the model or GPU slot is not ours.
    plans_unknown,
    /// Plans refused because a task's frontend is unknown: not introduced yet, or already gone.
    plans_early,
    /// Plans refused because they contradict themselves or came from the wrong ModelThread.
    plans_malformed,
    /// Bytes of inputs fetched.
    fetch_bytes,
    /// Rows left out: their task is in the batch already.
    rows_repeated,
    /// Rows left out: the slot had been reused.
    rows_stale,
    /// Rows left out: the input has another size, or the slot does not exist.
    rows_wrong_size,
    /// Rows left out: their frontend is unknown, unreachable or gone.
    rows_fetch_failed,
    /// Rows left out: not there when the batch had to start.
    rows_fetch_timeout,
    /// Rows that an engine did not answer alone: they are no input of the model, or it failed on their shape.
    rows_unanswered,
    /// Answers sent, with output or without.
    answers_sent,
    /// Answers whose frontend is gone.
    answers_lost,
    /// Frontends disconnected because they did not take their answers.
    frontends_slow,
    /// Connections to joined frontends that broke; they are opened anew.
    frontends_disconnected,
    /// Messages that do not belong on their connection; it was closed.
    unexpected_messages,
    /// READ completions that belong to no batch.
    reads_unexpected,
    /// Schedulers lost while this backend served.
    schedulers_lost,
    /// Times this backend was ready again after a lost scheduler.
    rejoins,
}

impl Counters {
    /// An engine has failed: counts want of memory.
    pub(crate) fn engine_failed(&mut self, error: &EngineError) {
        self.models_beyond_memory += u64::from(matches!(error, EngineError::Memory { .. }));
    }

    /// Counts a row left out for `reason`.
    pub(crate) fn row_lost(&mut self, reason: FailReason) {
        match reason {
            FailReason::StaleGeneration => self.rows_stale += 1,
            FailReason::WrongSize => self.rows_wrong_size += 1,
            FailReason::FetchTimeout => self.rows_fetch_timeout += 1,
            _ => self.rows_fetch_failed += 1,
        }
    }
}

fn transport_pairs(transport: &TransportCounters) -> [(&'static str, u64); 9] {
    [
        ("transport_messages_in", transport.messages_in),
        ("transport_messages_out", transport.messages_out),
        ("transport_messages_rdma", transport.messages_rdma),
        ("transport_reads_done", transport.reads_done),
        ("transport_reads_rdma", transport.reads_rdma),
        ("transport_reads_same_host", transport.reads_same_host),
        ("transport_reads_failed", transport.reads_failed),
        ("transport_malformed", transport.malformed),
        ("transport_send_full", transport.send_full),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_table_has_what_the_transport_counted() {
        let transport = TransportCounters { messages_in: 3, send_full: 5, ..Default::default() };
        let pairs = Counters { transport, ..Counters::default() }.pairs();
        let of = |name| pairs.iter().find(|(known, _)| *known == name).map(|(_, count)| *count);
        let names = ["transport_messages_in", "transport_messages_out", "transport_send_full"];
        assert_eq!(names.map(of), [Some(3), Some(0), Some(5)]);
    }
}
