//! Which thread runs where: the RankThread, the ModelThreads, then senders.

use baton_topo::{Idle, Placement};

/// See the module documentation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Layout {
    /// Each spins on a core of its own.
    Own,
    /// ModelThreads do; RankThread and senders share the first core, where they yield.
    Shared {
        /// How many ModelThreads.
        model_threads: usize,
    },
    /// Anywhere; threads that outnumber the cores must let each other run.
    Anywhere,
}

impl Layout {
    pub(super) fn of(model_threads: usize, senders: usize) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        if cores > model_threads + senders {
            Self::Own
        } else if cores > model_threads {
            Self::Shared { model_threads }
        } else {
            Self::Anywhere
        }
    }

    pub(super) fn place(self, thread: usize) -> Placement {
        let (core, idle) = match self {
            Self::Own => (Some(thread), Idle::Spin),
            Self::Shared { model_threads } if (1..=model_threads).contains(&thread) => {
                (Some(thread), Idle::Spin)
            }
            Self::Shared { .. } => (Some(0), Idle::Yield),
            Self::Anywhere => (None, Idle::Yield),
        };
        Placement { name: format!("sched-{thread}"), core, idle }
    }
}
