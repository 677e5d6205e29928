//! Serving batches, stepped by hand.

use baton_backend::execute::checksum;
use baton_rdma::wire::{Action, Role, STALE_SINCE, VERSION_MIN, Versions};
use baton_rdma::{Identity, TcpConfig};
use baton_topo::Agent;
use baton_types::{FailReason, FrontendId, GpuId, ModelId, Nanos, TaskId};
use zerocopy::IntoBytes;

use crate::party::{Party, Said};
use crate::world::{
    ActionSpec, ENGINE_ERROR, EXECUTED, EXPIRED, FIRST_GPU, INPUT_BYTES, MODEL, OFFSET, SMALL,
    World, listed,
};

fn failed(task: TaskId, reason: FailReason) -> Said {
    Said::End { task: task.0, kind: 2, reason: reason.code() }
}

#[test]
fn a_batch_is_pulled_executed_and_answered_before_it_is_reported() {
    let mut world = World::ready();
    let (mut a, mut b) = (world.connected_frontend(1), world.connected_frontend(2));
    let tasks = [a.submit(11), b.submit(22), a.submit(33)];
    let batch = world.infer(&ActionSpec::default(), &tasks);
    world.settle(&mut [&mut a, &mut b]);
    assert_eq!(world.hands[0].batch(), Some(3), "an idle GPU slot does not wait for exec_at");

    let (started, finished) = (world.now, world.now + Nanos::from_millis(2));
    world.hands[0].finish(started, finished);
    world.pass(Nanos::from_millis(2));
    world.step();
    let on_scheduler = |at: Nanos, said: u64| at.0.abs_diff(said.wrapping_sub(OFFSET));
    let report = world.thread.take();
    let [
        Said::Done { batch: reported, gpu: 10, rows: 3, status: EXECUTED, ran: [s, f], ref stale },
    ] = report[..]
    else {
        panic!("{report:?}")
    };
    assert_eq!((reported, &stale[..]), (batch, &[][..]));
    let error = Nanos::from_micros(20).0;
    assert!(on_scheduler(started, s) <= error && on_scheduler(finished, f) <= error);

    // Once a report is there, the answers are on their way: no further worker pass.
    a.party.poll(world.now);
    b.party.poll(world.now);
    for (side, task, byte) in [(&a, tasks[0], 11), (&b, tasks[1], 22), (&a, tasks[2], 33)] {
        let expected = Said::Result {
            task: task.0,
            batch_size: 3,
            gpu: 10,
            started: s,
            finished: f,
            is_cold: false,
        };
        assert!(side.party.heard.contains(&expected));
        assert_eq!(side.answer(task).unwrap(), checksum(&[byte; 64]));
    }
    assert_eq!(world.counter("fetch_bytes"), 3 * 64);
    assert_eq!(world.counter("answers_sent"), 3);
    assert_eq!(a.slabs.leases() + b.slabs.leases(), 0);
}

#[test]
fn only_the_answer_to_a_cold_task_says_so() {
    let mut world = World::ready();
    let mut a = world.connected_frontend(1);
    for (batch, expected) in [(1, false), (2, true)] {
        let window = [1, 5].map(|ms| world.now + Nanos::from_millis(ms) + Nanos(OFFSET));
        let action = Action::infer(batch, window, ModelId(MODEL), GpuId(FIRST_GPU));
        let warm = listed(&[a.submit(5)], INPUT_BYTES)[0];
        let task = if expected { warm.cold() } else { warm };
        world.thread.tell(&action, task.as_bytes());
        world.settle(&mut [&mut a]);
        world.hands[0].finish(world.now, world.now);
        world.settle(&mut [&mut a]);
        let told = a.party.take();
        let says =
            |said: &Said| matches!(said, Said::Result { is_cold, .. } if *is_cold == expected);
        assert!(told.iter().any(says), "{told:?}");
    }
}

