//! The programs that use the cluster: they submit, cancel, lose interest, keep replies for a while,
//! and hold each outcome against what they are owed.

use std::collections::BTreeMap;

use baton_client::{DropReason, EndRecord, EndedBy, FailReason, Outcome, Reply};
use baton_core::Nanos;
use baton_topo::accuracy_of;
use rand::RngExt;

use crate::faults::Holds;
use crate::ledger::{by_variant, is_answer};
use crate::moments;
use crate::network::HostId;
use crate::plan::Load;
use crate::variants;
use crate::world::{Submitted, World};

/// What has become of the tickets, counted.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Tally {
    /// Answered.
    pub completed: u32,
    /// Of these, after their deadline.
    pub late: u32,
    /// Answered, and said to have waited for a LOAD.
    pub cold: u32,
    /// Dropped, by reason code.
    pub dropped: [u32; 12],
    /// Failed, by reason code.
    pub failed: [u32; 10],
    /// Tickets dropped by their owner, which does not see their outcome.
    pub abandoned: u32,
    /// Tickets that went with their process.
    pub gone: u32,
}

impl Tally {
    /// Tasks that have come to an end, however.
    pub fn total(&self) -> u32 {
        self.completed + self.dropped() + self.failed() + self.abandoned + self.gone
    }

    /// Dropped, whatever the reason.
    pub fn dropped(&self) -> u32 {
        self.dropped.iter().sum()
    }

    /// Failed, whatever the reason.
    pub fn failed(&self) -> u32 {
        self.failed.iter().sum()
    }
}

/// How long what holds tasks up may have effects after its end: the backlog, a new connection.
const RECOVERY: Nanos = Nanos::from_millis(60);
/// How far behind its moment an outcome may be: a pass, on a process that runs.
const SLACK: Nanos = Nanos::from_millis(2);

/// All applications together.
#[derive(Debug, Default)]
pub struct Applications {
    /// By place in [`World::frontends`].
    open: Vec<Vec<Submitted>>,
    kept: Vec<(Nanos, Reply)>,
    /// What became of the tasks.
    pub tally: Tally,
    /// Whose tasks may be left to their lease, and when.
    holds: Vec<(Nanos, Nanos, Holds)>,
    /// Nothing holds anybody up.
    pub(crate) calm: bool,
    /// By frontend: how long an answer took at most after its execution, and to which task.
    pub(crate) slowest: BTreeMap<usize, (Nanos, u64)>,
    /// Tasks that their client gave up for want of a scheduler, not looked at yet.
    pub(crate) given_up: Vec<u64>,
}

impl Applications {
    /// `calm`: nothing holds anybody up.
    pub(crate) fn in_a_run(calm: bool) -> Self {
        Self { calm, ..Self::default() }
    }

    /// Tickets without outcome.
    pub fn outstanding(&self) -> usize {
        self.open.iter().map(Vec::len).sum()
    }

    /// Between `from` and `until` these tasks may lose their word.
    pub fn excuse(&mut self, from: Nanos, until: Nanos, holds: Holds) {
        if holds != Holds::None {
            self.holds.push((from, until + RECOVERY, holds));
        }
    }

    /// Submits a task somewhere, and maybe changes its mind.
    pub fn submit(&mut self, world: &mut World, load: &Load) {
        let living = (0..world.frontends.len()).filter(|&at| world.frontends[at].is_some());
        let living: Vec<usize> = living.collect();
        if living.is_empty() {
            return;
        }
        let frontend = living[world.rng.random_range(0..living.len())];
        let model = world.rng.random_range(0..world.models.len());
        let (from, to) = load.deadline_percent;
        let percent = world.rng.random_range(from..=to);
        let within = Nanos(world.models[model].slo.0 * percent / 100);
        if let Some(task) = world.submit(frontend, model, within) {
            self.take(frontend, task);
            self.change_mind(world, frontend, load);
        }
    }

    /// Waits for a task.
    pub fn take(&mut self, frontend: usize, task: Submitted) {
        if self.open.len() <= frontend {
            self.open.resize_with(frontend + 1, Vec::new);
        }
        self.open[frontend].push(task);
    }

