//! The pipeline over the simulated driver: random walks, an error at every call, and figures in virtual time.
//!
//! `BATON_CUDA_SEEDS=20000 cargo nextest run -p baton-cuda --test pipeline` walks longer; `BATON_CUDA_SEED` names one walk.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod errors;
mod figures;
mod graphs;
mod walk;
mod windows;

use baton_cuda::Room;
use walk::{SLOTS, STEPS, Walk, room};

/// Of a batch slot: rows, header and answers on the device, header and answers on the host.
const BLOCKS: usize = 5;

/// What repeats a failed walk.
struct Say(String);

impl Drop for Say {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.0);
        }
    }
}

fn seeds(usual: u64) -> std::ops::Range<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match number("BATON_CUDA_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("BATON_CUDA_SEEDS").unwrap_or(usual),
    }
}

#[test]
fn every_access_is_ordered_and_every_batch_comes_back_once_with_its_answers() {
    let (mut executed, mut expired, mut allocations) = (0, 0, 0);
    for seed in seeds(3_000) {
        let mut walk = Walk::new(seed, None).unwrap();
        // Every third device is slower than planned.
        let slower_percent = if seed % 3 == 0 { 50 * (1 + seed % 7) } else { 0 };
        walk.driver.world().slower_percent = slower_percent;
        allocations += walk.driver.look().allocations;
        let _say =
            Say(format!("BATON_CUDA_SEED={seed} cargo nextest run -p baton-cuda --test pipeline"));
        walk.run();
        executed += walk.executed;
        expired += walk.expired;
        assert_eq!(walk.failed, 0, "the driver refused nothing");
        allocations -= walk.driver.look().allocations;
    }
    assert!(executed > 0 && expired > 0, "{executed} executed, {expired} expired");
    assert_eq!(allocations, 0, "no memory is taken after it was reserved");
}

#[test]
fn models_that_are_added_meanwhile_disturb_no_batch() {
    let mut grown = 0;
    for seed in seeds(300) {
        let _say =
            Say(format!("BATON_CUDA_SEED={seed} cargo nextest run -p baton-cuda --test pipeline"));
        let mut walk = Walk::new(seed, None).unwrap();
        for step in 0..STEPS {
            walk.step();
            if walk.random.below(20) == 0 {
                let row_bytes = room().row_bytes + 4_096 * step;
                walk.pipeline.reserve(Room { row_bytes, ..room() }).unwrap();
                grown += 1;
            }
        }
        walk.run();
        let world = walk.driver.look();
        assert_eq!(world.blocks_held as usize, SLOTS * BLOCKS, "what was outgrown is given back");
    }
    assert!(grown > 300);
}
