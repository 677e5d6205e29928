//! What the command says about its input, to the letter where scripts may look.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod support;

use std::process::Output;

use support::{Folder, Process, run};

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

/// As `baton sim zoo | head -1` does.
#[test]
fn nothing_is_wrong_when_nobody_reads_on() {
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let output = support::baton().args(["sim", "zoo"]).stdout(writer).output().unwrap();
    assert_eq!(stderr(&output), "");
}

const GOOD: &str = r#"[scheduler]
listen = "127.0.0.1:7700"

[[model]]
name = "resnet50"
alpha_ms = 2.05
beta_ms = 5.378
slo_ms = 27
batch_max = 8
subcluster = "gpu"

[[model]]
name = "lonely"
latency_ms = [10, 12]
slo_ms = 15
input_bytes = 64
subcluster = "cpu"

[[backend]]
name = "a"
subcluster = "gpu"
gpus = 2
"#;

#[test]
fn config_check_says_what_it_understood_and_what_is_odd() {
    let folder = Folder::new("check-good");
    let file = folder.write("cluster.toml", GOOD);
    let output = run(&["config", "check", &file]);
    let expected = format!(
        "\
warning: {file}:15: model[1].slo_ms: 15 ms is below 2·ℓ(1): a task that finds its GPU busy misses it; fix: give at least 20
warning: {file}:17: model[1].subcluster: no backend of this file belongs to sub-cluster \"cpu\"; fix: add a [[backend]], or have one join under this name
scheduler at 127.0.0.1:7700: policy baton, prefer latency, 1 ModelThread(s)
planned delays: 0.3 ms per plan, 0.02 ms per input, 0.5 ms per answer; jitter 0.5 ms
inputs over: auto
connections: not encrypted, peers not authenticated
frontends: 256 slots per model
sub-cluster gpu: 2 GPU slots: a (2)
  model resnet50 (emulated): SLO 27 ms, ℓ(1) = 7.428 ms … ℓ(8) = 21.778 ms, 150528 → 8 bytes
sub-cluster cpu: 0 GPU slots: no backend yet
  model lonely (emulated): SLO 15 ms, ℓ(1) = 10 ms … ℓ(2) = 12 ms, 64 → 8 bytes
"
    );
    assert_eq!(stdout(&output), expected);
    assert_eq!(output.status.code(), Some(0));
}

#[test]
fn config_check_lists_every_problem_and_fails() {
    let folder = Folder::new("check-bad");
    let bad = GOOD.replace("127.0.0.1:7700", "here").replace("slo_ms = 27", "slo_sm = 27");
    let file = folder.write("cluster.toml", &bad.replace("gpus = 2", "gpus = 1000000000"));
    let output = run(&["config", "check", &file]);
    let expected = format!(
        "\
warning: {file}:15: model[1].slo_ms: 15 ms is below 2·ℓ(1): a task that finds its GPU busy misses it; fix: give at least 20
warning: {file}:17: model[1].subcluster: no backend of this file belongs to sub-cluster \"cpu\"; fix: add a [[backend]], or have one join under this name
{file}:2: scheduler.listen: \"here\" is not an address and port; fix: write \"127.0.0.1:7700\" or \"[::1]:7700\"
{file}:4: model[0].slo_ms: is missing; fix: give the latency objective: slo_ms = 25
{file}:8: model[0].slo_sm: is not a key of this table; fix: write slo_ms, or another of: name, subcluster, slo_ms, expected_rps, queue_capacity, max_rps, frontend_max_rps, variant, file, engine, sha256, file_bytes, tensors, input_shape, dims, shapes, batch_dim, batched, constants, outputs, device, cpu_operators, tf32, check_finite, cuda_graphs, tensorrt, fp16, output_bytes, jitter, input_bytes, profile, latency_ms, alpha_ms, beta_ms, batch_max, weights_mib, load_ms
{file}:22: backend[0].gpus: is 1000000000; fix: give a whole number from 1 to 256
"
    );
    assert_eq!(stdout(&output), expected);
    assert_eq!(output.status.code(), Some(1));
}

#[test]
fn every_command_refuses_a_bad_cluster_file_with_its_problems() {
    let folder = Folder::new("refuse");
    let file = folder.write("cluster.toml", "[[model]]\n");
    for args in [&["scheduler"][..], &["backend", "--name", "a"], &["load"]] {
        let output = run(&[args, &["--config", &file]].concat());
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert_eq!(stdout(&output), "");
        let expected = format!("{file}:1: model[0].name: is missing; fix: name the model");
        assert!(stderr(&output).contains(&expected), "{}", stderr(&output));
    }
}

