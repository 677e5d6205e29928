//! The offered rates of a sweep.

use std::str::FromStr;

/// `A:B:N`, N rates evenly from A to B, or a list; with `x` at the end multiples of the analytic
/// bound instead of tasks per second.
#[derive(Clone, PartialEq, Debug)]
pub struct Rates {
    rates: Vec<f64>,
    of_bound: bool,
}

/// Rates that a sweep may have.
const RATES_MAX: usize = 1_000;

impl Rates {
    /// In tasks per second.
    pub(crate) fn rps(&self, bound_rps: f64) -> impl Iterator<Item = f64> {
        let unit = if self.of_bound { bound_rps } else { 1.0 };
        self.rates.iter().map(move |rate| rate * unit)
    }
}

impl FromStr for Rates {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (numbers, of_bound) = match text.strip_suffix('x') {
            Some(numbers) => (numbers, true),
            None => (text, false),
        };
        let rates = match numbers.split(':').collect::<Vec<_>>().as_slice() {
            [_list] => numbers.split(',').map(rate).collect::<Option<Vec<f64>>>(),
            [from, to, count] => evenly(from, to, count),
            _ => None,
        };
        let rates = rates.ok_or_else(|| {
            format!(
                "write A:B:N, N rates from A to B, or A,B,…, with x at the end for multiples of \
                 the bound; at most {RATES_MAX}, above 0"
            )
        })?;
        Ok(Self { rates, of_bound })
    }
}

fn rate(text: &str) -> Option<f64> {
    text.trim().parse().ok().filter(|rate: &f64| *rate > 0.0 && rate.is_finite())
}

fn evenly(from: &str, to: &str, count: &str) -> Option<Vec<f64>> {
    let (from, to) = (rate(from)?, rate(to)?);
    let count = count.parse().ok().filter(|count| (2..=RATES_MAX).contains(count))?;
    let step = (to - from) / (count - 1) as f64;
    Some((0..count).map(|i| from + step * i as f64).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rps(text: &str) -> Vec<f64> {
        text.parse::<Rates>().unwrap().rps(1_000.0).collect()
    }

    #[test]
    fn rates_are_even_or_listed_and_absolute_or_of_the_bound() {
        assert_eq!(rps("100:300:3"), [100.0, 200.0, 300.0]);
        assert_eq!(rps("5,7.5"), [5.0, 7.5]);
        assert_eq!(rps("5"), [5.0]);
        assert_eq!(rps("0.5,2x"), [500.0, 2_000.0]);
        assert_eq!(rps("2:1:2x"), [2_000.0, 1_000.0]);
    }

    #[test]
    fn what_is_no_rate_is_refused() {
        for text in ["", "x", "0", "-1", "1,", "1:2", "1:2:1", "1:2:3:4", "1:2:1001", "nan", "inf"]
        {
            assert!(text.parse::<Rates>().is_err(), "{text}");
        }
    }
}
