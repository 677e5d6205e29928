//! Steps 2, 3 and 5 of a task's way: requests in, candidates out, grants in, plans out.

mod catalogue;
mod checks;
mod loads;
mod migration;
mod recording;
mod shutdown;
mod tasks;
#[cfg(test)]
mod tests;

use std::{mem, sync::Arc};

use baton_core::{
    Alternative, Choice, DropReason, GpuUpdate, Grant, IndexedHeap, ModelConfig, ModelId,
    ModelState, Nanos, PIPELINE_DEPTH, Quota, QuotaLimits, Request, SubclusterId, Variants,
};
use baton_rdma::wire::{Message, RefuseCode};
use baton_rdma::{CloseReason, ConnId, Event, Events, Peer, Transport};
use baton_topo::{Agent, SLEEP_MAX, Waker};
use hdrhistogram::Histogram;

use crate::commands::ModelCommand;
use crate::counters::ModelThreadCounters;
use crate::dispatch::{Dispatch, Place};
use crate::in_flight::InFlight;
use crate::limits::{FRONTENDS_MAX, IN_FLIGHT_MAX};
use crate::link::ModelLink;
use crate::mail::{Packed, unpack_grant};
use crate::migration::channel::MigrationChannel;
use crate::migration::load_board::LoadBoard;
use crate::peers::Member;
use crate::task_board::TaskBoard;
use catalogue::Service;
use migration::Arrival;
use recording::Recorder;

/// Longer dispatch delays are counted as this long. With the bounds fixed, counting never allocates.
const DELAY_MAX: Nanos = Nanos::from_millis(60_000);

/// A model on this thread.
#[derive(Clone, Debug)]
pub struct Resident {
    /// What the core needs to know.
    pub config: ModelConfig,
    /// The sub-cluster that serves it.
    pub subcluster: SubclusterId,
    /// What may be asked for.
    pub quota: QuotaLimits,
    /// Of a supernet.
    pub variants: Option<Variants>,
}

impl Resident {
    /// The model, without tasks.
    pub(crate) fn state(&self) -> ModelState {
        let state = ModelState::shared(self.config.clone(), FRONTENDS_MAX);
        match &self.variants {
            None => state,
            Some(variants) => state.with_variants(variants, Choice::default()),
        }
    }
}

struct Model {
    state: ModelState,
    subcluster: SubclusterId,
    /// Goes where the model goes: a frontend gains nothing by a move.
    quota: Option<Box<Quota>>,
    service: Service,
    /// It is in the thread's list of touched models.
    touched: bool,
}

/// The agent that owns some models' [`ModelState`]s and the connections of every member to them.
pub struct ModelThread<T> {
    models: Vec<Model>,
    /// When each model is to be looked at: when it wants to be, or earlier.
    timers: IndexedHeap<Nanos>,
    /// Slots that serve each sub-cluster; without any, tasks are not worth queueing.
    serving: Vec<u32>,
    out: Dispatch<T>,
    events: Events,
    /// Models with requests of this pass that their candidates may have to follow.
    touched: Vec<usize>,
    /// From schedulable to plan out.
    delays: Histogram<u64>,
    /// Grants of this pass.
    grants: Vec<Packed>,
    /// Tasks on their way from a lost batch back to their queue.
    returning: Vec<Request>,
    /// Places in `models` whose model has moved away.
    vacant: Vec<u32>,
    /// Models that come, or have come, from other threads.
    arrivals: Vec<Arrival>,
    /// To the new homes of models that were here; `None`: free.
    migrations: Vec<Option<MigrationChannel>>,
    /// Models here that are removed and have tasks left.
    leaving: Vec<ModelId>,
    /// Models that were removed, of which the ControlThread awaits that no trace is left.
    forgetting: Vec<ModelId>,
    load: Arc<LoadBoard>,
    recorder: Recorder,
    /// By sub-cluster, what its models follow if that was ever changed.
    rules: Vec<Option<Alternative>>,
    /// Set once the scheduler stops: nothing is accepted any more.
    shutdown: bool,
    /// Set after that, once nothing is outstanding: every member has its farewell.
    farewell: bool,
}