#[test]
fn a_backend_that_is_not_in_the_cluster_file_is_refused() {
    let folder = Folder::new("names");
    let file = folder.write("cluster.toml", GOOD);
    let backend = run(&["backend", "--config", &file, "--name", "z"]);
    assert_eq!(backend.status.code(), Some(1));
    assert!(stderr(&backend).contains("no [[backend]] is named `z`"), "{}", stderr(&backend));
}

#[test]
fn a_second_scheduler_on_the_same_port_says_so() {
    let folder = Folder::new("port");
    let file = folder.write("cluster.toml", GOOD);
    let first = Process::start(&["scheduler", "--config", &file, "--listen", "127.0.0.1:0"]);
    let addr = first.line("listening ");
    let second = run(&["scheduler", "--config", &file, "--listen", &addr]);
    assert_eq!(second.status.code(), Some(1));
    assert!(stderr(&second).contains(&format!("cannot listen on {addr}")), "{}", stderr(&second));
}

#[test]
fn wrong_usage_is_exit_status_2() {
    for args in [
        &["demo", "--seconds", "-1"][..],
        &["demo", "--seconds", "nan"],
        &["demo", "--rate-scale", "0"],
        &["bench", "read-lat", "--bytes", "67108865"],
        &["load", "--config", "x", "--rate", "m"],
        &["load", "--config", "x", "--rate", "m=inf"],
        &["scheduler"],
        &["serve"],
        &[],
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}: {}", stderr(&output));
        assert_eq!(stdout(&output), "", "{args:?}");
    }
}

#[test]
fn a_value_out_of_range_is_answered_with_the_range() {
    for (args, range) in [
        (&["demo", "--seconds", "-1"][..], "give a number from 0.1 to 1000000"),
        (&["demo", "--rate-scale", "0"], "give a number from 0.001 to 1000"),
        (&["bench", "incast", "--bytes", "999999999999"], "is not in 1..=67108864"),
        (&["sim", "run", "--cluster", "x", "--seconds", "-3"], "give a number from 0.1 to"),
    ] {
        let said = stderr(&run(args));
        assert!(said.contains(range), "{args:?}: {said}");
    }
    let help = stdout(&run(&["sim", "run", "--help"]));
    assert!(help.contains("clockwork[:OUTSTANDING_MS]"), "{help}");
    let help = stdout(&run(&["bench", "sched", "--help"]));
    assert!(help.contains("[default: baton-out]"), "{help}");
}

#[test]
fn an_address_of_which_port_0_is_part_is_warned_of() {
    let folder = Folder::new("port-0");
    let file = folder.write("cluster.toml", &GOOD.replace(":7700", ":0"));
    let said = stdout(&run(&["config", "check", &file]));
    let warning = format!("warning: {file}:2: scheduler.listen: the system chooses the port");
    assert!(said.contains(&warning), "{said}");
}

#[test]
fn a_journal_that_is_none_is_found_by_config_check() {
    let folder = Folder::new("journal");
    folder.write("changes.toml", "nonsense");
    let key = "listen = \"127.0.0.1:7700\"\n";
    let with_journal = GOOD.replace(key, &format!("{key}journal = \"changes.toml\"\n"));
    let output = run(&["config", "check", &folder.write("cluster.toml", &with_journal)]);
    assert_eq!(output.status.code(), Some(1));
    assert!(stdout(&output).contains("is no journal of changes"), "{}", stdout(&output));
}

#[test]
fn a_file_that_only_the_gateway_reads_and_this_host_lacks_is_a_warning() {
    let folder = Folder::new("check-gateway");
    let with_token = format!("{GOOD}[[gateway.token]]\nname = \"t\"\nfile = \"t.token\"\n");
    let file = folder.write("cluster.toml", &with_token);
    let warns = |output: &Output| stdout(output).contains("t.token cannot be read here");
    let output = run(&["config", "check", &file]);
    assert!(warns(&output) && output.status.success(), "{}", stdout(&output));
    folder.write("t.token", "0123456789abcdef");
    let output = run(&["config", "check", &file]);
    assert!(!warns(&output) && output.status.success(), "{}", stdout(&output));
}

#[test]
fn who_asks_a_running_cluster_hears_no_warnings_of_its_file() {
    let folder = Folder::new("quiet");
    let file = folder.write("cluster.toml", &GOOD.replace(":7700", ":1"));
    let output = run(&["status", "--config", &file]);
    let said = stderr(&output);
    assert!(said.starts_with("baton: cannot connect") && said.lines().count() == 1, "{said}");
}
