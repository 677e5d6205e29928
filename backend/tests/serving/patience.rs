//! How long a batch waits for frontends that do not take their answers.

use baton_backend::execute::checksum;
use baton_rdma::TcpConfig;
use baton_types::{Nanos, TaskId};

use crate::party::Said;
use crate::world::{ActionSpec, EXECUTED, FIRST_GPU, FrontendSide, World};

/// Four batches of four tasks of one frontend, which have just been executed. Its send queue has room for one answer.
fn four_batches() -> (World, FrontendSide) {
    let cfg = TcpConfig { send_queue_bytes: 95, ..TcpConfig::default() };
    let mut world = World::ready_with(4, cfg);
    let mut slow = world.connected_frontend(1);
    for gpu in 0..4 {
        let tasks = [(); 4].map(|()| slow.submit(1));
        world.infer(&ActionSpec { gpu: FIRST_GPU + gpu, ..ActionSpec::default() }, &tasks);
    }
    world.settle(&mut [&mut slow]);
    (0..4).for_each(|gpu| world.hands[gpu].finish(world.now, world.now));
    (world, slow)
}

#[test]
fn the_time_that_one_frontend_wastes_is_not_taken_from_the_next() {
    let cfg = TcpConfig { send_queue_bytes: 95, ..TcpConfig::default() };
    let mut world = World::ready_with(1, cfg);
    let (mut good, mut stuck) = (world.connected_frontend(1), world.connected_frontend(2));
    // One answer fits a send queue; the second must wait for it to leave.
    let tasks = [stuck.submit(1), stuck.submit(2), good.submit(3), good.submit(4)];
    let batch = world.infer(&ActionSpec::default(), &tasks);
    world.settle(&mut [&mut good, &mut stuck]);
    world.hands[0].finish(world.now, world.now);
    world.settle(&mut [&mut good]);
    world.pass_awake(Nanos::from_millis(21));
    world.settle(&mut [&mut good]);
    assert_eq!(world.reports(), [(batch, 4, EXECUTED)]);
    assert_eq!(
        [2, 3].map(|at| good.answer(tasks[at]).unwrap()),
        [3, 4].map(|b| checksum(&[b; 64]))
    );
    assert_eq!((world.counter("frontends_slow"), world.counter("answers_lost")), (1, 1));
}

#[test]
fn answers_wait_for_no_frontend_but_their_own() {
    let cfg = TcpConfig { send_queue_bytes: 95, ..TcpConfig::default() };
    let mut world = World::ready_with(1, cfg);
    let (mut good, mut stuck) = (world.connected_frontend(1), world.connected_frontend(2));
    let tasks = [stuck.submit(1), stuck.submit(2), good.submit(3), good.submit(4)];
    world.infer(&ActionSpec::default(), &tasks);
    world.settle(&mut [&mut good, &mut stuck]);
    world.hands[0].finish(world.now, world.now);
    world.settle(&mut [&mut good]);
    assert_eq!(world.counter("answers_sent"), 3, "one of them is in a queue");
    assert_eq!(
        [2, 3].map(|at| good.answer(tasks[at]).unwrap()),
        [3, 4].map(|b| checksum(&[b; 64]))
    );
    assert!(world.reports().is_empty(), "a reported batch is an answered batch");
    world.settle(&mut [&mut stuck]);
    assert_eq!(
        [0, 1].map(|at| stuck.answer(tasks[at]).unwrap()),
        [1, 2].map(|b| checksum(&[b; 64]))
    );
    assert_eq!((world.counter("frontends_slow"), world.counter("answers_lost")), (0, 0));
}

