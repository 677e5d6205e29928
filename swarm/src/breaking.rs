//! Carrying out faults, and repairing what they broke.

use baton_core::Nanos;
use baton_topo::{Agent, Cluster};

use crate::faults::{Fault, Holds, Who};
use crate::freezing::APART;
use crate::gpu::SimGpu;
use crate::network::HostId;
use crate::process::BackendProcess;
use crate::run::{Run, Step};

/// More than a client submits again in one pass.
const HUNDREDS: u32 = 256;
/// Members prove that they live so often.
const PING_EVERY: Nanos = Nanos::from_millis(100);
/// The scheduler looks for silence so often in a timeout.
const CHECKS_PER_TIMEOUT: u64 = 8;

/// How long a stopping scheduler waits for outstanding batches, and how often it looks.
const STOP_TIMEOUT: Nanos = Nanos::from_millis(2_000);
const STOP_LOOK: Nanos = Nanos::from_micros(200);

/// How long until everybody knows of a silent death.
pub(crate) fn notice(cluster: &Cluster) -> Nanos {
    let timeout = cluster.scheduler.member_timeout;
    timeout + Nanos(timeout.0 / CHECKS_PER_TIMEOUT) + PING_EVERY + Nanos::from_millis(30)
}

impl Run {
    pub(crate) fn break_something(&mut self, fault: Fault) {
        self.world.trace.event(self.world.now, format_args!("FAULT {fault:?}"));
        self.faults += 1;
        let (holds, long) = fault.holds();
        self.excuse(holds, long + self.noticed_after(&fault));
        if let Some(fault) = self.break_time(fault) {
            self.break_member(fault);
        }
    }

    /// How long after a fault everybody knows of it.
    fn noticed_after(&self, fault: &Fault) -> Nanos {
        match fault {
            Fault::Vanish(..) | Fault::Freeze(..) | Fault::FreezeThread(..) => {
                notice(&self.plan.cluster)
            }
            Fault::FreezeBoth(..) | Fault::FreezeAll(..) => notice(&self.plan.cluster) + APART,
            Fault::Wall(..) | Fault::Partition(..) => notice(&self.plan.cluster),
            // The side that does not learn of it finds out by asking.
            Fault::Cut(.., false) => self.plan.link.patience.times(2),
            _ => Nanos::ZERO,
        }
    }

    /// What stops, slows or separates for a time; returns a fault of another kind.
    fn break_time(&mut self, fault: Fault) -> Option<Fault> {
        let now = self.world.now;
        match fault {
            Fault::Freeze(who, long) => self.freeze(who, now + long),
            Fault::FreezeBoth(a, b, long) => self.freeze_both([a, b], now + long),
            Fault::FreezeAll(long) => self.freeze_everybody(now + long),
            Fault::FreezeThread(thread, long) => {
                self.world.network.scheduler_sleeps(now + long);
                let process = self.world.scheduler.as_mut()?;
                let threads = process.lines().count();
                let line = process.lines_mut().nth(thread % threads);
                line.expect("below the count").freeze(now + long);
            }
            Fault::Wall(a, b, long) => self.wall(a, b, long),
            Fault::Partition(a, b, long) => {
                self.wall(a, b, long);
                self.wall(b, a, long);
            }
            Fault::Repeat(per_mille, long) => {
                self.world.network.repeat(per_mille);
                self.at(now + long, Step::StopRepeating);
            }
            Fault::Stall(backend, gpu, long) => {
                self.with_gpu(backend, gpu, |gpu| gpu.stall(now + long));
            }
            Fault::Slow(backend, gpu, percent, long) => {
                self.with_gpu(backend, gpu, |gpu| gpu.set_pace(percent));
                self.at(now + long, Step::Pace(backend, gpu));
            }
            other => return Some(other),
        }
        None
    }

