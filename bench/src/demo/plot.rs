//! Numbers as a row of bars, one character each: what a line on a terminal has room for.

use std::collections::VecDeque;
use std::ops::Range;

const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The latest numbers of a course.
#[derive(Default)]
pub(super) struct Sparkline(VecDeque<f64>);

impl Sparkline {
    /// Adds the latest number; `most` are kept.
    pub(super) fn push(&mut self, value: f64, most: usize) {
        self.0.push_back(value);
        while self.0.len() > most {
            self.0.pop_front();
        }
    }

    /// A bar for each, the oldest first. What is outside the range has the bar of its end.
    pub(super) fn drawn(&self, range: Range<f64>) -> String {
        let last = (BARS.len() - 1) as f64;
        let bar = |value: &f64| {
            let part = (value - range.start) / (range.end - range.start);
            BARS[(part * last).round().clamp(0.0, last) as usize]
        };
        self.0.iter().map(bar).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars_grow_with_the_numbers_and_stay_in_the_range() {
        let mut line = Sparkline::default();
        [-5.0, 0.0, 1.0, 4.0, 7.0, 99.0].into_iter().for_each(|value| line.push(value, 5));
        assert_eq!(line.drawn(0.0..7.0), "▁▂▅██");
        assert_eq!(Sparkline::default().drawn(0.0..1.0), "");
    }
}