#[test]
fn a_row_that_the_engine_does_not_answer_fails_alone_and_is_not_measured() {
    let mut world = World::ready();
    let mut a = world.connected_frontend(1);
    let tasks = [1, 2].map(|byte| a.submit(byte));
    let batch = world.infer(&ActionSpec::default(), &tasks);
    world.settle(&mut [&mut a]);
    world.hands[0].finish_without(&[0], world.now, world.now);
    world.settle(&mut [&mut a]);
    let reason = FailReason::WrongSize.code();
    assert!(a.party.heard.contains(&Said::End { task: tasks[0].0, kind: 2, reason }));
    assert_eq!(a.answer(tasks[1]).unwrap(), checksum(&[2; 64]));
    assert_eq!(world.reports(), [(batch, 1, EXECUTED)]);
    assert_eq!((world.counter("rows_executed"), world.counter("rows_unanswered")), (1, 1));
}

#[test]
fn the_model_thread_hears_which_rows_were_stale_if_it_knows_the_word() {
    for (version, said) in [(STALE_SINCE - 1, vec![]), (STALE_SINCE, vec![1, 3])] {
        let mut world = World::new(1, TcpConfig::default());
        let thread = world.network.endpoint(Identity { role: Role::ModelThread, member: 0 });
        let spoken = Versions { min: VERSION_MIN, max: version };
        world.thread = Party::new(thread.claiming(spoken));
        world.let_in();
        let mut a = world.connected_frontend(1);
        let tasks = [1, 2, 3, 4].map(|byte| a.submit(byte));
        assert!(a.slabs.complete(tasks[1]) && a.slabs.complete(tasks[3]));
        let batch = world.infer(&ActionSpec::default(), &tasks);
        world.settle(&mut [&mut a]);
        world.hands[0].finish(world.now, world.now);
        world.settle(&mut [&mut a]);
        let report = world.thread.take();
        let [Said::Done { batch: reported, rows: 2, ref stale, .. }] = report[..] else {
            panic!("{report:?}")
        };
        assert_eq!((reported, stale), (batch, &said), "version {version}");
        // The next report is about other rows.
        let task = a.submit(5);
        world.infer(&ActionSpec::default(), &[task]);
        world.settle(&mut [&mut a]);
        world.hands[0].finish(world.now, world.now);
        world.settle(&mut [&mut a]);
        let report = world.thread.take();
        assert!(
            matches!(&report[..], [Said::Done { stale, .. }] if stale.is_empty()),
            "{report:?}"
        );
    }
}

#[test]
fn a_stale_row_is_left_out_and_reported_as_stale() {
    let mut world = World::ready();
    let mut a = world.connected_frontend(1);
    let (stale, fine) = (a.submit(1), a.submit(2));
    assert!(a.slabs.complete(stale), "the frontend gave it up before the backend read it");
    let batch = world.infer(&ActionSpec::default(), &[stale, fine]);
    world.settle(&mut [&mut a]);
    assert_eq!(world.hands[0].batch(), Some(1));
    world.hands[0].finish(world.now, world.now);
    world.settle(&mut [&mut a]);
    assert_eq!(world.reports(), [(batch, 1, EXECUTED)]);
    assert!(a.party.take().contains(&failed(stale, FailReason::StaleGeneration)));
    assert_eq!(a.answer(fine).unwrap(), checksum(&[2; 64]));
    assert_eq!((world.counter("rows_stale"), world.counter("fetch_bytes")), (1, 64));
}

#[test]
fn tasks_whose_slab_is_not_the_models_fail_as_wrong_size() {
    let mut world = World::ready();
    let mut a = world.connected_frontend(1);
    let other_model = a.submit_for(SMALL, 1);
    let no_such_slot = TaskId::new(FrontendId(1), 500, 0);
    let batch = world.infer(&ActionSpec::default(), &[other_model, no_such_slot]);
    world.settle(&mut [&mut a]);
    assert_eq!(world.reports(), [(batch, 0, EXECUTED)], "every row was lost: nothing to execute");
    let told = a.party.take();
    assert!(told.contains(&failed(other_model, FailReason::WrongSize)));
    assert!(told.contains(&failed(no_such_slot, FailReason::WrongSize)));
}

