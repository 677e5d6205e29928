//! One seed: the cluster comes up, load and faults pass over it, it recovers, serves again, and
//! holds nothing back.

use std::collections::BTreeMap;

use baton_core::{ModelId, Nanos};
use rand::RngExt;

use crate::applications::Applications;
use crate::fairness;
use crate::faults::{Fault, Holds, Who};
use crate::gpu::LOAD_MAX_MS;
use crate::hostile::{Attack, AttackerKind};
use crate::marks::{Marks, States};
use crate::moments;
use crate::network::HostId;
use crate::oracles;
use crate::plan::{Plan, pauses_end};
use crate::report::{Failure, Report};
use crate::twin::{self, Service};
use crate::world::{Conditions, Speaks, World};

/// What is due at a moment of the run.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Step {
    /// A fault, and which of the plan it is.
    Fault(Fault),
    Start(Who),
    Heal(Who, Who, HostId, HostId),
    StopRepeating,
    /// A machine that lost power is up again.
    Answer(HostId),
    Pace(usize, usize),
    /// The next task or burst.
    Offer,
    /// An attacker begins.
    Attack(Attack),
    /// An operator asks for a change: which of the plan's it is.
    Change(usize),
    /// The scheduler on this host ends in order, at this moment at the latest, and starts again
    /// after this time.
    Stopping(HostId, Nanos, Nanos),
}

/// A run in progress.
pub(crate) struct Run {
    pub(crate) plan: Plan,
    pub(crate) world: World,
    pub(crate) applications: Applications,
    /// Steps by moment and serial number.
    pub(crate) steps: BTreeMap<(Nanos, u64), Step>,
    serial: u64,
    /// Place of the present life of each backend, and of each frontend.
    pub(crate) backends: Vec<Option<usize>>,
    pub(crate) frontends: Vec<Option<usize>>,
    /// Places of frontends whose application has let go of them.
    pub(crate) departing: Vec<usize>,
    /// Those that will start again.
    pub(crate) starting: Vec<Who>,
    /// Since when nothing that a host says reaches the scheduler.
    pub(crate) silent: BTreeMap<HostId, Nanos>,
    /// Since when nothing that a scheduler says reaches a host: the scheduler's host, and its.
    pub(crate) deaf: BTreeMap<(HostId, HostId), Nanos>,
    /// The repair killed a scheduler that was stopping: no member heard of the stop.
    pub(crate) stop_cut_short: bool,
    /// Counters of processes that are over.
    pub(crate) past: oracles::Past,
    pub(crate) faults: u32,
    pub(crate) states: States,
    /// What users got after the faults, if it is compared with the twin's.
    pub(crate) service: Option<Service>,
    pub(crate) whole: moments::Whole,
    pub(crate) next_look: Nanos,
    moments: u64,
    offering: bool,
    /// Before that the programs stand still.
    pub(crate) asks_from: Nanos,
}

/// A run has some 50,000 moments; one that reaches this bound does not end by itself.
const MOMENTS_MAX: u64 = 3_000_000;
/// By how much more moments a run has in which attackers keep agents busy.
const FLOODED: u64 = 8;
/// How often membership and bounds are looked at.
const LOOK_EVERY: Nanos = Nanos::from_millis(10);
/// Rates are measured over so long.
const RATE_WINDOW: Nanos = Nanos::from_millis(5_000);
/// For the cluster to come up.
const JOIN_BOUND: Nanos = Nanos::from_millis(1_000);

