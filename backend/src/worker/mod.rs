//! The I/O agent of a backend: everything but the executions themselves.
//!
//! In: actions, READ completions, finished executions, membership. Out: READs, batches to execute, answers and
//! reports. It owns all batch slots; executors hold those that execute or will. Generic
//! over transport and executor, so that tests step it by hand with a clock of their own.

mod end;
mod failures;
mod intake;
mod loads;
mod models;
mod report;

use baton_membership::{Member, Membership, Stage, Step};
use baton_rdma::wire::{ActionStatus, Role};
use baton_rdma::{Events, NoMemory, Read, Transport};
use baton_topo::{Agent, AwakeTime, Waker};
use baton_types::Nanos;
use zerocopy::little_endian::U16;

use crate::action::Action;
use crate::admit::ActionChecker;
use crate::config::{BATCH_SLOTS, BackendConfig};
use crate::counters::Counters;
use crate::error::BackendError;
use crate::execute::{Executor, Measured};
use crate::fetch;
use crate::fetch_time::FetchTime;
use crate::gpu::{Collected, Gpu};
use crate::join::Join;
use crate::models::Models;
use crate::peers::Peers;
use crate::pull::ModelPulls;
use crate::reply::{LOOK, RETRY_AFTER};
use crate::slot::{Execution, Phase};
use end::End;
use failures::Failures;

/// The I/O agent.
#[derive(Debug)]
pub struct Worker<T, E> {
    config: BackendConfig,
    models: Models,
    pulls: ModelPulls,
    transport: T,
    events: Events,
    join: Join,
    peers: Peers,
    admission: ActionChecker,
    gpus: Vec<Gpu<E>>,
    fetch_time: FetchTime,
    /// Rows of the batch that is being reported whose inputs were stale.
    stale: Vec<U16>,
    /// READs of this pass, posted together.
    reads: Vec<Read>,
    /// When answers that a frontend did not take are tried again.
    reply_at: Option<Nanos>,
    /// The time in which the bounds on frontends that take no answers are measured.
    awake: AwakeTime,
    /// Which of all batch slots is answered first in the next pass.
    reply_from: usize,
    counters: Counters,
    failures: Failures,
    end: Option<End>,
}

impl<T: Transport, E: Executor> Worker<T, E> {
    /// A backend that has loaded its models, one executor per GPU slot, and begins to join at its
    /// first poll. `measured` holds the profiles to report instead of the cluster file's.
    ///
    /// # Errors
    /// The machine does not give the memory of the batches.
    pub fn new(
        config: BackendConfig,
        measured: Measured,
        transport: T,
        executors: Vec<E>,
    ) -> Result<Self, NoMemory> {
        let batch_max = config.batch_max();
        let gpus = executors.into_iter().map(|executor| Gpu::new(&config, executor));
        let gpus = gpus.collect::<Result<Vec<_>, _>>()?;
        let pulls = ModelPulls::new(config.model_folder.clone(), &config.name);
        let (has_cache, folder) =
            (config.weights_cache.is_some(), pulls.path().unwrap_or_default());
        let mut worker = Self {
            fetch_time: FetchTime::new(gpus.len()),
            gpus,
            join: Join::new(Membership::new(member(&config))),
            peers: Peers::default(),
            admission: ActionChecker::new(batch_max),
            events: Events::new(),
            stale: Vec::with_capacity(batch_max as usize),
            reads: Vec::with_capacity(batch_max as usize),
            reply_at: None,
            awake: AwakeTime::in_steps_of(LOOK),
            reply_from: 0,
            counters: Counters::default(),
            failures: Failures::default(),
            end: None,
            models: Models::new(config.models.clone(), measured, has_cache, folder),
            pulls,
            config,
            transport,
        };
        worker.register();
        worker.prefault()?;
        Ok(worker)
    }

    /// Lets READs land in the batches' memory. Without that there is nothing to begin.
    fn register(&mut self) {
        let Self { gpus, transport, .. } = self;
        let mut buffers = gpus.iter().flat_map(|gpu| &gpu.memory);
        let registered = buffers.try_for_each(|memory| transport.land_in(&memory.inputs));
        if let Err(error) = registered {
            let problem = error.to_string();
            self.finish(Err(BackendError::Start { what: "batch memory", problem }), Nanos::ZERO);
        }
    }

    /// Takes the pages of the batches' memory before any deadline runs, as registration with a network card does.
    fn prefault(&self) -> Result<(), NoMemory> {
        let mut buffers = self.gpus.iter().flat_map(|gpu| &gpu.memory);
        buffers.try_for_each(|memory| memory.inputs.prefault())
    }

