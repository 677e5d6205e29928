//! What it costs that a cache line travels from one core to another and back: a property of the
//! machine, and on a virtual one of the moment, because its cores move.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use baton_core::Nanos;
use baton_topo::{Clock, Idle, Placement, prepare_thread};

use super::SchedError;

/// Rounds whose mean is taken, and how often: the least disturbed one counts.
const ROUNDS: u64 = 500;
const TRIES: u64 = 40;

/// A line by itself.
#[derive(Default)]
#[repr(align(128))]
struct Ball(AtomicU64);

/// Ns from a store on one core until the first two cores' other one has seen it; `None` with one core.
///
/// # Errors
/// The system has no more threads.
pub(super) fn travel_ns() -> Result<Option<f64>, SchedError> {
    if std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        return Ok(None);
    }
    let ball = Arc::new(Ball::default());
    let [here, there] = [Arc::clone(&ball), ball];
    let body = move || {
        prepare_thread(&place(1));
        (0..ROUNDS * TRIES).for_each(|round| pass_on(&there, 2 * round + 1));
    };
    let other = std::thread::Builder::new().spawn(body).map_err(SchedError::Spawn)?;
    let body = move || {
        prepare_thread(&place(0));
        let clock = Clock::start();
        (0..TRIES).map(|attempt| serve(&here, clock, attempt)).min()
    };
    let one = std::thread::Builder::new().spawn(body).map_err(SchedError::Spawn)?;
    let least = one.join().map_err(|_| SchedError::Panicked)?;
    other.join().map_err(|_| SchedError::Panicked)?;
    Ok(least.map(|span| span.0 as f64 / (2 * ROUNDS) as f64))
}

fn serve(ball: &Ball, clock: Clock, attempt: u64) -> Nanos {
    let start = clock.now();
    for round in attempt * ROUNDS..(attempt + 1) * ROUNDS {
        pass_on(ball, 2 * round);
    }
    clock.now() - start
}

/// Waits for its turn, and makes it the other's.
fn pass_on(ball: &Ball, turn: u64) {
    while ball.0.load(Ordering::Acquire) != turn {
        std::hint::spin_loop();
    }
    ball.0.store(turn + 1, Ordering::Release);
}

fn place(core: usize) -> Placement {
    Placement { name: format!("line-{core}"), core: Some(core), idle: Idle::Spin }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_takes_a_moment_to_travel() {
        let travelled = travel_ns().unwrap();
        assert!(travelled.is_none_or(|ns| ns > 1.0 && ns < 1e6), "{travelled:?}");
    }
}
