//! One model of a client, shared by the application's handles and the I/O thread: what it takes and gives,
//! its slab, and where its outcomes appear.
//!
//! The I/O thread makes it when the catalogue has the model and lets go of it when the model is removed and
//! its last slot is free. Its memory goes with the last handle.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use baton_rdma::{Backing, InputMut, SlabError, SlabSet, SlabSpec};
use baton_topo::signature::Signature;
use baton_types::{FailReason, ModelId, Nanos, TaskId};

use crate::cell::OutcomeCell;
use crate::client::SessionGuard;
use crate::end::End;
use crate::line::Line;
use crate::metrics::Latencies;
use crate::outcome::{EndRecord, EndedBy, ModelVariant, Outcome, Reply};
use crate::session::Session;

/// A model as the catalogue has it.
#[derive(Clone, Debug)]
pub(crate) struct Announced {
    pub(crate) id: ModelId,
    /// Shared, so that a refusal can name it without allocating.
    pub(crate) name: Arc<str>,
    pub(crate) slo: Nanos,
    pub(crate) input_bytes: u32,
    pub(crate) output_bytes: u32,
    /// What it takes and gives.
    pub(crate) signature: Arc<Signature>,
    /// Its variants, the cheapest first; `None` without any.
    pub(crate) variants: Option<Arc<[ModelVariant]>>,
    /// The number of its ModelThread.
    pub(crate) thread: u32,
}

/// One model of this client.
pub(crate) struct Model {
    pub(crate) name: Arc<str>,
    pub(crate) input_bytes: u32,
    pub(crate) output_bytes: u32,
    pub(crate) signature: Arc<Signature>,
    pub(crate) variants: Option<Arc<[ModelVariant]>>,
    /// Which of the I/O thread's places it has.
    pub(crate) place: u32,
    /// One slab. It goes by the model's first id, whatever schedulers call the model afterwards.
    pub(crate) slabs: Arc<SlabSet>,
    first_id: ModelId,
    /// By position in the slab.
    cells: Box<[OutcomeCell]>,
    first_slot: u32,
    slo: AtomicU64,
    /// Until when the scheduler would not accept another task, by its latest message.
    closed_until: AtomicU64,
    /// Every backend knows the slab, or will before it gets a task.
    usable: AtomicBool,
    removed: AtomicBool,
    /// Of futures that wait for a slot.
    pub(crate) line: Arc<Line>,
    /// Of its answers.
    pub(crate) latencies: Latencies,
}

impl Model {
    /// Reserves a slab whose slots and generations begin there.
    pub(crate) fn reserve(
        announced: &Announced,
        place: u32,
        slots: u32,
        first_generation: u32,
        backing: Backing,
    ) -> Result<Arc<Self>, SlabError> {
        let Announced { id, input_bytes, output_bytes, .. } = *announced;
        let spec = SlabSpec { model: id, slots, input_bytes, output_bytes };
        // Beyond what fits, the slots are too many by any measure.
        let first_slot = place.saturating_mul(slots);
        let slabs = SlabSet::new_at(first_slot, &[spec], first_generation, backing)?;
        let line = Line::new();
        let freed = Arc::clone(&line);
        slabs.on_free(move || freed.moved());
        Ok(Arc::new(Self {
            name: Arc::clone(&announced.name),
            input_bytes,
            output_bytes,
            signature: Arc::clone(&announced.signature),
            variants: announced.variants.clone(),
            place,
            slabs,
            first_id: id,
            cells: (0..slots).map(|_| OutcomeCell::new()).collect(),
            first_slot,
            slo: AtomicU64::new(announced.slo.0),
            closed_until: AtomicU64::new(0),
            usable: AtomicBool::new(false),
            removed: AtomicBool::new(false),
            line,
            latencies: Latencies::default(),
        }))
    }

    /// True if inputs of the one are inputs of the other.
    pub(crate) fn fits(&self, announced: &Announced) -> bool {
        self.signature == announced.signature && self.variants == announced.variants
    }

