//! A task's life, as long as everybody lives.

use std::time::{Duration, Instant};

use baton_metrics::Value;
use baton_rdma::wire::{RefuseCode, TaskEnd};
use baton_rdma::{ReadStatus, TcpConfig};
use baton_types::{CostHint, DropReason, FailReason, GpuId, Nanos, TaskId};

use super::world::*;
use crate::{Deadline, EndedBy, InputError, Outcome, SubmitReason};

const DROPPED: u8 = 1;
const FAILED: u8 = 2;

#[test]
fn a_scrape_shows_what_was_counted_and_how_many_answers_each_model_gave() {
    let (mut world, client) = World::open();
    let ticket = world.submit(&client.model("alpha").unwrap(), 1, Deadline::Slo);
    world.answer(ticket.task(), &[1; OUTPUT]);
    let metrics = client.metrics();
    let series = |name: &str| &metrics.iter().find(|metric| metric.name == name).unwrap().series;
    assert_eq!(series("baton_client_completed")[0].1, Value::Count(1));
    assert_eq!(series("baton_client_slots_in_use")[0].1, Value::Level(1.0));
    let answers = |(labels, took): &(Vec<String>, Value)| {
        let Value::Sizes { buckets, .. } = took else { panic!("{took:?}") };
        (labels[0].clone(), buckets.iter().map(|bucket| bucket.1).sum::<u64>())
    };
    let answered: Vec<_> = series("baton_client_latency_seconds").iter().map(answers).collect();
    assert_eq!(answered, [("alpha".into(), 1), ("beta".into(), 0)]);
}

#[test]
fn an_input_goes_out_and_its_answer_lands() {
    let (mut world, client) = World::open();
    let beta = client.model("beta").unwrap();
    let submitted = world.now;
    let ticket = world.submit(&beta, 7, Deadline::within(Duration::from_millis(20)));
    let task = ticket.task();

    assert!(world.threads[0].take().is_empty(), "beta lives on ModelThread 1");
    let heard = world.threads[1].take();
    let [Heard::Submit { task: heard_task, deadline, model: 1, input_bytes, cost }] = heard[..]
    else {
        panic!("{heard:?}")
    };
    assert_eq!(heard_task, task);
    assert_eq!((input_bytes, cost), (INPUT as u32, CostHint::NONE));
    let exact = submitted + Nanos::from_millis(20) + AHEAD;
    // A pong is stamped at once and heard one step later: the estimate is off by half a step, which
    // is also its error bound, and that is taken off as well.
    assert!(exact - deadline >= STEP, "{:?}", exact - deadline);
    assert!(exact - deadline < Nanos::from_micros(100), "{:?}", exact - deadline);

    assert_eq!(world.pull(task), (ReadStatus::Done, vec![7; INPUT]));
    world.now = world.now + Nanos::from_millis(5);
    world.answer(task, &[1, 2, 3, 4]);
    let Outcome::Completed(reply) = ticket.wait() else { panic!() };
    assert_eq!(reply.bytes(), [1, 2, 3, 4]);
    assert!(!reply.late());
    let timing = *reply.timing();
    assert_eq!(timing.submitted, submitted);
    assert_eq!((timing.batch_size, timing.gpu), (3, GpuId(9)));
    assert_eq!(timing.execution(), Duration::from_millis(1));
    let after = Duration::from_nanos((timing.landed - timing.finished).0);
    assert_eq!(timing.waited() + timing.execution() + after, timing.latency());
    assert!(timing.waited() > Duration::ZERO);
    assert!(timing.landed >= timing.finished - timing.clock_error);

    assert_eq!(client.slots_in_use(), 1, "the reply holds its slot");
    drop(reply);
    assert_eq!(client.slots_in_use(), 0);
}

