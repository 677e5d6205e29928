//! After start-up nothing on a task's way allocates: an allocator that aborts the process watches
//! ModelThreads and RankThread take requests, plan and send batches, and hear of their ends.

use assert_no_alloc::{AllocDisabler, assert_no_alloc};
use baton_bench::sched::{Shape, Stepper};
use baton_core::Policy;

#[global_allocator]
static ALLOCATOR: AllocDisabler = AllocDisabler;

/// Buffers have grown to what this load needs: the generator repeats itself every 1,024 passes, or
/// every 3,277 with few models.
const START_UP: u32 = 4_000;

#[test]
fn serving_allocates_nothing() {
    for (policy, model_threads, models) in [
        (Policy::Baton, 1, 10),
        (Policy::Baton, 2, 200),
        (Policy::Symphony, 1, 32),
        (Policy::Eager, 1, 32),
    ] {
        let shape = Shape {
            policy,
            model_threads,
            models,
            gpus: 64,
            variants: 1,
            seconds: 1.0,
            rate: None,
            seed: 1,
        };
        let mut agents = Stepper::new(shape).expect("the shape is within bounds");
        (0..START_UP).for_each(|_| agents.pass());
        let before = agents.planned();
        assert_no_alloc(|| (0..3_000).for_each(|_| agents.pass()));
        let planned = agents.planned() - before;
        assert!(planned > 50_000, "{policy:?}: only {planned} tasks were planned");
    }
}
