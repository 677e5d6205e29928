//! `baton profile`: from a model to a file that a cluster file names.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

#[path = "../backend/tests/onnx_files/mod.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod onnx_files;
mod support;

use std::process::Output;

use onnx_files::{Dim, FLOAT, model_file};
use serde_json::Value;
use support::{Folder, baton, has_onnx_runtime, run};

const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/digits/digits.onnx");
const CUDA: &str = "[[model]]\nname = \"m\"\nengine = \"cuda\"\nalpha_ms = 0.5\nbeta_ms = 1\nslo_ms = 50\nbatch_max = 3\n\
                    [[model]]\nname = \"e\"\nalpha_ms = 0.5\nbeta_ms = 1\nslo_ms = 50\nbatch_max = 3\nsubcluster = \"cpu\"\n";
const QUICK: [&str; 4] = ["--runs", "5", "--seconds-per-size", "0.1"];

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).unwrap()
}

fn refusal(args: &[&str]) -> String {
    let output = run(&[&["profile"], args, &QUICK[..]].concat());
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    stderr(&output)
}

#[test]
fn a_profile_of_an_emulated_model_is_written_and_a_cluster_file_takes_it() {
    let folder = Folder::new("profile-emulated");
    let config = folder.write("cluster.toml", CUDA);
    let out = folder.path().join("e.profile.toml").display().to_string();
    let args = ["profile", "--config", &config, "--model", "e", "--out", &out, "--json"];
    let output = run(&[&args[..], &QUICK].concat());
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("3 of 3 sizes: ℓ(3) = "), "{}", stderr(&output));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    let latency = report["profile"]["latency_ms"].as_array().unwrap();
    assert_eq!(latency.len(), 3);
    assert!(latency[2].as_f64().unwrap() >= 2.5, "{report}");

    let named = "[[model]]\nname = \"e\"\nprofile = \"e.profile.toml\"\nslo_ms = 5000\n[[backend]]\nname = \"b\"\n";
    let named = folder.write("named.toml", named);
    let output = run(&["config", "check", &named]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains(&format!("… ℓ(3) = {} ms", latency[2])), "{text}");
    // Again: it may write over a file of its own.
    assert!(run(&[&args[..], &QUICK].concat()).status.success());
}

/// The file says of the output only that it is as long as an expression.
#[test]
fn how_long_answers_are_is_found_by_an_execution() {
    if !has_onnx_runtime() {
        return;
    }
    let folder = Folder::new("profile-extents");
    let shape = |last| [Dim::Dynamic, Dim::Named("w"), Dim::Named(last)];
    let (x, y) = (shape("h"), shape("an expression with w, h and more of them"));
    let file = model_file(&[("Relu", "x", "y")], &[("x", FLOAT, &x)], &[("y", FLOAT, &y)]);
    let model = folder.path().join("m.onnx").display().to_string();
    std::fs::write(&model, file).unwrap();
    let out = folder.path().join("m.profile.toml").display().to_string();
    let args = ["profile", &model, "--batch-max", "2", "--out", &out];
    let missing = refusal(&args[1..]);
    assert!(missing.contains("no largest `w`, `h`"), "{missing}");
    let keys = ["--key", "dims={w=600,h=700}"];
    let output = run(&[&args[..], &keys, &QUICK].concat());
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let dims = "dims = { h = 700, w = 600, \"y.2\" = 700 }";
    assert!(text.contains(dims), "{text}");

    let table = format!("[[model]]\nname = \"m\"\nfile = \"m.onnx\"\nslo_ms = 50\n{dims}\n");
    let cluster = folder.write("c.toml", &format!("{table}[[backend]]\nname = \"b\"\n"));
    let checked = run(&["config", "check", &cluster]);
    assert!(checked.status.success(), "{checked:?}");
    let add = ["model", "add", &model, "--name", "m", "--slo-ms", "50", "--print"];
    let added = run(&[&add[..], &keys].concat());
    let text = String::from_utf8(added.stdout).unwrap();
    assert!(text.contains("\"y.2\" = 700"), "{text}");
}

