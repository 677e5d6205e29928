//! The life of one slab slot, in one atomic word.
//!
//! ```text
//! Free ─fill─▶ Filling ─launch─▶ InFlight ─complete─▶ Done ─(released, nothing out)─▶ Free, generation + 1
//!                 ▲                 │
//!                 └─recall (nothing out), generation + 1
//! ```
//! Beside phase and generation the word counts the READ leases and marks the landing guard, the
//! landed answer, the output guard, the wish to be recycled, and an input that is still being written though its task is
//! submitted, so that every decision about who may touch the slot's memory is one compare-and-swap. The invariant the memory relies on: at most
//! one exclusive owner, and none while a lease or the output guard exists.

use std::sync::atomic::{AtomicU64, Ordering};

use baton_types::TaskId;

/// Where a slot is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Phase {
    /// In the free list.
    Free,
    /// The application writes the input.
    Filling,
    /// Submitted: readable by backends, waiting for its answer.
    InFlight,
    /// The outcome is decided; the output, if one landed, may be read.
    Done,
}

/// How far the input of a task in flight is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum InputState {
    /// Backends may read it.
    Written,
    /// The task was submitted ahead of it.
    Writing,
    /// The same, and the application has given it up.
    GivenUp,
}

const PHASES: [Phase; 4] = [Phase::Free, Phase::Filling, Phase::InFlight, Phase::Done];
const PHASE_SHIFT: u32 = 28;
const LANDING: u64 = 1 << 30;
const LANDED: u64 = 1 << 31;
const TAKEN: u64 = 1 << 32;
const RELEASED: u64 = 1 << 33;
/// The slot is in flight, and the application still writes its input: no one else may touch it.
const WRITING: u64 = 1 << 34;
/// The application has given the input up before it was written: it can never be read.
const VOID: u64 = 1 << 35;
/// A reader came while the input was still being written, and went without it.
const MISSED: u64 = 1 << 36;
const LEASE: u64 = 1 << 37;
const LEASES_MAX: u64 = u64::MAX / LEASE;

/// One reading of the word.
#[derive(Clone, Copy)]
struct Word(u64);

impl Word {
    const fn new(phase: Phase, generation: u32) -> Self {
        let generation = generation % TaskId::GENERATIONS;
        Self(((phase as u64) << PHASE_SHIFT) | generation as u64)
    }

    const fn generation(self) -> u32 {
        (self.0 as u32) % TaskId::GENERATIONS
    }

    const fn phase(self) -> Phase {
        PHASES[((self.0 >> PHASE_SHIFT) & 3) as usize]
    }

    const fn has(self, flag: u64) -> bool {
        self.0 & flag != 0
    }

    const fn leases(self) -> u64 {
        self.0 / LEASE
    }

    fn is(self, phase: Phase, generation: u32) -> bool {
        self.phase() == phase && self.generation() == generation
    }

    fn reclaimable(self) -> bool {
        self.phase() == Phase::Done
            && self.has(RELEASED)
            && !self.has(LANDING | TAKEN | WRITING)
            && self.leases() == 0
    }
}

/// The slot's state. Transitions that are not possible change nothing and say so.
#[derive(Debug)]
pub(crate) struct SlotState(AtomicU64);

/// The caller that gets `Yes` recycles the slot: no other thread can reach it any more.
#[must_use]
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reclaim {
    Yes,
    No,
}

impl SlotState {
    pub(crate) fn new(generation: u32) -> Self {
        Self(AtomicU64::new(Word::new(Phase::Free, generation).0))
    }

    pub(crate) fn generation(&self) -> u32 {
        self.load().generation()
    }

    pub(crate) fn leases(&self) -> u64 {
        self.load().leases()
    }

    /// The slot came off the free list.
    pub(crate) fn fill(&self) {
        debug_assert_eq!(self.load().phase(), Phase::Free, "one owner at a time");
        self.set(Phase::Filling, self.generation());
    }

    /// The input was given up; the generation was never told to anybody and stays.
    pub(crate) fn unfill(&self) {
        debug_assert_eq!(self.load().phase(), Phase::Filling, "only its owner gives it up");
        self.set(Phase::Free, self.generation());
    }

    /// The input is complete; from now on it may be leased.
    pub(crate) fn launch(&self) {
        debug_assert_eq!(self.load().phase(), Phase::Filling, "only its owner launches it");
        self.set(Phase::InFlight, self.generation());
    }

    /// The task is submitted, and its input is still to be written: it may not be leased yet.
    pub(crate) fn launch_ahead(&self) {
        debug_assert_eq!(self.load().phase(), Phase::Filling, "only its owner launches it");
        let word = Word::new(Phase::InFlight, self.generation());
        self.0.store(word.0 | WRITING, Ordering::Release);
    }

    /// The input of a slot that was launched ahead is written: from now on it may be leased.
    pub(crate) fn end_writing(&self) -> Reclaim {
        self.leave(|word| Word(word.0 & !WRITING))
    }

    /// It will not be written.
    pub(crate) fn give_up_writing(&self) -> Reclaim {
        self.leave(|word| Word((word.0 & !WRITING) | VOID))
    }

    /// How far the input of this generation is; `None` for another generation.
    pub(crate) fn input_state(&self, generation: u32) -> Option<InputState> {
        let word = self.load();
        let state = match (word.has(WRITING), word.has(VOID)) {
            (true, _) => InputState::Writing,
            (false, true) => InputState::GivenUp,
            (false, false) => InputState::Written,
        };
        (word.generation() == generation).then_some(state)
    }