/// Runs a plan, and its twin where that is wanted; `log` keeps the event log's text.
pub(crate) fn run(plan: Plan, log: bool) -> (Report, Vec<String>) {
    let mut run = Run::new(plan, log);
    run.all();
    if let Some(service) = run.service.filter(|_| run.go_on() && !run.plan.faults.is_empty()) {
        let mut twin = Run::new(twin::of(&run.plan), false);
        twin.all();
        let undisturbed = twin.service.filter(|_| twin.go_on()).unwrap_or_default();
        if let Some(what) = twin::worse(service, undisturbed) {
            run.world.fail(what);
        }
    }
    if let Some(equals) = fairness::of(&run.plan).filter(|_| run.go_on()) {
        let mut among = Run::new(equals, false);
        let unfair = among.judge_fairness();
        run.states.equals_contended = among.states.equals_contended;
        if let Some(what) = unfair {
            run.world.fail(what);
        }
    }
    run.report()
}

impl Run {
    pub(crate) fn new(plan: Plan, log: bool) -> Self {
        let conditions = Conditions {
            link: plan.link,
            transport: plan.transport,
            engines: plan.engines,
            drift_ppm: plan.drift_ppm,
            // One cluster in three is being upgraded.
            speaks: if plan.seed.is_multiple_of(3) { Speaks::Drawn } else { Speaks::Own },
            log,
        };
        let world = World::new(plan.cluster.clone(), conditions, plan.seed);
        world.network.expect_pauses(pauses_end(&plan.faults));
        Self {
            world,
            applications: Applications::in_a_run(plan.is_calm()),
            steps: BTreeMap::new(),
            serial: 0,
            backends: vec![None; plan.cluster.backends.len()],
            frontends: vec![None; plan.frontends],
            departing: Vec::new(),
            starting: Vec::new(),
            silent: BTreeMap::new(),
            deaf: BTreeMap::new(),
            stop_cut_short: false,
            past: oracles::Past::default(),
            faults: 0,
            states: States::default(),
            service: None,
            whole: moments::Whole::default(),
            next_look: Nanos::ZERO,
            moments: 0,
            offering: false,
            asks_from: Nanos::ZERO,
            plan,
        }
    }

    fn all(&mut self) {
        self.come_up();
        if self.go_on() {
            self.offer_and_break();
        }
        if self.go_on() {
            self.recover();
        }
        if self.go_on() {
            self.prove_service();
        }
        if self.go_on() && twin::is_wanted(&self.plan) {
            self.service = Some(self.measure());
        }
        if self.go_on() {
            self.quieten();
        }
        if self.go_on() {
            oracles::at_the_end(self);
        }
    }

    /// True until something is wrong.
    pub(crate) fn go_on(&self) -> bool {
        self.world.ledger.borrow().failure().is_none()
    }

    pub(crate) fn at(&mut self, moment: Nanos, step: Step) {
        self.serial += 1;
        self.steps.insert((moment, self.serial), step);
    }

    pub(crate) fn come_up(&mut self) {
        self.world.start_scheduler();
        (0..self.backends.len()).for_each(|at| self.start(Who::Backend(at)));
        (0..self.frontends.len()).for_each(|at| self.start(Who::Frontend(at)));
        let up = self.pass_until(JOIN_BOUND, |run| run.world.all_joined());
        if !up && self.go_on() {
            self.world.fail("not everybody could join an undisturbed cluster".into());
        }
        // Until every thread of the scheduler knows, too.
        self.pass(Nanos::from_millis(10));
    }

    fn offer_and_break(&mut self) {
        let start = self.world.now;
        for (at, fault) in self.plan.faults.clone() {
            self.at(start + at, Step::Fault(fault));
        }
        for attack in self.plan.attacks.clone() {
            self.at(start + attack.from, Step::Attack(attack));
        }
        for (which, &(at, _)) in self.plan.changes.clone().iter().enumerate() {
            self.at(start + at, Step::Change(which));
        }
        self.offering = true;
        self.lie_in_wait();
        self.at(start, Step::Offer);
        self.pass(self.plan.span);
        self.offering = false;
        self.world.network.lie_in_wait(Vec::new());
        self.plan.ambushes.clear();
        self.states.longer_than_a_rate_window = self.world.now - start > RATE_WINDOW;
    }