impl Model {
    fn new(resident: &Resident) -> Self {
        let Resident { subcluster, quota, .. } = *resident;
        Self {
            state: resident.state(),
            subcluster,
            quota: Quota::new(quota, FRONTENDS_MAX).map(Box::new),
            service: Service::Open,
            touched: false,
        }
    }
}

impl<T: Transport> ModelThread<T> {
    /// A thread for `residents`. The whole scheduler may have `models`, and has `subclusters`.
    pub fn new(
        residents: Vec<Resident>,
        (models, subclusters): (usize, usize),
        transport: T,
        link: ModelLink,
        (load, board): (Arc<LoadBoard>, Arc<TaskBoard>),
        counters: Arc<ModelThreadCounters>,
    ) -> Self {
        let mut places = vec![Place::Elsewhere; models];
        for (at, resident) in residents.iter().enumerate() {
            places[resident.config.id.0 as usize] = Place::Here(at as u32);
        }
        // There is room for every model, because any may move here.
        let timers = IndexedHeap::new(models);
        let batch_max = residents.iter().map(|resident| resident.config.profile.batch_max()).max();
        let in_flight = InFlight::new(IN_FLIGHT_MAX, batch_max.unwrap_or(0) as usize);
        Self {
            models: residents.into_iter().map(|resident| Model::new(&resident)).collect(),
            timers,
            serving: vec![0; subclusters],
            out: Dispatch::new(transport, link, in_flight, places, (board, counters)),
            events: Events::new(),
            touched: Vec::with_capacity(models),
            delays: Histogram::new_with_bounds(1, DELAY_MAX.0, 2).expect("the bounds are sound"),
            grants: Vec::with_capacity(models),
            returning: Vec::new(),
            vacant: Vec::new(),
            arrivals: Vec::new(),
            migrations: Vec::new(),
            leaving: Vec::new(),
            forgetting: Vec::new(),
            load,
            recorder: Recorder::default(),
            rules: vec![None; subclusters],
            shutdown: false,
            farewell: false,
        }
    }

    /// The models' state, by their number within the thread.
    pub fn model(&self, at: usize) -> &ModelState {
        &self.models[at].state
    }

    /// Tasks that wait for a batch.
    pub fn waiting(&self) -> usize {
        self.models.iter().map(|model| model.state.waiting()).sum()
    }

    /// Batches that backends have and have not reported.
    pub fn in_flight(&self) -> usize {
        self.out.in_flight.len()
    }

    /// From the moment a batch is schedulable and its slot can be granted until its plan is out.
    /// Nanoseconds, two significant digits.
    pub fn dispatch_delays(&self) -> &Histogram<u64> {
        &self.delays
    }

    /// The plans of the last pass were flushed at its end, shortly before `now`.
    fn record_delays(&mut self, now: Nanos) {
        for schedulable_at in self.out.planned.drain(..) {
            self.delays.saturating_record((now - schedulable_at).0);
        }
    }

    fn take_commands(&mut self, now: Nanos) -> usize {
        let mut taken = 0;
        while let Ok(command) = self.out.link.commands.try_recv() {
            taken += 1;
            self.on_command(now, command);
        }
        taken
    }

