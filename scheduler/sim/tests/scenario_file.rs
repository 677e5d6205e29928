//! What a scenario file may say, and the errors for what it may not.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

use baton_core::Nanos;
use baton_sim::{Arrival, Scenario};

const MODEL: &str = "
    [[model]]
    name = 'm'
    alpha_ms = 1.0
    beta_ms = 2.0
    slo_ms = 10.0";

fn error(text: &str) -> String {
    Scenario::parse(text).unwrap_err().to_string()
}

#[test]
fn every_committed_scenario_can_be_read() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../scenarios");
    let files = std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path());
    let files: Vec<_> =
        files.filter(|path| path.extension().is_some_and(|e| e == "toml")).collect();
    assert!(files.len() >= 8, "{files:?}");
    for file in files {
        Scenario::load(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    }
}

#[test]
fn keys_that_are_left_out_have_plain_defaults() {
    let scenario = Scenario::parse(&format!("gpus = 2\nduration_s = 1.5{MODEL}")).unwrap();
    assert_eq!(scenario.arrival, Arrival::Poisson);
    assert_eq!((scenario.duration, scenario.warmup), (Nanos::from_millis(1_500), Nanos::ZERO));
    assert_eq!((scenario.message_lag, scenario.overrun), (Nanos::ZERO, Nanos::ZERO));
    assert_eq!(scenario.models[0].share, 1.0);
}

#[test]
fn copies_are_models_of_their_own() {
    let text = format!("gpus = 2\nduration_s = 1{MODEL}\ncopies = 2{MODEL}");
    let models = Scenario::parse(&text).unwrap().models;
    let names: Vec<&str> = models.iter().map(|model| model.name.as_str()).collect();
    assert_eq!(names, ["m-1", "m-2", "m"]);
    assert!(models.iter().all(|model| (model.share - 1.0 / 3.0).abs() < 1e-12));
}

#[test]
fn a_zoo_is_filtered_by_how_much_batching_gains() {
    let count = |zoo: &str, filter: &str| {
        let text = format!("gpus = 1\nduration_s = 1\nzoo = '{zoo}'\nzoo_filter = '{filter}'");
        Scenario::parse(&text).unwrap().models.len()
    };
    assert_eq!(["all", "gt2", "lt2"].map(|filter| count("1080ti", filter)), [35, 23, 12]);
    assert_eq!(["all", "gt2", "lt2"].map(|filter| count("a100", filter)), [37, 29, 8]);
}

#[test]
fn a_profile_reaches_beyond_every_batch_that_can_meet_the_objective() {
    let scenario = Scenario::parse(&format!("gpus = 1\nduration_s = 1{MODEL}")).unwrap();
    // ℓ(8) = 10 ms
    assert_eq!(scenario.models[0].profile.batch_max(), 9);
}

#[test]
fn what_cannot_be_simulated_is_refused_by_name() {
    let with = |head: &str| error(&format!("{head}{MODEL}"));
    assert!(with("gpus = 0\nduration_s = 1").starts_with("gpus = 0"));
    assert!(with("gpus = 1\nduration_s = nan").starts_with("duration_s"));
    let gamma = "gpus = 1\nduration_s = 1\narrival = { process = 'gamma', shape = 0.0 }";
    assert!(with(gamma).starts_with("arrival.shape"));
    assert!(with("gpus = 1\nduration_s = 1\nzoo_filter = 'gt2'").contains("zoo_filter"));
    assert!(with("gpus = 1\nduration_s = 1\nspeed = 2").contains("speed"));
    assert!(error("gpus = 1\nduration_s = 1").contains("no model"));
    let free = MODEL.replace("1.0", "0.0").replace("2.0", "0.0");
    assert!(error(&format!("gpus = 1\nduration_s = 1{free}")).contains("model m: ℓ(1) is zero"));
    let crowd = format!("gpus = 1\nduration_s = 1{MODEL}\ncopies = 10001");
    assert!(error(&crowd).starts_with("model.copies = 10001"));
}

