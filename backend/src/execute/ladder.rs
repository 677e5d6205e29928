//! Sizes of batches that stand for all of them. Pure.

use baton_types::Nanos;

/// Those that are measured, and those that CUDA graphs execute: each up to 16, then every fourth, eighth, and 32nd, and the
/// largest.
pub(crate) fn ladder(batch_max: u32) -> Vec<u32> {
    let step = |batch: u32| match batch {
        0..16 => 1,
        16..32 => 4,
        32..128 => 8,
        128.. => 32,
    };
    let sizes = std::iter::successors(Some(1), |&batch| Some(batch + step(batch)));
    sizes.take_while(|&batch| batch < batch_max).chain([batch_max]).collect()
}

/// What executes that many rows: of `steps`, with their rows ascending, the first that has enough.
pub(crate) fn step<T>(steps: &[(u32, T)], rows: u32) -> Option<&T> {
    steps.iter().find(|(size, _)| *size >= rows).map(|(_, step)| step)
}

/// The table through `points` (batch sizes ascending, from 1) on straight lines, raised where it would fall or be 0.
pub(crate) fn interpolate(points: &[(u32, Nanos)]) -> Vec<Nanos> {
    let mut table: Vec<Nanos> = Vec::new();
    for &(batch, latency) in points {
        let floor = table.last().copied().unwrap_or(Nanos(1));
        let latency = latency.max(floor);
        let from = table.len() as u64;
        let steps = u64::from(batch) - from;
        let rise = if from == 0 { Nanos::ZERO } else { latency - floor };
        let start = if from == 0 { latency } else { floor };
        table.extend((1..=steps).map(|i| start + Nanos(rise.0 * i / steps)));
    }
    table
}

/// As [`interpolate`], of batches that take as long as the next larger one of `points`.
pub(crate) fn staircase(points: &[(u32, Nanos)]) -> Vec<Nanos> {
    let mut table: Vec<Nanos> = Vec::new();
    for &(batch, latency) in points {
        let floor = table.last().copied().unwrap_or(Nanos(1));
        table.resize(batch as usize, latency.max(floor));
    }
    table
}

#[cfg(test)]
mod tests {
    use baton_types::Profile;

    use super::*;

    #[test]
    fn sizes_are_all_small_ones_and_the_largest() {
        assert_eq!(ladder(1), [1]);
        assert_eq!(ladder(3), [1, 2, 3]);
        assert_eq!(ladder(17)[14..], [15, 16, 17]);
        assert_eq!(ladder(45)[15..], [16, 20, 24, 28, 32, 40, 45]);
        assert!(ladder(1024).len() < 64 && ladder(1024).ends_with(&[992, 1024]));
        assert!((1..=1024).all(|most| ladder(most).is_sorted_by(|one, other| one < other)));
    }

    #[test]
    fn a_batch_executes_as_the_smallest_step_that_has_its_rows() {
        let steps = [(1, 'a'), (2, 'b'), (4, 'c'), (7, 'd')];
        let found: Vec<_> = (1..=8).map(|rows| step(&steps, rows).copied()).collect();
        let [a, b, c, d] = ['a', 'b', 'c', 'd'].map(Some);
        assert_eq!(found, [a, b, c, c, d, d, d, None]);
    }

    #[test]
    fn tables_run_straight_between_measurements_and_never_fall() {
        let points = [(1, Nanos(10)), (2, Nanos(8)), (4, Nanos(30)), (5, Nanos(29))];
        let table: Vec<u64> = interpolate(&points).iter().map(|latency| latency.0).collect();
        assert_eq!(table, [10, 10, 20, 30, 30]);
        assert!(Profile::from_table(&interpolate(&[(1, Nanos::ZERO)])).is_ok());
    }

    #[test]
    fn a_batch_between_two_steps_lasts_as_long_as_the_upper_one() {
        let points = [(1, Nanos(10)), (2, Nanos(8)), (4, Nanos(30)), (7, Nanos(29))];
        let table: Vec<u64> = staircase(&points).iter().map(|latency| latency.0).collect();
        assert_eq!(table, [10, 10, 30, 30, 30, 30, 30]);
        assert!(Profile::from_table(&staircase(&[(1, Nanos::ZERO)])).is_ok());
    }
}
