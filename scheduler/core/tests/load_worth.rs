//! Under pressure a LOAD is weighed: what it saves against what leaves for it, before tasks that wait or behind them.

mod load_stage;

use baton_core::{Candidate, LoadReason, ModelId, Nanos, Weights};
use load_stage::{LOAD, MS, Planned, QUARTER, Stage, gpu, waiting};

#[test]
fn the_only_copy_that_has_executed_a_batch_goes_for_more_tasks_than_it_leaves_behind() {
    for (has_executed, waiting, coming) in [(false, 2, 9), (true, 3, 3), (true, 2, 3)] {
        let mut stage = Stage::new(&[1]);
        stage.place(0, 0);
        if has_executed {
            stage.execute(0, 0, MS);
        }
        stage.wait_for(0, waiting, MS.times(50), 0);
        stage.wait_for(1, coming, MS.times(50), 0);
        let goes = has_executed && coming > waiting;
        let expected = if goes { vec![(0, 1, vec![0], LoadReason::Waiting)] } else { vec![] };
        assert_eq!(stage.plan(), expected, "{has_executed} {waiting} {coming}");
    }
}

/// Of two models with two copies each, the one whose tasks have stopped loses one, although more of its tasks came.
#[test]
fn a_copy_of_a_model_whose_tasks_stopped_goes_before_one_of_a_model_that_has_some() {
    let mut stage = Stage::new(&[2, 2]);
    for (model, slot) in [(0, 0), (0, 1), (1, 0), (1, 1)] {
        stage.place(model, slot);
    }
    stage.come(0, 100);
    (0..8).for_each(|_| {
        stage.now = stage.now + MS.times(250);
        stage.come(1, 4);
    });
    stage.wait_for(2, 3, MS.times(50), 0);
    let plan = stage.plan();
    let victims: Vec<_> = plan.iter().map(|(_, _, victims, _)| &victims[..]).collect();
    assert_eq!(victims, [[0]], "{plan:?}");
}

#[test]
fn a_copy_with_a_batch_stays_however_many_wait_for_another() {
    let mut stage = Stage::new(&[1]);
    stage.place(0, 0);
    stage.execute(0, 0, MS);
    stage.loads.on_granted(stage.now, ModelId(0), gpu(0));
    stage.wait_for(1, 16, MS.times(50), 0);
    assert_eq!(stage.plan(), []);
}

/// All that leaves for one model counts together.
#[test]
fn several_only_copies_go_for_more_tasks_than_all_of_them_leave_behind() {
    for (coming, expected) in [(4, vec![]), (5, vec![(0, 7, vec![0, 1], LoadReason::Waiting)])] {
        let mut stage = Stage::new(&[2]);
        let large = Weights { pages: 2, load: LOAD, is_guess: false, alone: MS };
        stage.loads.serve(ModelId(7), large, &mut Planned::default());
        for model in [0, 1] {
            stage.place(model, 0);
            stage.execute(model, 0, MS);
            stage.wait_for(model, 2, MS.times(50), 0);
        }
        stage.wait_for(7, coming, MS.times(50), 0);
        assert_eq!(stage.plan(), expected, "{coming}");
    }
}

/// Slot 0 has the hot model 0 and executes this much of the time; slot 1 has model 1. A crowd of 4,000 tasks has come for
/// model 0, and one task waits for the cold model 2.
fn crowd(
    used_of_ten: u64,
    bad_rate: u32,
    of_the_other: u32,
) -> Vec<(u32, u32, Vec<u32>, LoadReason)> {
    let mut stage = Stage::new(&[1, 1]);
    stage.place(0, 0);
    stage.place(1, 1);
    for _ in 0..40 {
        stage.come(0, 100);
        stage.come(1, of_the_other);
        stage.execute(0, 0, MS.times(used_of_ten));
        stage.now = stage.now + MS.times(10);
        assert_eq!(stage.plan(), []);
    }
    stage.execute(0, 0, MS.times(used_of_ten));
    stage.now = stage.now + MS.times(10);
    stage.wait_for(0, 4, MS.times(50), bad_rate);
    stage.wait_for(2, 1, MS.times(9), 0);
    stage.plan()
}

