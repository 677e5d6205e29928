//! More models than a GPU slot has room for, in processes: all of them are served, and a backend that joins again says what it
//! holds.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod support;

use std::fmt::Write as _;
use std::time::Duration;

use baton_backend::execute::checksum;
use baton_client::{Client, ClientConfig, Deadline, ModelHandle, Outcome};
use serde_json::Value;
use support::application::await_model;
use support::operator::{await_status, status};
use support::{Cluster, Folder, Process, prometheus, run};

const MODELS: usize = 12;
/// Twelve models of three pages each, of which four fit.
const HEAD: &str = r#"
[[backend]]
name = "a"
weights_cache_mib = 200
metrics = "127.0.0.1:0"
"#;
const ANSWER: Duration = Duration::from_secs(30);

fn cluster_file() -> String {
    let mut text = HEAD.to_owned();
    for model in 0..MODELS {
        writeln!(
            text,
            "[[model]]\nname = \"m{model}\"\nalpha_ms = 0.1\nbeta_ms = 2\nslo_ms = 1000"
        )
        .unwrap();
        writeln!(text, "input_bytes = 64\nweights_mib = 48\nload_ms = 5").unwrap();
    }
    text
}

/// Offers one task until it is answered rightly.
fn answered(model: &ModelHandle, mark: u8) {
    loop {
        let mut input = model.input().unwrap();
        input.fill(mark);
        let expected = checksum(&input);
        match input.submit(Deadline::within(ANSWER)).map(|ticket| ticket.wait()) {
            Ok(Outcome::Completed(reply)) => return assert_eq!(reply.bytes(), expected),
            // The scheduler was just being exchanged.
            Ok(_) | Err(_) => std::thread::park_timeout(Duration::from_millis(20)),
        }
    }
}

fn loads(backend_metrics: &str) -> u64 {
    // Counters are published every 100 ms.
    std::thread::park_timeout(Duration::from_millis(300));
    let text = prometheus::get(backend_metrics, "/metrics").unwrap();
    let value = text.lines().find_map(|line| line.strip_prefix("baton_backend_loads_total "));
    value.unwrap().parse().unwrap()
}

/// What `baton status --json` says.
fn sum(status: &Value, key: &str) -> u64 {
    let models = status["models"].as_array().unwrap().iter();
    models.map(|model| model["cache"][key].as_u64().unwrap()).sum()
}

fn backend(cluster: &Cluster) -> (Process, String) {
    let backend = cluster.backend("a");
    let metrics = backend.metrics_addr();
    (backend, metrics)
}

#[test]
fn models_take_turns_in_a_memory_that_holds_a_third_of_them_also_under_the_next_scheduler() {
    let mut cluster = Cluster::of(Folder::new("cache"), &cluster_file());
    let (_backend, metrics) = backend(&cluster);
    let client = Client::connect(ClientConfig::new(cluster.addr().parse().unwrap())).unwrap();
    let models: Vec<ModelHandle> =
        (0..MODELS).map(|model| client.model(&format!("m{model}")).unwrap()).collect();
    for round in 0..3 {
        models.iter().for_each(|model| answered(model, round));
    }
    let before = loads(&metrics);
    assert!(before >= 2 * MODELS as u64, "{before} LOADs: four of twelve fit");
    answered(&models[0], 7);
    let before = loads(&metrics);
    answered(&models[0], 8);
    assert_eq!(loads(&metrics), before, "it is there");
    let status = status(&cluster);
    assert_eq!(sum(&status, "copies"), 4, "as many as fit: {status}");
    assert_eq!(status["gpus"][0]["pages_free"], 0, "four of three pages");
    assert!(sum(&status, "cold") >= 2 * MODELS as u64, "{status}");
    assert!(sum(&status, "cold_in_time") <= sum(&status, "cold"), "{status}");
    assert!(sum(&status, "cold_in_time") > 0, "{status}");

    let loader = &status["gpus"][0];
    assert_eq!(loader["loads"], before, "as the backend counts");
    let busy = loader["loader_busy"].as_f64().unwrap();
    assert!(busy > 0.0 && busy <= 1.0, "{loader}");

    let loads_shown = status["loads"].as_array().unwrap();
    assert!(loads_shown.len() >= 2 * MODELS, "{status}");
    // One that is late, on a busy host, is ordered again.
    let is_well = |load: &Value| matches!(load["outcome"].as_str(), Some("loaded" | "late"));
    assert!(loads_shown.iter().all(|load| is_well(load) && load["slot"] == 0), "{status}");
    assert!(loads_shown.iter().any(|load| load["reason"] == "waiting" && load["victims"] == 1));
    let table = run(&["status", "--scheduler", cluster.addr()]);
    let table = String::from_utf8(table.stdout).unwrap();
    assert!(table.contains("load of") && table.contains("waiting"), "{table}");

    cluster.kill_and_restart_scheduler();
    answered(&models[0], 9);
    assert_eq!(loads(&metrics), before, "the next scheduler knows that it is there");
    models.iter().for_each(|model| answered(model, 10));
    assert!(loads(&metrics) > before);
}

