//! ModelState against a model of it that remembers everything and recomputes everything, by trying
//! every window. Random requests, cancellations, grants, measurements and timers; a failing case is
//! shrunk, printed, and kept in a file beside this one to be replayed first.
mod naive;

use std::collections::BTreeMap;

use baton_core::{
    Alternative, Batch, BatchShape, Candidate, DropReason, FrontendId, Gpu, GpuId, GpuUpdate,
    Grant, ModelConfig, ModelId, ModelSink, ModelState, Nanos, NetworkDelay, Patience, Policy,
    Prefer, Profile, Request, Rules, SlotPart, Slowdown, TaskId, Unserved,
};
use naive::{Naive, Start};
use proptest::prelude::*;

const SLO: Nanos = Nanos::from_millis(30);
const CAPACITY: usize = 24;
const US: u64 = 1_000;

#[derive(Clone, Debug)]
enum Op {
    /// Time passes, then a task arrives whose deadline is this far ahead of then.
    Request {
        after_us: u64,
        slo_us: u64,
        frontend: u16,
    },
    /// A grant of a slot that is free this much later.
    Grant {
        free_us: u64,
    },
    Measured {
        batch: u32,
        percent: u64,
    },
    Cancel {
        nth: usize,
    },
    FrontendLost(u16),
    Requeue {
        slo_us: u64,
    },
    /// A profile that takes this percentage of the present one's time.
    Profile {
        percent: u64,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let after_us = prop_oneof![5 => Just(0), 10 => 0..3_000u64, 1 => 0..400_000u64];
    let slo_us = || prop_oneof![1 => Just(0), 4 => Just(30_000), 8 => 5_000..40_000u64];
    prop_oneof![
        20 => (after_us, slo_us(), 0..3u16).prop_map(|(after_us, slo_us, frontend)| {
            Op::Request { after_us, slo_us, frontend }
        }),
        3 => (0..20_000u64).prop_map(|free_us| Op::Grant { free_us }),
        2 => (0..12u32, 50..200u64).prop_map(|(batch, percent)| Op::Measured { batch, percent }),
        1 => (0..CAPACITY).prop_map(|nth| Op::Cancel { nth }),
        1 => (0..3u16).prop_map(Op::FrontendLost),
        1 => slo_us().prop_map(|slo_us| Op::Requeue { slo_us }),
        1 => (60..150u64).prop_map(|percent| Op::Profile { percent }),
    ]
}

fn config() -> impl Strategy<Value = ModelConfig> {
    let table = prop::collection::vec(0..3_000 * US, 1..12);
    let network = (0..300 * US, 0..200 * US, 0..500 * US, 0..800 * US);
    let prefer = prop_oneof![2 => Just(Prefer::Latency), 1 => Just(Prefer::FewestGpus)];
    let config = |(steps, (ctrl, data, response, jitter), prefer): (Vec<u64>, _, _)| {
        let rise = |sum: &mut u64, step: u64| {
            *sum += step;
            Some(Nanos(*sum))
        };
        let table: Vec<Nanos> = steps.into_iter().scan(5_000 * US, rise).collect();
        ModelConfig {
            id: ModelId(3),
            profile: Profile::from_table(&table).expect("steps only rise"),
            slo: SLO,
            queue_capacity: CAPACITY as u32,
            policy: Policy::Baton,
            prefer,
            network: NetworkDelay {
                ctrl: Nanos(ctrl),
                data_per_task: Nanos(data),
                response: Nanos(response),
                jitter: Nanos(jitter),
            },
        }
    };
    (table, network, prefer).prop_map(config)
}

/// Those of every policy, and those that `baton` takes instead of its own.
fn rules() -> impl Strategy<Value = Rules> {
    let policies = [Policy::Baton, Policy::Symphony, Policy::Eager].map(Rules::of);
    let alternatives = prop::sample::select(&Alternative::ALL[..]).prop_map(Alternative::rules);
    prop_oneof![prop::sample::select(policies.to_vec()), alternatives]
}

/// What the ModelState said, and who is in its queue according to that.
#[derive(Default)]
struct Out {
    published: Option<Candidate>,
    /// RankState waits for word, changed or not.
    answers_grant: bool,
    /// Tasks that left, and how: a batch, or an end.
    batch: Vec<Request>,
    ended: BTreeMap<TaskId, Unserved>,
    updates: Vec<GpuUpdate>,
}

impl ModelSink for Out {
    fn candidate(&mut self, model: ModelId, candidate: Option<Candidate>, _: u32) {
        assert_eq!(model, ModelId(3));
        assert!(std::mem::take(&mut self.answers_grant) || candidate != self.published, "no news");
        self.published = candidate;
    }
    fn dispatch(&mut self, batch: &Batch<'_>) {
        assert!(self.batch.is_empty(), "one batch per grant");
        self.batch.extend(batch.requests());
    }
    fn gpu(&mut self, update: GpuUpdate) {
        self.updates.push(update);
        self.answers_grant = true;
    }
    fn end_task(&mut self, task: TaskId, why: Unserved) {
        assert!(self.ended.insert(task, why).is_none(), "{task:?} ended twice");
    }
}

/// The ModelState, the naive model, and the time both live in.
struct Pair {
    model: ModelState,
    naive: Naive,
    out: Out,
    now: Nanos,
    tasks: u32,
}

impl Pair {
    fn new(config: ModelConfig, rules: Rules) -> Self {
        let mut model = ModelState::new(config.clone());
        model.set_rules(rules);
        let naive = Naive::new(config, rules, model.latency());
        Self { model, naive, out: Out::default(), now: Nanos(7), tasks: 0 }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Request { after_us, slo_us, frontend } => {
                self.pass(Nanos::from_micros(after_us));
                self.request(Nanos::from_micros(slo_us), frontend);
            }
            Op::Grant { free_us } => self.grant(self.now + Nanos::from_micros(free_us)),
            Op::Measured { batch, percent } => {
                let profiled = self.naive.config.profile.latency(batch);
                let took = Nanos(profiled.0 * percent / 100);
                let _ = self.model.on_measured(BatchShape::of(batch), took, Slowdown::NONE);
                self.refresh();
            }
            Op::Cancel { nth } => self.cancel(nth),
            Op::FrontendLost(frontend) => self.lose(FrontendId(frontend)),
            Op::Requeue { slo_us } => self.requeue(Nanos::from_micros(slo_us)),
            Op::Profile { percent } => self.replace_profile(percent),
        }
        self.check();
    }

