//! Bounds against an optimum found by trying everything, and against each other.

use proptest::prelude::*;

use super::nesting::around_several;
use super::plan::{plan, search, served};
use super::prices::Prices;
use super::tasks::Tasks;
use super::upper::{bound, is_out_of_reach, lowest};
use crate::bound::analytic_bound_rps;
use crate::scenario::Scenario;
use crate::tally::SimError;

fn inception(gpus: u32, head: &str) -> Scenario {
    let text = format!(
        "gpus = {gpus}\nduration_s = 1\nwarmup_s = 0.5\n{head}\n[[model]]\nname = 'm'\n\
         alpha_ms = 5.09\nbeta_ms = 18.368\nslo_ms = 70"
    );
    Scenario::parse(&text).unwrap()
}

#[test]
fn table_4_lies_between_what_is_in_reach_and_what_is_not() {
    let scenario = inception(8, "");
    let bound = analytic_bound_rps(&scenario);
    let at = |factor: f64| {
        let tasks = Tasks::new(&scenario, factor * bound, 1).unwrap();
        let goal = 0.99 * tasks.len() as f64;
        let plan = plan(&tasks, goal);
        let executed = plan.map(|plan| served(&tasks, &plan).unwrap() as f64 >= goal);
        (executed, is_out_of_reach(&tasks, goal))
    };
    assert_eq!(at(0.85), (Some(true), false));
    assert_eq!(at(1.15), (None, true));
}

#[test]
fn only_the_measured_tasks_count() {
    let tasks = Tasks::new(&inception(1, "arrival = { process = 'constant' }"), 100.0, 1).unwrap();
    assert_eq!((tasks.len(), tasks.gpus, tasks.batch_max()), (100, 1, 10));
    assert!(tasks.arrivals[0] < 10_000_000 && tasks.end() < 1_070_000_000);
}

#[test]
fn what_is_not_known_beforehand_is_refused() {
    let refused = |head: &str| match Tasks::new(&inception(2, head), 100.0, 1) {
        Err(SimError::NotClairvoyant { why }) => why,
        other => panic!("{head}: {other:?}"),
    };
    assert!(refused("network = { ctrl_us = 1 }").contains("network"));
    assert!(refused("overrun_ms = 0.1").contains("overrun"));
    assert!(refused("stragglers = { factor = 2 }").contains("overrun"));
    assert!(refused("profile_error = { factor = 1.1 }").contains("profiles"));
    assert!(refused("[[gpu_event]]\nat_s = 1\ngpus = [0]\nkind = 'loss'").contains("slots"));
    assert!(
        refused("[[model]]\nname = 'n'\nalpha_ms = 1\nbeta_ms = 1\nslo_ms = 9").contains("models")
    );
}

#[test]
fn a_plan_that_cannot_be_executed_is_found_out() {
    let tasks = Tasks { arrivals: vec![0, 1, 5], slo: 10, latency: vec![4, 6, 9], gpus: 1 };
    assert_eq!(served(&tasks, &vec![(0, 2), (2, 1)]), Some(3));
    assert_eq!(served(&tasks, &vec![(0, 2), (1, 1)]), None, "a task twice");
    assert_eq!(served(&tasks, &vec![(2, 1), (0, 1)]), None, "out of order");
    assert_eq!(served(&tasks, &vec![(0, 3)]), None, "too late");
    assert_eq!(served(&tasks, &vec![(2, 2)]), None, "no such task");
    assert_eq!(served(&tasks, &vec![(0, 0)]), None, "no task at all");
    let slow = Tasks { latency: vec![8, 8], ..tasks };
    assert_eq!(served(&slow, &vec![(0, 1), (1, 1)]), None, "one slot");
    assert_eq!(served(&Tasks { gpus: 2, ..slow }, &vec![(0, 1), (1, 1)]), Some(2));
}

/// The most tasks that can end in time; `left` are those not used yet. Batches in the order of
/// their starts; a batch of a given set of tasks starts best once the last of them is there, on the
/// slot that is free first.
fn most(tasks: &Tasks, free: &[u64], from: u64, left: u32) -> u32 {
    let mut best = 0;
    let mut batch = left;
    while batch != 0 {
        let members = || (0..tasks.len()).filter(|&task| batch & (1 << task) != 0);
        let size = batch.count_ones() as usize;
        let arrived = members().map(|task| tasks.arrivals[task]).max().unwrap();
        let start = free[0].max(arrived).max(from);
        let end = start + tasks.latency.get(size - 1).copied().unwrap_or(u64::MAX / 2);
        if members().all(|task| end <= tasks.arrivals[task] + tasks.slo) {
            let mut free = free.to_vec();
            free[0] = end;
            free.sort_unstable();
            best = best.max(batch.count_ones() + most(tasks, &free, start, left & !batch));
        }
        batch = (batch - 1) & left;
    }
    best
}

fn optimum(tasks: &Tasks) -> u32 {
    most(tasks, &vec![0; tasks.gpus], 0, (1 << tasks.len()) - 1)
}

fn upper(tasks: &Tasks, rounds: usize) -> f64 {
    let prices = Prices::flat(0.02, tasks.end(), tasks.slo / 8);
    let around = around_several(tasks);
    lowest(tasks, prices, Some(&around), 0.0, rounds).0
}