    fn on_command(&mut self, now: Nanos, command: ModelCommand) {
        match command {
            ModelCommand::FrontendUp { frontend, token } => {
                self.out.peers.expect(Member::Frontend(frontend), token);
            }
            ModelCommand::BackendUp { backend, token, gpus } => {
                self.out.peers.expect(Member::Backend(backend), token);
                self.out.peers.own(backend, &gpus);
                let slots = gpus.iter().map(|gpu| gpu.id.0 as usize + 1).max().unwrap_or(0);
                self.out.in_flight.reserve(slots * usize::from(PIPELINE_DEPTH));
            }
            ModelCommand::FrontendDown { frontend } => {
                self.dismiss(Member::Frontend(frontend));
                self.on_frontend_lost(now, frontend);
                self.note_lost_while_moving(frontend);
            }
            ModelCommand::BackendDown { backend } => {
                self.dismiss(Member::Backend(backend));
                self.on_backend_lost(now, backend);
            }
            ModelCommand::Serving { subcluster, gpus } => {
                self.serving[subcluster.0 as usize] = gpus;
                if gpus == 0 {
                    self.drop_unserved(now, subcluster);
                }
            }
            ModelCommand::Profiles { model, profiles, patience } => {
                self.on_profiles(model, profiles, patience);
            }
            ModelCommand::Serve { model, state } => self.serve(model, *state),
            ModelCommand::Set { model, slo, quota } => self.set(now, model, slo, quota),
            ModelCommand::Retire { model } => self.retire(model),
            ModelCommand::Forget { model } => self.forget(model),
            ModelCommand::NextLife { model, life } => self.out.lives[model.0 as usize] = life,
            ModelCommand::Adopt { model, from } => self.arrivals.push(Arrival::new(model, from)),
            ModelCommand::Release { model, to } => self.release(model, to),
            ModelCommand::ReportLoad => {
                self.report_load(now);
                self.check_recording(now);
            }
            ModelCommand::Record { subcluster, enough } => {
                self.begin_recording(now, subcluster, enough);
            }
            ModelCommand::EndRecording => self.end_recording(now),
            ModelCommand::Follow { subcluster, rules } => self.follow(now, subcluster, rules),
            ModelCommand::Shutdown => self.shut_down(now),
        }
    }

    /// Commands first: what a member has sent because the ControlThread told it something may be here before the next pass
    /// takes up what the ControlThread told this thread before that.
    fn take_events(&mut self, now: Nanos) -> usize {
        let mut events = mem::take(&mut self.events);
        let taken = self.out.transport.poll(now, &mut events) + self.take_commands(now);
        for event in events.drain() {
            match event {
                Event::Opened { conn, peer } => self.on_opened(conn, &peer),
                Event::Message { conn, message } => self.on_message(now, conn, message),
                Event::Closed { conn, reason } => self.on_closed(now, conn, &reason),
                // This thread posts no READs and exposes no slabs.
                Event::Read(_) | Event::Result { .. } => {}
            }
        }
        self.events = events;
        self.catch_up(now);
        taken
    }

    fn on_opened(&mut self, conn: ConnId, peer: &Peer) {
        if !self.out.peers.admit(conn, peer) {
            self.out.counters.unauthorised.add(1);
            let detail = "the token is not that of a joined member, or it is connected already; \
                          join at the scheduler's control address first";
            self.out.transport.close(conn, RefuseCode::Unauthorised, detail);
        }
    }

    fn on_message(&mut self, now: Nanos, conn: ConnId, message: Message<'_>) {
        match (self.out.peers.member(conn), message) {
            (Some(Member::Frontend(frontend)), Message::Submit(submit)) => {
                self.on_submit(now, conn, frontend, submit);
            }
            (Some(Member::Frontend(frontend)), Message::Cancel(cancel)) => {
                self.on_cancel(now, conn, frontend, cancel);
            }
            (Some(Member::Backend(backend)), Message::ActionDone(done, stale)) => {
                self.on_action_done(now, conn, backend, (done, stale));
            }
            (Some(Member::Backend(backend)), Message::LoadDone(done)) => {
                self.on_load_done(conn, backend, done);
            }
            (None, _) => {} // closed by us a moment ago; this was still under way
            (Some(_), _) => self.refuse(conn, "this message does not belong on this connection"),
        }
    }

    fn on_closed(&mut self, now: Nanos, conn: ConnId, reason: &CloseReason) {
        // What was closed for the farewell is no loss: threads that still have work keep their members.
        if self.farewell {
            return;
        }
        let Some(member) = self.out.peers.disconnected(conn) else { return };
        match member {
            Member::Frontend(frontend) => self.on_frontend_lost(now, frontend),
            Member::Backend(backend) => self.on_backend_lost(now, backend),
        }
        self.report_gone(member, reason);
    }

    fn take_grants(&mut self, now: Nanos) -> usize {
        let mut grants = mem::take(&mut self.grants);
        self.out.link.take_grants(&mut grants);
        let taken = grants.len();
        for (model, grant) in grants.drain(..).map(unpack_grant) {
            match self.out.places[model.0 as usize] {
                Place::Here(at) => self.on_grant(now, at as usize, grant),
                Place::Moved(migration) => self.pass_grant(migration, grant),
                // It was removed, and the grant was on its way.
                Place::Elsewhere => {
                    self.out.link.update(model, GpuUpdate::Returned { gpu: grant.gpu });
                }
            }
        }
        self.grants = grants;
        taken
    }