#[test]
fn a_frontend_that_vanishes_while_its_inputs_are_read_takes_only_its_rows_along() {
    let mut world = World::ready();
    let mut alive = world.connected_frontend(1);
    // Never polled: its connection is not open, so its READs stay under way.
    let silent = world.add_frontend(2);
    world.settle(&mut [&mut alive]);
    let (kept, lost) = (alive.submit(5), silent.submit(6));
    let batch = world.infer(&ActionSpec::default(), &[lost, kept]);
    world.settle(&mut [&mut alive]);
    assert_eq!(world.hands[0].batch(), None, "still waiting for the other row");
    world.peer_down(silent.id);
    world.settle(&mut [&mut alive]);
    assert_eq!(world.hands[0].batch(), Some(1));
    world.hands[0].finish(world.now, world.now);
    world.settle(&mut [&mut alive]);
    assert_eq!(world.reports(), [(batch, 1, EXECUTED)]);
    assert_eq!(alive.answer(kept).unwrap(), checksum(&[5; 64]));
    assert_eq!(world.counter("rows_fetch_failed"), 1);
    assert_eq!(world.counter("answers_lost"), 1, "its frontend is gone");
}

#[test]
fn rows_of_a_frontend_that_vanishes_before_the_execution_are_not_executed() {
    let mut world = World::ready();
    let (mut alive, mut gone) = (world.connected_frontend(1), world.connected_frontend(2));
    let running = world.infer(&ActionSpec::default(), &[alive.submit(1)]);
    world.settle(&mut [&mut alive, &mut gone]);
    let kept = alive.submit(5);
    let batch = world.infer(&ActionSpec::default(), &[gone.submit(6), kept, gone.submit(7)]);
    world.settle(&mut [&mut alive, &mut gone]);
    assert_eq!(world.counter("fetch_bytes"), 4 * 64, "its inputs are here already");
    world.peer_down(gone.id);
    world.settle(&mut [&mut alive]);
    world.hands[0].finish(world.now, world.now);
    world.settle(&mut [&mut alive]);
    assert_eq!(world.hands[0].batch(), Some(1));
    world.hands[0].finish(world.now, world.now);
    world.settle(&mut [&mut alive]);
    assert_eq!(world.reports(), [(running, 1, EXECUTED), (batch, 1, EXECUTED)]);
    assert_eq!(alive.answer(kept).unwrap(), checksum(&[5; 64]));
}

#[test]
fn a_frontend_that_dies_without_a_word_is_noticed_by_its_connection() {
    let mut world = World::ready();
    let mut alive = world.connected_frontend(1);
    let dead = world.connected_frontend(2);
    let (kept, lost) = (alive.submit(5), dead.submit(6));
    drop(dead);
    let batch = world.infer(&ActionSpec::default(), &[lost, kept]);
    world.settle(&mut [&mut alive]);
    world.hands[0].finish(world.now, world.now);
    world.settle(&mut [&mut alive]);
    assert_eq!(world.reports(), [(batch, 1, EXECUTED)]);
    assert!(alive.answer(kept).is_some());
    assert_eq!(world.counter("frontends_disconnected"), 1);
}

#[test]
fn at_the_fetch_bound_the_batch_runs_without_the_rows_that_are_missing() {
    let mut world = World::ready();
    let mut prompt = world.connected_frontend(1);
    let mut slow = world.add_frontend(2);
    world.settle(&mut [&mut prompt]);
    let (kept, late) = (prompt.submit(5), slow.submit(6));
    let batch = world.infer(&ActionSpec::default(), &[late, kept]);
    world.settle(&mut [&mut prompt]);
    assert_eq!(world.hands[0].batch(), None);
    let bound = world.worker.next_timer().unwrap();
    assert!(bound - world.now <= Nanos::from_millis(5), "the loop wakes for the fetch bound");
    world.pass(bound - world.now);
    world.settle(&mut [&mut prompt]);
    assert_eq!(world.hands[0].batch(), Some(1));
    world.hands[0].finish(world.now, world.now);
    world.settle(&mut [&mut prompt, &mut slow]);
    assert_eq!(world.reports(), [(batch, 1, EXECUTED)]);
    assert!(slow.party.take().contains(&failed(late, FailReason::FetchTimeout)));
    assert_eq!(world.counter("rows_fetch_timeout"), 1);
}