#[test]
fn a_mistake_in_a_file_is_reported_with_its_line_and_the_fix() {
    let head = "gpus = 2\nduration_s = 1\n";
    let copies = "[[model]]\nname = 'a-b'\nalpha_ms = 1\nbeta_ms = -1\nslo_ms = 9\ncopies = 2";
    for (name, text, expected) in [
        (
            "key",
            format!("gpsu = 2\n{MODEL}"),
            ":1: unknown field `gpsu`; fix: write gpus, or another of: duration_s, warmup_s",
        ),
        (
            "only",
            format!("{head}arrival = {{ process = 'gamma', shap = 1 }}{MODEL}"),
            ":3: unknown field `shap`; fix: write shape\n",
        ),
        (
            "cluster",
            format!("[scheduler]\n{MODEL}"),
            ":1: unknown field `scheduler`; fix: give a cluster file with --cluster",
        ),
        ("missing", "gpus = 2\n".to_owned(), ":1: missing field `duration_s`; fix: add it"),
        (
            "zoo",
            format!("{head}zoo = 'h100'"),
            ":3: unknown variant `h100`; fix: write a100, or another of: 1080ti, clockwork",
        ),
        (
            "range",
            format!("{head}[network]\nctrl_us = -1{MODEL}"),
            ":4: network.ctrl_us: is -1; fix: give a number from 0 to 1000000",
        ),
        (
            "copy",
            format!("{head}{copies}"),
            ":6: a-b-1.beta_ms: is -1; fix: give a number from 0 to 1000000",
        ),
        ("none", head.to_owned(), ": model: there is no model; fix: name a zoo"),
        ("toml", "gpus = ".to_owned(), ":1: not TOML: "),
        (
            "csv",
            "timestamp,model\n1,a\n".to_owned(),
            ":1: not TOML: key with no value, expected `=`; fix: correct the",
        ),
        (
            "word",
            format!("{head}popularity = 'zipf'{MODEL}"),
            ":3: popularity: invalid type: string \"zipf\"; fix: write it like this: popularity = { kind = \"zipf\"",
        ),
        (
            "unit",
            format!("{head}pages = '8 GB'{MODEL}"),
            ":3: pages: invalid type: string \"8 GB\"; fix: give a whole number, without a unit\n",
        ),
        (
            "table",
            format!("{head}{MODEL}\n[[variant]]\nname = 'a'"),
            ":9: unknown field `variant`; fix: write [[model.variant]] behind its [[model]]\n",
        ),
        (
            "per_cent",
            format!(
                "{head}[[model]]\nname = 'm'\nslo_ms = 9\n[[model.variant]]\nname = 'a'\naccuracy = 180"
            ),
            ":8: m.variant.a.accuracy: is 180; fix: give a number from 0 to 100\n",
        ),
        (
            "falls",
            format!("{head}[[model]]\nname = 'm'\nslo_ms = 9\nlatency_ms = [2, 1]"),
            ":6: m.latency_ms: ℓ(2) is below ℓ(1); latencies must not fall; fix: correct it\n",
        ),
        (
            "pages",
            format!("{head}pages = 5{MODEL}\nweights_mb = 1000"),
            ":9: m.weights_mb: is 1000, and the pages of a slot, 5, hold 83.9 MB; fix: correct it, or give more pages\n",
        ),
        (
            "place",
            format!("{head}{MODEL}\nsubcluster = 'x'"),
            ":9: m.subcluster: there is no [[subcluster]] named \"x\"; fix: add it",
        ),
        (
            "twice",
            format!("{head}{MODEL}{MODEL}"),
            ":9: model[1].name: \"m\" is the name of another model too, of line 4; fix: rename one",
        ),
        (
            "twice-copy",
            format!("{head}{}{MODEL}\n    copies = 2", MODEL.replace("'m'", "'m-2'")),
            ":9: model[1].name: \"m-2\" is the name of another model too, of line 4; fix: rename",
        ),
        (
            "twice-zoo",
            format!("{head}zoo = '1080ti'{}", MODEL.replace("'m'", "'ResNet50'")),
            ":4: model[0].name: \"ResNet50\" is the name of another model too, of the zoo; fix:",
        ),
    ] {
        let path =
            std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("bad-{name}.toml"));
        std::fs::write(&path, text).unwrap();
        let said = format!("{}\n", Scenario::load(&path).unwrap_err());
        let expected = format!("bad-{name}.toml{expected}");
        assert!(said.contains(&expected), "{said}\nlacks {expected}");
    }
}