    /// After a submit: cancels a task, or drops its ticket, as often as `load` says.
    pub fn change_mind(&mut self, world: &mut World, frontend: usize, load: &Load) {
        let open = &mut self.open[frontend];
        if world.rng.random_range(0..1000) < load.cancels {
            let at = world.rng.random_range(0..open.len());
            open[at].ticket.cancel();
            world.trace.event(world.now, format_args!("task {} cancelled", open[at].number));
        }
        if world.rng.random_range(0..1000) < load.drops {
            let task = open.swap_remove(world.rng.random_range(0..open.len()));
            world.trace.event(world.now, format_args!("task {} abandoned", task.number));
            world.ledger.borrow_mut().task(task.number).ended = true;
            self.tally.abandoned += 1;
        }
    }

    /// The process has died, and its tickets with it.
    pub fn lose(&mut self, world: &World, frontend: usize) {
        let Some(open) = self.open.get_mut(frontend) else { return };
        self.tally.gone += open.len() as u32;
        for task in open.drain(..) {
            world.ledger.borrow_mut().task(task.number).ended = true;
        }
    }

    /// Takes the outcomes that are there; `all`: also where nothing is known to have happened.
    pub fn collect(&mut self, world: &mut World, load: &Load, all: bool) {
        let now = world.now;
        self.kept.retain(|(until, _)| *until > now);
        for frontend in 0..self.open.len() {
            let process = world.frontends[frontend].as_mut();
            let news = process.is_some_and(|process| std::mem::take(&mut process.news));
            if !news && !all {
                continue;
            }
            let mut at = 0;
            while let Some(task) = self.open[frontend].get_mut(at) {
                match task.ticket.poll() {
                    Some(outcome) => {
                        let task = self.open[frontend].swap_remove(at);
                        self.count(world, frontend, &task, outcome, load);
                    }
                    None => at += 1,
                }
            }
            self.check_leases(world, frontend);
        }
    }

    fn count(
        &mut self,
        world: &mut World,
        frontend: usize,
        task: &Submitted,
        outcome: Outcome,
        load: &Load,
    ) {
        let now = world.now;
        let number = task.number;
        world.ledger.borrow_mut().ended(number, now);
        match outcome {
            Outcome::Completed(reply) => {
                world.trace.event(now, format_args!("task {number} completed"));
                self.check_reply(world, frontend, task, &reply);
                self.tally.completed += 1;
                let mut ledger = world.ledger.borrow_mut();
                (ledger.task(number).answered, ledger.task(number).admitted) = (true, true);
                ledger.task(number).in_time = !reply.late();
                drop(ledger);
                self.tally.late += u32::from(reply.late());
                self.tally.cold += u32::from(reply.cold());
                if world.rng.random_range(0..1000) < load.keeps {
                    let long = Nanos(world.rng.random_range(0..30_000_000));
                    self.kept.push((now + long, reply));
                }
            }
            Outcome::Dropped(reason, record) => {
                world.trace.event(now, format_args!("task {number} dropped: {}", reason.as_str()));
                self.tally.dropped[usize::from(reason.code())] += 1;
                self.check_drop(world, number, reason, &record);
            }
            Outcome::Failed(reason, record) => {
                world.trace.event(now, format_args!("task {number} failed: {}", reason.as_str()));
                self.tally.failed[usize::from(reason.code())] += 1;
                world.ledger.borrow_mut().task(number).answered = reason == FailReason::Engine;
                if reason == FailReason::LeaseExpired {
                    self.check_excuse(world, frontend, number);
                }
                if moments::is_for_want_of_a_scheduler(Err(reason), &record) {
                    self.given_up.push(number);
                }
            }
        }
    }