    /// Whether an answer may be this variant's; a model without variants has 0 alone.
    pub(crate) fn has_variant(&self, variant: u16) -> bool {
        usize::from(variant) < self.variants.as_ref().map_or(1, |variants| variants.len())
    }

    pub(crate) fn acquire(&self) -> Result<InputMut, SlabError> {
        self.slabs.acquire(self.first_id)
    }

    /// Where a task's outcome appears.
    pub(crate) fn cell(&self, task: TaskId) -> &OutcomeCell {
        &self.cells[(task.slot() - self.first_slot) as usize]
    }

    pub(crate) fn cells(&self) -> &[OutcomeCell] {
        &self.cells
    }

    /// The outcome that an end taken from the task's cell stands for. A reply lets the slot go when it is
    /// dropped; without one it goes here.
    pub(crate) fn outcome(&self, task: TaskId, end: &End) -> Outcome {
        let outcome = match *end {
            End::Completed(timing) => match self.slabs.output(self.present_id(task)) {
                Some(output) => {
                    let (signature, variants) =
                        (Arc::clone(&self.signature), self.variants.clone());
                    let reply = Reply::new(output, signature, variants, timing);
                    return Outcome::Completed(reply);
                }
                // The transport reports an answer only after it has landed.
                None => {
                    let record = EndRecord::new(timing.landed, EndedBy::Client, 0);
                    Outcome::Failed(FailReason::Engine, record)
                }
            },
            End::Dropped(reason, record) => Outcome::Dropped(reason, record),
            End::Failed(reason, record) => Outcome::Failed(reason, record),
        };
        self.recycle(task);
        outcome
    }

    /// Lets the slot of an ended task go, whose answer, if there is one, is not wanted.
    pub(crate) fn recycle(&self, task: TaskId) {
        let task = self.present_id(task);
        self.slabs.complete(task);
        self.slabs.release(task);
    }

    /// The slot is the task's until it is let go, but the task has another id after each new submission.
    fn present_id(&self, task: TaskId) -> TaskId {
        self.slabs.task(task.slot())
    }

    pub(crate) fn slo(&self) -> Nanos {
        Nanos(self.slo.load(Ordering::Relaxed))
    }

    /// I/O thread: the objective is this one from now on.
    pub(crate) fn set_slo(&self, slo: Nanos) {
        self.slo.store(slo.0, Ordering::Relaxed);
    }

    /// I/O thread: a task was refused, and another would be before this moment.
    pub(crate) fn close_until(&self, moment: Nanos) {
        // The order against outcomes is that of the outcome's cell.
        self.closed_until.store(moment.0, Ordering::Relaxed);
    }

    /// How long from `now` until another task might be accepted; zero if nothing is against it.
    pub(crate) fn closed_for(&self, now: Nanos) -> Nanos {
        Nanos(self.closed_until.load(Ordering::Relaxed)) - now
    }

    /// True if the application may have handles of it.
    pub(crate) fn is_usable(&self) -> bool {
        self.usable.load(Ordering::Acquire) && !self.is_removed()
    }

    pub(crate) fn set_usable(&self) {
        self.usable.store(true, Ordering::Release);
    }

    pub(crate) fn is_removed(&self) -> bool {
        self.removed.load(Ordering::Acquire)
    }

    pub(crate) fn set_removed(&self) {
        self.removed.store(true, Ordering::Release);
        self.line.closed();
    }
}

impl fmt::Debug for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Model")
            .field("name", &self.name)
            .field("slo", &self.slo())
            .field("signature", &self.signature)
            .field("slabs", &self.slabs)
            .finish()
    }
}

/// What a handle, an input or a ticket keeps alive.
#[derive(Debug)]
pub(crate) struct ModelOwner {
    pub(crate) guard: Arc<SessionGuard>,
    pub(crate) model: Arc<Model>,
}

impl ModelOwner {
    pub(crate) fn session(&self) -> &Session {
        &self.guard.session
    }
}
