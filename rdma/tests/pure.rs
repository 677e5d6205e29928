//! The pure pieces: credit window, round-robin, clock offset.

use std::collections::VecDeque;

use baton_core::Nanos;
use baton_rdma::{ClockSync, CreditWindow, RoundRobin};
use proptest::prelude::*;

#[test]
fn window_admits_up_to_its_limit() {
    let mut window = CreditWindow::new(100);
    assert!(window.try_take(60) && window.try_take(40));
    assert!(!window.try_take(1));
    window.put_back(60);
    assert!(!window.try_take(61) && window.try_take(60));
    assert_eq!(window.in_flight(), 100);
}

#[test]
fn an_object_larger_than_the_window_passes_alone() {
    let mut window = CreditWindow::new(100);
    assert!(window.try_take(500));
    assert!(!window.try_take(1));
    window.put_back(500);
    assert!(window.try_take(1) && !window.try_take(500));
}

#[test]
fn no_limit() {
    let mut window = CreditWindow::new(0);
    assert!((0..100).all(|_| window.try_take(u64::MAX / 50)));
}

#[test]
fn sources_take_turns() {
    let mut queue = RoundRobin::default();
    for (source, item) in [(2, 'a'), (2, 'b'), (2, 'c'), (0, 'x'), (5, 'y')] {
        queue.push(source, item);
    }
    let order: Vec<_> = std::iter::from_fn(|| queue.pop(|_, _| true)).collect();
    assert_eq!(order, [(2, 'a'), (0, 'x'), (5, 'y'), (2, 'b'), (2, 'c')]);
}

#[test]
fn a_source_that_cannot_go_is_passed_over() {
    let mut queue = RoundRobin::default();
    queue.push(0, 1);
    queue.push(1, 2);
    assert_eq!(queue.pop(|source, _| source != 0), Some((1, 2)));
    assert_eq!(queue.pop(|source, _| source != 0), None);
    assert_eq!((queue.remove(0, |&item| item == 1), queue.len()), (Some(1), 0));
    assert_eq!(queue.pop(|_, _| true), None);
}

proptest! {
    /// Each source's items leave in order, nothing is lost, and between two items of one source
    /// every other waiting source was served.
    #[test]
    fn round_robin_is_fair(items in prop::collection::vec((0usize..5, any::<u16>()), 0..60)) {
        let mut queue = RoundRobin::default();
        let mut naive = vec![VecDeque::new(); 5];
        for &(source, item) in &items {
            queue.push(source, item);
            naive[source].push_back(item);
        }
        let mut served = [0usize; 5];
        while let Some((source, item)) = queue.pop(|_, _| true) {
            prop_assert_eq!(naive[source].pop_front(), Some(item));
            served[source] += 1;
            for other in 0..5 {
                prop_assert!(naive[other].is_empty() || served[other] + 1 >= served[source]);
            }
        }
        prop_assert_eq!(served.iter().sum::<usize>(), items.len());
        prop_assert!(queue.is_empty());
    }

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
fn a_source_that_answers_nothing_leaves_the_others_a_quarter() {
    let (mut window, mut held) = (CreditWindow::new(1_000), 0);
    while window.grants(held, 50) && window.try_take(50) {
        held += 50;
    }
    assert_eq!(held, 750);
    assert!(window.grants(0, 50) && window.try_take(50));
    assert!(CreditWindow::new(0).grants(1 << 40, 50), "no limit");
}
