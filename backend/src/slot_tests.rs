//! Stories of one batch slot.

use baton_types::ModelId;

use super::*;
use crate::action::START_GRACE;
use crate::served::ServedModel;

const TOLD: Execution =
    Execution { variant: 0, started: Nanos(100), finished: Nanos(200), succeeded: true };

pub(crate) fn task(frontend: u16, slot: u32) -> TaskId {
    TaskId::new(FrontendId(frontend), slot, 7)
}

/// Every second one was cold.
fn batch_task(frontend: u16, slot: u32) -> BatchTask {
    BatchTask { id: task(frontend, slot), input_bytes: 8, is_cold: slot % 2 == 1 }
}

fn output(frontend: u16, slot: u32, row: u32) -> Answer {
    Answer::Output(batch_task(frontend, slot), row)
}

/// A slot that fetches rows of these frontends, one task each.
pub(crate) fn fetching(frontends: &[u16]) -> BatchSlot {
    let model = ServedModel {
        id: ModelId(0),
        local: ModelId(0),
        batch_max: 8,
        input_bytes: 8,
        output_bytes: 8,
        input_is_fixed: true,
        variants: 1,
    };
    let tasks = frontends.iter().zip(0..).map(|(&frontend, slot)| batch_task(frontend, slot));
    let tasks = tasks.collect();
    let (earliest, latest) = (Nanos(10), Nanos(50));
    let mut slot = BatchSlot::new(8);
    slot.begin(Action {
        id: 1,
        thread: 0,
        model,
        earliest,
        latest,
        start_by: (latest + START_GRACE).into(),
        tasks,
        fetched: None,
    });
    slot
}

fn start(slot: &mut BatchSlot) -> (u32, Vec<(u32, u32)>) {
    let mut moves = Vec::new();
    let rows = slot.prepare(|from, to| moves.push((from, to)));
    slot.submit();
    (rows, moves)
}

fn answers(slot: &mut BatchSlot) -> Vec<Answer> {
    let mut all = Vec::new();
    assert!(slot.answer(|answer| {
        all.push(answer);
        true
    }));
    all
}

#[test]
fn a_whole_batch_goes_round_and_the_slot_is_free_again() {
    let mut slot = fetching(&[1, 2, 1]);
    for row in [2, 0] {
        slot.settle(row, None);
        assert_eq!(slot.phase(), Phase::Fetching);
    }
    slot.settle(1, None);
    assert_eq!(slot.phase(), Phase::Ready);
    assert_eq!(start(&mut slot), (3, vec![]));
    slot.finish(TOLD, Nanos(0));
    assert_eq!(answers(&mut slot), [output(1, 0, 0), output(2, 1, 1), output(1, 2, 2)]);
    assert_eq!(slot.free().id, 1);
    assert_eq!(slot.phase(), Phase::Free);
}

#[test]
fn a_lost_row_is_filled_from_the_end_and_answers_still_find_their_tasks() {
    let mut slot = fetching(&[1, 1, 1, 1]);
    slot.settle(0, None);
    assert_eq!(
        slot.settle(1, Some(FailReason::StaleGeneration)),
        Some(FailReason::StaleGeneration)
    );
    slot.settle(2, None);
    slot.settle(3, None);
    assert_eq!(start(&mut slot), (3, vec![(3, 1)]));
    slot.finish(TOLD, Nanos(0));
    assert_eq!(
        answers(&mut slot),
        [
            output(1, 0, 0),
            output(1, 3, 1),
            output(1, 2, 2),
            Answer::Failed(task(1, 1), FailReason::StaleGeneration),
        ]
    );
}

#[test]
fn what_came_too_late_or_could_not_be_read_was_not_stale() {
    let mut slot = fetching(&[1; 5]);
    slot.settle(0, None);
    slot.settle(2, Some(FailReason::StaleGeneration));
    slot.settle(3, Some(FailReason::FetchFailed));
    slot.settle(4, Some(FailReason::StaleGeneration));
    slot.abort_missing(false, |_, _| {});
    slot.settle(1, Some(FailReason::FetchTimeout));
    start(&mut slot);
    assert!(slot.stale_rows().eq([2, 4]));
}