#[test]
fn a_task_says_how_long_its_input_is_and_what_it_may_cost() {
    let (mut world, client) = World::open();
    let mut input =
        client.model("alpha").unwrap().input().unwrap().with_cost(CostHint::of_units(7));
    input.truncate(3);
    let _ticket = world.submit_input(input, Deadline::Slo).unwrap();
    world.steps(2);
    let heard = world.threads[0].take();
    let [Heard::Submit { input_bytes, cost, .. }] = heard[..] else { panic!("{heard:?}") };
    assert_eq!((input_bytes, cost), (3, CostHint::of_units(7)));
}

/// Its backend was taken for lost, and answers after all.
#[test]
fn an_answer_to_a_task_that_was_given_back_is_dated_by_the_scheduler_that_planned_it() {
    let (mut world, client) = World::open();
    let ticket = world.submit(&client.model("alpha").unwrap(), 1, Deadline::Slo);
    world.end(0, ticket.task(), 1, DropReason::Shutdown.code());
    world.answer(ticket.task(), &[1; OUTPUT]);
    let Outcome::Completed(reply) = ticket.wait() else { panic!() };
    assert!(reply.timing().clock_error <= STEP, "{:?}", reply.timing());
    assert_eq!(reply.timing().execution(), Duration::from_millis(1));
}

#[test]
fn an_answer_after_the_deadline_is_late() {
    let (mut world, client) = World::open();
    let ticket = world.submit(&client.model("alpha").unwrap(), 1, Deadline::Slo);
    world.pass(SLO);
    world.answer(ticket.task(), &[0; OUTPUT]);
    let Outcome::Completed(reply) = ticket.wait() else { panic!() };
    assert!(reply.late());
    assert_eq!((client.counters().completed, client.counters().late), (1, 1));
}

#[test]
fn the_scheduler_and_backends_end_tasks_with_reasons() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    // What is dropped for a shutdown is kept for the next scheduler (see `orderly_stop`).
    let drops = DropReason::ALL.iter().filter(|&&reason| reason != DropReason::Shutdown);
    for &reason in drops.clone() {
        let ticket = world.submit(&alpha, 1, Deadline::Slo);
        let submitted = world.now;
        world.end(0, ticket.task(), DROPPED, reason.code());
        let Outcome::Dropped(got, record) = ticket.wait() else { panic!() };
        assert_eq!((got, record.by), (reason, EndedBy::Scheduler));
        assert_eq!((record.deadline - record.submitted, record.resubmitted), (SLO, 0));
        assert!(record.submitted <= submitted && record.ended > submitted, "{record:?}");
    }
    for &reason in FailReason::ALL {
        let mut ticket = world.submit(&alpha, 1, Deadline::Slo);
        world.backend.send(&task_end(ticket.task(), FAILED, reason.code()), &[]);
        world.steps(2);
        let Some(Outcome::Failed(got, record)) = ticket.poll() else { panic!() };
        assert_eq!((got, record.by), (reason, EndedBy::Backend));
    }
    let counters = client.counters();
    assert_eq!(counters.dropped, drops.count() as u64);
    assert_eq!(counters.failed, FailReason::ALL.len() as u64);
    assert_eq!(client.slots_in_use(), 0);
}

#[test]
fn a_second_outcome_changes_nothing() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let ticket = world.submit(&alpha, 1, Deadline::Slo);
    let task = ticket.task();
    world.answer(task, &[1; OUTPUT]);
    world.answer(task, &[2; OUTPUT]);
    world.end(0, task, DROPPED, 1);
    let Outcome::Completed(reply) = ticket.wait() else { panic!() };
    assert_eq!(reply.bytes(), [1; OUTPUT]);
    drop(reply);

    let next = world.submit(&alpha, 2, Deadline::Slo);
    assert_ne!(next.task(), task);
    world.answer(task, &[3; OUTPUT]);
    world.end(0, task, FAILED, 1);
    world.answer(next.task(), &[4; OUTPUT]);
    let Outcome::Completed(reply) = next.wait() else { panic!() };
    assert_eq!(reply.bytes(), [4; OUTPUT]);
    let counters = client.counters();
    assert_eq!((counters.submitted, counters.completed, counters.dropped), (2, 2, 0));
    assert_eq!(counters.duplicates, 2, "the two task ends; the transport saw the answers");
}

