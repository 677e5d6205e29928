//! The same in virtual time: the agents, the generator and the limits are real, and nothing else
//! moves.

use baton_core::Policy;
use std::sync::atomic::Ordering;

use baton_topo::Agent;

use super::*;
use crate::sched::agents::Agents;
use crate::sched::counts::ModelCounts;
use crate::sched::traffic::{self, TrafficCounts};

const SHAPE: Shape = Shape {
    policy: Policy::Baton,
    model_threads: 2,
    models: 6,
    gpus: 8,
    variants: 1,
    seconds: 0.0,
    rate: None,
    seed: 1,
};
/// What GPUs and profiles are made for.
const RATE: f64 = 20_000.0;
/// Between two passes of every agent.
const STEP: Nanos = Nanos::from_micros(50);
const WARM_UP: Nanos = Nanos::from_millis(400);
/// Longer than any SLO.
const RUN_DRY: Nanos = Nanos::from_millis(200);
const SPAN: Nanos = Nanos::from_millis(500);

/// One run in virtual time.
struct Virtual {
    agents: Agents,
    now: Nanos,
}

impl Virtual {
    fn new(workload: &Workload) -> Self {
        Self { agents: Agents::new(workload), now: Nanos::from_millis(1_000) }
    }

    fn run(&mut self, span: Nanos) {
        let end = self.now + span;
        while self.now < end {
            self.now = self.now + STEP;
            self.agents.poll_model_threads(self.now);
            self.agents.path.rank.poll(self.now);
        }
    }

    fn counts(&self) -> (TrafficCounts, [u64; 4]) {
        let of = |thread: usize| {
            let agent = &self.agents.path.model_threads[thread];
            ModelCounts::read(agent, &self.agents.counters.model_threads[thread])
        };
        let all: Vec<ModelCounts> = (0..self.agents.traffic.len()).map(of).collect();
        let sum = |of: fn(&ModelCounts) -> u64| all.iter().map(of).sum();
        let ended = [
            sum(|c| c.requests),
            sum(|c| c.queue_full),
            sum(|c| c.deadline_passed),
            sum(|c| c.dropped),
        ];
        (traffic::read(&self.agents.traffic), ended)
    }

    /// Once nothing comes any more, every task has an outcome, and none has two.
    fn run_dry(&mut self) {
        self.agents.quiet.store(true, Ordering::Relaxed);
        self.run(RUN_DRY);
        for (agent, seen) in self.agents.path.model_threads.iter().zip(&self.agents.traffic) {
            assert_eq!(seen.violations.get(), 0, "outcomes too many");
            assert_eq!((agent.waiting(), agent.in_flight()), (0, 0), "the agents keep tasks");
            assert_eq!(seen.open.get(), 0, "a task was forgotten");
        }
    }
}

fn measure(workload: &Workload) -> Load {
    let mut world = Virtual::new(workload);
    world.run(WARM_UP);
    let (seen_before, before) = world.counts();
    world.run(SPAN);
    let (seen, after) = world.counts();
    world.run_dry();
    let seen = seen.since(seen_before);
    let [admitted, queue_full, passed, ended] =
        std::array::from_fn(|at| (after[at] - before[at]) as f64);
    let per_s = |count: f64| count / SPAN.0 as f64 * 1e9;
    Load {
        offered_rps: per_s(seen.offered as f64),
        admitted_rps: per_s(admitted),
        goodput_rps: per_s(seen.good as f64),
        refused_connection_full_rps: per_s(seen.refused as f64),
        refused_queue_full_rps: per_s(queue_full),
        refused_deadline_passed_rps: per_s(passed),
        dropped_rps: per_s(ended - queue_full - passed),
    }
}

fn workload(policy: Policy, rate: f64) -> Workload {
    let mut workload = Workload::new(Shape { policy, rate: Some(rate), ..SHAPE }, RATE);
    workload.watched = true;
    workload
}

#[test]
fn with_twice_what_the_gpus_can_do_goodput_stays() {
    let short_queues = |policy, rate| workload(policy, rate);
    let deep_queues = |policy, rate| Workload { queue_capacity: 1 << 14, ..workload(policy, rate) };
    for policy in [Policy::Baton, Policy::Symphony] {
        let find = |of: &dyn Fn(Policy, f64) -> Workload| {
            let capacity = of(policy, RATE).capacity_rps();
            Limit::find(capacity, 2.0, |rate| Ok(measure(&of(policy, rate)))).unwrap()
        };
        let (short, deep) = (find(&short_queues), find(&deep_queues));
        for limit in [&short, &deep] {
            let Limit { kept, at, past } = limit;
            let given_up = past.refused_queue_full_rps + past.dropped_rps;
            assert!(given_up > 0.8 * at.goodput_rps, "{policy:?}: no overload: {limit:?}");
            assert!(*kept >= 0.95, "{policy:?}: {limit:?}");
        }
        assert!(short.past.refused_queue_full_rps > 0.8 * RATE, "{policy:?}: {short:?}");
        assert_eq!(deep.past.refused_queue_full_rps, 0.0, "{policy:?}: {deep:?}");
    }
}

/// One request per pass and thread, and GPUs for four times as many.
fn slow_threads(rate: f64, ingress_max: usize) -> Workload {
    let workload = Workload::new(Shape { rate: Some(rate), ..SHAPE }, 4.0 * READ_RPS);
    Workload { per_poll: 1, watched: true, ingress_max, ..workload }
}

const READ_RPS: f64 = SHAPE.model_threads as f64 * 1e9 / STEP.0 as f64;

#[test]
fn with_twice_what_the_threads_can_read_goodput_stays() {
    // Read a quarter of the SLO late at most.
    let limit = Limit::find(READ_RPS, 2.0, |rate| Ok(measure(&slow_threads(rate, 500)))).unwrap();
    assert!(limit.at.goodput_rps > 0.93 * READ_RPS, "{limit:?}");
    assert!(limit.past.refused_connection_full_rps > 0.8 * READ_RPS, "{limit:?}");
    assert!(limit.kept >= 0.95, "{limit:?}");
}

/// Why the bound matters: with connections that hold more than a thread reads within the SLO,
/// everything is late before it is read.
#[test]
fn connections_that_hold_an_slo_of_requests_leave_no_goodput() {
    let load = measure(&slow_threads(2.0 * READ_RPS, 2_000));
    assert!(load.goodput_rps < 0.05 * READ_RPS, "{load:?}");
    assert!(load.refused_deadline_passed_rps > 0.9 * READ_RPS, "{load:?}");
}