    /// Everything is repaired; what was outstanding comes to its end.
    fn recover(&mut self) {
        self.world.stop_attackers();
        let timeout = self.plan.cluster.scheduler.member_timeout;
        // The slots of a backend load one model after another.
        let loads = Nanos::from_millis(LOAD_MAX_MS).times(3 * self.plan.changes.len() as u64);
        let longest = timeout.times(3) + Nanos::from_millis(3_000) + loads;
        self.await_operators(longest);
        self.repair();
        let settled = self.pass_until(longest, |run| {
            let settled = run.applications.outstanding() == 0 && run.world.owed_operators() == 0;
            settled && run.is_whole() && run.departing.is_empty()
        });
        if !settled && self.go_on() {
            let missing = self.missing();
            self.world.fail(format!("the cluster did not recover: {missing}"));
        }
    }

    /// Operators have their answers also while backends stay away.
    fn await_operators(&mut self, longest: Nanos) {
        let all_hear = self.silent.is_empty() && self.deaf.is_empty();
        if !all_hear || !self.plan.attacks.is_empty() {
            return;
        }
        let answered =
            self.pass_until(longest, |run| run.world.owed_operators() == 0 || run.is_stopping());
        if !answered && self.go_on() {
            let here = self.backends.iter().flatten().count();
            self.world
                .fail(format!("an operator waits for its answer, with {here} backends there"));
        }
    }

    pub(crate) fn is_whole(&self) -> bool {
        let all = self.backends.iter().chain(&self.frontends).all(Option::is_some);
        all && self.world.scheduler.is_some()
            && self.world.all_joined()
            && oracles::members_agree(self)
    }

    fn missing(&self) -> String {
        format!(
            "{} tasks without outcome, {} operators without answer, backends {:?}, frontends {:?}, joined {}, members agree {}",
            self.applications.outstanding(),
            self.world.owed_operators(),
            self.backends.iter().map(Option::is_some).collect::<Vec<_>>(),
            self.frontends.iter().map(Option::is_some).collect::<Vec<_>>(),
            self.world.all_joined(),
            oracles::members_agree(self)
        )
    }

    /// Nothing is asked for any more; what the last tasks left behind is cleared away.
    fn quieten(&mut self) {
        self.pass_until(Nanos::from_millis(1_500), oracles::is_drained);
    }

    pub(crate) fn pass(&mut self, span: Nanos) {
        let end = self.world.now + span;
        while self.world.now < end && self.go_on() {
            self.advance(end);
        }
    }

    pub(crate) fn pass_until(&mut self, bound: Nanos, done: impl Fn(&Self) -> bool) -> bool {
        let end = self.world.now + bound;
        while self.world.now < end && self.go_on() {
            if done(self) {
                return true;
            }
            // Conditions are looked at every so often, not at each of a thousand moments.
            let stop = end.min(self.world.now + Nanos::from_millis(2));
            while self.world.now < stop && self.go_on() {
                self.advance(stop);
            }
        }
        done(self)
    }

    fn advance(&mut self, end: Nanos) {
        while let Some((&key, _)) = self.steps.first_key_value() {
            if key.0 > self.world.now {
                break;
            }
            let step = self.steps.remove(&key).expect("seen above");
            self.take_step(step);
        }
        let next = self.steps.first_key_value().map_or(end, |(key, _)| key.0.min(end));
        self.world.step(next.max(self.world.now + Nanos(1)));
        let look = self.world.now >= self.next_look;
        self.applications.collect(&mut self.world, &self.plan.load, look);
        self.spring();
        self.look_at_those_given_up();
        self.supervise();
        self.whole = moments::whole(self, look);
        if look {
            self.next_look = self.world.now + LOOK_EVERY;
            oracles::while_it_runs(self);
        }
        self.moments += 1;
        let calm = self.plan.attacks.is_empty();
        let most = if calm { MOMENTS_MAX } else { MOMENTS_MAX * FLOODED };
        if self.moments == most {
            self.world.fail(format!("no end after {most} moments: an agent is busy for nothing"));
        }
    }

