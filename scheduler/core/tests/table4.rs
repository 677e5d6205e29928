//! Symphony's Table 4 in virtual time.
mod world;
use baton_core::{DropReason, Policy};
use world::{Rng, World, linear};

fn bad_rate(
    policy: Policy,
    alpha: f64,
    beta: f64,
    slo: f64,
    rate: f64,
    seed: u64,
    secs: f64,
) -> (f64, f64, f64, usize, usize) {
    let mut world = World::new(vec![linear(policy, alpha, beta, slo)], 8);
    let mut rng = Rng(seed);
    let mut at = 0.0;
    let mut n = 0u64;
    while at < secs * 1e3 {
        at += rng.exponential(1e3 / rate);
        world.arrives(0, n, at, slo);
        n += 1;
    }
    world.run_out();
    (
        1.0 - world.good() as f64 / n as f64,
        world.mean_batch(),
        world.busy.as_millis_f64() / (secs * 8e3),
        world.dropped(DropReason::Deadline),
        world.dropped(DropReason::Window),
    )
}

#[test]
fn explore() {
    for (a, b, slo, rates) in [
        (1.053, 5.072, 25.0, [4600., 4700., 4800., 5000., 5100., 5200., 5300.]),
        (5.09, 18.368, 70.0, [780., 800., 820., 840., 880., 900., 920.]),
    ] {
        for policy in [Policy::Symphony, Policy::Eager] {
            for r in rates {
                println!("{policy:?} {a} {r} {:?}", bad_rate(policy, a, b, slo, r, 1, 20.0));
            }
        }
    }
}
