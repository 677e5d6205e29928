//! The order of service: of two tasks that wait for one model, the one that is due first is planned first, or given up before
//! the other is planned. So no task is overtaken, and none is given up because others were taken before it.

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
    model: u32,
    deadline: Nanos,
}

impl Asked {
    pub(super) fn of(message: &Message<'_>) -> Option<Self> {
        let Message::Submit(Submit { task, model, deadline_ns, .. }) = message else {
            return None;
        };
        let deadline = Nanos(deadline_ns.get());
        Some(Self { task: task.get(), model: model.get(), deadline })
    }
}

/// A task that a ModelThread has read.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// The thread's endpoint: another may have the model when the task is planned.
    thread: usize,
    model: u32,
    since: Nanos,
    deadline: Nanos,
    /// It has had its turn: it was in a batch, or was given up.
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
        let Asked { task, model, deadline } = asked;
        let is_planned = false;
        self.tasks.insert(task, Waiting { thread, model, since: now, deadline, is_planned });
    }

    /// The thread gives a task up. Returns what is wrong with it: it has waited on while one that is due later was planned. What
    /// makes room for a batch is given up with it.
    pub(super) fn given_up(&mut self, thread: usize, task: u64, now: Nanos) -> Option<String> {
        let waiting = self.tasks.get_mut(&task)?;
        if std::mem::replace(&mut waiting.is_planned, true) || waiting.thread != thread {
            return None;
        }
        let (settled, deadline) = (waiting.since + SETTLING, waiting.deadline);
        let before = self.batches.get(&(thread, waiting.model))?;
        let mut since = before.iter().rev().take_while(|(left, _)| *left > settled);
        let is_passed = since.any(|(left, latest)| *left + SETTLING < now && *latest > deadline);
        is_passed
            .then(|| format!("task {task} was given up after one that is due later was planned"))
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
