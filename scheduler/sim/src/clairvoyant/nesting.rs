//! Batches around larger ones: what makes the tasks of a batch not consecutive.

use super::prices::{Offer, Prices, Sliding};
use super::tasks::Tasks;
use super::upper::Step;

/// For each task, the largest batch of b ≥ 2 that it could be in around two or more larger ones, as
/// far as the number of tasks says: 3b + 2 within reach of one start. 0 if none.
pub(super) fn around_several(tasks: &Tasks) -> Vec<usize> {
    let mut around = vec![0; tasks.len()];
    for batch in 2..=tasks.batch_max() {
        let needed = 3 * batch + 2;
        let mut marked = 0;
        for (first, window) in tasks.arrivals.windows(needed).enumerate() {
            if window[needed - 1] <= tasks.latest(first, batch) {
                let marks = marked.max(first)..first + needed;
                marked = marks.end;
                around[marks].fill(batch);
            }
        }
    }
    around
}

/// The steps with nested batches, task by task.
pub(super) struct Nesting<'a> {
    tasks: &'a Tasks,
    prices: &'a Prices,
    around: &'a [usize],
    /// By batch size, for intervals from one task's arrival on.
    sliding: Vec<Sliding<'a>>,
    /// By task and batch size, of the last tasks: the least price of a batch with this task as its
    /// first, and the price of the batch of consecutive tasks that ends with it.
    least: Ring,
    consecutive: Ring,
}

/// The last rows of a table.
struct Ring {
    rows: Vec<Vec<Offer>>,
}

impl Ring {
    fn new(rows: usize) -> Self {
        Self { rows: vec![Vec::new(); rows] }
    }

    fn row(&self, task: usize) -> &[Offer] {
        &self.rows[task % self.rows.len()]
    }

    fn fill(&mut self, task: usize, offers: impl Iterator<Item = Offer>) {
        let at = task % self.rows.len();
        self.rows[at].clear();
        self.rows[at].extend(offers);
    }
}

impl<'a> Nesting<'a> {
    pub(super) fn new(tasks: &'a Tasks, prices: &'a Prices, around: &'a [usize]) -> Self {
        let sliding = tasks.latency.iter().map(|&took| Sliding::new(prices, took)).collect();
        let rows = 2 * tasks.batch_max() + 1;
        let (least, consecutive) = (Ring::new(rows), Ring::new(rows));
        Self { tasks, prices, around, sliding, least, consecutive }
    }

    /// Replaces the best step that ends with task `last` if a nested one earns more. To be called
    /// for every task in order; `costs[b − 1]` is the cheapest batch of consecutive tasks.
    pub(super) fn improve(
        &mut self,
        last: usize,
        costs: &[Offer],
        earned: &[f64],
        best: &mut (f64, Step),
    ) {
        let tasks = self.tasks;
        let sliding = self.sliding.iter_mut().enumerate();
        let least = sliding
            .map(|(b, sliding)| sliding.cheapest(tasks.arrivals[last], tasks.latest(last, b + 1)));
        self.least.fill(last, least);
        self.consecutive.fill(last, costs.iter().copied());
        self.part(last, earned, best);
        for outer in 2..tasks.batch_max() {
            for inner in outer + 1..=tasks.batch_max() {
                if !self.around(last, outer, inner, earned, best) {
                    break;
                }
            }
        }
    }

    fn part(&self, last: usize, earned: &[f64], best: &mut (f64, Step)) {
        let least = self.least.row(last);
        for batch in 2..=self.around[last] {
            let (price, start) = least[batch - 1];
            let worth = earned[last] + 1.0 - price / batch as f64;
            if worth > best.0 {
                *best = (worth, Step::Part((batch, start)));
            }
        }
    }

    /// A batch of `outer` tasks around one of `inner`, ending with task `last`. False if they are
    /// too far apart, and so are those with a larger inner batch.
    fn around(
        &self,
        last: usize,
        outer: usize,
        inner: usize,
        earned: &[f64],
        best: &mut (f64, Step),
    ) -> bool {
        let tasks = self.tasks;
        let Some(first) = (last + 1).checked_sub(outer + inner) else { return false };
        let (lo, hi) = (tasks.arrivals[last], tasks.latest(first, outer));
        if lo > hi {
            return false;
        }
        // The inner batch ends with one of the tasks before the last, and not too early.
        let ends = last + 1 - outer + 1..=last;
        let offers = ends.filter_map(|end| self.consecutive.row(end - 1).get(inner - 1));
        let Some(&(inner_price, inner_start)) = offers.min_by(|a, b| a.0.total_cmp(&b.0)) else {
            return true;
        };
        let alone = earned[first] + (outer + inner) as f64 - inner_price;
        if alone - self.least.row(first)[outer - 1].0 <= best.0 {
            return true;
        }
        let (price, start) = self.prices.cheapest(lo, hi, tasks.took(outer));
        if alone - price > best.0 {
            let (outer, inner) = ((outer, start), (inner, inner_start));
            *best = (alone - price, Step::Around { outer, inner });
        }
        true
    }
}