    /// The same input is to be launched again: from now on the slot is filling, with its next
    /// generation, and the caller its owner. False while the input is written or read or an answer is landing
    /// or has landed, and unless it is in flight with this generation.
    pub(crate) fn recall(&self, generation: u32) -> bool {
        self.change(|word| {
            let busy = LANDING | LANDED | WRITING | VOID;
            let undisturbed = !word.has(busy) && word.leases() == 0;
            let mine = word.is(Phase::InFlight, generation) && undisturbed;
            mine.then(|| Word::new(Phase::Filling, generation.wrapping_add(1)))
        })
        .is_some()
    }

    /// A reader wants the input.
    pub(crate) fn lease(&self, generation: u32) -> bool {
        let changed = self.change(|word| {
            let lent = match (word.has(WRITING), word.has(VOID)) {
                (true, _) => Word(word.0 | MISSED),
                (false, true) => return None,
                (false, false) => Word(word.0 + LEASE),
            };
            let free = word.is(Phase::InFlight, generation) && word.leases() < LEASES_MAX;
            free.then_some(lent)
        });
        changed.is_some_and(|word| !word.has(WRITING))
    }

    /// A reader has come for this generation too early.
    pub(crate) fn is_missed(&self, generation: u32) -> bool {
        let word = self.load();
        word.generation() == generation && word.has(MISSED)
    }

    pub(crate) fn end_lease(&self) -> Reclaim {
        debug_assert!(self.load().leases() > 0, "a lease ends once");
        self.leave(|word| Word(word.0 - LEASE))
    }

    /// An answer wants to be written; only one at a time, none after one has landed, and none to an input that no one can have read.
    pub(crate) fn land(&self, generation: u32) -> bool {
        self.change(|word| {
            let closed = LANDING | LANDED | WRITING | VOID;
            let open = word.is(Phase::InFlight, generation) && !word.has(closed);
            open.then_some(Word(word.0 | LANDING))
        })
        .is_some()
    }

    /// The writer of the answer is through; with `landed` false the bytes count for nothing. An
    /// answer whose outcome was decided in the meantime came too late and does not count either.
    pub(crate) fn end_landing(&self, landed: bool) -> Reclaim {
        let word = self.load();
        debug_assert!(word.has(LANDING) && !word.has(LANDED), "one answer lands, once");
        self.leave(|word| {
            let counts = landed && word.phase() == Phase::InFlight;
            Word((word.0 & !LANDING) | if counts { LANDED } else { 0 })
        })
    }

    /// The outcome is decided. False if it was before, or the id is stale.
    pub(crate) fn complete(&self, generation: u32) -> bool {
        self.change(|word| {
            // Done has both phase bits set, so the other bits stay as they are.
            let done = Word(word.0 | Word::new(Phase::Done, 0).0);
            word.is(Phase::InFlight, generation).then_some(done)
        })
        .is_some()
    }

    /// The application wants the answer.
    pub(crate) fn take(&self, generation: u32) -> bool {
        self.change(|word| {
            let there = word.is(Phase::Done, generation) && word.has(LANDED);
            (there && !word.has(TAKEN | RELEASED)).then_some(Word(word.0 | TAKEN))
        })
        .is_some()
    }

    /// The application is through with the answer, and with the slot.
    pub(crate) fn end_take(&self) -> Reclaim {
        debug_assert!(self.load().has(TAKEN), "what was taken is given back");
        self.leave(|word| Word((word.0 & !TAKEN) | RELEASED))
    }

    /// The application will not ask for the answer any more.
    pub(crate) fn release(&self, generation: u32) -> Reclaim {
        let changed = self.change(|word| {
            let held = word.is(Phase::Done, generation) && !word.has(RELEASED);
            held.then_some(Word(word.0 | RELEASED))
        });
        if changed.is_some_and(Word::reclaimable) { Reclaim::Yes } else { Reclaim::No }
    }

    /// An answer has landed in this generation.
    pub(crate) fn is_answered(&self) -> bool {
        self.load().has(LANDED)
    }

    /// Only after [`Reclaim::Yes`]: the slot is free for its next generation.
    pub(crate) fn recycle(&self) {
        debug_assert!(self.load().reclaimable(), "no other thread can reach it");
        self.set(Phase::Free, self.generation().wrapping_add(1));
    }

    fn load(&self) -> Word {
        Word(self.0.load(Ordering::Acquire))
    }

    /// Only by the slot's exclusive owner: no one else changes the word of a free or filling slot.
    fn set(&self, phase: Phase, generation: u32) {
        self.0.store(Word::new(phase, generation).0, Ordering::Release);
    }

    fn change(&self, step: impl Fn(Word) -> Option<Word>) -> Option<Word> {
        let mut new = None;
        let swapped = self.0.fetch_update(Ordering::AcqRel, Ordering::Acquire, |word| {
            new = step(Word(word));
            new.map(|word| word.0)
        });
        swapped.ok().and(new)
    }

    /// Gives a guard back. The one that leaves last, after the release, reclaims: from the release
    /// on no new guard is handed out, so this happens once.
    fn leave(&self, step: impl Fn(Word) -> Word) -> Reclaim {
        let left = self.change(|word| Some(step(word)));
        if left.is_some_and(Word::reclaimable) { Reclaim::Yes } else { Reclaim::No }
    }
}