/// The steps of the answer come before the batch, and the file says neither how many they are nor which dimension is the batch.
#[test]
fn lengths_before_the_batch_are_found_by_an_execution() {
    if !has_onnx_runtime() {
        return;
    }
    let folder = Folder::new("profile-steps");
    let x = [Dim::Dynamic, Dim::Fixed(3), Dim::Fixed(2)];
    let y = ["steps", "of", "each"].map(Dim::Named);
    let nodes = [("Transpose", "x", "turned"), ("Mul", "turned,gain", "y")];
    let file = model_file(&nodes, &[("x", FLOAT, &x), ("gain", FLOAT, &[])], &[("y", FLOAT, &y)]);
    let model = folder.path().join("m.onnx").display().to_string();
    std::fs::write(&model, file).unwrap();
    let missing = refusal(&[&model]);
    assert!(missing.contains("constants = { gain = 1.0 }"), "{missing}");
    let out = folder.path().join("m.profile.toml").display().to_string();
    let keys = ["--key", "constants={gain=2}", "--key", "batch_dim={y=2}"];
    let unstated = refusal(&[&model, keys[0], keys[1]]);
    assert!(
        unstated.contains("if dimension 2 is the batch: batch_dim = { \"y\" = 2 }"),
        "{unstated}"
    );
    let args = ["profile", &model, "--batch-max", "2", "--out", &out];
    let output = run(&[&args[..], &keys, &QUICK].concat());
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    let dims = "dims = { of = 3, steps = 2 }";
    assert!(text.contains(dims), "{text}");
    let keys = "constants = { gain = 2 }\nbatch_dim = { y = 2 }";
    let table =
        format!("[[model]]\nname = \"m\"\nfile = \"m.onnx\"\nslo_ms = 50\n{dims}\n{keys}\n");
    let cluster = folder.write("c.toml", &format!("{table}[[backend]]\nname = \"b\"\n"));
    let checked = run(&["config", "check", &cluster]);
    let text = String::from_utf8(checked.stdout).unwrap();
    assert!(
        text.contains(
            "x f32[3, 2] → y f32[≤2, ≤3]; the batch is dimension 2 of y; constant gain = 2"
        ),
        "{text}"
    );
}

#[test]
fn a_model_of_a_file_is_measured_on_the_cpu() {
    if !has_onnx_runtime() {
        return;
    }
    let folder = Folder::new("profile-onnx");
    let out = folder.path().join("digits.profile.toml").display().to_string();
    let args = ["profile", DIGITS, "--batch-max", "18", "--device", "cpu", "--out", &out];
    let output = run(&[&args[..], &QUICK].concat());
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(text.contains("digits, engine onnx, on cpu: ") && text.contains("ℓ(b) ≈"), "{text}");

    let cluster = |profile: &str| {
        let text = format!(
            "[[model]]\nname = \"d\"\nfile = \"{DIGITS}\"\nslo_ms = 5000\n{profile}[[backend]]\nname = \"b\"\n"
        );
        let output = run(&["config", "check", &folder.write("cluster.toml", &text)]);
        String::from_utf8(output.stdout).unwrap()
    };
    let whole = cluster("profile = \"digits.profile.toml\"\n");
    assert!(whole.contains("… ℓ(18) = ") && !whole.contains("warning: "), "{whole}");
    let part = cluster("profile = \"digits.profile.toml\"\nbatch_max = 7\n");
    assert!(part.contains("… ℓ(7) = "), "{part}");

    let written = std::fs::read_to_string(&out).unwrap();
    let size = std::fs::metadata(DIGITS).unwrap().len();
    let other = written.replace(&format!("model_bytes = {size}"), "model_bytes = 7");
    folder.write("other.toml", &other);
    let warned = cluster("profile = \"other.toml\"\n");
    assert!(warned.contains("was measured of a file of 7 bytes"), "{warned}");
    folder.write("cuda.toml", &written.replace("engine = \"onnx\"", "engine = \"cuda\""));
    let refused = cluster("profile = \"cuda.toml\"\n");
    assert!(refused.contains("was measured with engine = \"cuda\""), "{refused}");
    let both = cluster("profile = \"digits.profile.toml\"\nalpha_ms = 1\n");
    assert!(both.contains("model[0].alpha_ms: the file of `profile` gives ℓ(b) already"), "{both}");
}

