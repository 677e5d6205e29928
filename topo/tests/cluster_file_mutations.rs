//! Whatever a cluster file holds, reading it ends in a cluster that keeps its promises or in
//! problems; never in a panic. proptest prints the seed of a failing case and keeps it.

use std::collections::HashSet;
use std::path::Path;

use baton_topo::{Cluster, check_text};
use baton_types::Nanos;
use proptest::prelude::*;

const GOOD: &str = r#"
[scheduler]
listen = "127.0.0.1:7700"
model_threads = 1
idle = "park"
cores = [0, 1]
policy = "symphony"
member_timeout_ms = 1000
[network]
ctrl_us = 300
data_us_per_task = 20
response_us = 500
jitter_us = 500
[frontend]
slots_per_model = 256
lease_grace_ms = 1000
[[model]]
name = "resnet50"
engine = "emulated"
alpha_ms = 1.053
beta_ms = 5.072
slo_ms = 25.0
batch_max = 32
input_bytes = 150528
output_bytes = 8
jitter = 0.0
queue_capacity = 4096
subcluster = "gpu"
[[model]]
name = "table"
latency_ms = [6.1, 7.2, 8.3]
slo_ms = 50
subcluster = "cpu"
[[backend]]
name = "a"
subcluster = "gpu"
gpus = 2
credit_bytes = 1048576
model_memory_mib = 4096
[[backend]]
name = "b"
subcluster = "cpu"
cores = []
"#;

/// What `cluster.rs` promises of every field.
fn promises_hold(cluster: &Cluster) {
    assert!(cluster.scheduler.model_threads >= 1);
    assert!(!cluster.models.is_empty() && !cluster.subclusters.is_empty());
    assert!((1..=65_536).contains(&cluster.frontend.slots_per_model));
    let names: HashSet<_> = cluster.models.iter().map(|m| &m.name).collect();
    assert_eq!(names.len(), cluster.models.len());
    for (index, model) in cluster.models.iter().enumerate() {
        assert_eq!(model.id.0 as usize, index);
        assert!((model.subcluster.0 as usize) < cluster.subclusters.len());
        assert!(model.slo >= model.profile.latency(1) && model.slo <= Nanos::from_millis(600_000));
        assert!((1..=(64 << 20) - 8).contains(&model.input_bytes));
        assert!((1..=1 << 20).contains(&model.output_bytes));
        assert!(u64::from(model.input_bytes) * u64::from(model.profile.batch_max()) <= 1 << 30);
        assert!(model.queue_capacity >= 1);
    }
    for backend in &cluster.backends {
        assert!((backend.subcluster.0 as usize) < cluster.subclusters.len());
        assert!((1..=256).contains(&backend.gpus));
    }
}

fn read(text: &str) {
    match check_text(Path::new("c.toml"), text).cluster {
        Ok(cluster) => promises_hold(&cluster),
        Err(problems) => {
            assert!(!problems.is_empty(), "refused without a reason:\n{text}");
            for problem in problems {
                assert!(!problem.to_string().contains('\n'), "{problem:?}");
            }
        }
    }
}

/// Values that are at home in no, or in the wrong, key.
fn value() -> impl Strategy<Value = String> {
    prop_oneof![
        any::<i64>().prop_map(|n| n.to_string()),
        any::<f64>().prop_map(|x| format!("{x:?}").to_lowercase()),
        (0..70_000i64).prop_map(|n| n.to_string()),
        (-2.0..700.0f64).prop_map(|x| x.to_string()),
        Just("99999999999999999999999999999999999999999999".to_owned()),
        Just("[]".to_owned()),
        Just("[[1], {}]".to_owned()),
        Just("[1, 1e9, -1]".to_owned()),
        Just("{ a = 1 }".to_owned()),
        Just("1979-05-27T07:32:00Z".to_owned()),
        "\"[a-zA-Z ]{0,80}\"",
    ]
}

proptest! {
    #[test]
    fn one_value_replaced(line in 0..GOOD.lines().count(), value in value()) {
        let replaced = GOOD.lines().enumerate().map(|(i, text)| match text.split_once(" = ") {
            Some((key, _)) if i == line => format!("{key} = {value}\n"),
            _ => format!("{text}\n"),
        });
        read(&replaced.collect::<String>());
    }

    #[test]
    fn lines_removed_and_repeated(picks in prop::collection::vec(0..GOOD.lines().count(), 0..60)) {
        let lines: Vec<&str> = GOOD.lines().collect();
        let text: String = picks.iter().map(|&i| format!("{}\n", lines[i])).collect();
        read(&text);
    }

    #[test]
    fn bytes_overwritten(edits in prop::collection::vec((0..GOOD.len(), any::<u8>()), 1..8)) {
        let mut bytes = GOOD.as_bytes().to_vec();
        for (at, byte) in edits {
            bytes[at] = byte;
        }
        read(&String::from_utf8_lossy(&bytes));
    }

    #[test]
    fn any_text(text in ".{0,200}") {
        read(&text);
    }
}

#[test]
fn the_file_being_mutated_is_good() {
    let checked = check_text(Path::new("c.toml"), GOOD);
    promises_hold(&checked.cluster.unwrap());
    assert_eq!(checked.warnings, []);
}