#[test]
fn a_crowd_gets_a_copy_before_a_cold_model_is_loaded() {
    let copy = (1, 0, vec![1], LoadReason::Losing);
    assert_eq!(crowd(10, QUARTER, 1).first(), Some(&copy));
    let first = |planned: Vec<(u32, u32, Vec<u32>, LoadReason)>| planned.first().map(|p| p.1);
    assert_eq!(first(crowd(10, 0, 1)), Some(2), "it loses nothing");
    assert_eq!(crowd(7, QUARTER, 1).first(), Some(&copy), "too little is to spare");
    assert_eq!(first(crowd(5, QUARTER, 1)), Some(2), "its slot has time");
    assert_eq!(first(crowd(10, 400, 60)), Some(2), "what leaves is worth more than it loses");
}

/// Both slots hold model 0, of whose 100 tasks 75 were executed, in 10 ms. The other's batch takes 1 ms.
#[test]
fn a_copy_of_a_model_that_loses_tasks_goes_for_more_tasks_than_it_would_execute_meanwhile() {
    for (bad_rate, coming, goes) in [(QUARTER, 7, false), (QUARTER, 8, true), (328, 1, true)] {
        let mut stage = Stage::new(&[1, 1]);
        [0, 1].into_iter().for_each(|slot| stage.place(0, slot));
        stage.come(0, 100);
        stage.execute(0, 0, MS.times(10));
        stage.wait_for(0, 4, MS.times(50), bad_rate);
        stage.wait_for(2, coming, MS.times(50), 0);
        let expected = if goes { vec![(1, 2, vec![0], LoadReason::Waiting)] } else { vec![] };
        assert_eq!(stage.plan(), expected, "{bad_rate} {coming}");
    }
}

/// Whatever it loses, without it none of its tasks would be executed.
#[test]
fn the_only_copy_of_a_model_that_loses_tasks_leaves_all_of_them_behind() {
    for (coming, goes) in [(4, false), (5, true)] {
        let mut stage = Stage::new(&[1]);
        stage.place(0, 0);
        stage.come(0, 100);
        stage.execute(0, 0, MS.times(10));
        stage.wait_for(0, 4, MS.times(50), QUARTER);
        stage.wait_for(2, coming, MS.times(50), 0);
        let expected = if goes { vec![(0, 2, vec![0], LoadReason::Waiting)] } else { vec![] };
        assert_eq!(stage.plan(), expected, "{coming}");
    }
}

/// Its tasks cannot wait for a LOAD, others' can.
#[test]
fn a_model_that_loses_all_its_tasks_is_loaded_for_those_to_come_before_those_that_wait() {
    for (tasks, expected) in [(8, 2), (50, 0)] {
        let mut stage = Stage::new(&[1]);
        stage.place(1, 0);
        stage.come(1, 1);
        stage.now = stage.now + MS.times(10);
        stage.come(0, tasks);
        stage.wait_for(0, 1, MS.times(2), 4 * QUARTER);
        stage.wait_for(2, 1, MS.times(9), 0);
        let first = stage.plan().first().map(|planned| planned.1);
        assert_eq!(first, Some(expected), "{tasks} tasks in four seconds");
    }
}

/// And eight tasks beyond that, for the loader's time. Chance makes no two models change places.
#[test]
fn what_is_loaded_for_tasks_to_come_is_worth_twice_what_leaves() {
    for (tasks, expected) in [(28, None), (29, Some(0))] {
        let mut stage = Stage::new(&[1]);
        stage.place(1, 0);
        stage.now = stage.now + MS.times(10);
        stage.come(1, 10);
        stage.come(0, tasks);
        stage.wait_for(0, 1, MS.times(2), 4 * QUARTER);
        let first = stage.plan().first().map(|planned| planned.1);
        assert_eq!(first, expected, "{tasks} beside ten");
        assert_eq!(stage.loads.counters().copied, 0, "it was nowhere");
    }
}