#[test]
fn a_cancelled_task_still_has_its_outcome() {
    let (mut world, client) = World::open();
    let beta = client.model("beta").unwrap();
    let early = world.submit(&beta, 1, Deadline::Slo);
    let late = world.submit(&beta, 2, Deadline::Slo);
    world.threads[1].take();
    early.cancel();
    early.cancel();
    late.cancel();
    world.steps(2);
    let cancel = |task| Heard::Cancel { task, model: 1 };
    assert_eq!(world.threads[1].take(), [cancel(early.task()), cancel(late.task())]);
    world.end(1, early.task(), DROPPED, DropReason::Cancelled.code());
    world.answer(late.task(), &[0; OUTPUT]);
    assert!(matches!(early.wait(), Outcome::Dropped(DropReason::Cancelled, _)));
    assert!(matches!(late.wait(), Outcome::Completed(_)), "it was too late");
    assert_eq!(client.counters().cancels, 2);
}

#[test]
fn a_cancelled_task_that_is_given_back_ends() {
    let (mut world, client) = World::open();
    let mut ticket = world.submit(&client.model("alpha").unwrap(), 1, Deadline::Slo);
    ticket.cancel();
    world.steps(2);
    world.end(0, ticket.task(), 1, DropReason::Shutdown.code());
    assert!(matches!(ticket.poll(), Some(Outcome::Dropped(DropReason::Cancelled, _))));
    assert_eq!(client.slots_in_use(), 0);
}

#[test]
fn a_dropped_ticket_cancels_and_its_slot_comes_back() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    for answered in [true, false] {
        let ticket = world.submit(&alpha, 1, Deadline::Slo);
        let task = ticket.task();
        world.threads[0].take();
        drop(ticket);
        world.steps(2);
        assert_eq!(world.threads[0].take(), [Heard::Cancel { task, model: 0 }]);
        assert_eq!(client.slots_in_use(), 1, "a backend may still be reading");
        if answered {
            world.answer(task, &[0; OUTPUT]);
        } else {
            world.end(0, task, DROPPED, DropReason::Cancelled.code());
        }
        assert_eq!(client.slots_in_use(), 0);
    }
    let ended = world.submit(&alpha, 1, Deadline::Slo);
    world.answer(ended.task(), &[0; OUTPUT]);
    drop(ended);
    assert_eq!(client.slots_in_use(), 0, "an outcome without its ticket is let go");
}

#[test]
fn a_lease_runs_out_in_deadline_order_and_late_answers_are_ignored() {
    let (mut world, client) =
        World::open_with(|config| config.lease_grace(Duration::from_millis(100)));
    let alpha = client.model("alpha").unwrap();
    let mut long = world.submit(&alpha, 1, Deadline::within(Duration::from_millis(500)));
    let mut short = world.submit(&alpha, 2, Deadline::within(Duration::from_millis(50)));
    world.pass(Nanos::from_millis(140));
    assert!(short.poll().is_none(), "still within its grace");
    world.pass(Nanos::from_millis(11));
    let task = short.task();
    assert!(matches!(short.poll(), Some(Outcome::Failed(FailReason::LeaseExpired, _))));
    assert!(long.poll().is_none());
    assert_eq!(client.slots_in_use(), 1);
    assert_eq!(world.pull(task).0, ReadStatus::Stale, "no backend reads it any more");
    world.answer(task, &[9; OUTPUT]);
    world.pass(Nanos::from_millis(460));
    assert!(matches!(long.poll(), Some(Outcome::Failed(FailReason::LeaseExpired, _))));
    assert_eq!(client.counters().failed, 2);
}

