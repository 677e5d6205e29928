//! Fair admission task by task: who is refused, who has to leave, what frontends hear and what is
//! counted. How well frontends fare by it: `fair_admission.rs`.
mod world;

use std::collections::BTreeMap;

use baton_core::{
    Batch, Candidate, FrontendId, Gpu, GpuId, GpuUpdate, Grant, ModelCounters, ModelId, ModelSink,
    ModelState, Nanos, Policy, Request, SlotPart, Slowdown, TaskId, Unserved,
};
use world::{linear, ms};

const SLO: Nanos = Nanos::from_millis(30);
/// ℓ(1)
const ALONE: Nanos = Nanos::from_millis(5);
/// Asks for an eighth of what the slot can do.
const MODEST: FrontendId = FrontendId(0);
/// Ask for several times that each.
const GREEDY: FrontendId = FrontendId(1);
const OTHER: FrontendId = FrontendId(2);
/// At most this many leave for one.
const LEAVE_MAX: usize = 32;

/// What a model has decided.
#[derive(Default)]
struct Decided {
    /// Tasks that left the queue or were not let in, in order.
    gone: Vec<TaskId>,
    /// Of these, those told that their frontend asks for too much, and when to come again.
    over_share: Vec<(TaskId, Nanos)>,
    bad_rate: u32,
}

impl ModelSink for Decided {
    fn candidate(&mut self, _: ModelId, candidate: Option<Candidate>, _: u32) {
        self.bad_rate = candidate.map_or(self.bad_rate, |candidate| candidate.bad_rate);
    }

    fn dispatch(&mut self, batch: &Batch<'_>) {
        self.gone.extend(batch.requests().map(|request| request.task));
    }

    fn gpu(&mut self, _: GpuUpdate) {}

    fn end_task(&mut self, task: TaskId, _: Unserved) {
        self.gone.push(task);
    }

    fn over_share(&mut self, task: TaskId, retry_after: Nanos) {
        self.gone.push(task);
        self.over_share.push((task, retry_after));
    }
}

/// A model that is asked for much more than its one slot can do.
struct Rush {
    model: ModelState,
    decided: Decided,
    now: Nanos,
    asked: u32,
    /// What the greedy one asks for in a millisecond.
    flood: u32,
    /// For how long its slot has been idle when it is granted.
    idle: Nanos,
    /// Deadlines of those that nothing was decided about.
    waiting: BTreeMap<TaskId, Nanos>,
}

impl Rush {
    fn new() -> Self {
        Self {
            model: ModelState::shared(linear(Policy::Baton, 1.0, 4.0, SLO.as_millis_f64()), 8),
            decided: Decided::default(),
            now: ms(1_000.0),
            asked: 0,
            flood: 4,
            idle: Nanos::ZERO,
            waiting: BTreeMap::new(),
        }
    }

    /// One that has just begun: the first tasks were refused.
    fn begun() -> Self {
        let mut rush = Self::new();
        while rush.counters().over_share == 0 {
            assert!(rush.asked < 100_000, "no frontend is ever limited");
            rush.pass();
        }
        rush
    }

    fn counters(&self) -> ModelCounters {
        self.model.counters()
    }

    fn ask(&mut self, frontend: FrontendId) -> TaskId {
        self.asked += 1;
        let task = TaskId::new(frontend, self.asked, 0);
        let request = Request::new(task, self.now + SLO);
        self.waiting.insert(task, request.deadline);
        if self.model.enqueue(self.now, request, &mut self.decided) {
            self.model.catch_up(self.now, &mut self.decided);
        }
        self.take();
        if !self.waiting.contains_key(&task) {
            let due = self.model.candidate().is_some_and(|candidate| candidate.exec_at <= self.now);
            assert!(due, "no other task is let in, and the batch still waits for others");
        }
        task
    }

