//! Which branches the runs have reached. A swarm that finds nothing says something only about those.
//!
//! Every counter of every process is a mark: each counts what a branch of its own decides. A few states that no counter
//! shows are marked by the run. A mark is reached once it counts anything in some run.

use std::collections::BTreeMap;

use crate::ledger::LoadStates;

/// A mark: the kind of process, and what it counts.
pub type Mark = (&'static str, &'static str);

/// Marks that a swarm without attackers need not reach, and why.
pub const EXCUSED: &[(&str, &[Mark])] = &[
    ("simulated engines answer every row", &[("backend", "rows_unanswered")]),
    (
        "the simulated network is TCP",
        &[
            ("backend", "transport_messages_rdma"),
            ("backend", "transport_reads_rdma"),
            ("backend", "transport_reads_same_host"),
        ],
    ),
    (
        "it has no TLS",
        &[("control_thread", "control_tls_refused"), ("model_thread", "tls_refused")],
    ),
    (
        "every version that is drawn can talk to every other",
        &[("control_thread", "control_version_refused"), ("model_thread", "version_refused")],
    ),
    (
        "only a peer that breaks the protocol brings it about: see `--hostile`",
        &[
            ("backend", "plans_queue_full"),
            ("backend", "plans_unknown"),
            ("backend", "reads_unexpected"),
            ("backend", "rows_repeated"),
            ("backend", "transport_malformed"),
            ("backend", "unexpected_messages"),
            ("client", "unexpected"),
            ("client", "wrong_answer_size"),
            ("client", "wrong_variant"),
            ("control_thread", "control_malformed"),
            ("control_thread", "conversations_refused"),
            ("control_thread", "joins_over_limit"),
            ("control_thread", "joins_refused"),
            ("model_thread", "connections_refused"),
            ("model_thread", "malformed"),
            ("model_thread", "protocol_errors"),
        ],
    ),
    (
        "the applications here submit nothing that the library refuses",
        &[
            ("client", "client_closed"),
            ("client", "deadline_passed"),
            ("client", "model_removed"),
            ("client", "wrong_size"),
        ],
    ),
    ("no thread sleeps here: agents are polled by hand", &[("client", "sent_by_caller")]),
    ("there is memory for every slab", &[("client", "models_unreserved")]),
    (
        "a model's last request is behind its removal on one connection",
        &[("model_thread", "unknown_model")],
    ),
    (
        "the scheduler's queues hold more than a run says",
        &[
            ("control_thread", "control_send_queue_full"),
            ("model_thread", "passage_full"),
            ("model_thread", "send_queue_full"),
            ("rank_thread", "load_news_lost"),
        ],
    ),
    (
        "no model here has a file",
        &[
            ("backend", "model_bytes_pulled"),
            ("backend", "model_files_pulled"),
            ("backend", "model_pulls_failed"),
            ("rank_thread", "loads_different"),
            ("rank_thread", "loads_unreadable"),
        ],
    ),
    (
        "a loader hangs once it has taken a minute, longer than a run",
        &[("rank_thread", "loads_hung")],
    ),
    (
        "the applications here write before they submit, and look at each ticket by itself",
        &[("client", "ahead"), ("client", "completions_full"), ("client", "inputs_late")],
    ),
    (
        "it takes some thousand seeds to be reached once",
        &[("backend", "rows_wrong_size"), ("control_thread", "control_connections_refused")],
    ),
];

fn is_excused(mark: &Mark) -> bool {
    EXCUSED.iter().any(|(_, marks)| marks.contains(mark))
}

/// States that a run marks by itself.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct States {
    /// A client had more tasks outstanding than it submits again in one pass when its scheduler went.
    pub(crate) scheduler_lost_under_hundreds: bool,
    /// A model moved to another ModelThread while tasks waited there.
    pub(crate) model_moved_under_load: bool,
    /// Load was offered for longer than rates are measured over.
    pub(crate) longer_than_a_rate_window: bool,
    /// The scheduler went while a slot loaded weights.
    pub(crate) scheduler_lost_in_mid_load: bool,
    /// A backend did.
    pub(crate) backend_lost_in_mid_load: bool,
    /// Models that are alike had more to do than the GPUs could.
    pub(crate) equals_contended: bool,
}

impl States {
    pub(crate) fn pairs(self, loads: LoadStates) -> [(&'static str, u64); 9] {
        [
            ("scheduler_lost_under_hundreds", u64::from(self.scheduler_lost_under_hundreds)),
            ("model_moved_under_load", u64::from(self.model_moved_under_load)),
            ("longer_than_a_rate_window", u64::from(self.longer_than_a_rate_window)),
            ("scheduler_lost_in_mid_load", u64::from(self.scheduler_lost_in_mid_load)),
            ("backend_lost_in_mid_load", u64::from(self.backend_lost_in_mid_load)),
            ("equals_contended", u64::from(self.equals_contended)),
            ("load_hung", u64::from(loads.hung)),
            ("victim_loaded_again_at_once", u64::from(loads.victim_again)),
            ("model_added_beside_caches", u64::from(loads.added)),
        ]
    }
}

/// For each mark, in how many runs it was reached.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Marks(BTreeMap<Mark, u64>);

impl Marks {
    /// Notes what one process of a run has counted.
    pub(crate) fn note(
        &mut self,
        process: &'static str,
        pairs: impl IntoIterator<Item = (&'static str, u64)>,
    ) {
        for (name, value) in pairs {
            let reached = self.0.entry((process, name)).or_default();
            *reached |= u64::from(value > 0);
        }
    }

    /// Adds those of another run.
    pub(crate) fn add(&mut self, run: &Self) {
        for (&mark, runs) in &run.0 {
            *self.0.entry(mark).or_default() += runs;
        }
    }

    /// Every mark with the number of runs that have reached it, as `process.name`.
    pub fn by_name(&self) -> BTreeMap<String, u64> {
        let name = |&(process, name): &Mark| format!("{process}.{name}");
        self.0.iter().map(|(mark, runs)| (name(mark), *runs)).collect()
    }

    /// How many marks there are, and how many of them some run has reached.
    pub fn count(&self) -> (usize, usize) {
        (self.0.len(), self.0.values().filter(|runs| **runs > 0).count())
    }

    /// Whether there is such a mark.
    pub fn has(&self, mark: &Mark) -> bool {
        self.0.contains_key(mark)
    }

    /// The marks that some run should have reached and none has.
    pub fn missed(&self) -> Vec<String> {
        let missed = self.0.iter().filter(|(mark, runs)| **runs == 0 && !is_excused(mark));
        missed.map(|((process, name), _)| format!("{process}.{name}")).collect()
    }
}