#[test]
fn what_is_asked_wrongly_is_refused_and_counted() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let wrong = alpha.input_from(&[0; INPUT + 1]).unwrap_err();
    let expected = InputError::WrongSize { model: "alpha".into(), expected: INPUT, got: INPUT + 1 };
    assert_eq!(wrong, expected);

    let input = alpha.input_from(&[5; INPUT]).unwrap();
    let error = world.submit_input(input, Deadline::within(Duration::ZERO)).unwrap_err();
    assert_eq!(error.reason, SubmitReason::DeadlinePassed);
    assert_eq!(error.input[..], [5; INPUT], "the input comes back");
    let _ticket = world.submit_input(error.input, Deadline::Slo).unwrap();

    let held: Vec<_> = (1..SLOTS).map(|_| alpha.input().unwrap()).collect();
    let exhausted = alpha.input().unwrap_err();
    let expected = InputError::SlabExhausted { model: "alpha".into(), slots: SLOTS };
    assert_eq!(exhausted, expected);
    assert!(client.model("beta").unwrap().input().is_ok(), "each model has its own slots");
    drop(held);
    assert!(alpha.input().is_ok());
    world.steps(2);

    let counters = client.counters();
    let refused = (counters.wrong_size, counters.deadline_passed, counters.slab_exhausted);
    assert_eq!(refused, (1, 1, 1));
    assert_eq!(counters.submitted, 1);
}

#[test]
fn a_model_thread_that_does_not_read_is_backpressure() {
    // Room for the join, and for four submits of 40 bytes, but not for five.
    let tcp = TcpConfig { send_queue_bytes: 170, ..TcpConfig::default() };
    let (mut world, client) = World::open_with(|config| config.slots_per_model(6).tcp(tcp));
    let alpha = client.model("alpha").unwrap();
    let submit = |_| world.submit_input(alpha.input().unwrap(), Deadline::Slo).unwrap();
    let tickets: Vec<_> = (0..6).map(submit).collect();
    world.pass(Nanos::from_millis(150));
    for (number, mut ticket) in tickets.into_iter().enumerate() {
        match ticket.poll() {
            None => assert!(number < 4),
            Some(Outcome::Dropped(DropReason::QueueFull, _)) => assert!(number >= 4),
            other => panic!("{number}: {other:?}"),
        }
    }
    assert_eq!(client.counters().transport.send_full, 2);
}

#[test]
fn an_answer_of_the_wrong_size_is_a_failure() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let ticket = world.submit(&alpha, 1, Deadline::Slo);
    world.answer(ticket.task(), &[1; OUTPUT - 1]);
    assert!(matches!(ticket.wait(), Outcome::Failed(FailReason::Engine, _)));
    assert_eq!(client.counters().wrong_answer_size, 1);
    assert_eq!(client.slots_in_use(), 0);
}

/// Neither model here has variants.
#[test]
fn an_answer_of_a_variant_that_there_is_not_is_a_failure() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let ticket = world.submit(&alpha, 1, Deadline::Slo);
    world.answer_as(ticket.task(), 1, &[1; OUTPUT]);
    assert!(matches!(ticket.wait(), Outcome::Failed(FailReason::Engine, _)));
    assert_eq!(client.counters().wrong_variant, 1);
}

#[test]
fn messages_that_do_not_belong_are_counted() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let ticket = world.submit(&alpha, 1, Deadline::Slo);
    world.end(0, ticket.task(), 77, 1);
    world.end(0, ticket.task(), DROPPED, 200);
    world.end(0, TaskId(u64::MAX), DROPPED, 1);
    let counters = client.counters();
    assert_eq!((counters.unexpected, counters.duplicates), (2, 1));

    world.backend.send(&baton_rdma::wire::Leave { reserved: 0.into() }, &[]);
    world.steps(4);
    let closed = world.backend.take().pop();
    let code = Some(RefuseCode::UnexpectedMessage);
    let Some(Heard::Closed(baton_rdma::CloseReason::Refused { code: got, .. })) = closed else {
        panic!("{closed:?}")
    };
    assert_eq!(got, code);
}