    fn on_grant(&mut self, now: Nanos, at: usize, grant: Grant) {
        let state = &mut self.models[at].state;
        self.out.granted = state.id();
        state.on_grant(now, grant, &mut self.out);
        self.take_undelivered(now);
        self.retime(at);
    }

    fn fire_timers(&mut self, now: Nanos) -> usize {
        let mut fired = 0;
        while let Some((_, at)) = self.timers.pop_up_to(now) {
            let state = &mut self.models[at as usize].state;
            if state.next_timer().is_some_and(|due| due <= now) {
                state.on_timer(now, &mut self.out);
                fired += 1;
            }
            self.retime(at as usize);
        }
        fired
    }

    /// A model's timer moves back with nearly every batch and every task that joins one: then it is
    /// left where it is, and put right when it fires.
    fn retime(&mut self, at: usize) {
        let Some(due) = self.models[at].state.next_timer() else { return };
        if self.timers.key(at as u32).is_none_or(|set| due < set) {
            self.timers.set(at as u32, due);
        }
    }

    fn resident(&self, model: u32) -> Option<usize> {
        match *self.out.places.get(model as usize)? {
            Place::Here(at) => Some(at as usize),
            Place::Moved(_) | Place::Elsewhere => None,
        }
    }

    /// Why a task of this model would wait for nothing.
    fn unservable(&self, at: usize) -> Option<DropReason> {
        let has_no_backend = self.serving[self.models[at].subcluster.0 as usize] == 0;
        if self.shutdown {
            Some(DropReason::Shutdown)
        } else if self.models[at].service != Service::Open {
            Some(DropReason::ModelRemoved)
        } else {
            has_no_backend.then_some(DropReason::NoBackend)
        }
    }

    fn drop_unserved(&mut self, now: Nanos, subcluster: SubclusterId) {
        for at in 0..self.models.len() {
            if self.models[at].subcluster == subcluster {
                self.models[at].state.drop_all(now, DropReason::NoBackend, &mut self.out);
                self.retime(at);
            }
        }
    }

    fn dismiss(&mut self, member: Member) {
        if let Some(conn) = self.out.peers.forget(member) {
            let detail = "the scheduler no longer counts this process as a member; join again";
            self.out.transport.close(conn, RefuseCode::Unauthorised, detail);
        }
    }

    fn refuse(&mut self, conn: ConnId, detail: &str) {
        self.out.counters.protocol_errors.add(1);
        self.out.transport.close(conn, RefuseCode::UnexpectedMessage, detail);
    }
}

impl<T: Transport> Agent for ModelThread<T> {
    fn poll(&mut self, now: Nanos) -> usize {
        self.record_delays(now);
        let work = [
            self.take_commands(now),
            self.take_arrivals(now),
            self.take_events(now),
            self.take_grants(now),
            self.take_cache_orders(now),
            self.fire_timers(now),
        ];
        let work: usize = work.into_iter().sum();
        self.tell_retired();
        // Before system calls: meanwhile the RankThread decides.
        let announced = self.out.link.announce();
        self.tell_forgotten(announced);
        self.say_farewell();
        self.out.transport.flush();
        self.migrations.iter_mut().flatten().for_each(MigrationChannel::announce);
        if work > 0 {
            self.out.counters.publish(&self.out.transport.counters());
        }
        debug_assert!(self.is_timed(), "who waits is looked at in time");
        work + usize::from(!announced)
    }

    fn next_timer(&self) -> Option<Nanos> {
        self.timers.peek().map(|(due, _)| due)
    }

    fn wait(&mut self, timeout: Option<Nanos>) {
        self.out.transport.wait(timeout);
    }

    fn sleep_max(&self) -> Nanos {
        SLEEP_MAX
    }

    fn waker(&self) -> Waker {
        self.out.transport.waker()
    }

    /// After a shutdown, once no batch is outstanding any more.
    fn finished(&self) -> bool {
        self.farewell
    }
}
