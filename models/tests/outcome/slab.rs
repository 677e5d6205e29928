//! The client's registered memory: the real slab, of one slot.
//!
//! A slab cannot be copied, so a state holds what was done with it, and every question is put to a slab with which the
//! same was done before.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use baton_core::{FrontendId, ModelId, TaskId};
use baton_rdma::{ReadLease, SlabSet, SlabSpec};

const MODEL: ModelId = ModelId(0);

/// What is done with a slab.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Step {
    /// An input of this content is submitted under a frontend's number.
    Submit(u16, u8),
    /// The task is submitted once more.
    Renew(u16, TaskId),
    /// A backend begins to read the task's input.
    Read(TaskId),
    /// The first of the reads has ended.
    EndRead,
    /// An answer of this content arrives for the task.
    Land(TaskId, u8),
    /// The task is decided.
    Complete(TaskId),
    /// The application has taken the outcome, and with it the answer if there is one.
    Take(TaskId),
}

/// What came of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Came {
    Nothing,
    Task(TaskId),
    Content(u8),
    Done,
}

/// See the module documentation. Two are the same whose slots are.
#[derive(Clone, Default, Debug)]
pub(crate) struct Slab {
    done: Vec<Step>,
    slot: Slot,
}

/// What can be seen of a slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Debug)]
struct Slot {
    task: Option<TaskId>,
    is_free: bool,
    leases: u64,
}

impl PartialEq for Slab {
    fn eq(&self, other: &Self) -> bool {
        self.slot == other.slot
    }
}

impl Eq for Slab {}

impl Hash for Slab {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.slot.hash(state);
    }
}

struct Real {
    slabs: Arc<SlabSet>,
    leases: Vec<ReadLease>,
}

impl Real {
    fn new() -> Self {
        let spec = SlabSpec { model: MODEL, slots: 1, input_bytes: 1, output_bytes: 1 };
        Self { slabs: SlabSet::new(&[spec], 1).expect("there is memory"), leases: Vec::new() }
    }

    fn step(&mut self, step: Step) -> Came {
        match step {
            Step::Submit(number, content) => self.submit(number, content),
            Step::Renew(number, task) => {
                self.slabs.set_frontend(FrontendId(number));
                self.slabs.renew(task).map_or(Came::Nothing, Came::Task)
            }
            Step::Read(task) => self.read(task),
            Step::EndRead => {
                drop(self.leases.remove(0));
                Came::Done
            }
            Step::Land(task, content) => match self.slabs.landing(task) {
                Some(mut place) => {
                    place[0] = content;
                    place.commit(1);
                    Came::Done
                }
                None => Came::Nothing,
            },
            Step::Complete(task) => match self.slabs.complete(task) {
                true => Came::Done,
                false => Came::Nothing,
            },
            Step::Take(task) => {
                let content = self.slabs.output(task).map(|output| output[0]);
                self.slabs.release(task);
                content.map_or(Came::Nothing, Came::Content)
            }
        }
    }

    fn submit(&mut self, number: u16, content: u8) -> Came {
        self.slabs.set_frontend(FrontendId(number));
        let Ok(mut input) = self.slabs.acquire(MODEL) else { return Came::Nothing };
        assert!(self.leases.is_empty(), "memory is written that a backend reads");
        input[0] = content;
        Came::Task(input.submit())
    }

    fn read(&mut self, task: TaskId) -> Came {
        let Ok(lease) = self.slabs.read(task, 1) else { return Came::Nothing };
        let bytes = lease.as_ref();
        let content = bytes[0];
        assert_eq!(bytes[1..], task.0.to_le_bytes(), "the trailer names the task");
        self.leases.push(lease);
        Came::Content(content)
    }
}

impl Slab {
    fn real(&self) -> Real {
        let mut real = Real::new();
        for &step in &self.done {
            real.step(step);
        }
        real
    }

    fn step(&mut self, step: Step) -> Came {
        let mut real = self.real();
        let came = real.step(step);
        self.done.push(step);
        let (task, is_free) = (Some(real.slabs.task(0)), real.slabs.in_use() == 0);
        self.slot = Slot { task, is_free, leases: real.slabs.leases() };
        came
    }

    /// `None` while the slot is not free.
    pub(crate) fn submit(&mut self, number: u16, content: u8) -> Option<TaskId> {
        match self.step(Step::Submit(number, content)) {
            Came::Task(task) => Some(task),
            _ => None,
        }
    }

    pub(crate) fn is_free(&self) -> bool {
        self.slot.is_free || self.done.is_empty()
    }

    /// `None` while its input is read, or an answer is here.
    pub(crate) fn renew(&mut self, number: u16, task: TaskId) -> Option<TaskId> {
        match self.step(Step::Renew(number, task)) {
            Came::Task(task) => Some(task),
            _ => None,
        }
    }

    /// The content of the input; `None` if the task is not in the slot.
    pub(crate) fn read(&mut self, task: TaskId) -> Option<u8> {
        match self.step(Step::Read(task)) {
            Came::Content(content) => Some(content),
            _ => None,
        }
    }

    pub(crate) fn end_read(&mut self) {
        self.step(Step::EndRead);
    }

    /// Whether the answer has landed.
    pub(crate) fn land(&mut self, task: TaskId, content: u8) -> bool {
        self.step(Step::Land(task, content)) == Came::Done
    }

    /// Decides the task, and takes the answer of a task that has one. False if it was decided before.
    pub(crate) fn complete(&mut self, task: TaskId) -> (bool, Option<u8>) {
        let first = self.step(Step::Complete(task)) == Came::Done;
        match self.step(Step::Take(task)) {
            Came::Content(content) => (first, Some(content)),
            _ => (first, None),
        }
    }
}
