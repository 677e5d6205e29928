//! Which copies are made and which leave, under the rule `baton`.

mod load_stage;

use baton_core::{GpuId, LoadReason, ModelId};
use load_stage::{MS, QUARTER, Stage, gpu};

/// A batch waits that can wait for a LOAD: its LOAD is a job beside others, though the model loses tasks.
#[test]
fn what_a_load_would_still_help_is_loaded_for_tasks_that_wait() {
    let mut stage = Stage::new(&[8]);
    stage.now = MS.times(20);
    stage.come(0, 100);
    stage.wait_for(0, 3, MS.times(50), QUARTER);
    assert_eq!(stage.plan(), [(0, 0, vec![], LoadReason::Waiting)]);
}

/// Its tasks cannot wait for a LOAD, and each time they come in vain it is worth one for those to come.
#[test]
fn a_model_whose_tasks_were_given_up_is_loaded_when_a_loader_is_open() {
    let mut stage = Stage::new(&[8]);
    stage.wait_for(1, 3, MS.times(50), 0);
    assert_eq!(stage.plan(), [(0, 1, vec![], LoadReason::Waiting)]);
    stage.come(0, 5);
    stage.content(0);
    assert_eq!(stage.plan(), [], "the loader has enough to do");
    stage.now = MS.times(6);
    stage.loaded(1, 0);
    assert_eq!(stage.plan(), [(0, 0, vec![], LoadReason::Expected)]);
}

#[test]
fn a_model_is_on_a_slot_but_once() {
    let mut stage = Stage::new(&[8, 8]);
    stage.place(0, 0);
    assert!(!stage.loads.place(stage.now, ModelId(0), gpu(0), &mut stage.planned));
    assert_eq!(stage.loads.free_pages(GpuId(0)), 7);
}

/// Model 0 has two copies, each worth 5 tasks; model 1 has one worth 7.
#[test]
fn of_copies_the_one_that_serves_the_fewest_tasks_leaves() {
    let mut stage = Stage::new(&[2, 1]);
    [(0, 0), (1, 0), (0, 1)].into_iter().for_each(|(model, slot)| stage.place(model, slot));
    stage.come(0, 10);
    stage.come(1, 7);
    stage.execute(0, 1, MS.times(9));
    stage.wait_for(2, 9, MS.times(50), 0);
    assert_eq!(stage.plan(), [(0, 2, vec![0], LoadReason::Waiting)]);
}

/// A second copy halves what each is worth: half of 14 tasks is no more than 7, and half of 16 is.
#[test]
fn a_copy_is_worth_what_it_would_have_beside_the_first() {
    for (tasks, is_copied) in [(14, false), (16, true)] {
        let mut stage = Stage::new(&[1, 1]);
        stage.place(0, 0);
        stage.place(1, 1);
        stage.come(0, tasks);
        stage.come(1, 7);
        stage.now = MS.times(101);
        stage.wait_for(0, 1, MS.times(50), QUARTER);
        let copied = [(1, 0, vec![1], LoadReason::Losing)];
        assert_eq!(stage.plan(), if is_copied { &copied[..] } else { &[] }, "{tasks}");
    }
}

/// Model 0 is on both slots, so that another copy of it would serve no further task.
#[test]
fn what_is_copied_from_a_busy_slot_is_what_the_idle_one_lacks() {
    let mut stage = Stage::new(&[8, 8]);
    [(0, 0), (1, 0), (0, 1)].into_iter().for_each(|(model, slot)| stage.place(model, slot));
    let planned = (0..40).map(|tick| {
        stage.now = MS.times(100 * tick + 1);
        stage.execute(0, 0, MS.times(80));
        stage.execute(1, 0, MS.times(19));
        stage.plan()
    });
    let first = planned.into_iter().find(|planned| !planned.is_empty());
    assert_eq!(first, Some(vec![(1, 1, vec![], LoadReason::Busy)]), "slot 1 is idle");
}

#[test]
fn what_executes_nothing_is_not_copied() {
    let mut stage = Stage::new(&[8, 8]);
    [(0, 0), (1, 0), (0, 1)].into_iter().for_each(|(model, slot)| stage.place(model, slot));
    for tick in 0..40 {
        stage.now = MS.times(100 * tick + 1);
        stage.execute(0, 0, MS.times(99));
        assert_eq!(stage.plan(), []);
    }
}

/// Model 0 has two copies, each worth 5 tasks: 7 that come for another are more, and 30 whose losses are to end are by far.
#[test]
fn a_copy_leaves_for_more_tasks_than_it_serves() {
    let two_copies = || {
        let mut stage = Stage::new(&[1, 1]);
        (0..2).for_each(|slot| stage.place(0, slot));
        stage.now = MS.times(20);
        stage.come(0, 10);
        stage
    };
    let expected = [(0, 2, vec![0], LoadReason::Expected)];
    let mut stage = two_copies();
    stage.come(2, 7);
    assert_eq!(stage.plan(), expected);
    let mut stage = two_copies();
    stage.come(2, 30);
    stage.wait_for(2, 1, MS.times(2), QUARTER);
    assert_eq!(stage.plan(), expected, "no LOAD is made before its batch must start");
}

/// Model 0 has more work than model 1, but two slots for it.
#[test]
fn what_is_copied_has_the_most_work_for_each_copy() {
    let mut stage = Stage::new(&[8, 8, 8]);
    [(0, 0), (1, 0), (0, 2)].into_iter().for_each(|(model, slot)| stage.place(model, slot));
    let planned = (0..40).map(|tick| {
        stage.now = MS.times(100 * tick + 1);
        stage.execute(0, 0, MS.times(60));
        stage.execute(1, 0, MS.times(39));
        stage.plan()
    });
    let first = planned.into_iter().find(|planned| !planned.is_empty());
    assert_eq!(first, Some(vec![(1, 1, vec![], LoadReason::Busy)]));
}

/// Model 0 is on both slots. Model 1 is to be on slot 0 as well, but its LOAD has not ended.
#[test]
fn what_is_copied_from_a_busy_slot_is_on_it() {
    let mut stage = Stage::new(&[8, 8, 8]);
    [(0, 0), (0, 1), (1, 2)].into_iter().for_each(|(model, slot)| stage.place(model, slot));
    assert!(stage.loads.load(stage.now, ModelId(1), gpu(0), &mut stage.planned));
    stage.planned.0.clear();
    for tick in 0..40 {
        stage.now = MS.times(100 * tick + 1);
        stage.execute(0, 0, MS.times(99));
        stage.execute(1, 2, MS.times(50));
        assert_eq!(stage.plan(), []);
    }
}

/// No more than 64 loaders are looked at for a LOAD.
#[test]
fn slots_that_have_left_hide_none_that_is_there() {
    let mut stage = Stage::new(&[1; 66]);
    (0..65).for_each(|slot| stage.loads.on_gpu_leave(gpu(slot), &mut stage.planned));
    stage.wait_for(0, 1, MS.times(100), 0);
    let plan: Vec<_> = stage.plan().into_iter().map(|(slot, model, ..)| (slot, model)).collect();
    assert_eq!(plan, [(65, 0)]);
}