    /// Where the conversation with the scheduler is.
    pub fn stage(&self) -> Stage {
        self.join.membership.stage()
    }

    /// The scheduler has confirmed that batches may come: no task is refused any more for want of this backend.
    pub fn serves(&self) -> bool {
        self.join.serves
    }

    /// How it ended; `None` while it runs.
    pub fn result(&self) -> Option<&Result<(), BackendError>> {
        self.end.as_ref().and_then(End::result)
    }

    /// What has been counted so far.
    pub fn counters(&self) -> Counters {
        Counters { transport: self.transport.counters(), ..self.counters }
    }

    /// Asks the scheduler to let this backend leave: no more grants, then an end without error.
    pub fn leave(&mut self, now: Nanos) {
        if self.end.is_some() {
            return self.finish(Ok(()), now);
        }
        match self.join.membership.leave(Nanos::MAX, &mut self.transport) {
            Ok(true) => {}
            Ok(false) => self.finish(Ok(()), now),
            Err(error) => self.finish(Err(error.into()), now),
        }
    }

    /// Keeps the conversations up: heartbeat, missing connections; or takes the next step of the
    /// end.
    fn tend(&mut self, now: Nanos) -> usize {
        if self.end.is_some() {
            return self.end_step(now);
        }
        let has_work = !self.gpus.iter().all(Gpu::is_idle);
        let step = match self.join.membership.poll(now, has_work, &mut self.transport) {
            Ok(step) => step,
            Err(error) => {
                self.fail(error.into(), now);
                return 1;
            }
        };
        if step == Step::Ready {
            self.on_ready();
        }
        if self.stage() == Stage::Left && self.gpus.iter().all(Gpu::is_idle) {
            self.finish(Ok(()), now);
            return 1;
        }
        self.peers.tell_left_out(now);
        usize::from(step != Step::Idle)
    }

    /// After what has arrived, and before it is acted on: a plan may have come with its frontend's introduction, or with the end
    /// of a connection. What is to be read and answered waits for one that opens; without one it would be lost.
    fn connect(&mut self, now: Nanos) -> usize {
        let number = self.join.membership.number();
        self.peers.connect_due(now, number, &mut self.transport)
    }

    fn on_ready(&mut self) {
        if self.join.membership.life() > 1 {
            self.counters.rejoins += 1;
            tracing::info!(member = self.join.membership.number(), "joined again");
        }
    }

    fn receive(&mut self, now: Nanos) -> usize {
        let mut events = std::mem::take(&mut self.events);
        let arrived = self.transport.poll(now, &mut events);
        for event in events.drain() {
            if let Err(error) = self.on_event(event, now) {
                self.fail(error, now);
            }
        }
        self.events = events;
        arrived
    }

    /// Asks the executors for what is not to be executed, and takes what has come back from them.
    fn collect(&mut self, now: Nanos) -> usize {
        let (all, mut collected) = (self.end.is_some(), 0);
        for index in 0..self.gpus.len() {
            collected += self.gpus[index].withdraw(all, now);
            loop {
                match self.gpus[index].collect(now) {
                    Ok(None) => break,
                    Ok(Some(back)) => self.on_collected(index, back, now),
                    Err(_) => self.finish(Err(BackendError::ExecutorDied(index)), now),
                }
                collected += 1;
            }
        }
        collected
    }

    fn on_collected(&mut self, gpu: usize, back: Collected, now: Nanos) {
        if let Collected::Executed(Err(error)) = &back {
            self.counters.engine_failed(error);
            if let Some(unlogged) = self.failures.note(now) {
                let model = error.model().and_then(|id| self.models.spec(id));
                let model = model.map(|spec| &*spec.name);
                tracing::error!(gpu, model, %error, unlogged, "an action failed");
            }
        }
        match back {
            Collected::Expired(action) => self.give_back(gpu, action, now),
            Collected::Executed(_) | Collected::Unexecuted | Collected::Job => {}
        }
    }

    /// An action that can no longer start in time is the scheduler's again.
    fn give_back(&mut self, gpu: usize, action: Action, now: Nanos) {
        self.counters.batches_expired += 1;
        let nothing = Execution { variant: 0, started: now, finished: now, succeeded: false };
        self.report(gpu, &action, 0, ActionStatus::Expired, nothing, now);
        self.gpus[gpu].actions.recycle(action.tasks);
    }

    fn expire(&mut self, now: Nanos) -> usize {
        let aborted = fetch::abort_due(now, &mut self.gpus, &self.peers, &mut self.transport);
        let mut expired = 0;
        for index in 0..self.gpus.len() {
            while let Some(action) = self.gpus[index].pop_expired(now) {
                self.give_back(index, action, now);
                expired += 1;
            }
        }
        aborted + expired
    }

