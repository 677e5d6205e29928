//! Many rows in a few numbers.

use serde::Serialize;

use super::super::summary::{Quantiles, Worst, lowest, quantiles};
use super::contest::ServedRow;

/// See the module documentation.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ServedSummary {
    /// Scenarios that were measured.
    pub scenarios: usize,
    /// Score over that of the best of the others.
    pub ratio: Quantiles,
    /// The smallest of these ratios, below 1.
    pub worst: Vec<Worst>,
    /// Goodput over that of the cheapest variants alone.
    pub over_cheapest: Quantiles,
    /// The smallest of these, below 1.
    pub worst_over_cheapest: Vec<Worst>,
}

impl ServedSummary {
    /// `replay` gives the command that measures a scenario again, by its index.
    pub fn new(rows: &[ServedRow], replay: impl Fn(u32) -> String) -> Self {
        let best = |row: &ServedRow| row.best.clone().unwrap_or_default();
        let cheapest = |_: &ServedRow| "cheapest".to_owned();
        Self {
            scenarios: rows.len(),
            ratio: quantiles(rows.iter().filter_map(|row| row.ratio)),
            worst: worst(rows, |row| row.ratio, best, &replay),
            over_cheapest: quantiles(rows.iter().filter_map(|row| row.over_cheapest)),
            worst_over_cheapest: worst(rows, |row| row.over_cheapest, cheapest, &replay),
        }
    }
}

/// The rows with the lowest values below 1.
fn worst(
    rows: &[ServedRow],
    value: impl Fn(&ServedRow) -> Option<f64>,
    against: impl Fn(&ServedRow) -> String,
    replay: impl Fn(u32) -> String,
) -> Vec<Worst> {
    let behind = |row| Some((value(row).filter(|&value| value < 1.0)?, row));
    let named = |row: &ServedRow| (row.index, row.description.clone(), against(row));
    lowest(rows.iter().filter_map(behind), named, replay)
}