#[test]
fn a_copy_is_made_once_and_not_again_until_it_is_full_too() {
    let mut stage = Stage::new(&[1, 1, 1]);
    stage.place(0, 0);
    let mut copies = Vec::new();
    for _ in 0..40 {
        stage.come(0, 100);
        stage.execute(0, 0, MS.times(10));
        stage.wait_for(0, 4, MS.times(50), QUARTER);
        stage.now = stage.now + MS.times(10);
        // A cold model waits that no LOAD helps: only crowds get copies.
        stage.wait_for(2, 1, Nanos::ZERO, 0);
        copies.extend(stage.plan());
        if let Some(&(slot, 0, ..)) = copies.last()
            && !stage.loads.is_resident(ModelId(0), gpu(slot))
        {
            stage.loaded(0, slot);
        }
    }
    assert_eq!(copies, [(1, 0, vec![], LoadReason::Losing)]);
    assert_eq!(stage.loads.counters().copied, 1, "looks that copy nothing count for nothing");
    stage.content(2);
}

/// Nothing else waits for the loaders. Slots are looked at for copies ten times a second, and this is such a moment as well.
#[test]
fn a_crowd_gets_one_copy_at_a_time() {
    let mut stage = Stage::new(&[1, 1, 1]);
    stage.place(0, 0);
    let mut pass = |bad_rate| {
        stage.come(0, 100);
        stage.execute(0, 0, MS.times(10));
        stage.now = stage.now + MS.times(10);
        stage.wait_for(0, 4, MS.times(50), bad_rate);
        stage.plan()
    };
    assert!((1..50).all(|_| pass(0).is_empty()));
    assert_eq!(pass(QUARTER), [(1, 0, vec![], LoadReason::Losing)]);
}

/// The LOAD takes 5 ms, and a plan and its inputs 1 ms each way. A batch of 5 ms that is still to begin at `within` leaves its head,
/// which takes 1 ms alone, until `within` + 5 − 1 − 2.
#[test]
fn a_cold_model_is_loaded_as_long_as_one_task_that_waits_can_be_served_after_it() {
    let plan_within = |within| {
        let mut stage = Stage::new(&[1]);
        let last = waiting(3, stage.now + within, 0);
        let candidate = Candidate { latency: MS.times(5), delay: MS, ..last };
        stage.loads.on_candidate(stage.now, ModelId(2), Some(candidate));
        stage.plan().len()
    };
    assert_eq!((plan_within(MS.times(3)), plan_within(MS.times(3) - Nanos(1))), (1, 0));
}

/// Slot 1 was used last in an earlier second and executed more then.
#[test]
fn of_slots_that_have_nothing_to_execute_the_one_that_does_least_gets_the_load() {
    let mut stage = Stage::new(&[2, 2]);
    [0, 1].into_iter().for_each(|slot| stage.place(slot, slot));
    for (slot, latency) in [(1, MS.times(60)), (0, MS.times(20))] {
        stage.execute(slot, slot, latency);
        stage.now = stage.now + MS.times(1_000);
        assert_eq!(stage.plan(), []);
    }
    stage.wait_for(2, 1, MS.times(50), 0);
    assert_eq!(stage.plan(), [(0, 2, vec![], LoadReason::Waiting)]);
}

/// Slot 0 executes most of the time, and both have something to execute now.
#[test]
fn a_load_goes_to_the_slot_that_has_less_to_execute_by_four_milliseconds_or_more() {
    let chosen = |to_execute: [u64; 2]| {
        let mut stage = Stage::new(&[2, 2]);
        [0, 1].into_iter().for_each(|slot| stage.place(slot, slot));
        stage.execute(0, 0, MS.times(90));
        stage.now = stage.now + MS.times(1_000);
        assert_eq!(stage.plan(), []);
        for (slot, ms) in (0..).zip(to_execute) {
            stage.execute(slot, slot, MS.times(ms));
        }
        stage.wait_for(2, 1, MS.times(50), 0);
        stage.plan()[0].0
    };
    assert_eq!(chosen([1, 3]), 1, "about the same: slot 1 does less");
    assert_eq!(chosen([3, 5]), 0);
    assert_eq!(chosen([9, 20]), 0);
}

