//! How much of this machine's time others took: numbers measured on a stolen CPU say little.

use std::fs;

/// Watches from its start how much CPU time others take.
#[derive(Clone, Copy, Debug)]
pub struct StealMeter(Option<CpuTimes>);

impl StealMeter {
    /// From now on.
    pub fn start() -> Self {
        Self(CpuTimes::read())
    }

    /// The share of the CPU time since the start that went to other machines' work; `None` where the
    /// kernel does not say.
    pub fn fraction(self) -> Option<f64> {
        CpuTimes::read()?.stolen_since(self.0?)
    }
}

/// A share for people; `unknown` stands for one that is not known.
pub(crate) fn percent(share: Option<f64>, unknown: &str) -> String {
    share.map_or_else(|| unknown.to_owned(), |share| format!("{:.1} %", share * 100.0))
}

/// A reading of the first line of `/proc/stat`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct CpuTimes {
    total: u64,
    stolen: u64,
}

impl CpuTimes {
    /// Now; `None` where the kernel does not say.
    fn read() -> Option<Self> {
        Self::parse(fs::read_to_string("/proc/stat").ok()?.lines().next()?)
    }

    /// user nice system idle iowait irq softirq steal; guest times are part of user and nice.
    fn parse(line: &str) -> Option<Self> {
        let ticks = line.strip_prefix("cpu ")?.split_whitespace().map(str::parse);
        let ticks: Vec<u64> = ticks.collect::<Result<_, _>>().ok()?;
        Some(Self { total: ticks.iter().take(8).sum(), stolen: *ticks.get(7)? })
    }

    /// The share of time stolen since `earlier`; `None` if no time has passed.
    fn stolen_since(self, earlier: Self) -> Option<f64> {
        let total = self.total.checked_sub(earlier.total).filter(|&total| total > 0)?;
        Some(self.stolen.saturating_sub(earlier.stolen) as f64 / total as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stolen_share_is_that_of_the_time_in_between() {
        let before = CpuTimes::parse("cpu  100 0 50 800 0 0 0 50 0 0").unwrap();
        let after = CpuTimes::parse("cpu  150 0 60 880 0 0 0 110 0 0").unwrap();
        assert_eq!(after.stolen_since(before), Some(0.3));
        assert_eq!(before.stolen_since(before), None);
        assert_eq!(before.stolen_since(after), None);
    }

    #[test]
    fn other_lines_and_old_kernels_are_no_reading() {
        for line in ["", "cpu0 1 2 3 4 5 6 7 8", "cpu  1 2 3 4", "cpu  a b"] {
            assert_eq!(CpuTimes::parse(line), None, "{line}");
        }
    }
}
