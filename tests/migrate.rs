//! `examples/migrate`: what other servers' files become, and that clusters of it answer. Needs `ORT_DYLIB_PATH` for the
//! answers; says so when it is not set.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

#[path = "../backend/tests/onnx_files/mod.rs"]
#[allow(dead_code, reason = "its other types are for the engine's tests")]
mod onnx_files;
mod support;

use std::io::{ErrorKind, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use onnx_files::{Dim, INT64, model_file};
use serde_json::{Value, json};
use support::http::Http;
use support::{Cluster, Folder, run};

/// Longer than an answer takes on a machine with too much to do.
const DEADLINE: &str = "baton-timeout-us: 30000000\r\n";

fn example(name: &str) -> String {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("examples").join(name).display().to_string()
}

/// Held-out images, each with the logits that it must get.
fn images(count: usize) -> Vec<(Vec<f32>, Vec<f32>)> {
    let file = std::fs::read(example("digits/heldout.bin")).unwrap();
    let record = |record: &[u8]| {
        let floats =
            record.chunks_exact(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap()));
        let floats: Vec<f32> = floats.take(64 + 10).collect();
        (floats[..64].to_vec(), floats[64..].to_vec())
    };
    file[20..].chunks_exact((64 + 10 + 1) * 4).take(count).map(record).collect()
}

fn largest(logits: &[f32]) -> usize {
    let at = (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]));
    at.unwrap()
}

#[test]
fn a_triton_repository_becomes_a_good_cluster_file_and_says_what_is_not_carried_over() {
    let folder = Folder::new("migrate-triton");
    let file = folder.path().join("cluster.toml").display().to_string();
    let repository = example("migrate/triton/repository");
    let import = || run(&["model", "import-triton", &repository, "--out", &file]);
    let output = import();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    // The page shows these lines.
    let page = std::fs::read_to_string(example("migrate/README.md")).unwrap();
    assert_eq!(said.lines().count(), 3, "{said}");
    assert!(said.lines().all(|line| page.contains(line)), "{said}");
    let checked = run(&["config", "check", &file]);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    let text = std::fs::read_to_string(&file).unwrap();
    for line in ["name = \"digits\"", "slo_ms = 50.0", "batch_max = 32", "queue_capacity = 256"] {
        assert!(text.contains(line), "{line}: {text}");
    }
    let again = import();
    assert!(!again.status.success(), "a file that is there is not written over");
    assert_eq!(std::fs::read_to_string(&file).unwrap(), text);
    let none = run(&["model", "import-triton", &example("migrate/ray-serve")]);
    let said = String::from_utf8_lossy(&none.stderr).into_owned();
    assert!(!none.status.success() && said.contains("no model of it can be served"), "{said}");
}

#[test]
fn an_extent_that_the_file_leaves_open_is_the_configurations_or_a_guess_that_is_named() {
    let folder = Folder::new("migrate-open");
    let write = |model: &str, config: &str| {
        let version = folder.path().join(model).join("1");
        std::fs::create_dir_all(&version).unwrap();
        let some = [Dim::Dynamic, Dim::Named("seq")];
        let file = model_file(&[("Neg", "x", "y")], &[("x", INT64, &some)], &[("y", INT64, &some)]);
        std::fs::write(version.join("model.onnx"), file).unwrap();
        let config = format!("instance_group {{ kind: KIND_CPU }} {config}");
        std::fs::write(folder.path().join(model).join("config.pbtxt"), config).unwrap();
    };
    write("batched", "max_batch_size: 4 input { name: \"x\" dims: [ 48 ] }");
    write("unbatched", "input { name: \"x\" dims: [ -1, 32 ] }");
    write("open", "max_batch_size: 4 input { name: \"x\" dims: [ -1 ] }");
    let output = run(&["model", "import-triton", &folder.path().display().to_string()]);
    let (text, said) = (String::from_utf8(output.stdout), String::from_utf8(output.stderr));
    let (text, said) = (text.unwrap(), said.unwrap());
    for (model, extent) in [("batched", 48), ("unbatched", 32), ("open", 128)] {
        let table = text.split("[[model]]").find(|table| table.contains(&format!("\"{model}\"")));
        let dims = format!("dims = {{ \"seq\" = {extent} }}");
        assert!(table.is_some_and(|table| table.contains(&dims)), "{model}: {text}");
    }
    let guesses: Vec<&str> = said.lines().filter(|line| line.contains("a guess")).collect();
    assert_eq!(guesses.len(), 1, "{said}");
    assert!(guesses[0].contains("open: dims says 128 for seq"), "{said}");
}

#[test]
fn the_cluster_of_a_triton_repository_answers_its_clients() {
    if !support::has_onnx_runtime() {
        return;
    }
    let imported = run(&["model", "import-triton", &example("migrate/triton/repository")]);
    let text = String::from_utf8(imported.stdout).unwrap();
    let cluster = Cluster::of(Folder::new("migrate-triton-served"), &text);
    let _backend = cluster.backend("cpu");
    let (_gateway, addr) = cluster.gateway(&[]);
    let mut http = Http::connect(&addr);
    let images = images(5);
    let pixels: Vec<&f32> = images.iter().flat_map(|(pixels, _)| pixels).collect();
    let input =
        json!({ "name": "image", "shape": [5, 1, 8, 8], "datatype": "FP32", "data": pixels });
    let body = json!({ "inputs": [input] }).to_string();
    let answer = http.post("/v2/models/digits/infer", DEADLINE, body.as_bytes());
    assert_eq!(answer.status, 200, "{answer:?}");
    let said = answer.json();
    assert_eq!(said["outputs"][0]["shape"], json!([5, 10]));
    let logits = said["outputs"][0]["data"].as_array().unwrap().iter().map(Value::as_f64);
    let expected = images.iter().flat_map(|(_, logits)| logits);
    for (logit, &expected) in logits.zip(expected) {
        assert!((logit.unwrap() - f64::from(expected)).abs() < 1e-3, "{said}");
    }
}

#[test]
fn the_cluster_beside_ray_serves_deployment_answers_its_client() {
    let file = example("migrate/ray-serve/after.toml");
    let checked = run(&["config", "check", &file]);
    assert!(checked.status.success(), "{}", String::from_utf8_lossy(&checked.stderr));
    if !support::has_onnx_runtime() {
        return;
    }
    let text = std::fs::read_to_string(&file).unwrap();
    let text = text.replace("../../digits/digits.onnx", &example("digits/digits.onnx"));
    let cluster = Cluster::of(Folder::new("migrate-ray-serve"), &text);
    let _backend = cluster.backend("cpu");
    let (_gateway, addr) = cluster.gateway(&[]);
    let client = example("migrate/ray-serve/client.py");
    let gateway = format!("http://{addr}");
    for (pixels, logits) in images(3) {
        let started = Command::new("python3")
            .args([&client, "--gateway", &gateway, "--deadline-ms", "30000"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut python = match started {
            Err(error) if error.kind() == ErrorKind::NotFound => {
                eprintln!("SKIPPED: no python3 here");
                return;
            }
            started => started.unwrap(),
        };
        python.stdin.take().unwrap().write_all(json!(pixels).to_string().as_bytes()).unwrap();
        let output = python.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let label = String::from_utf8(output.stdout).unwrap();
        assert_eq!(label.trim(), largest(&logits).to_string());
    }
}
