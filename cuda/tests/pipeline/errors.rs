//! The driver refuses: an error at every call, and a device that is too small.

use baton_cuda::Room;
use baton_types::Nanos;

use super::BLOCKS;
use super::Say;
use super::walk::{ROWS_MAX, SLOTS, Walk, room};

#[test]
fn an_error_at_any_call_fails_what_it_touches_and_loses_nothing() {
    let calls = {
        let mut walk = Walk::new(7, None).unwrap();
        walk.run();
        walk.driver.look().calls
    };
    let (mut failed, mut lost) = (0, 0);
    for code in [1, 2, 700, 719] {
        for call in 1..=calls {
            let _say = Say(format!("call {call} failed with {code}"));
            let Ok(mut walk) = Walk::new(7, Some((call, code))) else { continue };
            walk.run();
            failed += walk.failed;
            assert_eq!(
                walk.pipeline.lost().is_some(),
                code >= 700 && walk.driver.look().calls >= call
            );
            lost += u32::from(walk.pipeline.lost().is_some());
            if code < 700 {
                let (before, slot) = (walk.executed, walk.free_slot().unwrap());
                walk.prepare(slot, 1, Nanos(1_000), Nanos::MAX);
                walk.submit(slot);
                walk.end();
                assert_eq!(walk.executed, before + 1, "the device goes on");
            }
        }
    }
    assert!(failed > 100 && lost > 100, "{failed} batches failed, {lost} devices were lost");
}

#[test]
fn a_device_that_is_too_small_keeps_what_it_had() {
    for missing in 1..=SLOTS * BLOCKS {
        let mut walk = Walk::new(1, None).unwrap();
        let (calls, held) = (walk.driver.look().calls, walk.driver.look().blocks_held);
        // Each batch slot takes five blocks, then gives five back that it had.
        let (slot, block) = ((missing - 1) / BLOCKS, (missing - 1) % BLOCKS);
        let at = calls + 1 + (2 * BLOCKS * slot + block) as u64;
        walk.driver.world().fail = Some((at, 2));
        let Room { row_bytes, rows, .. } = room();
        let refused = walk.pipeline.reserve(Room::of_checksums(2 * rows, 2 * row_bytes));
        let refused = refused.unwrap_err();
        assert!(refused.is_out_of_memory(), "{refused}");
        assert_eq!(walk.driver.look().blocks_held, held, "it gives back what it had taken");
        let taken = walk.driver.look().allocations;
        walk.prepare(0, ROWS_MAX, Nanos(1_000), Nanos::MAX);
        walk.submit(0);
        walk.end();
        assert_eq!((walk.executed, walk.driver.look().allocations), (1, taken), "it goes on");
        walk.pipeline.reserve(Room::of_checksums(rows, 2 * row_bytes)).unwrap();
    }
}
