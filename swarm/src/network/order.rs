//! The order of service: of two tasks that wait for one model, the one that is due first is planned first.

use std::collections::{BTreeMap, VecDeque};

use baton_core::Nanos;
use baton_rdma::wire::{Message, Submit};

/// What has been read in one pass may be queued in a later one.
const SETTLING: Nanos = Nanos::from_millis(1);
/// Batches of a model that are remembered.
const BATCHES_MAX: usize = 256;

/// A frame that says that a task waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    task: u64,
    deadline: Nanos,
}

impl Asked {
    pub(super) fn of(message: &Message<'_>) -> Option<Self> {
        let Message::Submit(Submit { task, deadline_ns, .. }) = message else { return None };
        Some(Self { task: task.get(), deadline: Nanos(deadline_ns.get()) })
    }
}

/// A task that a ModelThread has read.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// The thread's endpoint: another may have the model when the task is planned.
    thread: usize,
    since: Nanos,
    deadline: Nanos,
    is_planned: bool,
}

/// What waits, and what was planned before it.
#[derive(Default, Debug)]
pub(super) struct Order {
    tasks: BTreeMap<u64, Waiting>,
    /// By thread and model: when each batch left, and the latest deadline in it.
    batches: BTreeMap<(usize, u32), VecDeque<(Nanos, Nanos)>>,
}

impl Order {
    /// The thread has read that.
    pub(super) fn read(&mut self, thread: usize, asked: Asked, now: Nanos) {
        let Asked { task, deadline, .. } = asked;
        self.tasks.insert(task, Waiting { thread, since: now, deadline, is_planned: false });
    }

    /// A batch leaves. Returns what is wrong with it: it is not in the order of its deadlines, or a task in it has waited while
    /// one that is due later was planned. One that comes back from a batch may be behind others.
    pub(super) fn planned(
        &mut self,
        (thread, model): (usize, u32),
        batch: &[u64],
        now: Nanos,
    ) -> Option<String> {
        let before = self.batches.entry((thread, model)).or_default();
        let (mut latest, mut wrong) = (Nanos::ZERO, None);
        for &number in batch {
            let Some(task) = self.tasks.get_mut(&number) else { continue };
            if task.deadline < latest {
                wrong = Some(format!("{number} is behind one that is due later"));
            }
            latest = latest.max(task.deadline);
            let is_first = !std::mem::replace(&mut task.is_planned, true);
            let settled = task.since + SETTLING;
            let mut since = before.iter().rev().take_while(|(left, _)| *left > settled);
            let is_passed = since.any(|(_, latest)| *latest > task.deadline);
            if is_first && task.thread == thread && is_passed {
                wrong = Some(format!("{number} waited while one that is due later was planned"));
            }
        }
        if before.len() == BATCHES_MAX {
            before.pop_front();
        }
        before.push_back((now, latest));
        wrong
    }
}