    fn replace_profile(&mut self, percent: u64) {
        let scale = |latency: &Nanos| Nanos(latency.0 * percent / 100);
        let table: Vec<Nanos> = self.naive.config.profile.table().iter().map(scale).collect();
        self.naive.config.profile = Profile::from_table(&table).expect("scaling keeps the order");
        let profile = self.naive.config.profile.clone();
        let patience = Patience::new(&profile);
        self.model.set_profiles(&[profile], patience);
        self.naive.retarget(self.model.latency());
        self.refresh();
    }

    /// Fires every timer on the way.
    fn pass(&mut self, span: Nanos) {
        let until = self.now + span;
        while let Some(at) = self.model.next_timer().filter(|&at| at <= until) {
            self.now = self.now.max(at);
            self.model.on_timer(self.now, &mut self.out);
            self.end_hopeless(Nanos::ZERO);
            self.check();
        }
        self.now = until;
    }

    fn next_task(&mut self, frontend: u16) -> TaskId {
        self.tasks += 1;
        TaskId::new(FrontendId(frontend), self.tasks, 0)
    }

    fn request(&mut self, slo: Nanos, frontend: u16) {
        let request = Request::new(self.next_task(frontend), self.now + slo);
        self.model.on_request(self.now, request, &mut self.out);
        self.naive.arrived(self.now, self.model.latency());
        let deadline = request.deadline - self.naive.config.network.response;
        self.admit(Request { deadline, ..request }, Unserved::Dropped(DropReason::DeadlinePassed));
    }

    fn requeue(&mut self, slo: Nanos) {
        let request = Request::new(self.next_task(9), self.now + slo);
        let otherwise = Unserved::Dropped(DropReason::Deadline);
        self.model.on_requeue(self.now, request, otherwise, &mut self.out);
        self.admit(request, otherwise);
    }

    /// Queues the task in the naive model, unless it is refused: then the same reason is due.
    fn admit(&mut self, request: Request, too_late: Unserved) {
        let start = Start { now: self.now, free_at: Nanos::ZERO };
        if !self.naive.fits(self.model.latency(), start, 1, request.deadline) {
            assert_eq!(self.out.ended.get(&request.task), Some(&too_late));
            self.refresh();
        } else if self.naive.waiting.len() == CAPACITY {
            assert!(self.out.ended.contains_key(&request.task), "the queue is full");
            self.refresh();
        } else {
            self.naive.waiting.push(request);
            let NetworkDelay { response, .. } = self.naive.config.network;
            let objective = self.now + SLO - response;
            if request.deadline > objective {
                self.naive.objective = self.naive.objective.min(objective);
            }
            self.naive.waiting.sort_by_key(|r| r.deadline);
            self.end_hopeless(Nanos::ZERO);
        }
    }