fn tiny() -> impl Strategy<Value = Tasks> {
    let gaps = prop::collection::vec(0..6u64, 1..8);
    let steps = prop::collection::vec(0..7u64, 1..6);
    (gaps, 1..12u64, steps, 8..30u64, 1..3usize).prop_map(|(gaps, first, steps, slo, gpus)| {
        let mut at = 0;
        let arrive = |gap: u64| {
            at += gap;
            at
        };
        let arrivals = gaps.into_iter().map(arrive).collect();
        let mut took = first;
        let rise = |step: u64| {
            took += step;
            took
        };
        let latency = std::iter::once(first).chain(steps.into_iter().map(rise));
        let latency = latency.take_while(|&took| took <= slo).collect();
        Tasks { arrivals, slo, latency, gpus }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]
    #[test]
    fn no_schedule_exceeds_the_bound_and_the_plan_exceeds_no_schedule(tasks in tiny()) {
        let optimum = f64::from(optimum(&tasks));
        for rounds in [1, 40] {
            let upper = upper(&tasks, rounds);
            prop_assert!(upper >= optimum - 1e-9, "{} below {} of {:?}", upper, optimum, tasks);
        }
        prop_assert!(!is_out_of_reach(&tasks, optimum));
        if !tasks.latency.is_empty() {
            let planned = served(&tasks, &search(&tasks, 0.05)).unwrap();
            prop_assert!(planned as f64 <= optimum, "{} above {}", planned, optimum);
        }
    }
}

/// The most that batches of any of the tasks can earn at these prices, with no limit on slots.
fn most_earned(tasks: &Tasks, prices: &Prices) -> f64 {
    let all = (1_usize << tasks.len()) - 1;
    let worth: Vec<f64> = (0..=all).map(|batch| worth(tasks, prices, batch)).collect();
    let mut earned = vec![0.0_f64; all + 1];
    for left in 1..=all {
        let first = 1 << left.trailing_zeros();
        earned[left] = earned[left & !first];
        let mut batch = left;
        while batch != 0 {
            if batch & first != 0 {
                earned[left] = earned[left].max(worth[batch] + earned[left & !batch]);
            }
            batch = (batch - 1) & left;
        }
    }
    earned[all]
}

/// A batch's tasks less its price; nothing is worse if it cannot be executed in time.
fn worth(tasks: &Tasks, prices: &Prices, batch: usize) -> f64 {
    let size = batch.count_ones() as usize;
    if size == 0 || size > tasks.batch_max() {
        return f64::NEG_INFINITY;
    }
    let (first, last) = (batch.trailing_zeros() as usize, batch.ilog2() as usize);
    let (lo, hi) = (tasks.arrivals[last], tasks.latest(first, size));
    if lo > hi {
        return f64::NEG_INFINITY;
    }
    size as f64 - prices.cheapest(lo, hi, tasks.took(size)).0
}

/// Many tasks close together, and prices that make it worth to wait with some of them.
fn dense() -> impl Strategy<Value = (Tasks, Vec<u8>)> {
    let gaps = prop::collection::vec(0..4u64, 5..11);
    let steps = prop::collection::vec(0..6u64, 3..6);
    let prices = prop::collection::vec(0..20u8, 24);
    (gaps, 1..6u64, steps, 12..22u64, prices).prop_map(|(gaps, first, steps, slo, prices)| {
        let sums = |from: u64, steps: Vec<u64>| {
            let add = |sum: &mut u64, step| {
                *sum += step;
                Some(*sum)
            };
            steps.into_iter().scan(from, add).collect::<Vec<u64>>()
        };
        let mut latency = sums(first, steps);
        latency.retain(|&took| took <= slo);
        (Tasks { arrivals: sums(0, gaps), slo, latency, gpus: 1 }, prices)
    })
}

/// What the shortest path earns, and what can be earned.
fn earnings(tasks: &Tasks, rates: &[u8]) -> (f64, f64) {
    let mut prices = Prices::flat(0.0, tasks.end(), 2);
    prices.change(|cell| f64::from(rates[cell % rates.len()]) / 40.0);
    let bound = bound(tasks, &prices, Some(&around_several(tasks))).served;
    (bound - tasks.gpus as f64 * prices.total(), most_earned(tasks, &prices))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]
    #[test]
    fn no_choice_of_batches_earns_more_than_the_shortest_path((tasks, rates) in dense()) {
        prop_assume!(tasks.batch_max() > 0);
        let (earned, most) = earnings(&tasks, &rates);
        prop_assert!(earned >= most - 1e-9, "{} below {} of {:?}", earned, most, tasks);
    }

    /// Two threes between a first and a last task that may go together.
    #[test]
    fn nor_do_batches_around_several_others(
        gaps in (1..8u64, 0..3u64, 1..8u64),
        latency in (4..9u64, 0..3u64, 2..12u64),
        slo in 16..30u64,
        rates in prop::collection::vec(0..20u8, 24),
    ) {
        let (a, b) = (gaps.0, gaps.0 + gaps.1);
        let arrivals = vec![0, a, a, a, b, b, b, b + gaps.2];
        let latency = vec![latency.0, latency.0 + latency.1, latency.0 + latency.1 + latency.2];
        let latency = latency.into_iter().take_while(|&took| took <= slo).collect();
        let tasks = Tasks { arrivals, slo, latency, gpus: 1 };
        let (earned, most) = earnings(&tasks, &rates);
        prop_assert!(earned >= most - 1e-9, "{} below {} of {:?}", earned, most, tasks);
    }
}
