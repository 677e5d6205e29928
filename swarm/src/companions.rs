//! Faults that come together: one right behind another, or just when a process that the other took down starts again.
//! Many bugs need two things within a few messages of each other, and two moments drawn from a whole run seldom
//! are.
//!
//! Drawn apart from everything else, so that a run without them is what it would be.

use baton_core::Nanos;
use baton_topo::Cluster;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::changes::Change;
use crate::faults::{Fault, Who};

/// A few messages there and back.
const CLOSE: Nanos = Nanos::from_millis(4);
/// For about so long a model that was asked for is being loaded.
const LOADING: Nanos = Nanos::from_millis(150);
/// Pairs of a run at most.
const PAIRS_MAX: usize = 4;

/// What comes besides the faults of a run: in one run of three, something with one of them in two; in another, pairs.
pub(crate) fn of(
    seed: u64,
    faults: &[(Nanos, Fault)],
    cluster: &Cluster,
    frontends: usize,
    span: Nanos,
) -> Vec<(Nanos, Fault)> {
    let mut rng = StdRng::seed_from_u64(seed ^ 0x636f_6d70);
    let drawn = Drawn { cluster, frontends, span };
    let companions = match rng.random_range(0..3) {
        0 => drawn.companions(&mut rng, faults),
        1 => drawn.pairs(&mut rng),
        _ => Vec::new(),
    };
    companions.into_iter().filter(|(at, _)| *at < span).collect()
}

/// Backends that go while they load a model that an operator has just asked for, in one run of two with changes.
pub(crate) fn of_changes(
    seed: u64,
    changes: &[(Nanos, Change)],
    cluster: &Cluster,
    span: Nanos,
) -> Vec<(Nanos, Fault)> {
    let mut rng = StdRng::seed_from_u64(seed ^ 0x676f_6e65);
    if rng.random_bool(0.5) {
        return Vec::new();
    }
    let mut faults = Vec::new();
    for (at, _) in changes.iter().filter(|(_, change)| change.brings_a_model()) {
        let when = *at + Nanos(rng.random_range(0..LOADING.0));
        let backend = rng.random_range(0..cluster.backends.len());
        let again = Nanos::from_micros(rng.random_range(500..=100_000));
        let fault = match rng.random_range(0..3) {
            0 => Fault::Leave(backend, again),
            1 => Fault::Kill(Who::Backend(backend), Some(again)),
            _ => continue,
        };
        faults.push((when, fault));
    }
    faults.retain(|(at, _)| *at < span);
    faults
}

fn soon(rng: &mut StdRng) -> Nanos {
    Nanos(rng.random_range(0..CLOSE.0))
}

/// What a run has.
struct Drawn<'a> {
    cluster: &'a Cluster,
    frontends: usize,
    span: Nanos,
}

impl Drawn<'_> {
    fn companions(&self, rng: &mut StdRng, faults: &[(Nanos, Fault)]) -> Vec<(Nanos, Fault)> {
        let mut companions = Vec::new();
        for (at, fault) in faults {
            let starts = fault.starts_again().filter(|_| rng.random_bool(0.5));
            let when = *at + starts.unwrap_or(Nanos::ZERO) + soon(rng);
            let with = self.one(rng);
            if rng.random_bool(0.5) {
                companions.push((when, with));
            }
        }
        companions
    }

    /// A fault that is over at once, and changes who is there or who serves what.
    fn one(&self, rng: &mut StdRng) -> Fault {
        let (b, f) = (self.backend(rng), self.frontend(rng));
        let long = Nanos::from_micros(rng.random_range(500..=100_000));
        match rng.random_range(0..9) {
            0 | 1 => self.a_move(rng),
            2 => Fault::Leave(b, long),
            3 => Fault::Depart(f, long),
            4 => Fault::Kill(Who::Frontend(f), Some(long)),
            5 => Fault::Kill(Who::Backend(b), Some(long)),
            6 => Fault::Stop(long),
            7 => Fault::Kill(Who::Scheduler, Some(long)),
            _ => {
                let (pick, both) = (rng.random_range(0..8), rng.random_bool(0.5));
                Fault::Cut(Who::Backend(b), Who::Frontend(f), pick, both)
            }
        }
    }

    fn pairs(&self, rng: &mut StdRng) -> Vec<(Nanos, Fault)> {
        let mut faults = Vec::new();
        // One kind for a run: some bugs need the same twice.
        let kind = rng.random_range(0..7);
        for _ in 0..rng.random_range(1..=PAIRS_MAX) {
            let at = Nanos(rng.random_range(0..self.span.0));
            let (first, after, second) = self.pair(rng, kind);
            faults.extend([(at, first), (at + after, second)]);
        }
        faults
    }

    /// One fault, and another this long after it.
    fn pair(&self, rng: &mut StdRng, kind: u32) -> (Fault, Nanos, Fault) {
        let (b, f) = (self.backend(rng), self.frontend(rng));
        let long = Nanos::from_micros(rng.random_range(500..=60_000));
        let again = Nanos::from_micros(rng.random_range(500..=60_000));
        let after = soon(rng);
        let (backend, frontend) = (Who::Backend(b), Who::Frontend(f));
        match kind {
            // What is under way behind a moved model finds its thread stopping, or its frontend gone.
            0 => (self.a_move(rng), Nanos(after.0 / 8), Fault::Stop(long)),
            1 => (self.a_move(rng), Nanos(after.0 / 8), Fault::Kill(frontend, Some(long))),
            2 => (self.a_move(rng), Nanos(after.0 / 8), Fault::Depart(f, long)),
            // A backend that is just starting leaves, or dies once more.
            3 => (Fault::Kill(backend, Some(long)), long + after, Fault::Leave(b, again)),
            4 => (Fault::Leave(b, long), after, Fault::Kill(Who::Scheduler, Some(again))),
            // An orderly stop, and soon after the next scheduler's start none.
            5 => {
                let after = long + after.times(rng.random_range(1..=40));
                (Fault::Stop(long), after, Fault::Kill(Who::Scheduler, Some(again)))
            }
            // An answer is under way while its frontend and its scheduler change.
            _ => {
                let cut = Fault::Cut(backend, frontend, rng.random_range(0..8), true);
                (Fault::Kill(Who::Scheduler, Some(long)), after, cut)
            }
        }
    }

    fn backend(&self, rng: &mut StdRng) -> usize {
        rng.random_range(0..self.cluster.backends.len())
    }

    fn frontend(&self, rng: &mut StdRng) -> usize {
        rng.random_range(0..self.frontends)
    }

    fn a_move(&self, rng: &mut StdRng) -> Fault {
        let model = rng.random_range(0..self.cluster.models.len() as u32);
        Fault::Move(model, rng.random_range(0..self.cluster.scheduler.model_threads as usize))
    }
}