/// Each has its own time from the last answer that it took.
#[test]
fn a_frontend_is_not_given_up_for_the_time_of_another() {
    let cfg = TcpConfig { send_queue_bytes: 95, ..TcpConfig::default() };
    let mut world = World::ready_with(2, cfg);
    let (mut late, mut stuck) = (world.connected_frontend(1), world.connected_frontend(2));
    world.infer(&ActionSpec { gpu: FIRST_GPU + 1, ..ActionSpec::default() }, &[late.submit(1)]);
    let tasks = [stuck.submit(2), stuck.submit(3), late.submit(4), late.submit(5)];
    world.infer(&ActionSpec::default(), &tasks);
    world.settle(&mut [&mut late, &mut stuck]);
    [1, 0].into_iter().for_each(|gpu| world.hands[gpu].finish(world.now, world.now));
    world.step();
    world.pass_awake(Nanos::from_millis(12));
    late.party.poll(world.now);
    world.step();
    assert_eq!(world.counter("answers_sent"), 3, "the late one has taken one");
    world.pass_awake(Nanos::from_millis(12));
    assert_eq!(world.counter("frontends_slow"), 1, "the other one had 24 ms");
    world.settle(&mut [&mut late]);
    assert_eq!((world.counter("frontends_slow"), world.counter("answers_sent")), (1, 4));
}

#[test]
fn a_frontend_that_takes_its_answers_slowly_holds_no_batch_up_for_long() {
    let (mut world, mut slow) = four_batches();
    for answers in 1..=13 {
        world.step();
        assert_eq!((world.counter("answers_sent"), world.counter("frontends_slow")), (answers, 0));
        world.pass_awake(Nanos::from_millis(15));
        slow.party.poll(world.now);
    }
    world.pass_awake(Nanos::from_millis(10));
    assert_eq!(world.counter("frontends_slow"), 1, "more than 200 ms after the execution");
}

/// An answer of 8 bytes is there after 64 ns over 1 Gb/s, the four of a batch after 256.
#[test]
fn a_frontend_has_the_time_besides_that_its_answers_take_on_a_slow_link() {
    let each = Nanos::from_millis(15);
    for (answers, waits) in [(0, 20_000_064), (13, 5_000_256 - 13)] {
        let (mut world, mut slow) = four_batches();
        world.step();
        // Each of these makes room for one more.
        for _ in 0..answers {
            world.pass_awake(each);
            slow.party.poll(world.now);
            world.pass_awake(Nanos(1));
        }
        assert_eq!(world.counter("answers_sent"), answers + 1);
        world.pass_awake(Nanos(waits));
        assert_eq!(world.counter("frontends_slow"), 0, "after {answers} answers");
        world.pass_awake(Nanos(1));
        assert_eq!(world.counter("frontends_slow"), 1, "after {answers} answers");
    }
}

/// It may have stood still with the backend.
#[test]
fn a_frontend_is_not_to_blame_for_a_pause_of_the_backends() {
    let cfg = TcpConfig { send_queue_bytes: 95, ..TcpConfig::default() };
    let mut world = World::ready_with(1, cfg);
    let mut good = world.connected_frontend(1);
    let tasks = [good.submit(3), good.submit(4)];
    world.infer(&ActionSpec::default(), &tasks);
    world.settle(&mut [&mut good]);
    world.hands[0].finish(world.now, world.now);
    world.step();
    assert_eq!(world.counter("answers_sent"), 1, "the second has no room");
    world.pass(Nanos::from_millis(900));
    world.pass_awake(Nanos::from_millis(14));
    assert_eq!(world.counter("frontends_slow"), 0, "it had no more than 20 ms");
    world.settle(&mut [&mut good]);
    assert_eq!((world.counter("frontends_slow"), world.counter("answers_sent")), (0, 2));
}

/// The device went on, and the batch lies there when the backend does.
#[test]
fn a_pause_in_which_the_batch_was_executed_counts_no_more() {
    let cfg = TcpConfig { send_queue_bytes: 95, ..TcpConfig::default() };
    let mut world = World::ready_with(1, cfg);
    let mut good = world.connected_frontend(1);
    world.infer(&ActionSpec::default(), &[good.submit(3), good.submit(4)]);
    world.settle(&mut [&mut good]);
    let executed = world.now;
    world.pass(Nanos::from_millis(900));
    world.hands[0].finish(executed, executed);
    world.step();
    assert_eq!(world.counter("answers_sent"), 1, "the second has no room");
    world.pass_awake(Nanos::from_millis(14));
    world.settle(&mut [&mut good]);
    assert_eq!((world.counter("frontends_slow"), world.counter("answers_sent")), (0, 2));
}

