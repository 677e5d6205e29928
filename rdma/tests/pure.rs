//! The pure pieces: credit window, round-robin.

use std::collections::VecDeque;

use baton_rdma::{CreditWindow, RoundRobin};
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
    assert_eq!((queue.len(), queue.is_empty()), (5, false));
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
}

#[test]
fn a_source_that_answers_nothing_leaves_the_others_a_quarter() {
    for (bytes, most) in [(50, 750), (40, 720), (350, 700), (380, 380)] {
        let (mut window, mut held) = (CreditWindow::new(1_000), 0);
        while window.grants(held, bytes) && window.try_take(bytes) {
            held += bytes;
        }
        assert_eq!(held, most, "objects of {bytes}");
    }
    let mut window = CreditWindow::new(1_000);
    assert!(window.try_take(750));
    assert!(window.grants(0, 50) && window.try_take(50));
    assert!(CreditWindow::new(0).grants(1 << 40, 50), "no limit");
}
