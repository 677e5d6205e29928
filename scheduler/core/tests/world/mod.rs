//! A virtual-time driver for the core: real `ModelState`s and the real `RankState`; backends and
//! messages are simulated. GPUs take exactly ℓ(b) and messages arrive at once, unless told
//! otherwise. Every step checks what must always hold, so every test that uses a [`World`] does.
#![allow(dead_code, unused_imports, reason = "every test crate uses another part of it")]

mod backends;
mod load;
mod outbox;

use std::collections::{BTreeMap, BTreeSet};

use baton_core::{
    Candidate, DropReason, FrontendId, ModelConfig, ModelCounters, ModelId, ModelState, Nanos,
    RankLimits, RankState, Readiness, Request, Slowdown, SubclusterId, TaskId, Unserved,
};

pub(crate) use backends::{Fate, Sealed};
pub(crate) use load::{Load, Rng, linear, ms, profile};
pub(crate) use outbox::{End, Outbox};

use backends::Slot;
use outbox::Said;

#[derive(Clone, Copy)]
enum Event {
    Arrival {
        model: u32,
        request: Request,
    },
    Message(Said),
    /// The batch with this index ends.
    Executed(usize),
    /// The batch with this index cannot start in its window any more.
    Expired(usize),
}

pub(crate) struct World {
    pub(crate) now: Nanos,
    pub(crate) models: Vec<ModelState>,
    pub(crate) rank: RankState,
    pub(crate) out: Outbox,
    /// Every batch, in the order of sealing.
    pub(crate) batches: Vec<Sealed>,
    /// Real execution time of a batch, given ℓ(b).
    pub(crate) execution: Box<dyn FnMut(Nanos) -> Nanos>,
    /// Slots that take longer, by how much.
    pub(crate) slow: BTreeMap<u32, Slowdown>,
    /// Measured times reach the models.
    pub(crate) learns: bool,
    /// Backends give back a batch that they cannot start within its window.
    pub(crate) refuses_late: bool,
    /// How long a message between a model and the rank thread takes.
    pub(crate) lag: Nanos,
    /// The driver looks at the clock only at multiples of this.
    pub(crate) tick: Nanos,
    configs: Vec<ModelConfig>,
    subclusters: Vec<SubclusterId>,
    slots: Vec<Slot>,
    events: BTreeMap<(Nanos, u64), Event>,
    sequence: u64,
    /// Tasks that came.
    came: u64,
    deadlines: BTreeMap<u64, Nanos>,
    lost_frontends: BTreeSet<FrontendId>,
    /// What [`World::at`] counts from.
    origin: Nanos,
}

impl World {
    /// All models in one sub-cluster of `gpus` slots.
    pub(crate) fn new(configs: Vec<ModelConfig>, gpus: usize) -> Self {
        let subclusters = vec![0; configs.len()];
        Self::with_subclusters(configs, &subclusters, &vec![0; gpus])
    }

    /// The models serve frontends `0..frontends`, and share themselves fairly among these.
    pub(crate) fn shared(mut self, frontends: u32) -> Self {
        let shared = |config: &ModelConfig| ModelState::shared(config.clone(), frontends);
        self.models = self.configs.iter().map(shared).collect();
        self
    }

    /// `models[m]` and `slots[g]` say which sub-cluster model m and slot g belong to.
    pub(crate) fn with_subclusters(
        configs: Vec<ModelConfig>,
        models: &[u32],
        slots: &[u32],
    ) -> Self {
        let ids: Vec<SubclusterId> = models.iter().copied().map(SubclusterId).collect();
        let subclusters = 1 + models.iter().chain(slots).max().copied().unwrap_or(0);
        let number = |(m, c): (usize, ModelConfig)| ModelConfig { id: ModelId(m as u32), ..c };
        let configs: Vec<ModelConfig> = configs.into_iter().enumerate().map(number).collect();
        let mut world = Self {
            now: ms(1000.0),
            models: configs.iter().cloned().map(ModelState::new).collect(),
            rank: RankState::new(
                RankLimits { gpus: slots.len() as u32, subclusters, copies: 0 },
                &ids,
            ),
            out: Outbox::default(),
            batches: Vec::new(),
            execution: Box::new(|latency| latency),
            slow: BTreeMap::new(),
            learns: true,
            refuses_late: false,
            lag: Nanos::ZERO,
            tick: Nanos(1),
            configs,
            subclusters: ids,
            slots: slots.iter().map(|&s| Slot::new(SubclusterId(s))).collect(),
            events: BTreeMap::new(),
            sequence: 0,
            came: 0,
            deadlines: BTreeMap::new(),
            lost_frontends: BTreeSet::new(),
            origin: ms(1000.0),
        };
        (0..slots.len()).for_each(|gpu| world.join_gpu(gpu));
        world
    }

