//! A model that lets its candidate fall behind during quiet periods, beside one that re-forms it with every
//! request: whatever RankState could grant is the same. A failing case is shrunk, printed, and kept
//! in a file beside this one to be replayed first.

use baton_core::{
    Alternative, Batch, BatchShape, Candidate, FrontendId, Gpu, GpuId, GpuUpdate, Grant,
    ModelConfig, ModelId, ModelSink, ModelState, Nanos, NetworkDelay, Patience, Policy, Prefer,
    Profile, Request, Rules, SlotPart, Slowdown, TaskId, Unserved,
};
use proptest::prelude::*;

const SLO: Nanos = Nanos::from_millis(30);
const US: u64 = 1_000;
const GPU: Gpu = Gpu { id: GpuId(0), life: 0 };

#[derive(Clone, Debug)]
enum Op {
    /// Time passes, then `count` tasks arrive whose deadline is this far ahead of then.
    Requests {
        after_us: u64,
        slo_us: u64,
        count: u64,
    },
    /// If the candidate is due, a slot that is free this much later.
    Grant {
        free_us: u64,
    },
    Measured {
        batch: u32,
        percent: u64,
    },
    Cancel {
        nth: u64,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let after_us = prop_oneof![10 => 0..1_500u64, 1 => 0..300_000u64];
    let slo_us = prop_oneof![8 => Just(30_000), 1 => 3_000..40_000u64];
    prop_oneof![
        20 => (after_us, slo_us, 1..4u64)
            .prop_map(|(after_us, slo_us, count)| Op::Requests { after_us, slo_us, count }),
        6 => (0..5_000u64).prop_map(|free_us| Op::Grant { free_us }),
        1 => (1..12u32, 80..130u64).prop_map(|(batch, percent)| Op::Measured { batch, percent }),
        1 => (0..30u64).prop_map(|nth| Op::Cancel { nth }),
    ]
}

fn config() -> impl Strategy<Value = ModelConfig> {
    let table = prop::collection::vec(0..1_500 * US, 1..14);
    let network = (0..300 * US, 0..100 * US, 0..500 * US, 0..400 * US);
    (table, network).prop_map(|(steps, (ctrl, data, response, jitter))| {
        let rise = |sum: &mut u64, step: u64| {
            *sum += step;
            Some(Nanos(*sum))
        };
        let table: Vec<Nanos> = steps.into_iter().scan(5_000 * US, rise).collect();
        ModelConfig {
            id: ModelId(0),
            profile: Profile::from_table(&table).expect("steps only rise"),
            slo: SLO,
            queue_capacity: 64,
            policy: Policy::Baton,
            prefer: Prefer::FewestGpus,
            network: NetworkDelay {
                ctrl: Nanos(ctrl),
                data_per_task: Nanos(data),
                response: Nanos(response),
                jitter: Nanos(jitter),
            },
        }
    })
}

/// What left a model; candidates are compared apart.
#[derive(Default, PartialEq, Debug)]
struct Out {
    batches: Vec<Vec<Request>>,
    updates: Vec<GpuUpdate>,
    ended: Vec<(TaskId, Unserved)>,
    published: Option<Candidate>,
    candidates: u32,
}

impl ModelSink for Out {
    fn candidate(&mut self, _: ModelId, candidate: Option<Candidate>, _: u32) {
        self.published = candidate;
        self.candidates += 1;
    }
    fn dispatch(&mut self, batch: &Batch<'_>) {
        self.batches.push(batch.requests().collect());
    }
    fn gpu(&mut self, update: GpuUpdate) {
        self.updates.push(update);
    }
    fn end_task(&mut self, task: TaskId, why: Unserved) {
        self.ended.push((task, why));
    }
}

struct Twins {
    now: Nanos,
    made: u64,
    lazy: (ModelState, Out),
    prompt: (ModelState, Out),
}

impl Twins {
    fn new(config: &ModelConfig, rules: Rules) -> Self {
        let model = || {
            let mut model = ModelState::new(config.clone());
            model.set_rules(rules);
            (model, Out::default())
        };
        Self { now: Nanos::from_millis(1_000), made: 0, lazy: model(), prompt: model() }
    }

    /// Under the rules of the policy.
    fn of(config: &ModelConfig) -> Self {
        Self::new(config, Rules::of(config.policy))
    }

    fn both(&mut self, each: impl Fn(&mut ModelState, Nanos, &mut Out)) {
        let now = self.now;
        for (model, out) in [&mut self.lazy, &mut self.prompt] {
            each(model, now, out);
        }
    }

    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Requests { after_us, slo_us, count } => {
                self.pass(Nanos(after_us * US));
                self.requests(Nanos(slo_us * US), count);
            }
            Op::Grant { free_us } => {
                if is_due(self.prompt.1.published, self.now) {
                    let slot_wait = Nanos(free_us * US / 2);
                    let size = free_us as u32 % 16;
                    let latency = self.lazy.0.latency();
                    let longest =
                        if (1..12).contains(&size) { latency.of(size) } else { Nanos::MAX };
                    let free_at = self.now + Nanos(free_us * US);
                    let grant = Grant {
                        gpu: GPU,
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
                    self.both(|model, now, out| model.on_grant(now, grant, out));
                }
            }
            Op::Measured { batch, percent } => {
                let took = Nanos(self.lazy.0.latency().of(batch).0 * percent / 100);
                self.both(|model, now, out| {
                    let _ = model.on_measured(BatchShape::of(batch), took, Slowdown::NONE);
                    // A new ℓ is looked at with the next input; here that is now.
                    model.reform(now, out);
                });
            }
            Op::Cancel { nth } => {
                let task = task(self.made.saturating_sub(nth));
                self.both(|model, now, out| _ = model.on_cancel(now, task, out));
            }
        }
        self.compare();
    }

