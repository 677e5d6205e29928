//! A model moves to another ModelThread, and what still arrives here for it follows.
//!
//! The tasks that wait go with the model. Batches that backends have stay: their reports come here,
//! and what follows from them is passed on. Nothing is waited for, and each step is bounded by the
//! migration channel.

use std::mem;

use baton_core::{
    BatchShape, DropReason, FrontendId, Grant, ModelConfig, ModelCounters, ModelId, ModelSink,
    ModelState, Nanos, NetworkDelay, Patience, Policy, Prefer, Profile, Request, Slowdown,
    SubclusterId, TaskId, Unserved,
};
use baton_rdma::Transport;

use super::catalogue::Service;
use super::{Model, ModelThread};
use crate::commands::Notice;
use crate::dispatch::Place;
use crate::limits::MIGRATION_MAX;
use crate::migration::channel::{
    MigrationChannel, MigrationMessage, MigrationReceiver, ModelInTransit,
};
use crate::migration::load_board::ModelLoad;
use crate::profiles::Profiles;

/// A model that comes from another thread, and by which way.
#[derive(Debug)]
pub(super) struct Arrival {
    model: ModelId,
    from: MigrationReceiver,
    /// The model was in it.
    come: bool,
    /// What happened while it was on its way: frontends that went, and profiles.
    lost: Vec<FrontendId>,
    profiles: Option<(Profiles, Patience)>,
}

impl Arrival {
    pub(super) fn new(model: ModelId, from: MigrationReceiver) -> Self {
        Self { model, from, come: false, lost: Vec::new(), profiles: None }
    }

    /// Nothing needs to be waited for: also when its former home ended before it sent anything.
    pub(super) fn has_come(&self) -> bool {
        self.come || self.from.is_over()
    }

    pub(super) fn is_of(&self, model: ModelId) -> bool {
        self.model == model
    }

    fn is_over(&self) -> bool {
        self.from.is_over()
    }
}

impl<T: Transport> ModelThread<T> {
    /// Ends of migration channels that something may still come or go by: one for each model that has left and not
    /// come back, and one for each that is on its way here or may still be followed.
    pub fn open_migrations(&self) -> usize {
        self.migrations.iter().flatten().count() + self.arrivals.len()
    }

    /// Hands the model over. From now on what arrives for it is passed on.
    pub(super) fn release(&mut self, model: ModelId, mut to: MigrationChannel) {
        let Place::Here(at) = self.out.places[model.0 as usize] else {
            unreachable!("a model is moved from where it is, once it has arrived there");
        };
        let vacant = Model::vacant(model);
        let Model { state, subcluster, quota, .. } =
            mem::replace(&mut self.models[at as usize], vacant);
        self.timers.remove(at);
        self.vacant.push(at);
        let last = self.out.link.last_candidate(model);
        let cold = self.out.cold.of(model);
        let moving = ModelInTransit { state, subcluster, quota, cold, last };
        to.send(MigrationMessage::Model(Box::new(moving)));
        let migration = self.store_channel(to);
        self.out.places[model.0 as usize] = Place::Moved(migration);
        self.out.counters.models_released.add(1);
    }

    /// What came over migration channels since the last pass; no more from each than it holds.
    pub(super) fn take_arrivals(&mut self, now: Nanos) -> usize {
        let mut taken = 0;
        for number in 0..self.arrivals.len() {
            for _ in 0..MIGRATION_MAX {
                let Some(item) = self.arrivals[number].from.take() else { break };
                self.on_handover(now, number, item);
                taken += 1;
            }
        }
        self.catch_up(now);
        self.arrivals.retain(|arrival| !arrival.is_over());
        taken
    }

    fn on_handover(&mut self, now: Nanos, number: usize, item: MigrationMessage) {
        let model = self.arrivals[number].model;
        match (item, self.out.places[model.0 as usize]) {
            (MigrationMessage::Model(moving), _) => self.settle(now, number, *moving),
            (item, Place::Here(at)) => self.on_straggler(now, at as usize, &item),
            (item, Place::Moved(migration)) => self.pass(migration, &item),
            // The model comes first, so it has been here.
            (item, Place::Elsewhere) => self.on_late(model, &item),
        }
    }