    /// What ends, leaves, joins or moves.
    fn break_member(&mut self, fault: Fault) {
        let now = self.world.now;
        match fault {
            Fault::Kill(who, again) => self.kill(who, false, again),
            Fault::Stop(again) => {
                let Some(process) = &self.world.scheduler else { return };
                process.assembly.stop_serving();
                self.world.ledger.borrow_mut().stopped.push(process.host);
                let step = Step::Stopping(process.host, now + STOP_TIMEOUT, again);
                self.at(now, step);
            }
            Fault::Vanish(who, again) => self.kill(who, true, Some(again)),
            Fault::Cut(a, b, pick, both) => {
                if let (Some(a), Some(b)) = (self.host(a), self.host(b)) {
                    self.world.network.cut(a, b, pick, both);
                }
            }
            Fault::EngineDies(backend, gpu) => {
                self.with_gpu(backend, gpu, SimGpu::die);
                if let Some(process) = self.backend_mut(backend) {
                    process.line.wake(now);
                }
            }
            Fault::Leave(backend, _) => {
                if let Some(place) = self.backends[backend] {
                    self.world.ask_to_leave(place);
                }
            }
            Fault::Depart(frontend, again) => self.depart(frontend, again),
            Fault::Move(model, to) => self.move_model(model, to),
            Fault::Join => {
                let number = self.frontends.len();
                if number < 6 {
                    self.frontends.push(None);
                    self.start(Who::Frontend(number));
                }
            }
            other => unreachable!("{other:?} lasts for a time"),
        }
    }

    /// True while the scheduler is stopping.
    pub(crate) fn is_stopping(&self) -> bool {
        self.steps.values().any(|step| matches!(step, Step::Stopping(..)))
    }

    pub(crate) fn host(&self, who: Who) -> Option<HostId> {
        match who {
            Who::Scheduler => self.world.scheduler.as_ref().map(|process| process.host),
            Who::Backend(at) => {
                let place = self.backends[at]?;
                self.world.backends[place].as_ref().map(|process| process.host)
            }
            Who::Frontend(at) => {
                let place = (*self.frontends.get(at)?)?;
                self.world.frontends[place].as_ref().map(|process| process.host)
            }
        }
    }

    /// A stopping scheduler goes on with it.
    pub(crate) fn go_on_stopping(&mut self, host: HostId, until: Nanos, again: Nanos) {
        let now = self.world.now;
        let Some(process) = self.world.scheduler.as_mut().filter(|s| s.host == host) else {
            return;
        };
        if process.assembly.model_threads.iter().all(Agent::finished) || now >= until {
            process.assembly.take_leave();
            process.control_line.wake(now);
        }
        if process.assembly.control.finished() {
            self.kill(Who::Scheduler, false, Some(again));
        } else {
            self.at(now + STOP_LOOK, Step::Stopping(host, until, again));
        }
    }

    fn kill(&mut self, who: Who, silently: bool, again: Option<Nanos>) {
        let Some(host) = self.host(who) else { return };
        self.world.killed.insert(host);
        if silently {
            self.world.network.vanish(host);
            self.silent.entry(host).or_insert(self.world.now);
        }
        match who {
            Who::Scheduler => {
                let most = (0..self.world.frontends.len()).map(|at| self.world.slots_in_use(at));
                self.states.scheduler_lost_under_hundreds |= most.max() > Some(HUNDREDS);
                let mut backends = self.world.backends.iter().flatten();
                self.states.scheduler_lost_in_mid_load |=
                    self.plan.has_caches() && backends.any(BackendProcess::is_loading);
                let process = self.world.scheduler.take().expect("it has a host");
                self.past.scheduler(&process);
            }
            Who::Backend(at) => {
                let place = self.backends[at].take().expect("it has a host");
                let process = self.world.backends[place].take().expect("it lives");
                self.past.backend(&process);
                self.states.backend_lost_in_mid_load |=
                    self.plan.has_caches() && process.is_loading();
            }
            Who::Frontend(at) => self.end_frontend(at),
        }
        if let Some(again) = again {
            if silently {
                self.at(self.world.now + again, Step::Answer(host));
            }
            self.start_after(who, again);
        }
    }