    /// The moment `after_ms` from the world's beginning or the last [`World::mark`].
    pub(crate) fn at(&self, after_ms: f64) -> Nanos {
        self.origin + ms(after_ms)
    }

    /// From here on, [`World::at`] counts from now.
    pub(crate) fn mark(&mut self) {
        self.origin = self.now;
    }

    /// Schedules a task's arrival `after_ms` from now; its deadline is `slo_ms` behind that.
    pub(crate) fn arrives(&mut self, model: u32, task: u64, after_ms: f64, slo_ms: f64) {
        let at = self.now + ms(after_ms);
        let request = Request::new(TaskId(task), at + ms(slo_ms));
        let before = self.deadlines.insert(task, request.deadline);
        assert!(before.is_none(), "task {task:x} is used twice");
        self.push(at, Event::Arrival { model, request });
    }

    /// Runs until `span_ms` from now.
    pub(crate) fn run(&mut self, span_ms: f64) {
        let end = self.now + ms(span_ms);
        while let Some(at) = self.next_moment().filter(|&at| at <= end) {
            self.step(at);
        }
        self.now = end;
    }

    /// Runs until nothing is left to do, and checks that every task ended once.
    pub(crate) fn run_out(&mut self) {
        while let Some(at) = self.next_moment() {
            self.step(at);
        }
        for (m, model) in self.models.iter().enumerate() {
            assert_eq!(model.waiting(), 0, "model {m} keeps tasks");
        }
        let ended: Vec<_> = self.out.ends.keys().collect();
        assert_eq!(ended, self.deadlines.keys().collect::<Vec<_>>(), "conservation");
    }

    /// The application cancels the task; true if it still waited.
    pub(crate) fn cancel(&mut self, model: u32, task: u64) -> bool {
        let waited = self.models[model as usize].on_cancel(self.now, TaskId(task), &mut self.out);
        self.settle();
        waited
    }

    /// Where the model's weights are, as it hears now.
    pub(crate) fn weights(&mut self, model: u32, readiness: Readiness) {
        self.models[model as usize].on_readiness(self.now, readiness, &mut self.out);
        self.settle();
    }

    pub(crate) fn lose_frontend(&mut self, frontend: FrontendId) {
        self.lost_frontends.insert(frontend);
        for model in &mut self.models {
            model.on_frontend_lost(self.now, frontend, &mut self.out);
        }
        self.settle();
    }

    pub(crate) fn drop_all(&mut self, model: u32, why: DropReason) {
        self.models[model as usize].drop_all(self.now, why, &mut self.out);
        self.settle();
    }

    pub(crate) fn end_of(&self, task: u64) -> Option<End> {
        self.out.ends.get(&task).copied()
    }

    pub(crate) fn has_completed(&self, task: u64) -> bool {
        matches!(self.end_of(task), Some(End::Completed { .. }))
    }

    /// Completed by the deadline.
    pub(crate) fn is_good(&self, task: u64) -> bool {
        let in_time = |at: Nanos| at <= self.deadlines[&task];
        matches!(self.end_of(task), Some(End::Completed { at, .. }) if in_time(at))
    }

    /// Tasks dropped for this reason.
    pub(crate) fn dropped(&self, why: DropReason) -> usize {
        let end = End::Unserved(Unserved::Dropped(why));
        self.out.ends.values().filter(|&&e| e == end).count()
    }

    /// Nothing waits, executes or is about to arrive.
    pub(crate) fn is_quiet(&self) -> bool {
        self.events.is_empty() && self.models.iter().all(|model| model.waiting() == 0)
    }