    fn check_drop(&mut self, world: &World, number: u64, reason: DropReason, record: &EndRecord) {
        // The client itself may have given it up, before or after the scheduler took it.
        let own = matches!(reason, DropReason::Cancelled | DropReason::QueueFull);
        let told = record.by == EndedBy::Scheduler;
        {
            let mut ledger = world.ledger.borrow_mut();
            ledger.dropped[usize::from(reason.code())] += u64::from(told);
            let task = ledger.task(number);
            task.refused = !own;
            task.admitted = told
                && matches!(
                    reason,
                    DropReason::Deadline | DropReason::Window | DropReason::Accuracy
                );
            task.missed = told && reason == DropReason::NoBackend;
        }
        let asked = world.ledger.borrow_mut().task(number).accuracy_min;
        if reason == DropReason::Accuracy && asked == 0 {
            world
                .fail(format!("task {number} was dropped for an accuracy that it did not ask for"));
        }
        let by_scheduler = self.calm && record.by == EndedBy::Scheduler;
        let late = || moments::told_late(world, number, record);
        if let Some(what) = by_scheduler.then(late).flatten() {
            world.fail(what);
        }
        if moments::is_for_want_of_a_scheduler(Ok(reason), record) {
            if let Some(what) = moments::blamed_wrongly(world, number) {
                world.fail(what);
            }
            let mut ledger = world.ledger.borrow_mut();
            let id = ledger.task(number).id;
            if world.network.watch(|watch| watch.was_given_back(id)) {
                let late = (record.ended - record.deadline, number);
                ledger.latest_given_up = late.max(ledger.latest_given_up);
            }
            drop(ledger);
            self.given_up.push(number);
        }
    }

    fn check_reply(&mut self, world: &World, frontend: usize, task: &Submitted, reply: &Reply) {
        let number = task.number;
        let model = world.ledger.borrow_mut().task(number).model;
        let bytes = world.models[model as usize].output_bytes as usize;
        let asked = world.ledger.borrow_mut().task(number).accuracy_min;
        let named =
            reply.variant().map(|variant| (variant.index(), accuracy_of(variant.accuracy())));
        let spec = &world.models[model as usize];
        if let Some(what) = variants::misfit(spec, named, asked) {
            world.fail(format!("task {number}: {what}"));
        }
        let answer = by_variant(task.checksum, reply.timing().variant);
        if reply.bytes().len() != bytes || !is_answer(reply.bytes(), answer) {
            world.fail(format!("task {number} has the answer of another input or variant"));
        }
        let timing = reply.timing();
        if let Some(process) = &world.frontends[frontend] {
            let slowest = self.slowest.entry(process.number).or_default();
            *slowest = (*slowest).max((timing.landed - timing.finished, number));
        }
        let tardy = || self.calm.then(|| moments::tardy(world, number, timing)).flatten();
        if let Some(what) = moments::misdated(world, frontend, number, timing).or_else(tardy) {
            world.fail(what);
        }
    }

    /// A lease that runs out means that the frontend heard no outcome. That is right only if the
    /// word was lost on its way, or what owed it was held up.
    fn check_excuse(&self, world: &World, frontend: usize, number: u64) {
        let (id, submitted) = {
            let mut ledger = world.ledger.borrow_mut();
            let task = ledger.task(number);
            (task.id, task.submitted)
        };
        let lives = world.frontends[frontend].as_ref();
        let logical = lives.map_or(usize::MAX, |process| process.number);
        let concerns = |holds: Holds| match holds {
            Holds::All => true,
            Holds::Frontend(number) => number == logical,
            Holds::None => false,
        };
        let held = self.holds.iter().any(|&(from, until, holds)| {
            concerns(holds) && from <= world.now && until >= submitted
        });
        let lost = world.network.watch(|watch| {
            let killed = |host: HostId| world.killed.contains(&host);
            watch.word_unheard(id) || watch.answered_by(id).is_some_and(killed)
        });
        if !held && !lost {
            world.fail(format!("task {number} was forgotten: its frontend heard no outcome"));
        }
    }

    /// No task stays without outcome for longer than its lease, on a process that runs.
    fn check_leases(&self, world: &World, frontend: usize) {
        let Some(process) = &world.frontends[frontend] else { return };
        let (polled, thawed) = (process.line.polled, process.line.frozen_until());
        if thawed + SLACK > polled {
            return;
        }
        let local = process.clock.at(polled);
        let overdue = |task: &&Submitted| task.lease_ends + SLACK < local;
        if let Some(task) = self.open[frontend].iter().find(overdue) {
            world.fail(format!("task {} has no outcome after its lease", task.number));
        }
    }
}
