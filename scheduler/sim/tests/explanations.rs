//! Explanations against the trace of the same run, and told by rules small enough to follow by eye.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

use baton_sim::{
    Cause, Decision, Explanation, Outcome, Place, Run, Scenario, Subject, TaskStory, What, explain,
    run_traced,
};

const ONE_GPU: &str = "
    gpus = 1
    duration_s = 0.5
    arrival = { process = 'constant' }
    [[model]]
    name = 'm'
    alpha_ms = 1.0
    beta_ms = 4.0
    slo_ms = 15.0";

/// More than any run here drops.
const MANY: usize = 10_000;

const TABLE_4: &str = "
    gpus = 8
    duration_s = 1
    warmup_s = 0.5
    [[model]]
    name = 'resnet50'
    alpha_ms = 1.053
    beta_ms = 5.072
    slo_ms = 25.0";

fn at_rate(text: &str, policy: &str, rate_rps: f64) -> (Scenario, Run) {
    let run = Run { policy: policy.parse().unwrap(), rate_rps, seed: 1 };
    (Scenario::parse(text).unwrap(), run)
}

fn of(text: &str, policy: &str, rate_rps: f64, subject: Subject) -> Explanation {
    let (scenario, run) = at_rate(text, policy, rate_rps);
    explain(&scenario, run, subject).unwrap()
}

fn trace(text: &str, policy: &str, rate_rps: f64) -> String {
    let (scenario, run) = at_rate(text, policy, rate_rps);
    String::from_utf8(run_traced(&scenario, run).unwrap().1).unwrap()
}

/// Reasons of the dropped tasks by id, as the trace has them.
fn dropped(trace: &str) -> Vec<(u64, String)> {
    let drops = trace.lines().filter_map(|line| line.strip_prefix("drop model=0 arrived="));
    let drops = drops.map(|rest| rest.split_once("ns ").unwrap());
    drops.map(|(task, why)| (task.parse().unwrap(), why.to_owned())).collect()
}

fn last(story: &TaskStory) -> &What {
    &story.steps.last().unwrap().what
}

#[test]
fn dropped_tasks_are_those_of_the_trace_with_their_reasons() {
    for (policy, rate_rps) in [("baton", 5_900.0), ("symphony", 5_800.0), ("eager", 5_800.0)] {
        let mut expected = dropped(&trace(TABLE_4, policy, rate_rps));
        expected.retain(|&(task, _)| task >= 500_000_000);
        let explanation = of(TABLE_4, policy, rate_rps, Subject::Dropped(MANY));
        assert!(expected.len() > 20, "{policy}: too few to tell");
        expected.sort();
        let reason = |story: &TaskStory| match last(story) {
            What::Dropped { reason, .. } => (*reason).to_owned(),
            what => panic!("{policy}: {what:?}"),
        };
        let told: Vec<_> = explanation.tasks.iter().map(|s| (s.task, reason(s))).collect();
        assert_eq!(told, expected, "{policy}");
    }
}

#[test]
fn a_dropped_task_was_in_the_way_of_the_target_or_could_not_run_alone() {
    let mut reasons = [0, 0];
    for policy in ["baton", "symphony", "eager"] {
        for story in of(TABLE_4, policy, 5_800.0, Subject::Dropped(MANY)).tasks {
            let &What::Dropped { reason, room_ms, fits, alone_ms, instead, floor } = last(&story)
            else {
                panic!("{story:?}")
            };
            if reason == "window" {
                let (_, tasks) = instead.unwrap();
                assert!(fits < floor && floor.min(tasks) <= tasks, "{story:?}");
                reasons[0] += 1;
            } else {
                assert!(room_ms < alone_ms && fits == 0, "{story:?}");
                reasons[1] += 1;
            }
        }
    }
    assert!(reasons.into_iter().all(|count| count > 10), "{reasons:?}");
}

#[test]
fn a_task_that_waits_alone_waits_for_its_frontrun_moment() {
    // A task every 100 ms. ℓ(1) = 5, ℓ(2) = 6, deadline at 15: waits for 9 ms.
    let batch = of(ONE_GPU, "symphony", 10.0, Subject::Batch(1)).batches.remove(0);
    assert_eq!((batch.tasks.len(), batch.gpu, batch.late), (1, 0, 0));
    let story = batch.head;
    let after = |ms: f64| story.arrived_ms + ms;
    let close = |a: f64, b: f64| (a - b).abs() < 1e-6;
    let [queued, waits, granted, sealed, executed] = story.steps.as_slice() else {
        panic!("{story:?}")
    };
    assert_eq!(queued.what, What::Queued { cause: Cause::Arrival, number: 1, waiting: 1 });
    let candidate = |what: &What| match *what {
        What::Candidate { cause, candidate, place, decision, .. } => {
            assert_eq!(place, Place::InBatch { number: 1 });
            (cause, candidate, decision)
        }
        _ => panic!("{what:?}"),
    };
    let (cause, window, decision) = candidate(&waits.what);
    assert_eq!((cause, decision), (Cause::Arrival, Decision::WaitsForFrontrun));
    assert!(close(window.exec_at_ms, after(9.0)) && close(window.invalid_after_ms, after(10.0)));
    let What::Granted { gpu: 0, due_for_ms, others_first: 0, .. } = granted.what else {
        panic!("{granted:?}")
    };
    assert!(close(due_for_ms, 0.0) && close(granted.at_ms, after(9.0)));
    assert!(matches!(sealed.what, What::Sealed { batch: 1, tasks: 1, number: 1, .. }));
    assert!(matches!(executed.what, What::Executed { late_by_ms } if close(late_by_ms, -1.0)));
    assert_eq!(story.outcome, Outcome::InTime);
}