#[test]
fn an_action_that_comes_in_the_grace_behind_its_window_is_fetched_and_runs() {
    let mut world = World::ready();
    // Not connected yet: its READs take a few passes.
    let mut a = world.add_frontend(1);
    world.steps(3);
    let tasks = [a.submit(5), a.submit(6)];
    let batch = world.infer(&ActionSpec::default(), &tasks);
    // The ModelThread or this process was not run for so long.
    world.pass(Nanos::from_millis_f64(5.2));
    world.settle(&mut [&mut a]);
    assert_eq!(world.hands[0].batch(), Some(2), "it may start, so it may be fetched");
    world.hands[0].finish(world.now, world.now);
    world.settle(&mut [&mut a]);
    assert_eq!(world.reports(), [(batch, 2, EXECUTED)]);
    assert_eq!(a.answer(tasks[0]).unwrap(), checksum(&[5; 64]));
}

#[test]
fn a_batch_of_which_nothing_came_in_time_is_given_back() {
    let mut world = World::ready();
    let mut slow = world.add_frontend(1);
    world.steps(3);
    let tasks = [slow.submit(5), slow.submit(6)];
    let batch = world.infer(&ActionSpec::default(), &tasks);
    world.steps(3);
    let window_ends = world.worker.next_timer().unwrap();
    world.pass(window_ends - world.now);
    world.step();
    let given_up = world.worker.next_timer().unwrap();
    assert_eq!(given_up - window_ends, Nanos(1_000_001), "as long as it may start");
    world.pass(given_up - world.now - Nanos::from_micros(20));
    world.step();
    assert_eq!(world.reports(), []);
    world.steps(3);
    assert_eq!(world.reports(), [(batch, 0, EXPIRED)]);
    world.settle(&mut [&mut slow]);
    assert_eq!(slow.party.take(), [], "the scheduler decides about them, alone");
    assert_eq!(world.counter("rows_fetch_timeout"), 2);
    let third = slow.submit(7);
    let batch = world.infer(&ActionSpec::default(), &[third]);
    world.settle(&mut [&mut slow]);
    world.hands[0].finish(world.now, world.now);
    world.settle(&mut [&mut slow]);
    assert_eq!(world.reports(), [(batch, 1, EXECUTED)]);
}

#[test]
fn a_batch_the_gpu_cannot_start_in_time_is_given_back_untouched() {
    let mut world = World::ready();
    let mut a = world.connected_frontend(1);
    let (first, second) = (a.submit(1), a.submit(2));
    let running = world.infer(&ActionSpec::default(), &[first]);
    world.settle(&mut [&mut a]);
    let late = world.infer(&ActionSpec::default(), &[second]);
    world.settle(&mut [&mut a]);
    // The first execution overruns the second's window and the grace behind it.
    let window_end = world.now + Nanos::from_millis(5);
    world.pass(Nanos::from_millis(5));
    world.step();
    assert_eq!(world.reports(), [], "within the grace it may still start");
    world.pass(window_end + Nanos::from_millis(1) - world.now);
    world.step();
    assert_eq!(world.reports(), [(late, 0, EXPIRED)]);
    world.hands[0].finish(world.now, world.now);
    world.settle(&mut [&mut a]);
    assert_eq!(world.reports(), [(running, 1, EXECUTED)]);
    assert!(a.answer(second).is_none(), "its task is the scheduler's again");
    assert_eq!(world.counter("batches_expired"), 1);
}

#[test]
fn a_row_lost_in_a_batch_that_is_given_back_is_not_reported() {
    let mut world = World::ready();
    let mut a = world.connected_frontend(1);
    let (first, stale) = (a.submit(1), a.submit(2));
    world.infer(&ActionSpec::default(), &[first]);
    world.settle(&mut [&mut a]);
    a.slabs.complete(stale);
    let late = world.infer(&ActionSpec::default(), &[stale]);
    world.settle(&mut [&mut a]);
    world.pass(Nanos::from_millis(7));
    world.settle(&mut [&mut a]);
    assert_eq!(world.reports(), [(late, 0, EXPIRED)]);
    assert_eq!(a.party.take(), [], "the scheduler decides about it, alone");
}