    fn look_at_those_given_up(&mut self) {
        for number in std::mem::take(&mut self.applications.given_up) {
            if let Some(what) = moments::left_behind(self, number) {
                self.world.fail(what);
            }
        }
    }

    fn take_step(&mut self, step: Step) {
        match step {
            Step::Fault(fault) => self.break_something(fault),
            Step::Start(who) => self.start(who),
            Step::Heal(a, b, from, to) => self.heal((a, b), from, to),
            Step::Answer(host) => self.world.network.answer_for(host),
            Step::StopRepeating => self.world.network.repeat(0),
            Step::Pace(backend, gpu) => self.with_gpu(backend, gpu, |gpu| gpu.set_pace(100)),
            Step::Offer if self.offering => self.offer(),
            Step::Offer => {}
            Step::Change(which) => self.world.start_operator(self.plan.changes[which].1.clone()),
            Step::Stopping(host, until, again) => self.go_on_stopping(host, until, again),
            Step::Attack(attack) => {
                // Frontends hear of a thief's batches only when its member is lost.
                if attack.kind == AttackerKind::Thief {
                    self.excuse(Holds::All, self.plan.span);
                }
                self.world.start_attacker(attack);
            }
        }
    }

    fn offer(&mut self) {
        if self.world.now < self.asks_from {
            return self.at(self.asks_from, Step::Offer);
        }
        let load = self.plan.load;
        let count =
            if load.burst > 1 && self.world.rng.random_range(0..4) == 0 { load.burst } else { 1 };
        for _ in 0..count {
            self.applications.submit(&mut self.world, &load);
        }
        let gap = load.gap.0 * u64::from(count);
        let next = self.world.now + Nanos(self.world.rng.random_range(0..=2 * gap).max(1_000));
        self.at(next, Step::Offer);
    }

    /// Models move where the plan says; for faults.
    pub(crate) fn move_model(&mut self, model: u32, to: usize) {
        if let Some(process) = &mut self.world.scheduler {
            let waiting = process.assembly.model_threads.iter().any(|thread| thread.waiting() > 0);
            self.states.model_moved_under_load |= waiting;
            process.assembly.control.move_model(ModelId(model), to);
        }
    }

    /// These tasks may be left to their lease from now on.
    pub(crate) fn excuse(&mut self, holds: Holds, long: Nanos) {
        let now = self.world.now;
        self.applications.excuse(now, now + long, holds);
    }

    /// What every process of the run has reached, the living included.
    fn marks(&mut self) -> Marks {
        self.world.frontends.iter().flatten().for_each(|process| self.past.frontend(process));
        self.world.backends.iter().flatten().for_each(|process| self.past.backend(process));
        self.world.scheduler.iter().for_each(|process| self.past.scheduler(process));
        let mut marks = Marks::default();
        self.past.mark(&mut marks);
        marks.note("run", self.states.pairs(self.world.ledger.borrow().loads));
        marks
    }

    fn report(mut self) -> (Report, Vec<String>) {
        let marks = self.marks();
        let ledger = self.world.ledger.borrow();
        let failure = ledger
            .failure()
            .map(|what| Failure { what: what.to_owned(), at_us: self.world.now.0 / 1_000 });
        let report = Report {
            seed: self.plan.seed,
            hash: self.world.trace.hash(),
            virtual_us: self.world.now.0 / 1_000,
            tasks: ledger.len() as u64,
            tally: self.applications.tally,
            executed: ledger.executed,
            executed_again: ledger.again,
            faults: self.faults,
            changes: self.world.changes,
            frames: self.world.network.watch(|watch| watch.frames),
            repeated: self.world.network.watch(|watch| watch.repeated),
            hostility: self.world.hostility(),
            hostile_rows: ledger.hostile,
            marks,
            failure,
        };
        drop(ledger);
        (report, self.world.trace.into_lines())
    }
}
