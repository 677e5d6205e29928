//! The whole core under random operations: tasks with any deadline, cancellations, lost frontends,
//! backends that die, drain and come back, executions of any length, messages that lag. The world
//! checks what must always hold; a failing case is shrunk, printed, and kept in a file beside this
//! one to be replayed first.
mod world;

use baton_core::{FrontendId, ModelConfig, Nanos, Policy, TaskId};
use proptest::prelude::*;
use world::{Fate, Rng, World, linear, ms, profile};

const MODELS: u32 = 3;
const GPUS: usize = 4;

#[derive(Clone, Debug)]
enum Op {
    /// Tasks of one frontend that arrive together with the same deadline.
    Arrive {
        model: u32,
        frontend: u16,
        count: u64,
        slo_ms: f64,
    },
    Pass {
        span_ms: f64,
    },
    Cancel {
        back: u64,
    },
    LoseFrontend(u16),
    Kill(usize),
    Drain(usize),
    Join(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let slo_ms = prop_oneof![1 => Just(0.0), 1 => Just(6.0), 4 => Just(30.0), 4 => 5.0..80.0f64];
    let arrive = (0..MODELS, 0..4u16, 1..9u64, slo_ms);
    prop_oneof![
        12 => arrive.prop_map(|(model, frontend, count, slo_ms)| {
            Op::Arrive { model, frontend, count, slo_ms }
        }),
        10 => (0.0..9.0f64).prop_map(|span_ms| Op::Pass { span_ms }),
        1 => (0.0..200.0f64).prop_map(|span_ms| Op::Pass { span_ms }),
        2 => (0..30u64).prop_map(|back| Op::Cancel { back }),
        1 => (0..4u16).prop_map(Op::LoseFrontend),
        1 => (0..GPUS).prop_map(Op::Kill),
        1 => (0..GPUS).prop_map(Op::Drain),
        3 => (0..GPUS).prop_map(Op::Join),
    ]
}

/// Two deferred models share a sub-cluster of three slots; an eager one has the fourth.
fn world(lag_us: u64, seed: u64) -> World {
    let small = ModelConfig {
        profile: profile(2.0, 3.0, 4),
        queue_capacity: 10,
        ..linear(Policy::Symphony, 2.0, 3.0, 40.0)
    };
    let symphony = linear(Policy::Symphony, 1.0, 5.0, 30.0);
    let eager = linear(Policy::Eager, 1.0, 5.0, 30.0);
    let mut world =
        World::with_subclusters(vec![symphony, small, eager], &[0, 0, 1], &[0, 0, 1, 0]);
    world.lag = Nanos::from_micros(lag_us);
    world.refuses_late = seed.is_multiple_of(2);
    let mut rng = Rng::new(seed);
    // Mostly a little off, one execution in ten anywhere between none and ten times as long.
    world.execution = Box::new(move |latency| match rng.below(10) {
        0 => Nanos(latency.0 * rng.below(100) / 10),
        _ => Nanos(latency.0 * (95 + rng.below(11)) / 100),
    });
    world
}

/// The world and the tasks that were submitted.
struct Run {
    world: World,
    tasks: Vec<(u32, u64)>,
}

impl Run {
    fn apply(&mut self, op: &Op) {
        match *op {
            Op::Arrive { model, frontend, count, slo_ms } => {
                (0..count).for_each(|_| self.arrive(model, frontend, slo_ms));
            }
            Op::Pass { span_ms } => self.world.run(span_ms),
            Op::Cancel { back } => self.cancel(back as usize),
            Op::LoseFrontend(frontend) => self.world.lose_frontend(FrontendId(frontend)),
            Op::Kill(gpu) if self.world.is_present(gpu) => self.world.kill_gpu(gpu),
            Op::Drain(gpu) if self.world.is_present(gpu) => self.world.drain_gpu(gpu),
            Op::Join(gpu) if !self.world.is_present(gpu) => self.world.join_gpu(gpu),
            Op::Kill(_) | Op::Drain(_) | Op::Join(_) => {}
        }
    }

    fn arrive(&mut self, model: u32, frontend: u16, slo_ms: f64) {
        let task = TaskId::new(FrontendId(frontend), self.tasks.len() as u32, 0).0;
        self.world.arrives(model, task, 0.0, slo_ms);
        self.tasks.push((model, task));
    }

    fn cancel(&mut self, back: usize) {
        let Some(&(model, task)) = self.tasks.iter().rev().nth(back) else { return };
        let had_ended = self.world.end_of(task).is_some();
        let waited = self.world.cancel(model, task);
        assert!(!(waited && had_ended), "{task:x} waited although it had ended");
    }
}

/// No two batches execute on a slot at once, and none begins before it was sealed.
fn check_executions(world: &World) {
    for gpu in 0..GPUS {
        let executed = |b: &&world::Sealed| b.gpu.id.0 as usize == gpu && b.fate == Fate::Executed;
        let batches: Vec<_> = world.batches.iter().filter(executed).collect();
        assert!(batches.iter().all(|b| b.sealed_at <= b.start));
        let same_life = batches.windows(2).filter(|pair| pair[0].gpu == pair[1].gpu);
        let in_turn = |pair: &[&world::Sealed]| pair[0].start + pair[0].took <= pair[1].start;
        assert!(same_life.into_iter().all(in_turn), "slot {gpu} executes two batches at once");
    }
}

proptest! {
    #[test]
    fn every_task_ends_exactly_once(
        ops in prop::collection::vec(op(), 1..80),
        lag_us in prop_oneof![2 => Just(0), 1 => Just(50), 1 => Just(1_500u64)],
        seed: u64,
    ) {
        let mut run = Run { world: world(lag_us, seed), tasks: Vec::new() };
        ops.iter().for_each(|op| run.apply(op));
        run.world.run_out();
        prop_assert_eq!(run.world.out.ends.len(), run.tasks.len());
        check_executions(&run.world);
        // Ten quiet seconds later nothing is pending any more: no timer fires for nothing.
        run.world.run(ms(10_000.0).as_millis_f64());
        prop_assert!(run.world.is_quiet());
    }
}