/// LOADs take 60 ms on slot 0 and 20 ms on slot 1.
#[test]
fn what_a_slow_link_takes_longer_counts_as_something_to_execute() {
    for (to_execute_ms, expected) in [(8, 1), (200, 0)] {
        let mut stage = Stage::new(&[2, 2]);
        for model in (0..60).map(|at| at % 6) {
            for (slot, took) in [(0, MS.times(60)), (1, MS.times(20))] {
                assert!(stage.loads.load(stage.now, ModelId(model), gpu(slot), &mut stage.planned));
                stage.now = stage.now + took;
                stage.loaded_in(took, model, slot);
            }
        }
        stage.planned.0.clear();
        stage.execute(4, 1, MS.times(to_execute_ms));
        stage.wait_for(7, 1, MS.times(900), 0);
        assert_eq!(stage.plan()[0].0, expected, "{to_execute_ms} ms");
    }
}

/// Every slot executes all of the time, so none that the copy might go to has time either.
#[test]
fn while_a_copy_is_being_loaded_no_other_is_made() {
    let mut stage = Stage::new(&[2; 3]);
    (0..3).for_each(|slot| stage.place(slot, slot));
    let mut copies = Vec::new();
    for _ in 0..80 {
        stage.come(0, 100);
        (0..3).for_each(|slot| stage.execute(slot, slot, MS.times(10)));
        stage.wait_for(0, 4, MS.times(50), QUARTER);
        stage.now = stage.now + MS.times(10);
        stage.wait_for(7, 1, Nanos::ZERO, 0);
        copies.extend(stage.plan());
    }
    assert_eq!(copies, [(1, 0, vec![], LoadReason::Losing)]);
}

fn with_a_large_model(pages: &[u32]) -> Stage {
    let mut stage = Stage::new(pages);
    let large = Weights { pages: 2, load: LOAD, is_guess: false, alone: MS };
    stage.loads.serve(ModelId(7), large, &mut Planned::default());
    stage
}

/// That many tasks come for the model, which could wait for a LOAD, and are given up.
fn wait_in_vain(stage: &mut Stage, model: u32, tasks: u32) {
    stage.wait_for(model, 1, MS.times(50), 0);
    stage.come(model, tasks);
    stage.content(model);
}

/// That many tasks come for the large model 7, none of which can wait.
fn is_expected(stage: &mut Stage, tasks: u32) -> bool {
    stage.come(7, tasks);
    stage.plan().iter().any(|planned| planned.1 == 7)
}

/// What comes for models whose tasks cannot wait either is lost; what comes for the others is loaded again, as long as that succeeds.
#[test]
fn what_leaves_for_tasks_to_come_counts_together_unless_its_own_can_wait() {
    let loads = |tasks, can_wait: bool, lost: u32| {
        let mut stage = with_a_large_model(&[2]);
        for model in [0, 1] {
            stage.place(model, 0);
            stage.come(model, 5);
        }
        for model in [0, 1].into_iter().filter(|_| can_wait) {
            wait_in_vain(&mut stage, model, 0);
        }
        wait_in_vain(&mut stage, 2, lost);
        is_expected(&mut stage, tasks)
    };
    assert_eq!([10, 11].map(|tasks| loads(tasks, false, 0)), [false, true]);
    assert_eq!([5, 6].map(|tasks| loads(tasks, true, 0)), [false, true]);
    assert_eq!([9, 11].map(|tasks| loads(tasks, true, 80)), [false, true], "all such are lost");
}

/// 5 ms are a part in 800 of the four seconds in which 4,000 tasks come that can wait.
#[test]
fn a_load_for_tasks_to_come_costs_those_that_come_for_cold_models_meanwhile() {
    for (loaders, tasks) in [(1, [4, 6]), (2, [2, 3])] {
        let loads = |tasks| {
            let mut stage = with_a_large_model(&[2, 2][..loaders]);
            wait_in_vain(&mut stage, 2, 4_000);
            is_expected(&mut stage, tasks)
        };
        assert_eq!(tasks.map(loads), [false, true], "{loaders}");
    }
}

#[test]
fn cold_tasks_that_could_wait_count_less_when_no_more_come() {
    let mut stage = with_a_large_model(&[2]);
    wait_in_vain(&mut stage, 2, 4_000);
    assert!(!is_expected(&mut stage, 2));
    stage.now = stage.now + MS.times(4_000);
    assert!(is_expected(&mut stage, 4));
}
