//! Faults that come together: one right behind another, or just when a process that the other took down starts again.
//! Many bugs need two things within a few messages of each other, and two moments drawn from a whole run seldom
//! are.
//!
//! Drawn apart from everything else, so that a run without them is what it would be.

use baton_core::Nanos;
use baton_topo::Cluster;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::faults::{Fault, Who};

/// A few messages there and back.
const CLOSE: Nanos = Nanos::from_millis(4);

/// What comes with the faults of a run: in one run of three, something with one fault in two.
pub(crate) fn of(
    seed: u64,
    faults: &[(Nanos, Fault)],
    cluster: &Cluster,
    frontends: usize,
    span: Nanos,
) -> Vec<(Nanos, Fault)> {
    let mut rng = StdRng::seed_from_u64(seed ^ 0x636f_6d70);
    if rng.random_range(0..3) > 0 {
        return Vec::new();
    }
    let mut companions = Vec::new();
    for (at, fault) in faults {
        let starts = fault.starts_again().filter(|_| rng.random_bool(0.5));
        let from = *at + starts.unwrap_or(Nanos::ZERO);
        let when = from + Nanos(rng.random_range(0..CLOSE.0));
        let with = draw(&mut rng, cluster, frontends);
        if rng.random_bool(0.5) && when < span {
            companions.push((when, with));
        }
    }
    companions
}

/// Faults that are over at once, and change who is there or who serves what.
fn draw(rng: &mut StdRng, cluster: &Cluster, frontends: usize) -> Fault {
    let backend = rng.random_range(0..cluster.backends.len());
    let frontend = rng.random_range(0..frontends);
    let long = Nanos::from_micros(rng.random_range(500..=100_000));
    match rng.random_range(0..9) {
        0 | 1 => {
            let model = rng.random_range(0..cluster.models.len() as u32);
            Fault::Move(model, rng.random_range(0..cluster.scheduler.model_threads as usize))
        }
        2 => Fault::Leave(backend, long),
        3 => Fault::Depart(frontend, long),
        4 => Fault::Kill(Who::Frontend(frontend), Some(long)),
        5 => Fault::Kill(Who::Backend(backend), Some(long)),
        6 => Fault::Stop(long),
        7 => Fault::Kill(Who::Scheduler, Some(long)),
        _ => Fault::Cut(
            Who::Backend(backend),
            Who::Frontend(frontend),
            rng.random_range(0..8),
            rng.random_bool(0.5),
        ),
    }
}