#[test]
fn a_frontend_that_takes_other_batches_answers_is_not_given_up() {
    let cfg = TcpConfig { send_queue_bytes: 95, ..TcpConfig::default() };
    let mut world = World::ready_with(3, cfg);
    let mut slow = world.connected_frontend(1);
    for gpu in 0..3 {
        let tasks = [slow.submit(1), slow.submit(2)];
        world.infer(&ActionSpec { gpu: FIRST_GPU + gpu, ..ActionSpec::default() }, &tasks);
    }
    world.settle(&mut [&mut slow]);
    (0..3).for_each(|gpu| world.hands[gpu].finish(world.now, world.now));
    // With turns, 36 ms pass between two answers of a batch.
    for _ in 0..12 {
        world.step();
        slow.party.poll(world.now);
        world.pass_awake(Nanos::from_millis(12));
    }
    assert_eq!((world.counter("frontends_slow"), world.counter("answers_sent")), (0, 6));
}

/// The time of a pause counts against no frontend, whichever batch took a frontend's last answer.
#[test]
fn a_pause_is_not_taken_from_what_another_batchs_answer_gave() {
    let cfg = TcpConfig { send_queue_bytes: 95, ..TcpConfig::default() };
    let mut world = World::ready_with(2, cfg);
    let mut slow = world.connected_frontend(1);
    for gpu in 0..2 {
        let tasks = [slow.submit(1), slow.submit(2)];
        world.infer(&ActionSpec { gpu: FIRST_GPU + gpu, ..ActionSpec::default() }, &tasks);
    }
    world.settle(&mut [&mut slow]);
    (0..2).for_each(|gpu| world.hands[gpu].finish(world.now, world.now));
    world.step();
    world.pass_awake(Nanos::from_millis(15));
    slow.party.poll(world.now);
    world.pass_awake(Nanos::from_millis(1));
    assert_eq!(world.counter("answers_sent"), 2);
    world.pass(Nanos::from_millis(900));
    world.pass_awake(Nanos::from_millis(14));
    assert_eq!(world.counter("frontends_slow"), 0, "the second answer was taken 15 ms ago");
}

#[test]
fn batches_take_turns_at_the_room_that_a_slow_frontend_leaves() {
    let cfg = TcpConfig { send_queue_bytes: 95, ..TcpConfig::default() };
    let mut world = World::ready_with(2, cfg);
    let mut slow = world.connected_frontend(1);
    let tasks: Vec<_> = (0..6).map(|byte| slow.submit(byte)).collect();
    world.infer(&ActionSpec::default(), &tasks[..3]);
    world.infer(&ActionSpec { gpu: FIRST_GPU + 1, ..ActionSpec::default() }, &tasks[3..]);
    world.settle(&mut [&mut slow]);
    (0..2).for_each(|gpu| world.hands[gpu].finish(world.now, world.now));
    let (mut told, mut history) = ([0, 0], Vec::new());
    for _ in 0..12 {
        world.step();
        for said in slow.party.poll(world.now) {
            if let Said::Result { task, .. } = said {
                told[usize::from(tasks[3..].contains(&TaskId(task)))] += 1;
            }
        }
        history.push(told);
        world.pass(Nanos::from_micros(500));
    }
    assert!(history.iter().all(|&[a, b]| i32::abs(a - b) <= 1), "{history:?}");
    assert_eq!(told, [3, 3]);
}

#[test]
fn a_backend_that_loses_its_scheduler_still_tells_what_there_was_no_room_for() {
    let cfg = TcpConfig { send_queue_bytes: 95, ..TcpConfig::default() };
    let mut world = World::ready_with(1, cfg);
    let mut good = world.connected_frontend(1);
    let tasks = [good.submit(3), good.submit(4)];
    world.infer(&ActionSpec::default(), &tasks);
    world.settle(&mut [&mut good]);
    world.hands[0].finish(world.now, world.now);
    world.step();
    assert_eq!(world.counter("answers_sent"), 1, "the second has no room");
    world.restart_scheduler();
    world.steps(3);
    world.settle(&mut [&mut good]);
    assert_eq!(
        [0, 1].map(|at| good.answer(tasks[at]).unwrap()),
        [3, 4].map(|b| checksum(&[b; 64]))
    );
}