    fn on_straggler(&mut self, now: Nanos, at: usize, item: &MigrationMessage) {
        match *item {
            MigrationMessage::Submit(request) => {
                if self.out.peers.frontend(request.task.frontend()).is_some() {
                    self.enqueue(now, at, request);
                } else {
                    self.out.tell(request.task, Unserved::Dropped(DropReason::FrontendLost));
                }
            }
            MigrationMessage::Cancel(task) => self.withdraw(now, at, task),
            MigrationMessage::Grant(grant) => self.on_grant(now, at, grant),
            MigrationMessage::Requeue(request, otherwise) => {
                self.requeue(now, at, request, otherwise);
            }
            MigrationMessage::Measured(shape, took) => {
                let _ = self.models[at].state.on_measured(shape, took, Slowdown::NONE);
                self.retime(at);
            }
            MigrationMessage::Model(_) => unreachable!("on_handover has settled it"),
        }
    }

    /// The model lives here now.
    fn settle(&mut self, now: Nanos, number: usize, moving: ModelInTransit) {
        debug_assert!(!self.farewell, "every model has come before the last word");
        let Arrival { model, lost, profiles, come, .. } = &mut self.arrivals[number];
        let (model, lost, profiles) = (*model, mem::take(lost), profiles.take());
        *come = true;
        let moves = moving.last.moves.wrapping_add(1);
        let (at, former) = self.take_in(model, moving, moves);
        if let Place::Moved(migration) = former {
            // It was here before: what is under way to where it went next comes back behind it.
            self.migrations[migration as usize] = None;
        }
        self.update(now, at as usize, &lost, profiles);
        self.out.counters.models_adopted.add(1);
        self.out.link.notices.send(Notice::Adopted(model));
    }

    /// Gives the model its place here, the number of which it returns, and where the model was as far as this thread knew.
    pub(super) fn take_in(
        &mut self,
        model: ModelId,
        moving: ModelInTransit,
        moves: u32,
    ) -> (u32, Place) {
        let ModelInTransit { mut state, subcluster, quota, cold, last } = moving;
        if let Some(rules) = self.rules[subcluster.0 as usize] {
            state.set_rules(rules.rules());
        }
        let service = Service::Open;
        let at = self.make_place(Model { state, subcluster, quota, service, touched: false });
        let former = mem::replace(&mut self.out.places[model.0 as usize], Place::Here(at));
        self.out.moves[model.0 as usize] = moves;
        self.out.cold.adopt(model, cold);
        self.out.candidate(model, last.candidate, last.grants);
        (at, former)
    }

    /// What a model that was under way has missed.
    fn update(
        &mut self,
        now: Nanos,
        at: usize,
        lost: &[FrontendId],
        profiles: Option<(Profiles, Patience)>,
    ) {
        let state = &mut self.models[at].state;
        if let Some((profiles, patience)) = profiles {
            state.set_profiles(&profiles, patience);
        }
        for &frontend in lost {
            state.on_frontend_lost(now, frontend, &mut self.out);
        }
        if let Some(why) = self.unservable(at) {
            self.models[at].state.drop_all(now, why, &mut self.out);
        }
        self.models[at].state.reform(now, &mut self.out);
        self.retime(at);
    }

    pub(super) fn make_place(&mut self, model: Model) -> u32 {
        if let Some(at) = self.vacant.pop() {
            self.models[at as usize] = model;
            return at;
        }
        self.models.push(model);
        self.models.len() as u32 - 1
    }

    fn store_channel(&mut self, migration: MigrationChannel) -> u32 {
        let free = self.migrations.iter().position(Option::is_none);
        let number = free.unwrap_or(self.migrations.len());
        if number == self.migrations.len() {
            self.migrations.push(None);
        }
        self.migrations[number] = Some(migration);
        number as u32
    }

    /// A frontend has gone: models under way must learn of it when they arrive.
    pub(super) fn note_lost_while_moving(&mut self, frontend: FrontendId) {
        for arrival in self.arrivals.iter_mut().filter(|arrival| !arrival.come) {
            arrival.lost.push(frontend);
        }
    }