#[test]
fn eager_starts_at_once_and_only_a_busy_slot_delays_it() {
    // A task every 2 ms; ℓ(b) = 4 + b: the slot is busy when the second one comes.
    let batch = of(ONE_GPU, "eager", 500.0, Subject::Batch(2)).batches.remove(0);
    let decisions = batch.head.steps.iter().filter_map(|step| match step.what {
        What::Candidate { decision, idle_gpus, .. } => Some((decision, idle_gpus)),
        _ => None,
    });
    let decisions: Vec<_> = decisions.collect();
    assert_eq!(decisions, [(Decision::AtOnce, 0); 2], "{batch:?}");
    let due_for_ms = batch.head.steps.iter().find_map(|step| match step.what {
        What::Granted { due_for_ms, .. } => Some(due_for_ms),
        _ => None,
    });
    // It came 2 ms after the first, which took 5, and with it the one after it: due since that came.
    assert!((due_for_ms.unwrap() - 1.0).abs() < 1e-6, "{batch:?}");
}

#[test]
fn a_batch_is_the_one_of_the_trace() {
    let trace = trace(TABLE_4, "symphony", 5_000.0);
    let executed = |gpu: u32, tasks: usize, end_ms: f64| {
        let prefix = format!("batch model=0 gpu={gpu} tasks={tasks} ");
        let end = format!(" {}ns", (end_ms * 1e6).round());
        trace.lines().any(|line| line.starts_with(&prefix) && line.ends_with(&end))
    };
    for number in [1, 100, 300] {
        let batch = of(TABLE_4, "symphony", 5_000.0, Subject::Batch(number)).batches.remove(0);
        assert!(executed(batch.gpu, batch.tasks.len(), batch.end_ms.unwrap()), "{batch:?}");
        assert_eq!(batch.head.task, batch.tasks[0]);
        assert!(batch.exec_at_ms <= batch.invalid_after_ms && batch.late == 0);
    }
}

#[test]
fn the_last_candidate_says_what_the_grant_then_does() {
    let batch = of(TABLE_4, "symphony", 5_800.0, Subject::Batch(300)).batches.remove(0);
    for (rank, &task) in batch.tasks.iter().enumerate().step_by(5) {
        let story = of(TABLE_4, "symphony", 5_800.0, Subject::Task(task)).tasks.remove(0);
        let place = story.steps.iter().rev().find_map(|step| match step.what {
            What::Candidate { place, .. } => Some(place),
            _ => None,
        });
        let number = rank as u32 + 1;
        assert_eq!(place, Some(Place::InBatch { number }), "{story:?}");
        let sealed = |what: &What| matches!(what, What::Sealed { batch: 300, number: n, .. } if *n == number);
        assert!(story.steps.iter().any(|step| sealed(&step.what)), "{story:?}");
    }
}

#[test]
fn late_tasks_are_those_that_overran() {
    let jittery = TABLE_4.replace("gpus = 8", "gpus = 8\noverrun_ms = 2.0");
    let explanation = of(&jittery, "symphony", 4_600.0, Subject::Late(5));
    assert_eq!(explanation.tasks.len(), 5);
    for story in explanation.tasks {
        assert_eq!(story.outcome, Outcome::Late);
        assert!(matches!(last(&story), What::Executed { late_by_ms } if *late_by_ms > 0.0));
    }
    assert!(of(TABLE_4, "symphony", 1_000.0, Subject::Late(5)).tasks.is_empty());
}

#[test]
fn a_moment_shows_what_is_under_way_and_what_comes_next() {
    // Tasks at 100·k + φ ms wait for 9 ms and take 5.
    let first = of(ONE_GPU, "symphony", 10.0, Subject::Batch(1)).batches.remove(0);
    let at = |after: f64| {
        let subject = Subject::At { at_ms: first.head.arrived_ms + after };
        let Explanation { moment, batches, .. } = of(ONE_GPU, "symphony", 10.0, subject);
        let moment = moment.unwrap();
        let waiting: u32 = moment.models.iter().map(|model| model.waiting).sum();
        (waiting, moment.idle_gpus, moment.busy.len(), batches[0].batch)
    };
    assert_eq!(at(5.0), (1, 1, 0, 1));
    assert_eq!(at(12.0), (0, 0, 1, 2));
    assert_eq!(at(20.0), (0, 1, 0, 2));
}