#[test]
fn the_cuda_engine_is_measured_on_the_fake_driver_which_the_report_names() {
    let folder = Folder::new("profile-cuda");
    let config = folder.write("cluster.toml", CUDA);
    let out = folder.path().join("m.profile.toml").display().to_string();
    let fake = std::env::current_exe().unwrap().parent().unwrap().join("libbaton_cuda_fake.so");
    let with = |faults: &str, more: &[&str]| {
        let args = ["profile", "--config", &config, "--model", "m", "--out", &out];
        let mut command = baton();
        command.args(args).args(QUICK).args(more);
        command.env("BATON_CUDA_DRIVER", &fake).env("BATON_FAKE_CUDA", faults).output().unwrap()
    };
    let output = with("", &["--device", "cuda:1"]);
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(text.contains("on cuda:1: Baton fake GPU"), "{text}");
    assert!(text.contains("FAKE GPU: these times mean nothing"), "{text}");
    let measured = std::fs::read_to_string(&out).unwrap();
    assert!(measured.contains("is_fake = true"), "{measured}");

    for (faults, more, said) in [
        ("no-device", &[][..], "CUDA_ERROR_NO_DEVICE"),
        ("", &["--device", "cuda:99"], "99"),
        ("", &["--device", "cpu"], "does not execute on cpu; name a GPU: --device cuda:0"),
        ("fault=30", &[], "CUDA_ERROR_ILLEGAL_ADDRESS"),
    ] {
        let output = with(faults, more);
        assert_eq!(output.status.code(), Some(1), "{faults}");
        assert!(stderr(&output).contains(said), "{said}: {}", stderr(&output));
    }
}

#[test]
fn nonsense_is_refused_with_the_reason_before_anything_is_measured() {
    let folder = Folder::new("profile-nonsense");
    let config = folder.write("cluster.toml", CUDA);
    let missing = refusal(&["/no/such.onnx"]);
    assert!(missing.contains("there is no file /no/such.onnx"), "{missing}");
    let no_model = refusal(&[&folder.write("text.onnx", "this is text")]);
    assert!(no_model.contains("the model cannot be measured"), "{no_model}");
    let unknown = refusal(&["--config", &config, "--model", "x"]);
    assert!(unknown.contains("no [[model]] is named `x`; the cluster file has: m, e"), "{unknown}");
    let no_key = refusal(&[DIGITS, "--key", "gpus=2"]);
    assert!(no_key.contains("gpus: is not a key"), "{no_key}");
    let of_e = ["--config", &config, "--model", "e"];
    let folderless = refusal(&[&of_e[..], &["--out", "/no/folder/e.toml"]].concat());
    assert!(folderless.contains("there is no folder /no/folder"), "{folderless}");
    let others = refusal(&[&of_e[..], &["--out", &config]].concat());
    assert!(others.contains("is no file of `baton profile`"), "{others}");
    assert_eq!(std::fs::read_to_string(&config).unwrap(), CUDA);
    let device = refusal(&[&of_e[..], &["--device", "cuda:0"]].concat());
    assert!(device.contains("engine = \"emulated\""), "{device}");
    for args in [
        &["profile"][..],
        &["profile", DIGITS, "--device", "gpu"],
        &["profile", DIGITS, "--runs", "0"],
    ] {
        assert_eq!(run(args).status.code(), Some(2), "{args:?}");
    }
}