/// Every pattern of lost rows up to 8: what executes is exactly what arrived, each row once, no gap,
/// and no task ends twice.
#[test]
fn compacting_keeps_every_row_that_arrived_whatever_is_lost() {
    for pattern in 0u32..256 {
        let mut slot = fetching(&[1; 8]);
        let mut memory: Vec<Option<u32>> = Vec::new();
        for row in 0..8 {
            let here = pattern & (1 << row) != 0;
            slot.settle(row, (!here).then_some(FailReason::FetchFailed));
            memory.push(here.then_some(row));
        }
        let rows = slot.prepare(|from, to| {
            assert!(memory[to as usize].is_none(), "moved over a row that arrived");
            memory[to as usize] = memory[from as usize].take();
        });
        assert_eq!(rows, pattern.count_ones());
        slot.submit();
        slot.finish(TOLD, Nanos(0));
        let told = answers(&mut slot);
        assert_eq!(told.len(), 8, "pattern {pattern:#010b}");
        for answer in told {
            match answer {
                Answer::Output(task, row) => assert_eq!(memory[row as usize], Some(task.id.slot())),
                Answer::Failed(id, reason) => {
                    assert_eq!(pattern & (1 << id.slot()), 0);
                    assert_eq!(reason, FailReason::FetchFailed);
                }
            }
        }
    }
}

#[test]
fn at_the_fetch_bound_missing_rows_are_aborted_once_and_the_rest_executes() {
    let mut slot = fetching(&[1, 2]);
    slot.settle(0, None);
    let mut aborted = Vec::new();
    slot.abort_missing(false, |row, id| aborted.push((row, id)));
    slot.abort_missing(false, |row, id| aborted.push((row, id)));
    assert_eq!(aborted, [(1, task(2, 1))]);
    assert_eq!(
        slot.phase(),
        Phase::Fetching,
        "the row is the transport's until the abort completes"
    );
    assert_eq!(slot.settle(1, Some(FailReason::FetchFailed)), Some(FailReason::FetchTimeout));
    assert_eq!(start(&mut slot).0, 1);
}

#[test]
fn a_batch_of_which_nothing_is_here_waits_as_long_as_it_may_start() {
    let mut slot = fetching(&[1, 2]);
    let last_start = slot.action().unwrap().expires_at();
    assert_eq!(slot.fetch_bound(), Some(Nanos(50)));
    slot.abort_missing(false, |_, _| panic!("they hold up no other row"));
    assert_eq!(slot.fetch_bound(), Some(last_start + Nanos(1)));
    // What comes meanwhile does not shorten it: the others are likely to be right behind.
    slot.settle(0, None);
    assert_eq!(slot.fetch_bound(), Some(last_start + Nanos(1)));
    let mut aborted = Vec::new();
    slot.abort_missing(false, |row, id| aborted.push((row, id)));
    assert_eq!(aborted, [(1, task(2, 1))]);
    assert_eq!(slot.fetch_bound(), None);
}

#[test]
fn rows_that_are_here_wait_for_no_frontend_that_owes_answers() {
    let mut slot = fetching(&[1, 2, 2]);
    let [second, third] = [task(2, 1), task(2, 2)];
    assert!(!slot.is_held_up_by(|_| true), "nothing is here that could be held up");
    slot.settle(0, None);
    assert!(!slot.is_held_up_by(|_| false));
    assert!(!slot.is_held_up_by(|task| task == second), "the third may come");
    assert!(slot.is_held_up_by(|task| task == second || task == third));
    slot.settle(1, None);
    assert!(slot.is_held_up_by(|task| task == third));
    slot.settle(2, None);
    assert!(!slot.is_held_up_by(|_| true), "it is complete");
    let mut patient = fetching(&[1, 2]);
    patient.settle(0, None);
    patient.abort_missing(true, |_, _| ());
    assert!(!patient.is_held_up_by(|_| true), "what may have come has its time");
}

#[test]
fn what_may_have_arrived_unread_is_waited_for_as_long_as_the_batch_may_start() {
    let mut slot = fetching(&[1, 2]);
    slot.settle(0, None);
    assert!(slot.missing().eq([task(2, 1)]));
    let last_start = slot.action().unwrap().expires_at();
    slot.abort_missing(true, |_, _| panic!("it may be here"));
    assert_eq!(slot.fetch_bound(), Some(last_start + Nanos(1)));
    let mut aborted = Vec::new();
    slot.abort_missing(true, |row, id| aborted.push((row, id)));
    assert_eq!(aborted, [(1, task(2, 1))], "not for ever");
}

#[test]
fn a_batch_used_again_has_its_window_again() {
    let mut slot = fetching(&[1]);
    slot.abort_missing(false, |_, _| {});
    slot.settle(0, None);
    let action = slot.give_back();
    slot.begin(action);
    assert_eq!(slot.fetch_bound(), Some(Nanos(50)));
}

#[test]
fn data_that_beats_its_abort_is_used_unless_its_frontend_is_gone() {
    let mut slot = fetching(&[1, 2]);
    slot.abort_missing(false, |_, _| panic!("nothing is here"));
    slot.abort_missing(false, |_, _| {});
    slot.vanish(FrontendId(2), |_, _| panic!("aborted before"));
    assert_eq!(slot.settle(0, None), None);
    assert_eq!(slot.settle(1, None), Some(FailReason::FetchFailed));
    assert_eq!(start(&mut slot).0, 1);
}

