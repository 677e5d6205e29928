//! `baton supernet`: from a checkpoint to a table of variants that a cluster file takes.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod support;

use std::process::Output;

use serde_json::Value;
use support::{Folder, has_onnx_runtime, run};

const CHECKPOINT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/words-super/supernet.toml");
const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/words-super/words-super.onnx");
const QUICK: [&str; 4] = ["--runs", "5", "--seconds-per-size", "0.1"];
/// The variants are far apart: a host with too much to do adds to the times of either.
const EMULATED: &str = "[[model]]\nname = \"m\"\nslo_ms = 500\nbatch_max = 2\n\
                        [[model.variant]]\nname = \"a\"\naccuracy = 70\nalpha_ms = 1\nbeta_ms = 1\n\
                        [[model.variant]]\nname = \"b\"\naccuracy = 80\nalpha_ms = 20\nbeta_ms = 20\n\
                        [[model]]\nname = \"plain\"\nalpha_ms = 1\nbeta_ms = 1\nslo_ms = 50\nbatch_max = 2\n";

fn supernet(args: &[&str]) -> Output {
    run(&[&["supernet"], args].concat())
}

fn stdout(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn refusal(args: &[&str]) -> String {
    let output = supernet(args);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn a_checkpoint_becomes_one_file_or_several() {
    let folder = Folder::new("supernet-export");
    let out = folder.path().join("all.onnx").display().to_string();
    let report = stdout(&supernet(&["export", CHECKPOINT, "--out", &out, "--json"]));
    let report: Value = serde_json::from_str(&report).unwrap();
    assert_eq!(report["files"][0]["variants"][4]["name"], "d3-h4", "{report}");
    assert_eq!(std::fs::read(&out).unwrap(), std::fs::read(FILE).unwrap());

    let into = folder.path().join("static").display().to_string();
    let two = ["export", CHECKPOINT, "--static", "--variants", "d1-h1,d3-h4", "--out", &into];
    let text = stdout(&supernet(&two));
    assert!(text.contains("words-super.d1-h1.onnx: ") && text.lines().count() == 2, "{text}");
    assert!(folder.path().join("static/words-super.d3-h4.onnx").is_file());

    let unknown = refusal(&["export", CHECKPOINT, "--variants", "d9", "--out", &out]);
    assert!(unknown.contains("`d9`") && unknown.contains("choose from d1-h1"), "{unknown}");
    let nowhere = refusal(&["export", CHECKPOINT, "--static", "--out", "/no/such/folder"]);
    assert!(nowhere.contains("cannot make the folder /no/such/folder"), "{nowhere}");
}

#[test]
fn measured_variants_become_the_table_of_a_cluster_file() {
    let folder = Folder::new("supernet-profile");
    let config = folder.write("cluster.toml", EMULATED);
    let path = |name: &str| folder.path().join(name).display().to_string();
    let out = path("m.variants.toml");
    let args = ["profile", "--config", &config, "--model", "m", "--out", &out, "--json"];
    let report = stdout(&supernet(&[&args[..], &QUICK].concat()));
    let report: Value = serde_json::from_str(&report).unwrap();
    let latency = |variant: usize, batch: usize| {
        report["variants"][variant]["latency_ms"][batch - 1].as_f64().unwrap()
    };
    assert!(latency(0, 2) >= 3.0 && latency(1, 2) >= 60.0, "{report}");
    assert_eq!(report["switching"][1]["batch"], 2, "{report}");

    let kept = path("kept.toml");
    stdout(&supernet(&["pareto", &out, "--out", &kept]));
    let table = std::fs::read_to_string(&kept).unwrap();
    assert!(table.contains("# 2 of 2 variants of "), "{table}");
    let text =
        format!("[[model]]\nname = \"m\"\nslo_ms = 500\n{table}\n[[backend]]\nname = \"b\"\n");
    let checked = stdout(&run(&["config", "check", &folder.write("with.toml", &text)]));
    for variant in 0..2 {
        let written = &report["variants"][variant]["latency_ms"][1];
        assert!(checked.contains(&format!("ℓ(2) = {written} ms")), "{written}: {checked}");
    }

    let plain = ["profile", "--config", &config, "--model", "plain", "--out", &path("plain.toml")];
    let refused = refusal(&plain);
    assert!(refused.contains("no variants; measure it with `baton profile`"), "{refused}");
    let variants = ["profile", "--config", &config, "--model", "m", "--out", &path("p.toml")];
    let refused = String::from_utf8(run(&variants).stderr).unwrap();
    assert!(refused.contains("measure them with `baton supernet profile`"), "{refused}");
    let foreign = refusal(&[&args[..6], &[config.as_str()]].concat());
    assert!(foreign.contains("is no file of `baton supernet`"), "{foreign}");
}

#[test]
fn variants_that_another_beats_are_left_out() {
    let folder = Folder::new("supernet-pareto");
    let variant = |name: &str, accuracy: f64, ms: f64| {
        format!(
            "[[model.variant]]\nname = \"{name}\"\naccuracy = {accuracy}\nlatency_ms = [{ms}]\n"
        )
    };
    let all =
        variant("small", 70.0, 1.0) + &variant("beaten", 69.0, 2.0) + &variant("large", 75.0, 3.0);
    let table = folder.write("all.toml", &all);
    let text = stdout(&supernet(&["pareto", &table]));
    assert!(text.contains("# left out: beaten, because small is as accurate"), "{text}");
    assert!(text.contains("baton supernet export CHECKPOINT --variants small,large"), "{text}");
    assert_eq!(text.matches("[[model.variant]]").count(), 2, "{text}");
    let report: Value =
        serde_json::from_str(&stdout(&supernet(&["pareto", &table, "--json"]))).unwrap();
    assert_eq!(report["left"][0]["because_of"], "small");
    let broken = folder.write("broken.toml", "[[model.variant]]\nname = 3\n");
    assert!(refusal(&["pareto", &broken]).contains("broken.toml: line 2: "));
    let model = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/digits/digits.onnx");
    assert!(
        refusal(&["pareto", model]).contains("digits.onnx is no table of variants; make one with")
    );
}

#[test]
fn an_exported_file_names_its_variants_itself() {
    if !has_onnx_runtime() {
        return;
    }
    let folder = Folder::new("supernet-profile-onnx");
    let out = folder.path().join("words.toml").display().to_string();
    let args = ["profile", FILE, "--batch-max", "2", "--out", &out];
    let output = supernet(&[&args[..], &QUICK].concat());
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(!stderr.contains("WARN"), "a stand-in for the table is no one's mistake: {stderr}");
    let text = stdout(&output);
    for said in ["d1-h1", "71.83 %", "ℓ(2) ms", "switching, b = 2: "] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let other = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/digits/digits.onnx");
    let refused = refusal(&["profile", other, "--out", &out]);
    assert!(refused.contains("it names no variants"), "{refused}");
}
