//! Latencies, counted in classes: eight to each power of two of nanoseconds, so that a quantile is off by 6 % at most.

use std::ops::Range;

/// Classes: one below the first power of two, one above the last, and those between.
pub(crate) const CLASSES: usize = 2 + ((LAST - FIRST) * PER_OCTAVE) as usize;
/// What is shorter than 2^16 ns, 66 µs, is in the first class.
const FIRST: u32 = 16;
/// What is as long as 2^34 ns, 17 s, is in the last.
const LAST: u32 = 34;
const PER_OCTAVE: u32 = 1 << OCTAVE_BITS;
const OCTAVE_BITS: u32 = 3;

/// The class of a latency. For each task: a handful of instructions.
pub(crate) fn class_of(ns: u64) -> usize {
    let ns = ns.min(1 << LAST);
    if ns < 1 << FIRST {
        return 0;
    }
    let octave = ns.ilog2();
    let within = (ns >> (octave - OCTAVE_BITS)) as u32 - PER_OCTAVE;
    1 + ((octave - FIRST) * PER_OCTAVE + within) as usize
}

/// The shortest latency of a class, ns.
pub(crate) fn begin_of(class: usize) -> u64 {
    let Some(above) = class.checked_sub(1) else { return 0 };
    let (octave, within) = (above as u32 / PER_OCTAVE + FIRST, above as u32 % PER_OCTAVE);
    u64::from(PER_OCTAVE + within) << (octave - OCTAVE_BITS)
}

/// The classes of each power of two, of what is shorter, and of what is longer.
pub(crate) fn octaves() -> impl Iterator<Item = Range<usize>> {
    let between = (1..CLASSES - 1).step_by(PER_OCTAVE as usize);
    let between = between.map(|first| first..first + PER_OCTAVE as usize);
    std::iter::once(0..1).chain(between).chain(std::iter::once(CLASSES - 1..CLASSES))
}

/// The latency, ns, that a share `q` of those counted does not exceed: within its class as if they were spread evenly. Of the
/// last class, its beginning. `None`: nothing was counted.
pub(crate) fn quantile(counts: &[u64; CLASSES], q: f64) -> Option<f64> {
    let total: u64 = counts.iter().sum();
    let wanted = q * total as f64;
    let mut below = 0;
    for (class, &count) in counts.iter().enumerate().filter(|(_, count)| **count > 0) {
        if (below + count) as f64 >= wanted {
            let begin = begin_of(class) as f64;
            let end = if class + 1 < CLASSES { begin_of(class + 1) as f64 } else { begin };
            return Some(begin + (end - begin) * (wanted - below as f64) / count as f64);
        }
        below += count;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_class_begins_with_its_shortest_latency(ns in 0..1u64 << 40) {
            let class = class_of(ns);
            prop_assert!(begin_of(class) <= ns);
            prop_assert!(class + 1 == CLASSES || ns < begin_of(class + 1));
        }
    }

    #[test]
    fn classes_are_narrow_and_follow_each_other() {
        for class in 0..CLASSES {
            assert_eq!(class_of(begin_of(class)), class);
        }
        for class in 1..CLASSES - 1 {
            let (begin, end) = (begin_of(class), begin_of(class + 1));
            assert!(end as f64 / begin as f64 <= 1.125, "{begin} to {end}");
        }
        assert_eq!(begin_of(CLASSES - 1), 1 << LAST);
    }

    #[test]
    fn latencies_of_a_class_count_as_spread_evenly() {
        let (mut counts, class) = ([0; CLASSES], class_of(10_000_000));
        counts[class] = 8;
        let (begin, end) = (begin_of(class) as f64, begin_of(class + 1) as f64);
        for share in [0.25, 0.5, 1.0] {
            assert_eq!(quantile(&counts, share), Some(begin + (end - begin) * share));
        }
    }

    #[test]
    fn quantiles_are_those_of_the_latencies() {
        let mut counts = [0; CLASSES];
        assert_eq!(quantile(&counts, 0.5), None);
        (1..=1_000u64).for_each(|ms| counts[class_of(ms * 1_000_000)] += 1);
        for (q, ms) in [(0.01, 10.0), (0.5, 500.0), (0.99, 990.0), (1.0, 1_000.0)] {
            let found = quantile(&counts, q).expect("some were counted") / 1e6;
            assert!((found / ms - 1.0).abs() < 0.07, "{q}: {found} for {ms}");
        }
        let mut counts = [0; CLASSES];
        counts[class_of(60_000_000_000)] = 1;
        assert_eq!(quantile(&counts, 0.99), Some((1u64 << LAST) as f64), "at least so long");
    }
}