    /// One pass: the lazy model catches up once, after all of them.
    fn requests(&mut self, slo: Nanos, count: u64) {
        let now = self.now;
        let mut is_stale = false;
        for _ in 0..count {
            self.made += 1;
            let request = Request::new(task(self.made), now + slo);
            is_stale |= self.lazy.0.enqueue(now, request, &mut self.lazy.1);
            self.prompt.0.on_request(now, request, &mut self.prompt.1);
        }
        if is_stale {
            self.lazy.0.catch_up(now, &mut self.lazy.1);
        }
    }

    /// Timers fire when they are due, the models' and RankState's.
    fn pass(&mut self, span: Nanos) {
        let end = self.now + span;
        loop {
            let timers = [self.lazy.0.next_timer(), self.prompt.0.next_timer()];
            let falls_due = self.prompt.1.published.map(|c| c.exec_at - c.delay);
            let moments = timers.into_iter().chain([falls_due.filter(|&due| due > self.now)]);
            let Some(next) = moments.flatten().min().filter(|&next| next <= end) else { break };
            self.now = self.now.max(next);
            self.both(ModelState::on_timer);
            self.compare();
        }
        self.now = end;
    }

    /// What RankState may act on is the same, and all that has left.
    fn compare(&self) {
        let ((_, lazy), (_, prompt)) = (&self.lazy, &self.prompt);
        if is_due(lazy.published, self.now) || is_due(prompt.published, self.now) {
            assert_eq!(lazy.published, prompt.published);
        }
        assert_eq!(lazy.batches, prompt.batches);
        assert_eq!(lazy.updates, prompt.updates);
        assert_eq!(lazy.ended, prompt.ended);
        assert!(lazy.candidates <= prompt.candidates);
        assert_eq!(self.lazy.0.waiting(), self.prompt.0.waiting());
    }
}

fn task(number: u64) -> TaskId {
    TaskId::new(FrontendId(0), number as u32, 0)
}

fn is_due(candidate: Option<Candidate>, now: Nanos) -> bool {
    candidate.is_some_and(|candidate| candidate.exec_at - candidate.delay <= now)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]
    #[test]
    fn falling_behind_changes_nothing_that_matters(
        config in config(),
        rules in prop::sample::select(&Alternative::ALL[..]).prop_map(Alternative::rules),
        ops in prop::collection::vec(op(), 1..200),
    ) {
        let mut twins = Twins::new(&config, rules);
        ops.iter().for_each(|op| twins.apply(op));
    }
}

#[test]
fn a_steady_stream_needs_few_candidates() {
    let ms = Nanos::from_millis;
    let mut twins = Twins::of(&ModelConfig {
        id: ModelId(0),
        profile: Profile::linear(ms(1), ms(5), 32).expect("it is a line"),
        slo: ms(60),
        queue_capacity: 256,
        policy: Policy::Baton,
        prefer: Prefer::FewestGpus,
        network: NetworkDelay::default(),
    });
    for round in 0..4_000u64 {
        twins.apply(&Op::Requests { after_us: 700, slo_us: 60_000, count: 1 });
        if round % 20 == 19 {
            twins.apply(&Op::Grant { free_us: 0 });
        }
    }
    let (lazy, prompt) = (twins.lazy.1.candidates, twins.prompt.1.candidates);
    assert!(lazy * 3 < prompt * 2, "{lazy} candidates instead of {prompt}");
}

/// Three tasks wait, of which only the prompt model's candidate has all: nothing of them is due for long.
fn in_a_quiet_period() -> Twins {
    let ms = Nanos::from_millis;
    let mut twins = Twins::of(&ModelConfig {
        id: ModelId(0),
        profile: Profile::linear(ms(1), ms(5), 32).expect("it is a line"),
        slo: ms(60),
        queue_capacity: 256,
        policy: Policy::Symphony,
        prefer: Prefer::FewestGpus,
        network: NetworkDelay::default(),
    });
    for _ in 0..3 {
        twins.apply(&Op::Requests { after_us: 100, slo_us: 60_000, count: 1 });
    }
    assert_eq!(batches(&twins), [1, 3]);
    twins
}

fn batches(twins: &Twins) -> [u32; 2] {
    [&twins.lazy, &twins.prompt].map(|twin| twin.0.candidate().expect("tasks wait").batch)
}

/// The old profile says how long the arrivals may go without a look.
#[test]
fn a_new_profile_ends_the_quiet_period_of_the_old_one() {
    let ms = Nanos::from_millis;
    let mut twins = in_a_quiet_period();
    let slower = Profile::linear(ms(2), ms(40), 32).expect("it is a line");
    let patience = Patience::new(&slower);
    twins.both(|model, _, _| model.set_profiles(std::slice::from_ref(&slower), patience.clone()));
    twins.requests(ms(60), 1);
    assert_eq!(batches(&twins), [4, 4]);
}

/// As does the old objective.
#[test]
fn another_objective_ends_the_quiet_period_of_the_old_one() {
    let mut twins = in_a_quiet_period();
    twins.both(|model, _, _| model.set_objective(Nanos::from_millis(90)));
    twins.requests(Nanos::from_millis(60), 1);
    assert_eq!(batches(&twins), [4, 4]);
}
