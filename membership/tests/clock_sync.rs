//! The scheduler's clock, as pongs tell it.

use baton_membership::ClockSync;
use baton_types::Nanos;
use proptest::prelude::*;

proptest! {
    /// Whatever the two ways of each trip take and however the clocks drift within the allowance,
    /// the true offset lies within the error bound.
    #[test]
    fn the_error_bounds_the_offset(
        offset in -1_000_000_000_000i64..1_000_000_000_000,
        drift_ppm in -150i64..150,
        trips in prop::collection::vec((0u64..500_000, 0u64..500_000, 1u64..200_000_000), 1..60),
    ) {
        let origin = 2_000_000_000_000u64;
        let scheduler_at = |local: u64| {
            let drifted = (local - origin).cast_signed() * drift_ppm / 1_000_000;
            Nanos(local.saturating_add_signed(offset + drifted))
        };
        let mut sync = ClockSync::new();
        prop_assert_eq!((sync.to_local(Nanos(5)), sync.error()), (None, Nanos::MAX));
        let mut now = origin;
        for (out, back, pause) in trips {
            let sent = now;
            now += out;
            let stamp = scheduler_at(now);
            now += back;
            sync.on_pong(Nanos(sent), stamp, Nanos(now));
            let truth = scheduler_at(now);
            let estimate = sync.to_scheduler(Nanos(now)).unwrap();
            let wrong = Nanos(truth.0.abs_diff(estimate.0));
            // A microsecond for the rounding of the drift in this test.
            prop_assert!(wrong <= sync.error() + Nanos(1_000), "{wrong:?} > {:?}", sync.error());
            prop_assert_eq!(sync.to_local(estimate), Some(Nanos(now)));
            now += pause;
        }
    }
}

#[test]
fn the_shortest_trip_wins_until_it_is_old() {
    let mut sync = ClockSync::new();
    sync.on_pong(Nanos(1_000), Nanos(5_050), Nanos(1_100));
    assert_eq!((sync.to_scheduler(Nanos(1_000)), sync.error()), (Some(Nanos(5_000)), Nanos(50)));
    // A slow trip soon after changes nothing, one much later does.
    sync.on_pong(Nanos(2_000), Nanos(9_000), Nanos(4_000));
    assert_eq!(sync.to_scheduler(Nanos(1_000)), Some(Nanos(5_000)));
    let later = 60_000_000_000;
    sync.on_pong(Nanos(later), Nanos(later + 5_000), Nanos(later + 2_000));
    assert_eq!(sync.to_scheduler(Nanos(later)), Some(Nanos(later + 4_000)));
    assert_eq!(sync.error(), Nanos(1_000));
}

#[test]
fn odd_moments() {
    let mut sync = ClockSync::new();
    sync.on_pong(Nanos(10), Nanos(0), Nanos(5));
    assert_eq!(sync.to_local(Nanos(0)), None, "a pong from before its ping");
    sync.on_pong(Nanos(1_000), Nanos(10), Nanos(1_000));
    assert_eq!(sync.to_scheduler(Nanos(5)), Some(Nanos(0)), "before the scheduler's clock began");
    assert_eq!(sync.to_local(Nanos::MAX), Some(Nanos::MAX), "never stays never");
}

#[test]
fn half_of_an_odd_trip_is_rounded_up() {
    let mut sync = ClockSync::new();
    sync.on_pong(Nanos(100), Nanos(7), Nanos(103));
    assert_eq!(sync.error(), Nanos(2));
}