    fn fetch(&mut self, now: Nanos) -> usize {
        let mut begun = 0;
        for (index, gpu) in self.gpus.iter_mut().enumerate() {
            while let Some(slot) = gpu.slot_in(Phase::Free)
                && let Some(action) = gpu.actions.pop()
            {
                let (peers, reads, counters) = (&self.peers, &mut self.reads, &mut self.counters);
                self.fetch_time.begin(index, slot, now);
                fetch::begin(index, gpu, slot, action, peers, reads, counters);
                begun += 1;
            }
        }
        self.transport.post_reads(&mut self.reads);
        begun
    }

    fn execute(&mut self, now: Nanos) -> usize {
        let mut started = 0;
        for gpu in &mut self.gpus {
            while gpu.start_next(now, &self.models, &mut self.counters) {
                started += 1;
            }
        }
        started
    }

    /// Time for which this process was stopped does not count against a frontend that has an answer to
    /// take. Without waiting answers the process runs less often, and the pause has no effect.
    fn excuse(&mut self, now: Nanos) {
        let pause = self.awake.pass(now);
        if pause > Nanos::ZERO {
            self.peers.excuse(pause);
            let slots = self.gpus.iter_mut().flat_map(|gpu| &mut gpu.slots);
            let waiting = slots.filter(|slot| slot.phase() == Phase::Replying);
            waiting.for_each(|slot| slot.excuse(pause));
        }
    }

    /// Batches take turns: what little room a slow frontend leaves would always be the first one's.
    fn reply(&mut self, now: Nanos) -> usize {
        self.reply_at = None;
        let (slots, mut replied) = (self.gpus.len() * BATCH_SLOTS, 0);
        for at in (self.reply_from..slots).chain(0..self.reply_from) {
            let (gpu, slot) = (at / BATCH_SLOTS, at % BATCH_SLOTS);
            if self.gpus[gpu].slots[slot].phase() != Phase::Replying {
                continue;
            }
            if self.answer(gpu, slot, now) {
                replied += 1;
            } else if self.reply_at.replace(now + RETRY_AFTER).is_none() {
                self.reply_from = (at + 1) % slots;
            }
        }
        replied
    }
}

impl<T: Transport, E: Executor> Agent for Worker<T, E> {
    fn poll(&mut self, now: Nanos) -> usize {
        self.excuse(now);
        let mut work = self.tend(now);
        work += self.receive(now);
        work += self.collect(now);
        if self.end.is_none() {
            work += self.expire(now);
            // Free batch slots grow before they are used.
            work += self.tend_models(now);
            work += self.tend_loads(now);
            work += self.connect(now);
            work += self.fetch(now);
            work += self.execute(now);
        }
        work += self.reply(now);
        self.transport.flush();
        work
    }

    fn next_timer(&self) -> Option<Nanos> {
        if let Some(end) = &self.end {
            return self.reply_at.or_else(|| end.until());
        }
        let gpus = self.gpus.iter().filter_map(Gpu::next_timer);
        let others = [self.join.membership.next_timer(), self.peers.next_retry(), self.reply_at];
        gpus.chain(others.into_iter().flatten()).min()
    }

    fn wait(&mut self, timeout: Option<Nanos>) {
        self.transport.wait(timeout);
    }

    fn sleep_max(&self) -> Nanos {
        self.join.membership.sleep_max()
    }

    fn waker(&self) -> Waker {
        self.transport.waker()
    }

    fn finished(&self) -> bool {
        self.result().is_some()
    }
}

fn member(config: &BackendConfig) -> Member {
    Member {
        role: Role::Backend,
        scheduler: config.scheduler.clone(),
        reconnect: config.reconnect,
        seed: seed_of(&config.name),
        join_timeout: config.join_timeout,
        join_timeout_setting: "start_ms of [reconnect]",
        member_timeout: config.member_timeout,
    }
}

/// FNV-1a of the name, which distinguishes backends.
fn seed_of(name: &str) -> u64 {
    name.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::seed_of;

    #[test]
    fn backends_with_different_names_have_different_seeds() {
        // The published hashes of these texts.
        let known = [("", 0xcbf2_9ce4_8422_2325), ("a", 0xaf63_dc4c_8601_ec8c)];
        assert!(known.iter().all(|&(name, hash)| seed_of(name) == hash));
        assert_ne!(seed_of("gpu-1"), seed_of("gpu-2"));
    }
}
