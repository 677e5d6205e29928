use super::super::Replica;
use super::*;
use crate::{Alternative, NetworkDelay, Policy, Prefer, Profile, Slowdown};

const MS: Nanos = Nanos::from_millis(1);

/// One whose only batch takes so long.
fn replica(latency_ms: u64, slo_ms: u64) -> Replica {
    replica_of(&[latency_ms], slo_ms)
}

/// One whose batches of 1, 2, … tasks take so long.
fn replica_of(latency_ms: &[u64], slo_ms: u64) -> Replica {
    let table: Vec<Nanos> = latency_ms.iter().map(|&latency| MS.times(latency)).collect();
    let config = ModelConfig {
        id: ModelId(0),
        profile: Profile::from_table(&table).unwrap(),
        slo: MS.times(slo_ms),
        queue_capacity: 64,
        policy: Policy::Baton,
        prefer: Prefer::Latency,
        network: NetworkDelay::default(),
    };
    Replica::exact(config)
}

/// What a candidate of the only model would say of its losses, at the end of the last replay.
fn bad_rate(shadow: &mut Shadow) -> u32 {
    let now = shadow.begins;
    shadow.advance(now);
    shadow.now = now;
    let request = Request::new(TaskId(now.0), now + MS.times(100));
    shadow.with(0, |model, out| model.on_request(now, request, out));
    let said = shadow.mail.iter().find_map(|message| match message {
        Message::Candidate(_, candidate, _) => *candidate,
        _ => None,
    });
    shadow.settle();
    said.expect("something waits").bad_rate
}

/// A task every 10 ms, in batches of 5 ms: in time, but for the overload, which is over after 80 ms.
#[test]
fn losses_of_the_overload_are_forgotten_once_its_tasks_have_ended() {
    let models = vec![replica(5, 20)];
    let task = |at| Task { at: MS.times(10 * at), model: 0, budget: MS.times(20) };
    let part = |models, tasks: u64| Trial {
        models,
        slots: vec![Slowdown::NONE],
        tasks: (0..tasks).map(task).collect(),
        span: MS.times(10 * tasks),
    };
    let (first, rest) = (part(models.clone(), 15), part(models.clone(), 40));
    let mut shadow = Shadow::new(&rest, Alternative::Own.rules());
    assert_eq!((shadow.overloaded_until, shadow.forgets_at), (MS.times(80), Some(MS.times(160))));
    shadow.replay(&first);
    assert!(bad_rate(&mut shadow) > 0, "{:?}", shadow.lost);
    let lost = shadow.lost.clone();
    shadow.replay(&rest);
    assert_eq!(shadow.lost[0].lost, lost[0].lost, "only the overload lost tasks");
    assert_eq!(bad_rate(&mut shadow), 0);
}

/// After a first replay: tasks in such groups, which come every 10 ms and begin at once, of which none is lost. How many
/// there are, and how long they take.
fn took(replica: Replica, group_ms: &[u64]) -> (u64, Nanos) {
    let at = |i: u64| group_ms.iter().map(move |ms| MS.times(10 * i + ms));
    let task = |at| Task { at, model: 0, budget: replica.config.slo };
    let trial = Trial {
        tasks: (0..60).flat_map(at).map(task).collect(),
        models: vec![replica],
        slots: vec![Slowdown::NONE],
        span: MS.times(600),
    };
    let mut shadow = Shadow::new(&trial, Alternative::AtOnce.rules());
    shadow.replay(&trial);
    shadow.count_anew();
    shadow.replay(&trial);
    let lost = shadow.end()[0];
    assert_eq!(lost.lost, 0);
    (lost.tasks, lost.took)
}

/// The second one of each pair waits until the slot is free.
#[test]
fn what_tasks_took_is_from_their_arrival_to_the_end_of_their_batch() {
    assert_eq!(took(replica(4, 20), &[0, 1]), (120, MS.times(60 * (4 + 7))));
}

/// The second and the third wait, and their batch ends by its own margin earlier than planned.
#[test]
fn each_size_of_batch_has_its_margin() {
    let margins = [Nanos::ZERO, MS.times(2)].into();
    let replica = Replica { margins, ..replica_of(&[4, 6], 30) };
    assert_eq!(took(replica, &[0, 1, 2]), (180, MS.times(60 * (4 + 7 + 6))));
}

/// They wait when the count begins, and end in it.
#[test]
fn tasks_that_came_before_the_count_are_not_lost_in_it() {
    let task = |at| Task { at: MS.times(at), model: 0, budget: MS.times(100) };
    let (tasks, span) = ((0..40).map(task).collect(), MS.times(40));
    let trial = Trial { models: vec![replica(10, 100)], slots: vec![Slowdown::NONE], tasks, span };
    let lost = |counts_anew: bool| {
        let mut shadow = Shadow::new(&trial, Alternative::Own.rules());
        shadow.replay(&trial);
        if counts_anew {
            shadow.count_anew();
        }
        shadow.end()[0].lost
    };
    assert!(lost(false) > 20);
    assert_eq!(lost(true), 0);
}

/// What comes in 40 ms and can wait for 100 ms waits for two further replays at most.
#[test]
fn there_is_room_for_the_tasks_of_as_many_replays_as_can_wait() {
    let task = |(at, model)| Task { at: MS.times(at), model, budget: MS.times(100) };
    let tasks = [(0, 0), (3, 1), (9, 0), (12, 0)].map(task).to_vec();
    let trial = |slo_ms, span_ms| Trial {
        models: vec![replica(1, slo_ms); 2],
        slots: vec![Slowdown::NONE],
        tasks: tasks.clone(),
        span: MS.times(span_ms),
    };
    assert_eq!(room(&trial(100, 40)), [1 + 3 * 4, 1 + 4]);
    let replays = [(100, 40), (20, 40), (100, 5)].map(|(slo, span)| trial(slo, span).learning());
    assert_eq!(replays, [20, 13, 32], "eight objectives, half a second, and no more than 32");
}

/// Of both models there may be as many as if all could wait so long.
#[test]
fn there_is_room_for_as_long_as_any_task_can_wait() {
    let task = |model, budget_ms| Task { at: MS, model, budget: MS.times(budget_ms) };
    let trial = Trial {
        models: vec![replica(1, 100); 2],
        slots: vec![Slowdown::NONE],
        tasks: [task(0, 100), task(1, 10)].to_vec(),
        span: MS.times(40),
    };
    assert_eq!(room(&trial), [1 + 4; 2]);
}

#[test]
fn a_bad_rate_is_beside_twenty_tasks_that_were_in_time() {
    let rate = |tasks, lost| super::super::bad_rate(&Lost { tasks, lost, ..Lost::default() });
    assert_eq!([rate(80, 1), rate(80, 50), rate(0, 0)], [655, 1 << 15, 0]);
}