    fn wall(&mut self, a: Who, b: Who, long: Nanos) {
        let (Some(from), Some(to)) = (self.host(a), self.host(b)) else { return };
        self.world.network.wall(from, to);
        if b == Who::Scheduler {
            self.silent.entry(from).or_insert(self.world.now);
        }
        if a == Who::Scheduler {
            self.deaf.entry((from, to)).or_insert(self.world.now);
        }
        self.at(self.world.now + long, Step::Heal(a, b, from, to));
    }

    pub(crate) fn heal(&mut self, (_, b): (Who, Who), from: HostId, to: HostId) {
        self.world.trace.event(self.world.now, format_args!("healed: {from:?} to {to:?}"));
        self.world.network.heal(from, to);
        if b == Who::Scheduler {
            self.silent.remove(&from);
        }
        self.deaf.remove(&(from, to));
    }

    fn depart(&mut self, frontend: usize, again: Nanos) {
        let Some(Some(place)) = self.frontends.get(frontend).copied() else { return };
        let Some(process) = &mut self.world.frontends[place] else { return };
        if process.client().is_none() {
            return;
        }
        // Its tickets go first: the client ends when nothing refers to it any more.
        self.past.frontend(process);
        process.let_go();
        self.applications.lose(&self.world, place);
        self.departing.push(place);
        self.frontends[frontend] = None;
        self.start_after(Who::Frontend(frontend), again);
    }

    pub(crate) fn with_gpu(&mut self, backend: usize, gpu: usize, act: impl FnOnce(&SimGpu)) {
        if let Some(gpu) = self.backend_mut(backend).and_then(|process| process.gpus.get(gpu)) {
            act(gpu);
        }
    }

    fn backend_mut(&mut self, backend: usize) -> Option<&mut BackendProcess> {
        self.world.backends[self.backends[backend]?].as_mut()
    }

    /// Everything goes as it should from now on, and processes that are down start.
    pub(crate) fn repair(&mut self) {
        let now = self.world.now;
        self.world.trace.event(now, format_args!("REPAIRED"));
        if self.is_stopping() {
            self.stop_cut_short = true;
            self.kill(Who::Scheduler, false, None);
        }
        self.steps.clear();
        self.starting.clear();
        self.world.network.repeat(0);
        self.world.network.heal_all();
        self.deaf.clear();
        let gone: Vec<HostId> = self.silent.keys().copied().collect();
        gone.into_iter().for_each(|host| self.world.network.answer_for(host));
        let living: Vec<HostId> = self.living().collect();
        self.silent.retain(|host, _| !living.contains(host));
        if let Some(process) = &mut self.world.scheduler {
            process.lines_mut().for_each(|line| line.thaw(now));
        }
        for process in self.world.backends.iter_mut().flatten() {
            process.line.thaw(now);
            process.gpus.iter().for_each(|gpu| gpu.set_pace(100));
        }
        self.world.frontends.iter_mut().flatten().for_each(|process| process.line.thaw(now));
        // A repair is news as any: what it sets in motion takes a moment.
        self.excuse(Holds::None, Nanos::ZERO);
        self.start(Who::Scheduler);
        (0..self.backends.len()).for_each(|at| self.start(Who::Backend(at)));
        (0..self.frontends.len()).for_each(|at| self.start(Who::Frontend(at)));
    }

    pub(crate) fn living(&self) -> impl Iterator<Item = HostId> + '_ {
        let scheduler = self.world.scheduler.iter().map(|process| process.host);
        let backends = self.world.backends.iter().flatten().map(|process| process.host);
        let frontends = self.world.frontends.iter().flatten().map(|process| process.host);
        scheduler.chain(backends).chain(frontends)
    }
}