    /// ℓ may have changed under the candidate; any input that touches the queue brings it up to date.
    fn refresh(&mut self) {
        self.lose(FrontendId(u16::MAX));
    }

    fn end_hopeless(&mut self, free_at: Nanos) {
        let start = Start { now: self.now, free_at };
        for task in self.naive.hopeless(self.model.latency(), start) {
            let why = self.out.ended.get(&task);
            assert_eq!(why, Some(&Unserved::Dropped(DropReason::Deadline)), "told at once");
            self.naive.waiting.retain(|r| r.task != task);
            self.naive.gave_up();
        }
    }

    fn grant(&mut self, free_at: Nanos) {
        let gpu = Gpu { id: GpuId(0), life: 0 };
        let slot_wait = Nanos(free_at.0 % 3_000_000);
        let is_shared = free_at.0.is_multiple_of(3);
        let longest = if is_shared { Nanos(free_at.0 % 40_000_000) } else { Nanos::MAX };
        let grant = Grant {
            gpu,
            free_at,
            port_wait: Nanos::ZERO,
            slowdown: Slowdown::NONE,
            slot_wait,
            longest,
            spare: 1,
            part: SlotPart::NONE,
            is_short_of_slots: false,
            others_lose: false,
        };
        self.naive.granted(grant, self.model.latency());
        self.model.on_grant(self.now, grant, &mut self.out);
        self.end_hopeless(free_at);
        let start = Start { now: self.now, free_at };
        let (head, batch) = self.naive.window(self.model.latency(), start).unwrap_or((0, 0));
        let sealed: Vec<Request> = self.naive.waiting.drain(head..head + batch as usize).collect();
        let passed_over = if self.naive.rules.passes_over { 0 } else { head };
        let given_up: Vec<Request> = self.naive.waiting.drain(..passed_over).collect();
        assert_eq!(std::mem::take(&mut self.out.batch), sealed);
        let window = Some(&Unserved::Dropped(DropReason::Window));
        assert!(given_up.iter().all(|r| self.out.ended.get(&r.task) == window));
        given_up.iter().for_each(|_| self.naive.gave_up());
        let returned = self.out.updates.pop() == Some(GpuUpdate::Returned { gpu });
        assert_eq!(returned, sealed.is_empty());
        self.end_hopeless(Nanos::ZERO);
    }

    fn cancel(&mut self, nth: usize) {
        let Some(task) = self.naive.waiting.get(nth).map(|r| r.task) else { return };
        assert!(self.model.on_cancel(self.now, task, &mut self.out));
        self.naive.waiting.remove(nth);
        self.end_hopeless(Nanos::ZERO);
        assert!(!self.model.on_cancel(self.now, task, &mut self.out), "it is gone");
    }

    fn lose(&mut self, frontend: FrontendId) {
        self.model.on_frontend_lost(self.now, frontend, &mut self.out);
        let lost = |r: &Request| r.task.frontend() == frontend;
        let gone = Some(&Unserved::Dropped(DropReason::FrontendLost));
        let waiting = &mut self.naive.waiting;
        assert!(waiting.iter().filter(|r| lost(r)).all(|r| self.out.ended.get(&r.task) == gone));
        waiting.retain(|r| !lost(r));
        self.end_hopeless(Nanos::ZERO);
    }

    fn check(&mut self) {
        if self.naive.waiting.is_empty() {
            self.naive.objective = Nanos::MAX;
            self.naive.emptied(self.now);
        }
        let naive = self.naive.candidate(self.model.latency(), self.now);
        let consistent = |model: Option<Candidate>| match (model, naive) {
            // A candidate that may start at once keeps the moment at which it was formed.
            (Some(model), Some(naive)) if model.exec_at < naive.exec_at => {
                let at_once = naive.exec_at == self.now + naive.delay;
                at_once && Candidate { exec_at: naive.exec_at, ..model } == naive
            }
            _ => model == naive,
        };
        let model = self.model.candidate();
        assert!(consistent(model), "{model:?}, but recomputed {naive:?}");
        assert_eq!(self.out.published, model, "what RankState knows");
        assert_eq!(self.model.waiting(), self.naive.waiting.len());
        let moment = self.naive.next_moment(self.model.latency(), model);
        assert_eq!(self.model.next_timer(), moment);
    }
}

proptest! {
    #[test]
    fn it_agrees_with_recomputing_everything(
        config in config(),
        rules in rules(),
        ops in prop::collection::vec(op(), 1..120),
    ) {
        let mut pair = Pair::new(config, rules);
        ops.iter().for_each(|op| pair.apply(op));
        pair.pass(Nanos::from_millis(100));
        prop_assert_eq!(pair.model.waiting(), 0, "every task ends by its deadline");
    }
}
