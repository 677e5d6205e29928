//! A frontend's registered memory: slabs of slots, each an input and the place of its answer.
//!
//! The application fills a slot's input and submits it; backends read it under a lease; the answer
//! lands in the slot's output; the application reads it and the slot goes round again with the next
//! generation. A [`TaskId`] names slot and generation, so a late message is refused, and the
//! trailer behind the input (the task id) lets a reader of raw memory notice the same.
//!
//! Who may touch which bytes when is decided in `slot`; `guards` turns those decisions into
//! references.
#![expect(unsafe_code, reason = "turns slot states into references to slot memory")]

mod ahead;
mod backing;
mod error;
mod exposed;
mod free_list;
mod guards;
mod slot;

use std::fmt;
use std::iter;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};

use baton_types::{FrontendId, ModelId, TaskId};
use crossbeam_channel::{Receiver, Sender};

use crate::memory::region::Region;
use crate::protocol::wire::{PAYLOAD_MAX, SlabDesc, TRAILER_LEN};
pub use ahead::InputAhead;
pub use backing::Backing;
pub use error::{ReadRefusal, SlabError};
pub(crate) use exposed::Exposed;
use free_list::FreeList;
use guards::Place;
pub use guards::{InputMut, OutputMut, OutputRef, ReadLease};
pub use slot::InputState;
use slot::{Reclaim, SlotState};

/// Slots begin at multiples of this, so that neighbours share no cache line.
const CACHE_LINE: usize = 64;

/// One slab to make.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SlabSpec {
    /// The model whose inputs it holds.
    pub model: ModelId,
    /// How many tasks may be outstanding.
    pub slots: u32,
    /// Bytes of one input, without the trailer.
    pub input_bytes: u32,
    /// Bytes of one output.
    pub output_bytes: u32,
}

struct Slab {
    spec: SlabSpec,
    /// Its first slot, as a position in the set.
    first: u32,
    stride: usize,
    output_stride: usize,
    /// Shared with its registration, if a fabric has one.
    inputs: Arc<Region>,
    outputs: Region,
    /// By positions in the slab.
    free: FreeList,
}

struct Slot {
    state: SlotState,
    slab: u32,
    /// The frontend's number when the input was launched.
    frontend: AtomicU16,
    /// Launched more than once: a READ of an earlier generation may still be under way, unseen.
    renewed: AtomicBool,
    /// Bytes of the input that was submitted last, at most the slab's.
    input_len: AtomicU32,
    output_len: AtomicU32,
}

/// Slabs of a frontend that come and go together, shared by application threads, the I/O thread and the
/// transport. A frontend may have several sets; their slots are numbered apart. Inside, slots go by their
/// position in the set.
pub struct SlabSet {
    /// The number of the first slot.
    first_slot: u32,
    first_generation: u32,
    slabs: Vec<Slab>,
    /// Positions in `slabs`, sorted by model.
    by_model: Vec<(ModelId, u32)>,
    slots: Vec<Slot>,
    frontend: AtomicU16,
    /// Slots that are let go without an answer, if they have to rest.
    resting: OnceLock<(Sender<u32>, Receiver<u32>)>,
    /// Slots that [`SlabSet::retire`] has taken out of use.
    retired: AtomicU32,
    /// Called after each slot that becomes free.
    on_free: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl SlabSet {
    /// Allocates the slabs. `first_generation` should differ between runs of a frontend, so that an
    /// id of an earlier run is not mistaken for one of this.
    ///
    /// # Errors
    /// Too many slots, a size of 0 or above the protocol's bound, a model twice, no memory.
    pub fn new(specs: &[SlabSpec], first_generation: u32) -> Result<Arc<Self>, SlabError> {
        let set = Self::new_at(0, specs, first_generation, Backing::Private)?;
        Self::survey([&set]);
        Ok(set)
    }

    /// As [`SlabSet::new`], with slots numbered from `first_slot`, for a frontend with several sets. Call
    /// [`SlabSet::survey`] before the set is exposed. Where another set had these slots before,
    /// `first_generation` is its [`SlabSet::next_generation`], or a later one.
    ///
    /// # Errors
    /// As [`SlabSet::new`].
    pub fn new_at(
        first_slot: u32,
        specs: &[SlabSpec],
        first_generation: u32,
        backing: Backing,
    ) -> Result<Arc<Self>, SlabError> {
        let total: u64 = specs.iter().map(|spec| u64::from(spec.slots)).sum();
        let end = u64::from(first_slot) + total;
        if end > u64::from(TaskId::SLOTS_MAX) {
            return Err(SlabError::TooManySlots(end));
        }
        let mut by_model: Vec<_> = (0..).zip(specs).map(|(i, spec)| (spec.model, i)).collect();
        by_model.sort_unstable();
        if let Some(pair) = by_model.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(SlabError::DuplicateModel(pair[0].0));
        }
        let (slabs, slots) = (Vec::new(), Vec::new());
        let (frontend, retired) = (AtomicU16::new(0), AtomicU32::new(0));
        let resting = OnceLock::new();
        let mut set = Self {
            first_slot,
            first_generation,
            slabs,
            by_model,
            slots,
            frontend,
            resting,
            retired,
            on_free: OnceLock::new(),
        };
        for spec in specs {
            set.add(*spec, first_generation, backing)?;
        }
        Ok(Arc::new(set))
    }

