//! Log lines that anybody can cause: a few a second are written, the rest is counted.

use baton_types::Nanos;

const SECOND: Nanos = Nanos::from_millis(1_000);

/// One for each place that logs what others do. Pure: the caller says what time it is.
#[derive(Debug)]
pub struct LogLimit {
    /// Lines of a second, at most.
    lines: u32,
    /// When the second began that is being counted.
    since: Nanos,
    written: u32,
    left_out: u64,
}

/// For what strangers do: what a person can still read.
impl Default for LogLimit {
    fn default() -> Self {
        Self::new(8)
    }
}

impl LogLimit {
    /// For what members do: room for a whole cluster that starts.
    pub const MEMBERS: Self = Self::new(256);

    const fn new(lines: u32) -> Self {
        Self { lines, since: Nanos::ZERO, written: 0, left_out: 0 }
    }

    /// True if a line may be written now; otherwise it counts as left out.
    pub fn allows(&mut self, now: Nanos) -> bool {
        // The number of lines left out comes before any other line.
        if now >= self.since + SECOND && self.left_out == 0 {
            (self.since, self.written) = (now, 0);
        }
        let allowed = self.written < self.lines;
        if allowed {
            self.written += 1;
        } else {
            self.left_out += 1;
        }
        allowed
    }

    /// How many lines were left out in the last second, once it is over and if any were: to be asked
    /// with every pass, and to be written.
    pub fn left_out(&mut self, now: Nanos) -> Option<u64> {
        if self.left_out == 0 || now < self.since + SECOND {
            return None;
        }
        (self.since, self.written) = (now, 0);
        Some(std::mem::take(&mut self.left_out))
    }

    /// How long to wait at most before [`LogLimit::left_out`] is asked again; `None` if there is nothing
    /// to tell.
    pub fn patience(&self) -> Option<Nanos> {
        (self.left_out > 0).then_some(SECOND)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: usize = 8;

    fn ms(value: u64) -> Nanos {
        Nanos::from_millis(value)
    }

    fn flood(limit: &mut LogLimit, lines: usize, now: Nanos) -> usize {
        (0..lines).filter(|_| limit.allows(now)).count()
    }

    #[test]
    fn a_flood_is_a_few_lines_and_a_number() {
        let mut limit = LogLimit::default();
        assert_eq!(flood(&mut limit, 1_000, ms(5_000)), LINES);
        assert_eq!(limit.left_out(ms(5_999)), None, "the second is not over");
        assert_eq!(limit.patience(), Some(SECOND));
        assert_eq!(limit.left_out(ms(6_000)), Some(1_000 - LINES as u64));
        assert_eq!((limit.left_out(ms(9_000)), limit.patience()), (None, None), "told once");
        assert_eq!(flood(&mut limit, 100, ms(6_100)), LINES, "another second");
    }

    #[test]
    fn the_number_left_out_comes_before_there_are_lines_again() {
        let mut limit = LogLimit::default();
        assert_eq!(flood(&mut limit, 10, ms(5_000)), LINES);
        assert_eq!(flood(&mut limit, 10, ms(7_000)), 0);
        assert_eq!(limit.left_out(ms(7_000)), Some(20 - LINES as u64));
        assert_eq!(flood(&mut limit, 10, ms(7_000)), LINES);
    }

    #[test]
    fn a_line_now_and_then_is_written() {
        let mut limit = LogLimit::default();
        let spaced = (0..1_000).map(|n| ms(n * 130)).filter(|&now| limit.allows(now));
        assert_eq!(spaced.count(), 1_000);
        assert_eq!(limit.left_out(ms(200_000)), None);
    }
}
