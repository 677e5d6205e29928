//! What no scheduler can exceed, even with foresight: a Lagrangian bound.
//!
//! **Prices.** At no moment do more than N slots execute. Whatever λ(t) ≥ 0 GPU time costs, a
//! schedule serves at most N·∫λ plus the most that batches can earn, each its tasks less the price
//! of its execution, if any number of them may execute at a time. So every λ gives a bound; the
//! subgradient method looks for a good one.
//!
//! **Order.** Take a best set of batches at some starts. Their tasks can be handed out anew: in
//! order of arrival, each to the batch that starts first of those that can take it and still lack
//! tasks. If a batch B then has tasks before and after a task of another batch C, all of C lies in
//! that gap of B, and C is larger: otherwise a task of one would have been handed to the other. And
//! no task between two of a batch is dropped, or it could take the place of the batch's first. So
//! the earnings are those of a shortest path over the tasks in order, of these steps:
//!
//! 1. a task is dropped;
//! 2. a batch of consecutive tasks;
//! 3. two batches, the smaller around the larger, of consecutive tasks;
//! 4. a task of a batch of b around two or more larger ones: it pays a bth of the least price that
//!    a batch of b with this task could have, and only where 3b + 2 tasks are close enough.
//!
//! Step 4 forgets which tasks belong together, so it may earn too much, never too little.

use super::nesting::{Nesting, around_several};
use super::prices::{Prices, Sliding};
use super::tasks::Tasks;

/// How the tasks up to one end: the step that leads there.
#[derive(Clone, Copy)]
pub(super) enum Step {
    Dropped,
    Batch(Execution),
    Around { outer: Execution, inner: Execution },
    Part(Execution),
}

/// A batch's size and start.
pub(super) type Execution = (usize, u64);

/// A bound on the tasks served, and the GPU time that it spends in each cell.
pub(super) struct Bound {
    pub(super) served: f64,
    pub(super) usage: Vec<f64>,
}

/// Cells of the price are at most this part of the objective.
const CELLS: u64 = 8;
/// Rounds of the search for prices: first without nested batches, which is quick and hardly changes
/// the prices, then with them, until the prices settle.
const ROUNDS: usize = 120;
const NESTED_ROUNDS: usize = 12;
/// So far below the goal the quick search need not go.
const MARGIN: f64 = 0.99;

/// More than the sums can be wrong by, in tasks.
const ROUNDING: f64 = 0.001;

/// True if it is certain that no schedule serves `goal` of the tasks.
pub(super) fn is_out_of_reach(tasks: &Tasks, goal: f64) -> bool {
    let goal = goal - ROUNDING;
    if tasks.batch_max() == 0 || tasks.len() == 0 {
        return goal > 0.0;
    }
    let batch = tasks.batch_max();
    let rate = 0.5 * batch as f64 / tasks.took(batch) as f64;
    let prices = Prices::flat(rate, tasks.end(), tasks.slo / CELLS);
    let (quick, prices) = lowest(tasks, prices, None, goal * MARGIN, ROUNDS);
    if quick >= goal {
        return false;
    }
    let around = around_several(tasks);
    let (served, _) = lowest(tasks, prices, Some(&around), goal, NESTED_ROUNDS);
    served < goal
}

/// The lowest bound found and its prices; stops below `goal`. Without `around` it is no bound, but
/// near one.
pub(super) fn lowest(
    tasks: &Tasks,
    mut prices: Prices,
    around: Option<&[usize]>,
    goal: f64,
    rounds: usize,
) -> (f64, Prices) {
    let (mut lowest, mut best) = (f64::INFINITY, prices.clone());
    // The subgradient method with a target level that closes in when nothing is gained.
    let (mut gap, mut idle) = (0.01 * tasks.len() as f64, 0);
    for _ in 0..rounds {
        let Bound { served, usage } = bound(tasks, &prices, around);
        idle += 1;
        if served < lowest {
            (lowest, idle) = (served, 0);
            best.clone_from(&prices);
        }
        if lowest < goal {
            break;
        }
        if idle > 8 {
            (gap, idle) = (gap * 0.6, 0);
        }
        let level = (lowest - gap).max(goal);
        follow(&mut prices, &usage, tasks.gpus, served - level + 1.0);
    }
    (lowest, best)
}

/// Raises the price where more than the slots there are is used, and lowers it where less is.
fn follow(prices: &mut Prices, usage: &[f64], gpus: usize, excess: f64) {
    let capacity = gpus as f64 * prices.cell() as f64;
    let slack = |cell: usize| capacity - usage[cell];
    let counts = |&(cell, &rate): &(usize, &f64)| rate > 0.0 || slack(cell) < 0.0;
    let cells = prices.rates().iter().enumerate().filter(counts);
    let norm: f64 = cells.map(|(cell, _)| slack(cell) * slack(cell)).sum();
    if norm > 0.0 {
        prices.change(|cell| -excess / norm * slack(cell));
    }
}

/// The bound at these prices; `around[i]` is the largest batch with task i around several.
pub(super) fn bound(tasks: &Tasks, prices: &Prices, around: Option<&[usize]>) -> Bound {
    let count = tasks.len();
    let mut batches: Vec<Sliding<'_>> =
        tasks.latency.iter().map(|&took| Sliding::new(prices, took)).collect();
    let mut nesting = around.map(|around| Nesting::new(tasks, prices, around));
    let mut earned = vec![0.0; count + 1];
    let mut steps = vec![Step::Dropped; count + 1];
    for last in 0..count {
        let end = last + 1;
        let mut best = (earned[last], Step::Dropped);
        let mut costs = vec![];
        for batch in 1..=tasks.batch_max().min(end) {
            let (lo, hi) = (tasks.arrivals[last], tasks.latest(end - batch, batch));
            if lo > hi {
                break;
            }
            let (price, start) = batches[batch - 1].cheapest(lo, hi);
            costs.push((price, start));
            let worth = earned[end - batch] + batch as f64 - price;
            if worth > best.0 {
                best = (worth, Step::Batch((batch, start)));
            }
        }
        if let Some(nesting) = &mut nesting {
            nesting.improve(last, &costs, &earned, &mut best);
        }
        (earned[end], steps[end]) = best;
    }
    let served = earned[count] + tasks.gpus as f64 * prices.total();
    Bound { served, usage: usage(tasks, prices, &steps) }
}

/// The GPU time in each cell of what the steps back from the end execute.
fn usage(tasks: &Tasks, prices: &Prices, steps: &[Step]) -> Vec<f64> {
    let mut usage = vec![0.0; prices.rates().len()];
    let mut execute = |(batch, start): Execution, weight: f64| {
        prices.spread(start, tasks.took(batch), weight, &mut usage);
        batch
    };
    let mut end = tasks.len();
    while end > 0 {
        end -= match steps[end] {
            Step::Dropped => 1,
            Step::Batch(batch) => execute(batch, 1.0),
            Step::Around { outer, inner } => execute(outer, 1.0) + execute(inner, 1.0),
            Step::Part(batch) => {
                execute(batch, 1.0 / batch.0 as f64);
                1
            }
        };
    }
    usage
}
