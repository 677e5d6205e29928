//! What every task is, what became of it, and who executed it: the memory of the oracles.

use baton_backend::execute::checksum;
use baton_client::TaskId;
use baton_core::Nanos;

use crate::hostile::MARK;
use crate::network::{HostId, Network};

/// Bytes at the head of every input: the task's number here.
pub(crate) const NUMBER_BYTES: usize = 8;

/// The answer of a variant to an input of this checksum, as emulated engines have it.
pub(crate) fn by_variant(checksum: [u8; 8], variant: u16) -> [u8; 8] {
    (u64::from_le_bytes(checksum) | u64::from(variant) << 32).to_le_bytes()
}

/// What the engines here answer to an input of this checksum: it, again and again, each time with
/// another value added, so that no piece stands for another.
fn answer(checksum: [u8; 8]) -> impl Iterator<Item = u8> {
    (0..).map(move |at: usize| checksum[at % 8].wrapping_add((at / 8) as u8))
}

/// Writes the answer to an input of this checksum.
pub(crate) fn write_answer(output: &mut [u8], checksum: [u8; 8]) {
    output.iter_mut().zip(answer(checksum)).for_each(|(to, from)| *to = from);
}

/// True for the answer to an input of this checksum, of any length.
pub(crate) fn is_answer(output: &[u8], checksum: [u8; 8]) -> bool {
    output.iter().zip(answer(checksum)).all(|(there, right)| *there == right)
}

/// One execution of a task.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// Where.
    pub host: HostId,
    /// When it began, true time.
    pub started: Nanos,
}

/// A submitted task.
#[derive(Debug)]
pub struct Task {
    /// As it travels.
    pub id: TaskId,
    /// The model, by its place in [`crate::world::World::models`].
    pub model: u32,
    /// The model's name.
    pub name: String,
    /// The frontend's host.
    pub host: HostId,
    /// What its answer must be.
    pub checksum: [u8; 8],
    /// The accuracy that it asks for, 1/100,000.
    pub accuracy_min: u32,
    /// True time.
    pub submitted: Nanos,
    /// When it is due, true time.
    pub deadline: Nanos,
    /// The life of the scheduler that had let its client in last.
    pub(crate) life: usize,
    /// Its scheduler has let it into the model's queue, as its outcome shows.
    pub admitted: bool,
    /// Its scheduler told that no backend serves its model.
    pub missed: bool,
    /// Its scheduler or backend told that it ended without an answer.
    pub refused: bool,
    /// It has its outcome.
    pub ended: bool,
    /// The outcome was an answer, or an engine's failure to give one.
    pub answered: bool,
    /// It was an answer, and came by the deadline.
    pub in_time: bool,
    /// Executions that began.
    pub runs: Vec<Run>,
}

/// All tasks of a run, and the first thing that was wrong.
#[derive(Default, Debug)]
pub struct Ledger {
    tasks: Vec<Task>,
    /// Every life of the scheduler.
    pub schedulers: Vec<HostId>,
    /// Those that a supervisor told to stop.
    pub(crate) stopped: Vec<HostId>,
    /// Rows executed.
    pub executed: u64,
    /// Of these, of tasks that had been executed before.
    pub again: u64,
    /// Rows executed that were an attacker's.
    pub hostile: u64,
    /// Drops that a scheduler told, by reason code.
    pub dropped: [u64; 12],
    /// How long after its deadline the outcome of a task came, at most, and of which task.
    pub latest: (Nanos, u64),
    /// What has happened to LOADs.
    pub(crate) loads: LoadStates,
    /// The same of tasks that a scheduler had given back and their client gave up.
    pub latest_given_up: (Nanos, u64),
    failure: Option<String>,
}

/// States of LOADs that a run marks.
#[derive(Clone, Copy, Default, Debug)]
pub(crate) struct LoadStates {
    /// One hung.
    pub(crate) hung: bool,
    /// A slot gave a model up and had to load it again at once.
    pub(crate) victim_again: bool,
    /// A slot that LOADs fill looked at a model that was added.
    pub(crate) added: bool,
}

impl Ledger {
    /// The number of the next task.
    pub fn next_number(&self) -> u64 {
        self.tasks.len() as u64
    }

    /// Enters a task under [`Ledger::next_number`].
    pub fn submitted(&mut self, task: Task) {
        self.tasks.push(task);
    }

    /// The task with this number.
    pub fn task(&mut self, number: u64) -> &mut Task {
        &mut self.tasks[number as usize]
    }

    /// The task has its outcome.
    pub fn ended(&mut self, number: u64, now: Nanos) {
        let task = &mut self.tasks[number as usize];
        task.ended = true;
        self.latest = self.latest.max((now - task.deadline, number));
    }

    /// Tasks in all.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// True before the first task.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Notes that something is wrong; the first counts.
    pub fn fail(&mut self, what: String) {
        self.failure.get_or_insert(what);
    }

    /// What was wrong first.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Which task's input it is. `None`: an attacker's, or one that was never submitted, which is a failure.
    fn identify(&mut self, row: &[u8], model: &str) -> Option<u64> {
        let number = row.first_chunk::<NUMBER_BYTES>().map(|head| u64::from_le_bytes(*head));
        if number == Some(MARK) {
            self.hostile += 1;
            return None;
        }
        let known = number.filter(|&number| {
            let task = self.tasks.get(number as usize);
            task.is_some_and(|task| task.checksum == checksum(row) && task.name == model)
        });
        if known.is_none() {
            self.fail(format!("an input was executed that no frontend submitted to model {model}"));
        }
        known
    }

    /// An execution of `row` begins on `host`. Returns the task's number.
    pub fn start(
        &mut self,
        now: Nanos,
        row: &[u8],
        model: &str,
        host: HostId,
        network: &Network,
    ) -> Option<u64> {
        let number = self.identify(row, model)?;
        self.executed += 1;
        let schedulers = self.schedulers.clone();
        let lost = |host: HostId| {
            schedulers.iter().any(|&scheduler| network.watch(|w| w.broken(host, scheduler)))
        };
        let task = &mut self.tasks[number as usize];
        // A frontend that has lost its scheduler submits again, under another generation.
        let renewed = lost(task.host);
        let refused = task.refused && !lost(host) && !renewed;
        // A host that is lost still executes what its executors had been given.
        let excused = renewed || lost(host);
        let earlier = task.runs.iter().copied().find(|run| !lost(run.host)).filter(|_| !excused);
        self.again += u64::from(!task.runs.is_empty());
        task.runs.push(Run { host, started: now });
        if let Some(earlier) = earlier {
            let what = format!(
                "task {number} was executed twice: from {:.3} ms on {:?}, which was never lost, and \
                 now on {host:?}",
                earlier.started.as_millis_f64(),
                earlier.host
            );
            self.fail(what);
        }
        if refused {
            self.fail(format!("task {number} was executed after its frontend had heard its end"));
        }
        Some(number)
    }
}
