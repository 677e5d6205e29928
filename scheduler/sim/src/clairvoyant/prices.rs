//! A price of GPU time that varies with the moment, and the cheapest start of an execution.

use std::collections::VecDeque;

/// λ(t), tasks per nanosecond: constant within cells of 2^shift ns.
#[derive(Clone, Debug)]
pub(crate) struct Prices {
    shift: u32,
    /// Of each cell.
    rates: Vec<f64>,
    /// ∫ λ up to the beginning of each cell, and to the end of the last.
    sums: Vec<f64>,
}

/// A price and the start that has it.
pub(crate) type Offer = (f64, u64);

impl Prices {
    /// The same price everywhere up to `end`; cells no longer than `cell`.
    pub(crate) fn flat(rate: f64, end: u64, cell: u64) -> Self {
        let shift = cell.max(1).ilog2();
        let cells = (end >> shift) as usize + 1;
        let mut prices = Self { shift, rates: vec![rate; cells], sums: Vec::new() };
        prices.sum_up();
        prices
    }

    /// Changes the price of every cell, to no less than zero.
    pub(crate) fn change(&mut self, by: impl Fn(usize) -> f64) {
        for (cell, rate) in self.rates.iter_mut().enumerate() {
            *rate = (*rate + by(cell)).max(0.0);
        }
        self.sum_up();
    }

    pub(crate) fn rates(&self) -> &[f64] {
        &self.rates
    }

    /// Length of a cell.
    pub(crate) fn cell(&self) -> u64 {
        1 << self.shift
    }

    /// ∫ λ over everything.
    pub(crate) fn total(&self) -> f64 {
        self.sums[self.rates.len()]
    }

    /// Of an execution.
    pub(crate) fn of(&self, start: u64, took: u64) -> f64 {
        self.until(start + took) - self.until(start)
    }

    /// The cheapest start from `lo` to `hi`: an end of the interval, or a start with which the
    /// execution begins or ends where cells do; in between the price runs straight.
    pub(crate) fn cheapest(&self, lo: u64, hi: u64, took: u64) -> Offer {
        let begins = (lo >> self.shift)..=(hi >> self.shift);
        let ends = ((lo + took) >> self.shift)..=((hi + took) >> self.shift);
        let begins = begins.map(|cell| cell << self.shift);
        let ends = ends.filter_map(|cell| (cell << self.shift).checked_sub(took));
        let starts = begins.chain(ends).filter(|start| (lo..=hi).contains(start));
        let offers = starts.chain([lo, hi]).map(|start| (self.of(start, took), start));
        offers.min_by(|a, b| a.0.total_cmp(&b.0)).expect("the ends of the interval are offers")
    }

    /// Adds an execution's time to the cells it touches.
    pub(crate) fn spread(&self, start: u64, took: u64, weight: f64, usage: &mut [f64]) {
        let end = start + took;
        for cell in (start >> self.shift)..=(end >> self.shift) {
            let (from, until) = (cell << self.shift, (cell + 1) << self.shift);
            let within = until.min(end) - from.max(start);
            usage[cell as usize] += weight * within as f64;
        }
    }

    fn until(&self, at: u64) -> f64 {
        let cell = (at >> self.shift) as usize;
        let within = at & (self.cell() - 1);
        match self.rates.get(cell) {
            Some(rate) => self.sums[cell] + rate * within as f64,
            None => self.total(),
        }
    }

    fn sum_up(&mut self) {
        let width = self.cell() as f64;
        self.sums.clear();
        self.sums.push(0.0);
        let mut sum = 0.0;
        for rate in &self.rates {
            sum += rate * width;
            self.sums.push(sum);
        }
    }
}

/// [`Prices::cheapest`] for intervals whose ends never fall: amortised O(1).
pub(crate) struct Sliding<'a> {
    prices: &'a Prices,
    took: u64,
    /// Cells whose begin and end are the next to be looked at.
    begins: u64,
    ends: u64,
    /// Starts within the interval that nothing later undercuts.
    offers: VecDeque<Offer>,
}

impl<'a> Sliding<'a> {
    pub(crate) fn new(prices: &'a Prices, took: u64) -> Self {
        let ends = took.div_ceil(prices.cell());
        Self { prices, took, begins: 0, ends, offers: VecDeque::new() }
    }

    pub(crate) fn cheapest(&mut self, lo: u64, hi: u64) -> Offer {
        let shift = self.prices.shift;
        loop {
            let (begin, end) = (self.begins << shift, (self.ends << shift) - self.took);
            let start = begin.min(end);
            if start > hi {
                break;
            }
            if begin <= end {
                self.begins += 1;
            } else {
                self.ends += 1;
            }
            self.offer(start);
        }
        while self.offers.front().is_some_and(|&(_, start)| start < lo) {
            self.offers.pop_front();
        }
        let inside = self.offers.front().copied();
        let ends = [lo, hi].map(|start| (self.prices.of(start, self.took), start));
        let offers = inside.into_iter().chain(ends);
        offers.min_by(|a, b| a.0.total_cmp(&b.0)).expect("the ends of the interval are offers")
    }

    fn offer(&mut self, start: u64) {
        let price = self.prices.of(start, self.took);
        while self.offers.back().is_some_and(|&(other, _)| other >= price) {
            self.offers.pop_back();
        }
        self.offers.push_back((price, start));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn prices(rates: &[u8]) -> Prices {
        let mut prices = Prices::flat(0.0, rates.len() as u64 * 4 - 1, 4);
        prices.change(|cell| f64::from(rates[cell]));
        prices
    }

    fn by_hand(rates: &[u8], start: u64, took: u64) -> f64 {
        let rate = |at: u64| rates.get(at as usize / 4).copied().map_or(0.0, f64::from);
        (start..start + took).map(rate).sum()
    }

    proptest! {
        #[test]
        fn no_start_is_cheaper(
            rates in prop::collection::vec(0..9u8, 1..12),
            took in 1..20u64,
            gaps in prop::collection::vec((0..5u64, 0..9u64), 1..10),
        ) {
            let prices = prices(&rates);
            let mut sliding = Sliding::new(&prices, took);
            let (mut lo, mut hi) = (0, 0);
            for (step, width) in gaps {
                lo += step;
                hi = hi.max(lo + width);
                let best = (lo..=hi).map(|start| by_hand(&rates, start, took));
                let best = best.fold(f64::INFINITY, f64::min);
                for (price, start) in [sliding.cheapest(lo, hi), prices.cheapest(lo, hi, took)] {
                    prop_assert_eq!(price, best);
                    prop_assert_eq!(by_hand(&rates, start, took), best);
                    prop_assert!((lo..=hi).contains(&start));
                }
            }
        }

        #[test]
        fn what_is_spread_costs_what_it_says(
            rates in prop::collection::vec(0..9u8, 6..12),
            start in 0..12u64,
            took in 1..12u64,
        ) {
            let prices = prices(&rates);
            let mut usage = vec![0.0; rates.len()];
            prices.spread(start, took, 1.0, &mut usage);
            prop_assert_eq!(usage.iter().sum::<f64>(), took as f64);
            let cost: f64 = usage.iter().zip(&rates).map(|(time, &rate)| time * f64::from(rate)).sum();
            prop_assert_eq!(cost, prices.of(start, took));
        }
    }
}
