//! What Prometheus reads of a scheduler.
#![allow(clippy::unwrap_used, reason = "in a test, a panic is the report")]

mod stage;

use baton_core::{ModelId, Policy};
use baton_metrics::{Metric, Value};
use baton_rdma::wire::ChangeKind;
use stage::changes::{add, answer, change, remove, serve_one, stage};
use stage::passing::pass;
use stage::{Stage, cluster, ms};

/// What Prometheus would read.
fn scrape(stage: &mut Stage) -> Vec<Metric> {
    let metrics = stage.scheduler.metrics().clone();
    std::thread::scope(|scope| {
        let read = scope.spawn(move || metrics.read());
        while !read.is_finished() {
            stage.settle();
        }
        read.join().unwrap()
    })
}

fn shown(metrics: &[Metric], name: &str, labels: &[&str]) -> Option<Value> {
    let metric = metrics.iter().find(|metric| metric.name == name)?;
    metric.series.iter().find(|(values, _)| values == labels).map(|(_, value)| value.clone())
}

#[test]
fn a_scrape_has_members_slots_and_each_model_from_its_first_task_on() {
    let mut stage = stage();
    let (mut backend, mut client) = (stage.backend("a", 0, 1), stage.frontend());
    stage.exchange(&mut backend);
    for round in 0..3 {
        let model = add(&mut stage, &mut backend, &mut client);
        for slot in 0..3 {
            serve_one(&mut stage, &mut backend, &mut client, model, 3 * round + slot);
        }
        pass(&mut stage, &mut [&mut backend, &mut client], ms(1_100));
        let metrics = scrape(&mut stage);
        let level = |name, labels: &[&str]| shown(&metrics, name, labels);
        assert_eq!(level("baton_members", &["frontend", "serving"]), Some(Value::Level(1.0)));
        assert_eq!(level("baton_members", &["backend", "serving"]), Some(Value::Level(1.0)));
        assert_eq!(level("baton_members", &["backend", "draining"]), Some(Value::Level(0.0)));
        assert_eq!(level("baton_gpus", &["a"]), Some(Value::Level(1.0)));
        assert_eq!(level("baton_gpus", &["b"]), Some(Value::Level(0.0)));
        assert_eq!(level("baton_queue_tasks", &["new"]), Some(Value::Level(0.0)));
        let slo = level("baton_model_slo_seconds", &["new", "a"]);
        assert_eq!(slo, Some(Value::Level(0.03)));
        let room = level("baton_queue_capacity_tasks", &["new"]);
        assert_eq!(room, Some(Value::Level(4096.0)));
        let executed = level("baton_scheduler_model_executed", &["new"]);
        assert_eq!(executed, Some(Value::Count(3)), "round {round}");
        let requests = level("baton_scheduler_model_requests", &["new"]);
        assert_eq!(
            requests,
            Some(Value::Count(3)),
            "round {round}: those of the model before do not count"
        );
        let Some(Value::Sizes { buckets, .. }) =
            level("baton_scheduler_task_duration_seconds", &["new"])
        else {
            panic!("{metrics:?}")
        };
        assert_eq!(buckets.iter().map(|bucket| bucket.1).sum::<u64>(), 3, "round {round}");
        let mut operator = remove(&mut stage);
        assert!(answer(&mut stage, &mut operator).0);
        stage.exchange(&mut client);
        stage.exchange(&mut backend);
        assert_eq!(shown(&scrape(&mut stage), "baton_queue_tasks", &["new"]), None);
    }
}

/// A sum that fell would seem a huge one to the ControlThread, which counts what has come since.
#[test]
fn what_a_quota_refused_stays_counted_when_the_quota_changes_and_the_model_moves() {
    let mut stage = Stage::new(&cluster(Policy::Eager, 2));
    let (mut backend, mut client) = (stage.backend("b", 0, 1), stage.frontend());
    let limit = |stage: &mut Stage, rps: u32| {
        let text = format!("[[model]]\nname = \"model-0\"\nmax_rps = {rps}\n");
        assert!(change(stage, ChangeKind::Set, &text).0);
    };
    limit(&mut stage, 1);
    for slot in 0..20 {
        let task = client.task(slot, 0);
        client.submit(0, task, stage.now + ms(30));
    }
    stage.exchange(&mut client);
    let nothing = |_: &mut Stage| {};
    let other_limit = |stage: &mut Stage| limit(stage, 2);
    let moves =
        |stage: &mut Stage| assert!(stage.scheduler.control.move_model(ModelId(0), 1), "it may");
    let steps: [&dyn Fn(&mut Stage); 3] = [&nothing, &other_limit, &moves];
    for step in steps {
        step(&mut stage);
        pass(&mut stage, &mut [&mut backend, &mut client], ms(2_100));
        let metrics = scrape(&mut stage);
        let count = |name| shown(&metrics, name, &["model-0"]);
        let requests = count("baton_scheduler_model_requests");
        assert_eq!(requests, Some(Value::Count(20)), "of which 4 were not let in");
        assert_eq!(count("baton_scheduler_model_refused"), Some(Value::Count(4)));
    }
}

#[test]
fn what_found_a_full_queue_is_counted_by_model_wherever_it_lives() {
    let mut stage = Stage::new(&cluster(Policy::Symphony, 2));
    let (mut client, mut backend) = (stage.frontend(), stage.backend("b", 0, 1));
    // A batch of the largest size leaves at once for the idle slot, and 16 tasks fill the queue.
    for slot in 0..8 + 16 + 3 {
        let task = client.task(slot, 0);
        client.submit(0, task, stage.now + ms(10_000));
        stage.exchange(&mut client);
    }
    for round in 0..2 {
        pass(&mut stage, &mut [&mut backend, &mut client], ms(1_100));
        let metrics = scrape(&mut stage);
        let full = |model: &str| shown(&metrics, "baton_scheduler_model_queue_full", &[model]);
        assert_eq!(full("model-0"), Some(Value::Count(3)), "round {round}");
        assert_eq!(full("model-1"), Some(Value::Count(0)));
        if round == 0 {
            assert!(stage.scheduler.control.move_model(ModelId(0), 1), "it may");
        }
    }
}