/// What `baton model` says, and whether it was done.
fn model(cluster: &Cluster, args: &[&str]) -> (bool, String) {
    let output = run(&[&["model"], args, &["--scheduler", cluster.addr()]].concat());
    let said = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(said).unwrap())
}

fn add(cluster: &Cluster, name: &str, keys: &[&str]) -> (bool, String) {
    let own =
        ["add", "--name", name, "--slo-ms", "1000", "--key", "alpha_ms=0.1", "--key", "beta_ms=2"];
    let keys = [&["input_bytes=64"], keys].concat();
    let keys: Vec<&str> = keys.iter().flat_map(|key| ["--key", key]).collect();
    model(cluster, &[&own[..], &keys].concat())
}

/// Of one model: the slots that hold it; `None` if there is no such model.
fn copies(status: &Value, name: &str) -> Option<u64> {
    let models = status["models"].as_array().unwrap();
    let model = models.iter().find(|model| model["name"] == name)?;
    model["cache"]["copies"].as_u64()
}

#[test]
fn a_model_that_is_added_is_loaded_when_it_is_asked_and_one_that_is_removed_frees_its_pages() {
    const WEIGHTS: [&str; 2] = ["weights_mib=48", "load_ms=5"];
    let cluster = Cluster::of(Folder::new("cache-models"), &cluster_file());
    let (_backend, metrics) = backend(&cluster);
    let client = Client::connect(ClientConfig::new(cluster.addr().parse().unwrap())).unwrap();
    let models: Vec<ModelHandle> =
        (0..MODELS).map(|model| client.model(&format!("m{model}")).unwrap()).collect();
    models.iter().for_each(|model| answered(model, 1));

    let (added, said) = add(&cluster, "light", &[]);
    assert!(!added && said.contains("weights_mib"), "{said}");
    let (added, said) = add(&cluster, "huge", &["weights_mib=300"]);
    assert!(!added && said.contains("weights_cache_mib"), "{said}");
    let before = loads(&metrics);
    let (added, said) = add(&cluster, "new", &WEIGHTS);
    assert!(added, "{said}");
    let full = status(&cluster);
    assert_eq!((copies(&full, "new"), loads(&metrics)), (Some(0), before), "nobody has asked it");
    assert_eq!(full["gpus"][0]["pages_free"], 0, "what was there is there");
    let new = await_model(&client, "new");
    answered(&new, 2);
    assert_eq!((copies(&status(&cluster), "new"), loads(&metrics)), (Some(1), before + 1));
    models.iter().for_each(|model| answered(model, 3));
    answered(&new, 4);

    // Tasks that wait when it is removed end, as others do.
    let submit = |_| {
        let mut input = new.input().ok()?;
        input.fill(5);
        input.submit(Deadline::within(ANSWER)).ok()
    };
    let tickets: Vec<_> = (0..16).filter_map(submit).collect();
    assert!(!tickets.is_empty());
    let (removed, said) = model(&cluster, &["remove", "new"]);
    assert!(removed, "{said}");
    tickets.into_iter().for_each(|ticket| drop(ticket.wait()));
    let freed = await_status(&cluster, |status| status["gpus"][0]["pages_free"] == 3);
    assert_eq!(copies(&freed, "new"), None);

    // The pages can be used, and the number, and the name of a model of the file.
    models.iter().for_each(|model| answered(model, 6));
    let (removed, said) = model(&cluster, &["remove", "m0"]);
    assert!(removed, "{said}");
    let (added, said) = add(&cluster, "m0", &WEIGHTS);
    assert!(added, "{said}");
    answered(&await_model(&client, "m0"), 7);
    models[1..].iter().for_each(|model| answered(model, 8));
    assert_eq!(status(&cluster)["gpus"][0]["pages_free"], 0);
}