#[test]
fn an_outcome_taken_twice_is_reported_as_such() {
    let (mut world, client) = World::open();
    let mut ticket = world.submit(&client.model("alpha").unwrap(), 1, Deadline::Slo);
    assert!(ticket.poll().is_none());
    assert!(ticket.wait_timeout(Duration::from_millis(1)).is_none());
    world.answer(ticket.task(), &[1; OUTPUT]);
    assert!(matches!(ticket.poll(), Some(Outcome::Completed(_))));
    assert!(matches!(ticket.poll(), Some(Outcome::Failed(FailReason::StaleGeneration, _))));
    assert!(matches!(ticket.wait(), Outcome::Failed(FailReason::StaleGeneration, _)));
}

#[test]
fn a_refusal_says_how_long_to_wait_and_the_model_knows() {
    let (mut world, client) = World::open();
    let (alpha, beta) = (client.model("alpha").unwrap(), client.model("beta").unwrap());
    let ticket = world.submit(&alpha, 1, Deadline::Slo);
    assert_eq!(alpha.retry_after_at(world.now), None);
    let end = task_end(ticket.task(), DROPPED, DropReason::Quota.code());
    let other = world.submit(&alpha, 1, Deadline::Slo);
    world.threads[0].send(&task_end(other.task(), DROPPED, DropReason::Deadline.code()), &[]);
    world.steps(2);
    assert_eq!((client.counters().hinted, alpha.retry_after_at(world.now)), (0, None));
    let told_at = world.now;
    world.threads[0].send(&TaskEnd { retry_ms: 250.into(), ..end }, &[]);
    world.steps(2);
    let Outcome::Dropped(DropReason::Quota, record) = ticket.wait() else { panic!() };
    assert_eq!(record.retry_after, Nanos::from_millis(250));
    let left = alpha.retry_after_at(world.now).unwrap();
    let passed = Duration::from_nanos((world.now - told_at).0);
    assert!(left <= Duration::from_millis(250) && left + passed >= Duration::from_millis(250));
    assert_eq!(alpha.retry_after_at(world.now + Nanos::from_millis(250)), None);
    assert_eq!(beta.retry_after_at(world.now), None, "another model");
}

#[test]
fn an_outcome_is_a_result_too() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let answered = world.submit(&alpha, 1, Deadline::Slo);
    world.answer(answered.task(), &[7; OUTPUT]);
    assert_eq!(answered.wait().into_result().unwrap().bytes(), [7; OUTPUT]);
    let dropped = world.submit(&alpha, 1, Deadline::Slo);
    world.end(0, dropped.task(), DROPPED, DropReason::Window.code());
    let error = dropped.wait().into_result().unwrap_err();
    assert_eq!(error.to_string(), "the task was dropped (window)");
}

#[test]
#[expect(clippy::disallowed_methods, reason = "an application's clock")]
fn a_deadline_may_be_a_moment() {
    let (mut world, client) = World::open();
    let alpha = client.model("alpha").unwrap();
    let ticket = world.submit(&alpha, 1, Deadline::at(Instant::now() + Duration::from_secs(3_600)));
    let span = ticket.deadline() - ticket.submitted();
    let hour = Nanos::from_millis(3_600_000);
    assert!(hour - Nanos::from_millis(60_000) < span && span <= hour, "{span:?}");
    let input = alpha.input().unwrap();
    let error = world.submit_input(input, Deadline::at(Instant::now())).unwrap_err();
    assert_eq!(error.reason, SubmitReason::DeadlinePassed);
}

/// The scheduler's clock may be wrong by that much.
#[test]
fn a_deadline_is_early_by_the_error_of_the_clock() {
    let (mut world, client) = World::open();
    let within = Duration::from_millis(20);
    let ticket = world.submit(&client.model("alpha").unwrap(), 1, Deadline::within(within));
    let heard = world.threads[0].take();
    let [Heard::Submit { deadline, .. }] = heard[..] else { panic!("{heard:?}") };
    let sync = world.io.as_ref().unwrap().membership.sync();
    let submitted = world.now - STEP.times(2);
    let there = sync.to_scheduler(submitted + Nanos::from_millis(20)).unwrap();
    assert!(sync.error() > Nanos::ZERO);
    assert_eq!(deadline, there - sync.error());
    drop(ticket);
}