    /// How many leave for a task of the one that asks for little.
    fn leave_for_one(&mut self) -> usize {
        let before = self.counters().over_share;
        self.ask(MODEST);
        (self.counters().over_share - before) as usize
    }

    /// A millisecond with what is asked for in it.
    fn pass(&mut self) {
        let end = self.now + ms(1.0);
        while let Some(at) = self.model.next_timer().filter(|&at| at <= end) {
            self.now = self.now.max(at);
            self.model.on_timer(self.now, &mut self.decided);
        }
        self.now = end;
        let round = self.now.0 / 1_000_000;
        if round.is_multiple_of(20) {
            let gpu = Gpu { id: GpuId(0), life: 0 };
            let (slot_wait, longest) = (Nanos::ZERO, Nanos::MAX);
            let grant = Grant {
                gpu,
                free_at: self.now - self.idle,
                port_wait: Nanos::ZERO,
                slowdown: Slowdown::NONE,
                slot_wait,
                longest,
                spare: 1,
                part: SlotPart::NONE,
                is_short_of_slots: false,
                others_lose: false,
            };
            self.model.on_grant(self.now, grant, &mut self.decided);
        }
        self.take();
        if round.is_multiple_of(16) {
            self.ask(MODEST);
        }
        for _ in 0..self.flood {
            self.ask(GREEDY);
        }
    }

    /// Of each task something is decided once, and what is decided is counted.
    fn take(&mut self) {
        for task in self.decided.gone.drain(..) {
            assert!(self.waiting.remove(&task).is_some(), "{task:?} leaves twice");
        }
        let (counters, waiting) = (self.counters(), self.waiting.len() as u64);
        assert_eq!(self.model.waiting(), self.waiting.len(), "a task left without a decision");
        assert_eq!(counters.received, counters.dispatched + counters.ended + waiting);
        assert_eq!(counters.over_share, self.decided.over_share.len() as u64);
    }

    /// A greedy one asks until it is refused, within this moment. What is too much leaves.
    fn fill(&mut self, greedy: FrontendId) {
        let refused = |rush: &mut Self| {
            let task = rush.ask(greedy);
            !rush.waiting.contains_key(&task)
        };
        assert!((0..200).any(|_| refused(self)), "the queue does not fill");
        self.ask(MODEST);
    }

    fn waiting_of(&self, frontend: FrontendId) -> Vec<TaskId> {
        let of = |task: &&TaskId| task.frontend() == frontend;
        let mut tasks: Vec<TaskId> = self.waiting.keys().filter(of).copied().collect();
        tasks.sort_by_key(|task| (self.waiting[task], *task));
        tasks
    }
}

#[test]
fn a_frontend_that_asks_for_too_much_is_refused_when_the_queue_is_full() {
    let mut rush = Rush::begun();
    (0..100).for_each(|_| rush.pass());
    rush.fill(GREEDY);
    // The slot comes every 20 ms, and ℓ(5) = 9 ms end in the 10 ms that are left then.
    assert_eq!(rush.waiting.len(), 5);
    let before = rush.counters();
    let task = rush.ask(GREEDY);
    let after = rush.counters();
    let one_more = ModelCounters {
        received: before.received + 1,
        ended: before.ended + 1,
        over_share: before.over_share + 1,
        ..before
    };
    assert_eq!(after, one_more);
    let head = rush.waiting.values().min().expect("the queue is full");
    let gone = *head - ALONE + Nanos(1) - rush.now;
    assert!(gone < SLO);
    assert_eq!(rush.decided.over_share.last(), Some(&(task, gone)), "when the head has gone");
}

