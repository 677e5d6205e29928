//! Figures in virtual time.

use baton_types::Nanos;

use super::walk::{SLOTS, SUBMITTED_MAX, Walk};

/// Batches at full load, polled every five microseconds. Returns how long they took.
fn full_load(batches: u64, rows: u32, time: Nanos) -> (u64, Vec<(u64, u64)>) {
    let mut walk = Walk::new(1, None).unwrap();
    let mut left = batches;
    while left > 0 || walk.pipeline.is_busy() {
        while left > 0
            && let Some(slot) = walk.free_slot()
        {
            walk.prepare(slot, rows, time, Nanos::MAX);
            left -= 1;
        }
        while walk.submitted.len() < SUBMITTED_MAX
            && let Some(slot) =
                (0..SLOTS).min_by_key(|&slot| walk.prepared[slot].unwrap_or(u64::MAX))
            && walk.prepared[slot].is_some()
        {
            walk.submit(slot);
        }
        walk.driver.world().advance(5_000);
        walk.poll();
    }
    assert_eq!(u64::from(walk.executed), batches);
    let world = walk.driver.look();
    assert!(world.violations().is_empty(), "{}", world.violations().join("\n"));
    let spans = world.executions.iter().map(|execution| (execution.start, execution.end));
    (world.now, spans.collect())
}

#[test]
fn copies_hide_behind_executions_and_no_gap_is_between_them() {
    // Against a bare loop, which has the kernel's own start alone between two: 1 µs.
    for (rows, ms, ratio) in [(16, 2.0, 0.98), (16, 0.5, 0.95)] {
        let time = Nanos::from_millis_f64(ms);
        let (took_ns, executions) = full_load(500, rows, time);
        let bare_ns = 500 * (time.0 + 1_000);
        assert!(bare_ns as f64 / took_ns as f64 >= ratio, "{ms} ms: {bare_ns} of {took_ns} ns");
        let gaps = executions.windows(2).map(|pair| pair[1].0 - pair[0].1);
        assert_eq!(gaps.max(), Some(0), "{ms} ms");
    }
}

#[test]
fn one_row_on_an_idle_device_adds_little() {
    let mut walk = Walk::new(1, None).unwrap();
    let time = Nanos::from_micros(500);
    walk.prepare(0, 1, time, Nanos::MAX);
    walk.submit(0);
    while walk.pipeline.is_busy() {
        walk.driver.world().advance(1_000);
        walk.poll();
    }
    assert!(walk.now() <= time + Nanos::from_micros(150), "{:?}", walk.now());
    assert!(walk.times.waited <= Nanos::from_micros(1), "its rows were there just now");
    assert_eq!(walk.times.gap, None, "nothing was executed before");
}
