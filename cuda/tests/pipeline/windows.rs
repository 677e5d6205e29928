//! Batches that may start too late, or never end.

use baton_cuda::{End, PATIENCE};
use baton_types::Nanos;

use super::walk::{ROWS_MAX, Walk};

#[test]
fn a_window_is_open_until_its_last_moment() {
    for (late_ns, executed) in [(0, 1), (1, 0)] {
        let mut walk = Walk::new(1, None).unwrap();
        let start_by = Nanos::from_micros(50);
        walk.prepare(0, 1, Nanos(1_000), start_by);
        walk.driver.world().advance(start_by.0 + late_ns);
        walk.submit(0);
        walk.end();
        assert_eq!((walk.executed, walk.expired), (executed, 1 - executed));
    }
}

#[test]
fn rows_that_come_too_late_for_the_window_are_not_executed() {
    let mut walk = Walk::new(1, None).unwrap();
    // Sixteen rows take about 110 µs to the device.
    walk.prepare(0, ROWS_MAX, Nanos(1_000), Nanos::from_micros(100));
    walk.submit(0);
    walk.end();
    assert_eq!((walk.executed, walk.expired), (0, 1));
}

#[test]
fn a_device_on_which_nothing_ends_is_lost_and_keeps_the_rows_it_may_still_read() {
    let mut walk = Walk::new(1, None).unwrap();
    walk.driver.world().hangs = true;
    walk.prepare(0, 1, Nanos(1_000), Nanos::MAX);
    walk.prepare(1, 1, Nanos(1_000), Nanos::MAX);
    walk.submit(0);
    walk.submit(1);
    let step = Nanos::from_millis(100);
    while walk.now() < PATIENCE {
        walk.driver.world().advance(step.0);
        assert!(walk.pipeline.poll(walk.now()).is_none());
    }
    assert!(walk.pipeline.lost().is_none(), "it may only be slow");
    walk.driver.world().advance(2 * step.0);
    assert!(walk.pipeline.poll(walk.now()).is_none(), "its rows may still be read");
    let lost = walk.pipeline.lost().unwrap().to_string();
    assert!(lost.contains("has not ended 10 s"), "{lost}");
    // What was only copied comes back, and what comes later has no device.
    walk.prepare(2, 1, Nanos(1_000), Nanos::MAX);
    walk.pipeline.withdraw(2);
    assert_eq!(walk.pipeline.poll(walk.now()).map(|back| back.end), Some(End::Withdrawn));
    let calls = walk.driver.look().calls;
    drop(walk.pipeline);
    let world = walk.driver.look();
    assert!(world.is_abandoned && world.calls == calls, "the end does not wait for the device");
}

#[test]
fn a_batch_that_might_be_late_behind_another_waits_at_the_gate() {
    let mut walk = Walk::new(1, None).unwrap();
    let time = Nanos::from_micros(500);
    walk.prepare(0, 1, time, Nanos::MAX);
    // It cannot start in time, and the one behind it can once it is out of the way.
    walk.prepare(1, 1, time, Nanos::from_micros(400));
    walk.submit(0);
    walk.submit(1);
    while walk.driver.look().now < 400_000 {
        walk.driver.world().advance(1_000);
        walk.poll();
    }
    walk.driver.world().advance(200_000);
    walk.poll();
    assert_eq!((walk.executed, walk.expired), (1, 1), "the second has expired");
}

#[test]
fn a_refused_batch_comes_back_in_its_turn_once_its_rows_are_not_read() {
    let mut walk = Walk::new(1, None).unwrap();
    walk.prepare(0, 4, Nanos(1_000), Nanos::MAX);
    walk.prepared[0] = None;
    walk.submitted.push_back(0);
    walk.pipeline.refuse(0, "not loaded".into());
    walk.poll();
    assert_eq!(walk.failed, 0, "its rows are being copied");
    walk.end();
    assert_eq!(walk.failed, 1);
}

#[test]
fn a_device_that_is_late_moves_the_gate() {
    let mut walk = Walk::new(1, None).unwrap();
    walk.driver.world().slower_percent = 100;
    let time = Nanos::from_micros(500);
    walk.prepare(0, 1, time, Nanos::MAX);
    walk.prepare(1, 1, time, Nanos::MAX);
    walk.driver.world().advance(100_000);
    walk.submit(0);
    walk.submit(1);
    while walk.executed == 0 {
        walk.driver.world().advance(10_000);
        walk.poll();
    }
    // By plan the second would end just now. It has only begun.
    let start_by = walk.now() + Nanos::from_micros(300);
    walk.prepare(2, 1, time, start_by);
    walk.driver.world().advance(50_000);
    walk.submit(2);
    walk.end();
    assert_eq!((walk.executed, walk.expired), (2, 1), "it would have begun too late");
}