#[test]
fn a_modest_frontend_takes_the_place_of_the_newest_task_of_greedy_ones() {
    let mut rush = Rush::begun();
    (0..100).for_each(|_| rush.pass());
    rush.fill(GREEDY);
    let room = rush.waiting.len();
    while let Some(&newest) = rush.waiting_of(GREEDY).last() {
        let before = rush.counters().over_share;
        let task = rush.ask(MODEST);
        assert!(rush.waiting.contains_key(&task));
        assert_eq!(rush.decided.over_share.last().map(|told| told.0), Some(newest));
        assert_eq!((rush.counters().over_share, rush.waiting.len()), (before + 1, room));
    }
    let task = rush.ask(MODEST);
    assert!(rush.waiting.contains_key(&task), "no task is left to go, and it is let in");
    assert_eq!(rush.waiting.len(), room + 1);
}

#[test]
fn a_long_queue_is_cut_in_steps() {
    let mut rush = Rush::begun();
    let mut steps = vec![rush.leave_for_one()];
    while steps.last() == Some(&LEAVE_MAX) {
        steps.push(rush.leave_for_one());
    }
    assert!(steps.len() > 1 && steps.iter().all(|&left| left <= LEAVE_MAX), "{steps:?}");
    let greedy = rush.waiting_of(GREEDY).len();
    assert_eq!(rush.leave_for_one(), greedy.min(1), "it is as short as it has to be");
    let cut = rush.waiting.len();
    rush.ask(GREEDY);
    assert_eq!(rush.waiting.len(), cut, "and no shorter");
}

/// Two who ask for too much take turns in what is left: neither sends the other's tasks away for as many
/// of its own.
#[test]
fn of_those_who_ask_for_too_much_the_one_with_fewer_waiting_is_let_in() {
    let mut rush = Rush::begun();
    for _ in 0..200 {
        for _ in 0..4 {
            rush.ask(OTHER);
        }
        rush.pass();
    }
    for (asks, has) in [(OTHER, GREEDY), (GREEDY, OTHER)] {
        for task in rush.waiting_of(asks) {
            assert!(rush.model.on_cancel(rush.now, task, &mut rush.decided));
        }
        rush.take();
        rush.fill(has);
        let mut outcomes = [0; 2];
        for _ in 0..20 {
            let (mine, theirs) = (rush.waiting_of(asks).len(), rush.waiting_of(has).len());
            let task = rush.ask(asks);
            let let_in = rush.waiting.contains_key(&task);
            assert_eq!(let_in, theirs > mine + 1, "{asks:?} has {mine}, {has:?} {theirs}");
            outcomes[usize::from(let_in)] += 1;
        }
        assert!(outcomes[0] > 0 && outcomes[1] > 0, "{outcomes:?}");
    }
}

/// What a slot is worth to a model depends on how many of its tasks are lost.
#[test]
fn who_is_refused_or_leaves_counts_as_lost_for_the_bad_rate() {
    for flood in [1, 4] {
        let mut rush = Rush::begun();
        rush.flood = flood;
        (0..1_000).for_each(|_| rush.pass());
        let before = rush.counters();
        (0..5_000).for_each(|_| rush.pass());
        let after = rush.counters();
        let lost = after.given_up + after.over_share - before.given_up - before.over_share;
        let share = lost as f64 / (after.received - before.received) as f64;
        let bad_rate = f64::from(rush.decided.bad_rate) / 65_536.0;
        assert!(share > 0.3 && (bad_rate / share - 1.0).abs() < 0.03, "{bad_rate:.3} {share:.3}");
    }
}

/// Such a limit refuses tasks that would be served.
#[test]
fn a_limit_under_which_slots_are_idle_for_a_quarter_of_the_objective_lets_more_tasks_wait() {
    let waiting = |idle: Nanos| {
        let mut rush = Rush { idle, ..Rush::begun() };
        let each = (0..1_000).map(|_| {
            rush.pass();
            rush.waiting.len()
        });
        each.last().expect("a thousand")
    };
    let [never, less, enough] = [0, SLO.0 / 4 - 1, SLO.0 / 4].map(|idle| waiting(Nanos(idle)));
    assert!(never == less && enough > less, "{never} {less} {enough}");
}