    pub(super) fn on_profiles(&mut self, model: ModelId, profiles: Profiles, patience: Patience) {
        if let Some(at) = self.resident(model.0) {
            self.models[at].state.set_profiles(&profiles, patience);
            self.retime(at);
        } else if let Some(arrival) = self.arrivals.iter_mut().find(|a| a.model == model && !a.come)
        {
            arrival.profiles = Some((profiles, patience));
        }
    }

    pub(super) fn report_load(&mut self, now: Nanos) {
        for Model { state, .. } in self.here() {
            self.load.write(state.id(), load(now, state));
        }
    }

    /// The models that live here.
    pub(super) fn here(&self) -> impl Iterator<Item = &Model> {
        self.out.places.iter().filter_map(|place| match *place {
            Place::Here(at) => Some(&self.models[at as usize]),
            Place::Moved(_) | Place::Elsewhere => None,
        })
    }

    fn pass(&mut self, migration: u32, item: &MigrationMessage) {
        match *item {
            MigrationMessage::Submit(request) => self.pass_request(migration, request),
            MigrationMessage::Cancel(task) => self.pass_cancel(migration, task),
            MigrationMessage::Grant(grant) => self.pass_grant(migration, grant),
            MigrationMessage::Requeue(request, otherwise) => {
                self.pass_back(migration, request, otherwise);
            }
            MigrationMessage::Measured(shape, took) => {
                self.pass_measured(migration, shape, took);
            }
            MigrationMessage::Model(_) => unreachable!("on_handover has settled it"),
        }
    }

    pub(super) fn pass_request(&mut self, migration: u32, request: Request) {
        if self.shutdown {
            self.out.tell(request.task, Unserved::Dropped(DropReason::Shutdown));
        } else if !self.offer(migration, MigrationMessage::Submit(request)) {
            self.out.tell(request.task, Unserved::Dropped(DropReason::QueueFull));
        }
    }

    pub(super) fn pass_cancel(&mut self, migration: u32, task: TaskId) {
        if !self.offer(migration, MigrationMessage::Cancel(task)) {
            self.out.counters.cancelled_late.add(1);
        }
    }

    pub(super) fn pass_back(&mut self, migration: u32, request: Request, otherwise: Unserved) {
        if self.shutdown {
            self.out.tell(request.task, Unserved::Dropped(DropReason::Shutdown));
        } else if !self.offer(migration, MigrationMessage::Requeue(request, otherwise)) {
            self.out.tell(request.task, otherwise);
        }
    }

    /// A measurement that finds no room is one of many.
    pub(super) fn pass_measured(&mut self, migration: u32, shape: BatchShape, took: Nanos) {
        self.offer(migration, MigrationMessage::Measured(shape, took));
    }

    pub(super) fn pass_grant(&mut self, migration: u32, grant: Grant) {
        self.channel(migration).send(MigrationMessage::Grant(grant));
        self.out.counters.passed_on.add(1);
    }

    fn offer(&mut self, migration: u32, item: MigrationMessage) -> bool {
        let passed = self.channel(migration).offer(item);
        let counters = &self.out.counters;
        let counter = if passed { &counters.passed_on } else { &counters.passage_full };
        counter.add(1);
        passed
    }

    fn channel(&mut self, number: u32) -> &mut MigrationChannel {
        self.migrations[number as usize].as_mut().expect("the model left by it")
    }
}

impl Model {
    /// Keeps the place of a model that has moved away. It has no tasks, and gets none.
    pub(super) fn vacant(id: ModelId) -> Self {
        let profile = Profile::from_table(&[Nanos(1)]).expect("it does not fall");
        let config = ModelConfig {
            id,
            profile,
            slo: Nanos(1),
            queue_capacity: 1,
            policy: Policy::default(),
            prefer: Prefer::default(),
            network: NetworkDelay::default(),
        };
        let (state, service) = (ModelState::new(config), Service::Open);
        Self { state, subcluster: SubclusterId(0), quota: None, service, touched: false }
    }
}

/// What a model is asked for: also by requests that its quota did not let in.
fn load(now: Nanos, state: &ModelState) -> ModelLoad {
    let counters = state.counters();
    let requests = counters.received + counters.refused;
    let waiting = state.waiting() as u64;
    let ModelCounters { given_up: lost, ended, queue_full, refused, .. } = counters;
    ModelLoad { requests, refused, lost, ended, queue_full, waiting, slots: state.load(now) }
}