#[test]
fn the_batch_with_the_earlier_start_goes_first_while_the_gpu_is_busy() {
    let mut world = World::ready();
    let mut a = world.connected_frontend(1);
    let tasks = [a.submit(1), a.submit(2), a.submit(3)];
    let in_ms = |ms| ActionSpec {
        exec_in: Nanos::from_millis(ms),
        invalid_in: Nanos::from_millis(100),
        ..ActionSpec::default()
    };
    let first = world.infer(&in_ms(1), &tasks[..1]);
    world.settle(&mut [&mut a]);
    let later = world.infer(&in_ms(20), &tasks[1..2]);
    let sooner = world.infer(&in_ms(10), &tasks[2..]);
    world.settle(&mut [&mut a]);
    assert_eq!(world.counter("fetch_bytes"), 3 * 64, "fetched while the first executes");
    for _ in 0..3 {
        world.hands[0].finish(world.now, world.now);
        world.settle(&mut [&mut a]);
    }
    assert_eq!(
        world.reports(),
        [(first, 1, EXECUTED), (sooner, 1, EXECUTED), (later, 1, EXECUTED)]
    );
}

#[test]
fn gpu_slots_execute_side_by_side() {
    let mut world = World::ready_with(2, TcpConfig::default());
    let mut a = world.connected_frontend(1);
    let tasks = [a.submit(1), a.submit(2)];
    for (gpu, task) in [(10, tasks[0]), (11, tasks[1])] {
        world.infer(&ActionSpec { gpu, ..ActionSpec::default() }, &[task]);
    }
    world.settle(&mut [&mut a]);
    assert!(world.hands.iter().all(|hand| hand.batch() == Some(1)));
}

#[test]
fn an_engine_error_fails_every_task_and_the_next_batch_runs() {
    let mut world = World::ready();
    let mut a = world.connected_frontend(1);
    let tasks = [a.submit(1), a.submit(2)];
    let batch = world.infer(&ActionSpec::default(), &tasks);
    world.settle(&mut [&mut a]);
    world.hands[0].fail(world.now, world.now);
    world.settle(&mut [&mut a]);
    assert_eq!(world.reports(), [(batch, 2, ENGINE_ERROR)]);
    assert_eq!((world.counter("engine_errors"), world.counter("batches_executed")), (1, 0));
    let told = a.party.take();
    assert_eq!(told, tasks.map(|task| failed(task, FailReason::Engine)));
    world.infer(&ActionSpec::default(), &[a.submit(3)]);
    world.settle(&mut [&mut a]);
    assert_eq!(world.hands[0].batch(), Some(1));
}

#[test]
fn a_frontend_that_does_not_take_its_answers_is_cut_off_and_the_others_are_served() {
    let cfg = TcpConfig { send_queue_bytes: 95, ..TcpConfig::default() };
    let mut world = World::ready_with(1, cfg);
    let (mut good, mut stuck) = (world.connected_frontend(1), world.connected_frontend(2));
    let tasks = [stuck.submit(1), stuck.submit(2), good.submit(3)];
    let batch = world.infer(&ActionSpec::default(), &tasks);
    world.settle(&mut [&mut good, &mut stuck]);
    world.hands[0].finish(world.now, world.now);
    // One answer fits its send queue, the second does not.
    world.settle(&mut [&mut good]);
    assert_eq!(world.reports(), [], "its answers may still leave");
    assert!(world.worker.next_timer().unwrap() - world.now <= Nanos::from_millis(1));
    world.pass_awake(Nanos::from_millis(20));
    world.settle(&mut [&mut good]);
    assert_eq!(world.reports(), [(batch, 3, EXECUTED)]);
    assert_eq!(good.answer(tasks[2]).unwrap(), checksum(&[3; 64]));
    assert_eq!((world.counter("frontends_slow"), world.counter("answers_lost")), (1, 1));
}

#[test]
fn a_frontend_that_says_anything_is_disconnected() {
    let mut world = World::ready();
    let mut a = world.connected_frontend(1);
    a.party.tell(&baton_rdma::wire::Leave { reserved: 0.into() }, &[]);
    world.settle(&mut [&mut a]);
    assert_eq!(world.counter("unexpected_messages"), 1);
    assert!(!world.worker.finished());
}

#[test]
fn a_reused_frontend_id_belongs_to_the_new_frontend() {
    let mut world = World::ready();
    let old = world.connected_frontend(1);
    world.peer_down(old.id);
    let mut new = world.connected_frontend(1);
    let task = new.submit(9);
    world.infer(&ActionSpec::default(), &[task]);
    world.settle(&mut [&mut new]);
    world.hands[0].finish(world.now, world.now);
    world.settle(&mut [&mut new]);
    assert_eq!(new.answer(task).unwrap(), checksum(&[9; 64]));
    drop(old);
}