    /// Looks in what pages the memory of these sets lies, for [`SlabSet::memory_bytes`], and says so in the
    /// log.
    pub fn survey<'a>(sets: impl IntoIterator<Item = &'a Arc<Self>>) {
        Region::survey("slabs", sets.into_iter().flat_map(|set| set.regions()));
    }

    /// The numbers of its slots.
    pub fn slots(&self) -> Range<u32> {
        self.first_slot..self.first_slot + self.slots.len() as u32
    }

    /// Sets the number the scheduler gave this frontend; it is part of every task id from now on.
    /// Tasks in flight keep the number they were submitted with until they are renewed.
    pub fn set_frontend(&self, frontend: FrontendId) {
        self.frontend.store(frontend.0, Ordering::Release);
    }

    /// What peers need to know to find a slot's input.
    pub fn descs(&self) -> Vec<SlabDesc> {
        let desc = |slab: &Slab| SlabDesc {
            frontend: u32::from(self.frontend().0).into(),
            first_slot: (self.first_slot + slab.first).into(),
            slots: slab.spec.slots.into(),
            stride: (slab.stride as u32).into(),
            input_bytes: slab.spec.input_bytes.into(),
            model: slab.spec.model.0.into(),
        };
        self.slabs.iter().map(desc).collect()
    }

    /// A free slot's input, exclusively the caller's. Any thread; never blocks. `model` is the one of its
    /// [`SlabSpec`], whatever peers call it meanwhile.
    ///
    /// # Errors
    /// [`SlabError::Exhausted`] or [`SlabError::UnknownModel`].
    pub fn acquire(self: &Arc<Self>, model: ModelId) -> Result<InputMut, SlabError> {
        let slab = self.slab_of(model).ok_or(SlabError::UnknownModel)?;
        let slot = slab.first + slab.free.take().ok_or(SlabError::Exhausted)?;
        self.slots[slot as usize].state.fill();
        Ok(InputMut::new(self.place(slot)))
    }

    /// From now on `call` is called after each slot that becomes free, by the thread that has freed it. Once only.
    pub fn on_free(&self, call: impl Fn() + Send + Sync + 'static) {
        let _ = self.on_free.set(Box::new(call));
    }

    /// Submits a task's input once more: under the frontend's present number, and the slot's next
    /// generation, so that requests with the task's old id are refused from now on. `None` while
    /// the input is written or read or an answer to the old id is landing or has landed, and for a task that is
    /// stale or decided.
    pub fn renew(&self, task: TaskId) -> Option<TaskId> {
        let slot = self.slot_of(task).filter(|slot| slot.state.recall(task.generation()))?;
        slot.renewed.store(true, Ordering::Relaxed);
        Some(self.launch(self.position(task)))
    }

    /// The id under which the slot's input is in flight, or was last.
    ///
    /// # Panics
    /// There is no such slot.
    pub fn task(&self, slot: u32) -> TaskId {
        self.task_at(slot.wrapping_sub(self.first_slot))
    }

    /// The first generation that no task of this set has had, in any of its slots. For a set that is retired.
    pub fn next_generation(&self) -> u32 {
        let used = self.slots.iter().map(|slot| slot.state.generation());
        // Generations wrap: counted from the first one, the latest is the one furthest away.
        let since = |generation: u32| generation.wrapping_sub(self.first_generation);
        used.max_by_key(|&generation| since(generation) % TaskId::GENERATIONS)
            .unwrap_or(self.first_generation)
    }

    /// Takes the slots that are free out of use, for good. True once that is all of them: no
    /// task of this set is left.
    pub fn retire(&self) -> bool {
        let free = self.slabs.iter().map(|slab| iter::from_fn(|| slab.free.take()).count());
        let free = free.sum::<usize>() as u32;
        self.retired.fetch_add(free, Ordering::Release) + free == self.slots.len() as u32
    }

    /// The target side of a READ of `len` bytes: a shared lease of input and trailer.
    ///
    /// # Errors
    /// The task is not in flight, its input has another size, or there is no such slot.
    pub fn read(self: &Arc<Self>, task: TaskId, len: u32) -> Result<ReadLease, ReadRefusal> {
        let at = self.position(task);
        let slot = self.slots.get(at as usize).ok_or(ReadRefusal::NoSuchSlot)?;
        let ours = self.slot_of(task).is_some();
        if !ours || !slot.state.lease(task.generation()) {
            return Err(ReadRefusal::Stale);
        }
        let place = self.place(at);
        let fits = place.input_len() == len as usize;
        let lease = ReadLease::new(place);
        fits.then_some(lease).ok_or(ReadRefusal::WrongSize)
    }

    /// The landing place of a task's answer, exclusively the caller's; `None` unless the task is in
    /// flight with no answer landed or landing. Dropped without a commit, nothing has landed.
    pub fn landing(self: &Arc<Self>, task: TaskId) -> Option<OutputMut> {
        let slot = self.slot_of(task)?;
        let free = slot.state.land(task.generation());
        free.then(|| OutputMut::new(self.place(self.position(task))))
    }

    /// Decides a task's outcome: no new leases and no landing from now on. False if the task is
    /// stale or was decided before.
    pub fn complete(&self, task: TaskId) -> bool {
        self.slot_of(task).is_some_and(|slot| slot.state.complete(task.generation()))
    }

    /// The answer of a decided task, if one had landed. Dropping it recycles the slot.
    pub fn output(self: &Arc<Self>, task: TaskId) -> Option<OutputRef> {
        let slot = self.slot_of(task)?;
        let there = slot.state.take(task.generation());
        there.then(|| OutputRef::new(self.place(self.position(task))))
    }

    /// Lets a decided task's slot go: it is free with the next generation as soon as nothing refers
    /// to it. Does nothing for a task that is not decided or whose slot was let go before.
    pub fn release(&self, task: TaskId) {
        if let Some(slot) = self.slot_of(task) {
            self.reclaim(self.position(task), slot.state.release(task.generation()));
        }
    }

    /// From now on a slot whose task ended without an answer is not free at once: a backend that has
    /// been given up may still be reading it from afar, without a lease. The transport takes such
    /// slots and frees them when no READ
    /// that began before can still count. An answered task's READ is over; its slot does not rest,
    /// unless the task was renewed and others may have been asked to read it before.
    pub fn rest(&self) {
        self.resting.get_or_init(|| crossbeam_channel::bounded(self.slots.len()));
    }

    /// A slot that has to rest from now on, by its number.
    pub(crate) fn take_resting(&self) -> Option<u32> {
        let at = self.resting.get()?.1.try_recv().ok()?;
        Some(self.first_slot + at)
    }

    /// The slot of this number has rested.
    pub(crate) fn end_rest(&self, slot: u32) {
        self.free(slot - self.first_slot);
    }

    /// The input memory of every slab, with what peers need to know to find a slot in it.
    pub(crate) fn inputs(&self) -> impl Iterator<Item = (SlabDesc, &Arc<Region>)> {
        self.descs().into_iter().zip(self.slabs.iter().map(|slab| &slab.inputs))
    }

    /// Bytes of the slabs' memory, and of these the bytes in huge pages.
    pub fn memory_bytes(&self) -> (u64, u64) {
        let sizes =
            self.regions().map(|region| (region.bytes() as u64, region.huge_bytes() as u64));
        sizes.fold((0, 0), |sum, (bytes, huge)| (sum.0 + bytes, sum.1 + huge))
    }

    fn regions(&self) -> impl Iterator<Item = &Region> {
        self.slabs.iter().flat_map(|slab| [&*slab.inputs, &slab.outputs])
    }

    /// Slots that are neither free nor retired.
    pub fn in_use(&self) -> u32 {
        // Before the taken ones, of which they are a part: a slot that is retired meanwhile counts as used.
        let retired = self.retired.load(Ordering::Acquire);
        self.slabs.iter().map(|slab| slab.free.taken()).sum::<u32>() - retired
    }

    /// READ leases that are out. Walks all slots: for tests and diagnosis.
    pub fn leases(&self) -> u64 {
        self.slots.iter().map(|slot| slot.state.leases()).sum()
    }

    fn add(
        &mut self,
        spec: SlabSpec,
        first_generation: u32,
        backing: Backing,
    ) -> Result<(), SlabError> {
        let sizes = [spec.input_bytes as usize + TRAILER_LEN, spec.output_bytes as usize];
        let empty = spec.slots == 0 || spec.input_bytes == 0 || spec.output_bytes == 0;
        if empty || sizes.into_iter().any(|size| size > PAYLOAD_MAX) {
            return Err(SlabError::BadSize(spec.model));
        }
        let slab = self.slabs.len() as u32;
        let [stride, output_stride] = sizes.map(|size| size.next_multiple_of(CACHE_LINE));
        let region = |stride: usize, backing: Backing| {
            let bytes = stride.checked_mul(spec.slots as usize);
            let region = bytes.and_then(|bytes| backing.region(bytes));
            region.ok_or(SlabError::NoMemory(spec.model))
        };
        let inputs = Arc::new(region(stride, backing)?);
        let outputs = region(output_stride, Backing::Private)?;
        let first = self.slots.len() as u32;
        for _ in 0..spec.slots {
            let state = SlotState::new(first_generation);
            let (frontend, renewed) = (AtomicU16::new(0), AtomicBool::new(false));
            let (input_len, output_len) = (AtomicU32::new(spec.input_bytes), AtomicU32::new(0));
            self.slots.push(Slot { state, slab, frontend, renewed, input_len, output_len });
        }
        let free = FreeList::all(spec.slots);
        let slab = Slab { spec, first, stride, output_stride, inputs, outputs, free };
        self.slabs.push(slab);
        Ok(())
    }

    fn frontend(&self) -> FrontendId {
        FrontendId(self.frontend.load(Ordering::Acquire))
    }

    fn slab_of(&self, model: ModelId) -> Option<&Slab> {
        let at = self.by_model.binary_search_by_key(&model, |entry| entry.0).ok()?;
        Some(&self.slabs[self.by_model[at].1 as usize])
    }

    fn slot_of(&self, task: TaskId) -> Option<&Slot> {
        let slot = self.slots.get(self.position(task) as usize)?;
        (task.frontend().0 == slot.frontend.load(Ordering::Acquire)).then_some(slot)
    }

    /// Where the task's slot is in this set; outside of it if it has none here.
    fn position(&self, task: TaskId) -> u32 {
        task.slot().wrapping_sub(self.first_slot)
    }

    fn task_at(&self, slot: u32) -> TaskId {
        let Slot { state, frontend, .. } = &self.slots[slot as usize];
        let frontend = FrontendId(frontend.load(Ordering::Acquire));
        TaskId::new(frontend, self.first_slot + slot, state.generation())
    }

    fn place(self: &Arc<Self>, slot: u32) -> Place {
        Place::new(Arc::clone(self), slot)
    }

    fn reclaim(&self, slot: u32, reclaim: Reclaim) {
        if reclaim == Reclaim::No {
            return;
        }
        let Slot { state, renewed, .. } = &self.slots[slot as usize];
        let old = self.task_at(slot);
        // Before any byte of the next input: a remote reader still under way that sees new bytes
        // then sees a foreign trailer behind them. The complement names no task of this slot.
        self.write_trailer(slot, TaskId(!old.0));
        let was_renewed = renewed.swap(false, Ordering::Relaxed);
        let settled = state.is_answered() && !was_renewed;
        let resting = self.resting.get().filter(|_| !settled);
        state.recycle();
        match resting {
            Some((rests, _)) => rests.try_send(slot).expect("the queue has a place for every slot"),
            None => self.free(slot),
        }
    }

    /// Closes the input of a filling slot. Only by the slot's exclusive owner.
    fn launch(&self, slot: u32) -> TaskId {
        let Slot { state, frontend, .. } = &self.slots[slot as usize];
        frontend.store(self.frontend().0, Ordering::Release);
        let task = self.task_at(slot);
        self.write_trailer(slot, task);
        state.launch();
        task
    }

    /// Only by the slot's exclusive owner: while it is filled, or between its reclaim and its reuse.
    fn write_trailer(&self, slot: u32, task: TaskId) {
        let Slot { slab, input_len, .. } = &self.slots[slot as usize];
        let slab = &self.slabs[*slab as usize];
        let input_len = input_len.load(Ordering::Relaxed) as usize;
        let at = (slot - slab.first) as usize * slab.stride + input_len;
        // SAFETY: the owner holds no reference to the trailer, and leases exist only in flight.
        let trailer = unsafe { slab.inputs.slice_mut(at, TRAILER_LEN) };
        trailer.copy_from_slice(&task.0.to_le_bytes());
    }

    fn free(&self, slot: u32) {
        let slab = &self.slabs[self.slots[slot as usize].slab as usize];
        slab.free.give(slot - slab.first);
        self.on_free.get().into_iter().for_each(|call| call());
    }
}

impl fmt::Debug for SlabSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let in_use = self.in_use();
        f.debug_struct("SlabSet").field("slots", &self.slots()).field("in_use", &in_use).finish()
    }
}