#[test]
fn stories_of_a_lost_slots_tasks_are_complete() {
    let loss = "\n[[gpu_event]]\nat_s = 1.0\ngpus = [0, 1]\nkind = 'loss'";
    let lossy = format!("{TABLE_4}{loss}");
    let mut told = of(&lossy, "symphony", 5_000.0, Subject::Dropped(MANY)).tasks;
    let sealed = |story: &TaskStory| {
        let sealed = |what: &What| matches!(what, What::Sealed { .. });
        story.steps.iter().filter(|step| sealed(&step.what)).count()
    };
    told.retain(|story| sealed(story) > 0);
    assert!(!told.is_empty(), "no task was dropped because its slot was lost");
    for story in told {
        let back = story
            .steps
            .iter()
            .find(|step| matches!(step.what, What::Queued { cause: Cause::SlotLost, .. }));
        assert_eq!((back.unwrap().at_ms, sealed(&story)), (1_000.0, 1), "{story:?}");
        assert!(matches!(last(&story), What::Dropped { .. }), "{story:?}");
    }
    let subject = Subject::At { at_ms: 1_000.0 };
    let moment = of(&lossy, "symphony", 5_000.0, subject).moment.unwrap();
    assert!(moment.busy.iter().all(|busy| busy.gpu > 1), "lost with their slots: {moment:?}");
    assert_eq!(moment.idle_gpus as usize + moment.busy.len(), 6, "{moment:?}");
}

#[test]
fn what_is_not_there_cannot_be_explained() {
    let error = |policy: &str, subject| {
        let (scenario, run) = at_rate(ONE_GPU, policy, 10.0);
        explain(&scenario, run, subject).unwrap_err().to_string()
    };
    assert!(error("symphony", Subject::Task(7)).contains("no task 7"));
    assert!(error("symphony", Subject::Batch(6)).contains("sealed 5"));
    assert!(error("symphony", Subject::Batch(0)).contains("counted from 1"));
    assert!(error("symphony", Subject::At { at_ms: 501.0 }).contains("from 0 to 500 ms"));
    assert!(error("clockwork", Subject::Batch(1)).contains("baseline"));
}

#[test]
fn the_text_says_why() {
    let text = of(TABLE_4, "symphony", 5_800.0, Subject::Dropped(1)).to_string();
    for part in ["queued as number", "waits until", "one more would not fit", "granted GPU"] {
        assert!(text.contains(part), "{part}: {text}");
    }
    assert!(text.contains("dropped (window)") && text.contains("(floor "), "{text}");
    let none = of(ONE_GPU, "symphony", 10.0, Subject::Dropped(1)).to_string();
    assert!(none.contains("no task of this run ended so"), "{none}");
}

/// One slot with room for one model, and two models that take turns.
const ONE_FITS: &str = "
    gpus = 1
    duration_s = 1
    pages = 7
    [[model]]
    name = 'm'
    latency_ms = [2.61, 3.78, 4.695, 5.61]
    slo_ms = 100.0
    weights_mb = 102.3
    load_ms = 8.33
    copies = 2";

/// How long the cheapest variant takes says nothing of it.
#[test]
fn a_task_that_asks_for_too_much_is_told_so() {
    let model = ONE_GPU.replace("alpha_ms = 1.0\n    beta_ms = 4.0", "accuracy_min = 90");
    let variant = "\n[[model.variant]]\nname = 'a'\naccuracy = 80\nalpha_ms = 1\nbeta_ms = 4";
    let text = of(&(model + variant), "baton", 10.0, Subject::Dropped(1)).to_string();
    let why = "dropped (accuracy): 15.000000 ms were left, and no variant that is as accurate as it asks for ends in them";
    assert!(text.contains(why) && !text.contains(" alone"), "{text}");
}

#[test]
fn a_task_that_waited_for_its_model_says_so_and_until_when() {
    let explanation = of(ONE_FITS, "baton", 20.0, Subject::Batch(1));
    let head = &explanation.batches[0].head;
    let at = |found: fn(&What) -> Option<f64>| {
        head.steps.iter().find_map(|step| Some((step.at_ms, found(&step.what)?))).unwrap()
    };
    let (cold_at, load_ms) = at(|what| match what {
        What::Cold { load_ms } => Some(*load_ms),
        _ => None,
    });
    let (begun_at, until_ms) = at(|what| match what {
        What::Loading { until_ms } => Some(*until_ms),
        _ => None,
    });
    let (loaded_at, waited_ms) = at(|what| match what {
        What::Loaded { waited_ms } => Some(*waited_ms),
        _ => None,
    });
    assert_eq!((cold_at, load_ms), (head.arrived_ms, 8.33), "caches are empty at first");
    assert!((until_ms - begun_at - 8.33).abs() < 1e-6, "the loader is idle: {head}");
    assert!((loaded_at - until_ms).abs() < 1e-6, "{head}");
    assert!((waited_ms - (loaded_at - head.arrived_ms)).abs() < 1e-6, "{head}");
    assert!(head.to_string().contains("waits for a load of its model until"), "{head}");
}

#[test]
fn tasks_wait_for_no_load_where_every_slot_holds_every_model() {
    let everything = ONE_FITS.replace("pages = 7", "");
    let text = of(&everything, "baton", 20.0, Subject::Batch(1)).to_string();
    assert!(!text.contains("load"), "{text}");
}