#[test]
fn a_vanished_frontend_takes_its_rows_out_of_a_batch_that_waits_for_the_gpu() {
    let mut slot = fetching(&[3, 1, 3]);
    for row in 0..3 {
        slot.settle(row, None);
    }
    assert_eq!(slot.vanish(FrontendId(3), |_, _| panic!("nothing is being read")), 2);
    assert_eq!(start(&mut slot), (1, vec![(1, 0)]));
}

#[test]
fn once_executing_a_vanished_frontend_changes_nothing() {
    let mut slot = fetching(&[3]);
    slot.settle(0, None);
    start(&mut slot);
    assert_eq!(slot.vanish(FrontendId(3), |_, _| panic!("nothing is being read")), 0);
    slot.finish(TOLD, Nanos(0));
    assert_eq!(answers(&mut slot), [output(3, 0, 0)]);
}

#[test]
fn a_batch_that_is_prepared_again_leaves_out_what_was_lost_meanwhile() {
    let mut slot = fetching(&[3, 1, 2, 3, 1]);
    slot.settle(0, Some(FailReason::WrongSize));
    (1..5).for_each(|row| assert_eq!(slot.settle(row, None), None));
    // What each row of the memory holds.
    let mut memory = [0, 1, 2, 3, 4];
    let mut prepare = |slot: &mut BatchSlot| {
        let rows = slot.prepare(|from, to| memory[to as usize] = memory[from as usize]);
        memory[..rows as usize].to_vec()
    };
    assert_eq!(prepare(&mut slot), [4, 1, 2, 3]);
    assert_eq!(slot.vanish(FrontendId(2), |_, _| panic!("nothing is being read")), 1);
    assert!(slot.is_outdated());
    slot.withdraw();
    assert_eq!(slot.vanish(FrontendId(3), |_, _| panic!("nothing is being read")), 1);
    assert_eq!(slot.phase(), Phase::Withdrawing, "the executor may be copying the rows");
    slot.come_back();
    assert_eq!(prepare(&mut slot), [4, 1]);
    assert!(!slot.is_outdated());
    slot.submit();
    slot.finish(TOLD, Nanos(0));
    let told = answers(&mut slot);
    assert_eq!(told[..2], [output(1, 4, 0), output(1, 1, 1)]);
    assert_eq!(told.len(), 5, "each task once");
}

#[test]
fn what_its_executor_could_not_start_in_time_is_given_back_whole() {
    let mut slot = fetching(&[1, 2]);
    (0..2).for_each(|row| assert_eq!(slot.settle(row, None), None));
    start(&mut slot);
    slot.come_back();
    assert_eq!(slot.give_back().tasks.len(), 2);
    assert_eq!(slot.phase(), Phase::Free);
}

#[test]
fn a_batch_that_lost_every_row_executes_none_and_tells_all() {
    let mut slot = fetching(&[1, 2]);
    slot.settle(0, Some(FailReason::WrongSize));
    slot.settle(1, Some(FailReason::FetchFailed));
    assert_eq!(start(&mut slot), (0, vec![]));
    slot.finish(TOLD, Nanos(0));
    assert_eq!(
        answers(&mut slot),
        [
            Answer::Failed(task(1, 0), FailReason::WrongSize),
            Answer::Failed(task(2, 1), FailReason::FetchFailed)
        ]
    );
}

#[test]
fn an_engine_error_fails_the_executed_rows_and_keeps_the_reason_of_the_lost() {
    let mut slot = fetching(&[1, 2]);
    slot.settle(0, None);
    slot.settle(1, Some(FailReason::StaleGeneration));
    start(&mut slot);
    slot.finish(Execution { succeeded: false, ..TOLD }, Nanos(0));
    assert_eq!(
        answers(&mut slot),
        [
            Answer::Failed(task(1, 0), FailReason::Engine),
            Answer::Failed(task(2, 1), FailReason::StaleGeneration)
        ]
    );
}

#[test]
fn an_expired_batch_is_given_back_whole() {
    let mut slot = fetching(&[1, 2]);
    slot.settle(0, None);
    slot.settle(1, Some(FailReason::StaleGeneration));
    let back = slot.give_back().tasks;
    assert!(back.iter().map(|task| task.id).eq([task(1, 0), task(2, 1)]));
    assert_eq!(slot.phase(), Phase::Free);
}

#[test]
fn completions_that_belong_elsewhere_are_recognised() {
    let mut slot = fetching(&[1, 2]);
    assert!(slot.expects(0, task(1, 0)));
    assert!(!slot.expects(0, task(2, 1)), "another row's task");
    assert!(!slot.expects(9, task(1, 0)), "no such row");
    slot.settle(0, None);
    assert!(!slot.expects(0, task(1, 0)), "completed before");
}