    fn next_moment(&self) -> Option<Nanos> {
        let event = self.events.first_key_value().map(|((at, _), _)| *at);
        let timers = self.models.iter().filter_map(ModelState::next_timer);
        let next = timers.chain(self.rank.next_timer()).chain(event).min()?;
        Some(Nanos(next.0.next_multiple_of(self.tick.0)))
    }

    fn step(&mut self, at: Nanos) {
        self.now = self.now.max(at);
        while let Some(entry) = self.events.first_entry().filter(|e| e.key().0 <= self.now) {
            let event = entry.remove();
            self.apply(event);
            self.settle();
        }
        for model in &mut self.models {
            model.on_timer(self.now, &mut self.out);
        }
        self.settle();
        self.rank.on_timer(self.now, &mut self.out);
        self.settle();
        self.check();
    }

    fn apply(&mut self, event: Event) {
        match event {
            Event::Arrival { model, request } => {
                self.came += 1;
                self.models[model as usize].on_request(self.now, request, &mut self.out);
            }
            Event::Message(said) => self.deliver(said),
            Event::Executed(batch) => self.executed(batch),
            Event::Expired(batch) => {
                self.give_back(batch, Unserved::Dropped(DropReason::Deadline));
            }
        }
    }

    /// Delivers what the machines told each other until they fall silent.
    fn settle(&mut self) {
        loop {
            self.accept_plans();
            let Some(said) = self.out.said.pop_front() else { return };
            if self.lag == Nanos::ZERO {
                self.deliver(said);
            } else {
                self.push(self.now + self.lag, Event::Message(said));
            }
        }
    }

    fn deliver(&mut self, said: Said) {
        match said {
            Said::Candidate(model, candidate, grants) => {
                self.rank.on_candidate(self.now, model, candidate, grants, &mut self.out);
            }
            Said::Gpu(update) => self.rank.on_gpu(self.now, update, &mut self.out),
            Said::Grant(model, grant) => {
                self.models[model.0 as usize].on_grant(self.now, grant, &mut self.out);
            }
        }
    }

    /// What must hold at every moment.
    fn check(&self) {
        let counted = |of: fn(&ModelCounters) -> u64| -> u64 {
            self.models.iter().map(|model| of(&model.counters())).sum()
        };
        let counts = (counted(|of| of.received), counted(|of| of.returned));
        assert_eq!(counts, (self.came, self.out.returned), "tasks that came, and slots given back");
        for (m, model) in self.models.iter().enumerate() {
            let c = model.counters();
            let gone = c.dispatched + c.ended;
            assert_eq!(c.received + c.requeued, gone + model.waiting() as u64, "model {m}");
            if self.lag == Nanos::ZERO {
                self.check_due_is_served(m);
            }
        }
    }

    /// While a candidate is due, no slot of its sub-cluster is idle, unless that is left to a much shorter objective.
    fn check_due_is_served(&self, model: usize) {
        let Some(candidate) = self.models[model].candidate() else { return };
        let start = self.now + candidate.delay;
        let shorter = |other: &ModelConfig| other.slo.0 < self.configs[model].slo.0 / 2;
        let must_start = match self.configs.iter().any(shorter) {
            true => candidate.exec_at.max(candidate.latest),
            false => candidate.exec_at,
        };
        if must_start <= start && start <= candidate.invalid_after {
            let slots = self.slots.iter().zip(0..);
            let mut idle = slots.filter(|(slot, _)| slot.is_idle(self.subclusters[model]));
            let idle = idle.find(|(_, id)| !self.is_too_slow(*id, start, &candidate));
            let idle = idle.map(|(_, id)| id);
            assert_eq!(idle, None, "at {:?} {candidate:?} of model {model} waits", self.now);
        }
    }

    /// Whether not even one task that starts then would end in time.
    fn is_too_slow(&self, slot: u32, start: Nanos, candidate: &Candidate) -> bool {
        let slowdown = self.slow.get(&slot).copied().unwrap_or(Slowdown::NONE);
        let deadline = candidate.invalid_after + candidate.latency;
        start + slowdown.applied(candidate.alone) > deadline
    }

    fn push(&mut self, at: Nanos, event: Event) {
        self.sequence += 1;
        self.events.insert((at, self.sequence), event);
    }
}
