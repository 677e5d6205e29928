//! Mistakes in a model's table.

use std::path::Path;

use baton_topo::Sha256;

use crate::checking::{check, model_with};
use crate::problems;

#[test]
fn each_bad_value_of_a_model_is_one_problem_with_its_line_and_fix() {
    let cases = [
        ("max_rps = 0", "max_rps: is 0; fix: give a number from 0.001 to 100000000"),
        (
            "frontend_max_rps = -3",
            "frontend_max_rps: is -3; fix: give a number from 0.001 to 100000000",
        ),
        ("queue_capacity = 0", "queue_capacity: is 0; fix: give a whole number from 1 to 1048576"),
        (
            "queue_capacity = -1",
            "queue_capacity: is -1; fix: give a whole number from 1 to 1048576",
        ),
        (
            "queue_capacity = 1.5",
            "queue_capacity: is 1.5; fix: give a whole number from 1 to 1048576",
        ),
        ("batch_max = 0", "batch_max: is 0; fix: give a whole number from 1 to 1024"),
        ("batch_max = 1025", "batch_max: is 1025; fix: give a whole number from 1 to 1024"),
        (
            "batch_max = 99999999999999999999",
            "batch_max: is 99999999999999999999; fix: give a whole number from 1 to 1024",
        ),
        (
            "input_bytes = 67108857",
            "input_bytes: is 67108857; fix: give a whole number from 1 to 67108856",
        ),
        ("input_bytes = 0", "input_bytes: is 0; fix: give a whole number from 1 to 67108856"),
        (
            "input_bytes = \"big\"",
            "input_bytes: is the string \"big\"; fix: give a whole number from 1 to 67108856",
        ),
        ("output_bytes = 16", "output_bytes: is 16; fix: give a whole number from 8 to 8"),
        ("jitter = nan", "jitter: is nan; fix: give a number from 0 to 1"),
        ("jitter = inf", "jitter: is inf; fix: give a number from 0 to 1"),
        ("jitter = true", "jitter: is true; fix: give a number from 0 to 1"),
        ("jitter = 1979-05-27", "jitter: is a date; fix: give a number from 0 to 1"),
        ("engine = \"gpu\"", "engine: is \"gpu\"; fix: write one of `emulated`, `cuda`, `onnx`"),
        ("engine = 3", "engine: is 3; fix: give a string in quotes"),
        (
            "slow_ms = 3",
            "slow_ms: is not a key of this table; fix: write slo_ms, or another of: name, subcluster, slo_ms, expected_rps, queue_capacity, max_rps, frontend_max_rps, variant, file, engine, sha256, file_bytes, tensors, input_shape, dims, shapes, batch_dim, batched, constants, outputs, device, cpu_operators, tf32, check_finite, cuda_graphs, tensorrt, fp16, output_bytes, jitter, input_bytes, profile, latency_ms, alpha_ms, beta_ms, batch_max, weights_mib, load_ms",
        ),
        (
            "device = \"cuda:0\"",
            "device: does not belong to engine = \"emulated\"; fix: remove it, or name the other engine",
        ),
        (
            "dims = { seq = 128 }",
            "dims: does not belong to engine = \"emulated\"; fix: remove it, or name the other engine",
        ),
        (
            "subcluster = \"\"",
            "subcluster: \"\" is not a name; fix: use 1 to 64 letters, digits and any of . _ - / :",
        ),
    ];
    for (line, expected) in cases {
        assert_eq!(
            problems(&model_with(line)),
            [format!("c.toml:6: model[0].{expected}")],
            "{line}"
        );
    }
}

/// Values of keys the minimal model already has.
#[test]
fn each_bad_profile_objective_or_size_is_explained() {
    let cases = [
        (
            "alpha_ms = -1\nbeta_ms = 5\nslo_ms = 25",
            vec![":3: model[0].alpha_ms: is -1; fix: give a number from 0 to 600000"],
        ),
        (
            "alpha_ms = 0\nbeta_ms = 0\nslo_ms = 25",
            vec![
                ":3: model[0].alpha_ms: ℓ(1) is zero; every execution takes some time; fix: give ℓ(1) a latency above zero",
            ],
        ),
        (
            "alpha_ms = 1\nbeta_ms = 5\nslo_ms = nan",
            vec![":5: model[0].slo_ms: is nan; fix: give a number from 0.001 to 600000"],
        ),
        (
            "alpha_ms = 1\nbeta_ms = 5\nslo_ms = 6.5",
            vec![
                ":5: model[0].slo_ms: 6.5 ms cannot be met: ℓ(1) and the network delays take 6.82 ms; fix: give at least 6.82, or lower ℓ(1) or [network]",
            ],
        ),
        (
            "alpha_ms = 1\nbeta_ms = 5",
            vec![":1: model[0].slo_ms: is missing; fix: give the latency objective: slo_ms = 25"],
        ),
        (
            "latency_ms = [6, 5]\nslo_ms = 25",
            vec![
                ":3: model[0].latency_ms: ℓ(2) is below ℓ(1); latencies must not fall; fix: raise that entry to the one before it",
            ],
        ),
        (
            "latency_ms = []\nslo_ms = 25",
            vec![
                ":3: model[0].latency_ms: the latency table is empty; give ℓ(1) at least; fix: measure at least ℓ(1)",
            ],
        ),
        (
            "latency_ms = [6, -7]\nslo_ms = 25",
            vec![
                ":3: model[0].latency_ms: has an entry that is -7; fix: give a number from 0 to 600000",
            ],
        ),
        (
            "latency_ms = 6\nslo_ms = 25",
            vec![":3: model[0].latency_ms: is 6; fix: give a list: [1, 2]"],
        ),
        (
            "latency_ms = [6]\nslo_ms = 25\nbatch_max = 2",
            vec![
                ":5: model[0].batch_max: is 2; fix: give a whole number from 1 to 1, the largest batch whose time is given",
            ],
        ),
        (
            "latency_ms = [6]\nslo_ms = 25\nbeta_ms = 2",
            vec![
                ":5: model[0].beta_ms: latency_ms gives ℓ(b) already; fix: remove beta_ms or latency_ms",
            ],
        ),
        (
            "alpha_ms = 1\nbeta_ms = 5\nslo_ms = 25\nbatch_max = 1024\ninput_bytes = 1_048_577",
            vec![
                ":6: model[0].batch_max: a batch of 1024 inputs of 1048577 bytes is over 1 GiB; fix: set batch_max to at most 1023",
            ],
        ),
        (
            "alpha_ms = 1\nbeta_ms = 5\nslo_ms = 25\nbatch_max = 1\ninput_bytes = 67108856",
            vec![
                ":7: model[0].input_bytes: 256 slots of 67108864 bytes need more than 4 GiB in every frontend; fix: set slots_per_model in [frontend] to at most 64",
            ],
        ),
        (
            "slo_ms = 25",
            vec![
                ":1: model[0].alpha_ms: is missing; fix: give alpha_ms and beta_ms (ℓ(b) = α·b + β), or a table: latency_ms = [6.1, 7.2]",
                ":1: model[0].beta_ms: is missing; fix: give alpha_ms and beta_ms (ℓ(b) = α·b + β), or a table: latency_ms = [6.1, 7.2]",
            ],
        ),
    ];
    for (model, expected) in cases {
        let text = format!("[[model]]\nname = \"m\"\n{model}\n[[backend]]\nname = \"b\"\n");
        let expected: Vec<String> = expected.iter().map(|line| format!("c.toml{line}")).collect();
        assert_eq!(problems(&text), expected, "{text}");
    }
}

#[test]
fn an_onnx_model_needs_a_file_that_is_one() {
    let text = "[[model]]\nname = \"m\"\nengine = \"onnx\"\nlatency_ms = [1]\nslo_ms = 9\n";
    let missing = problems(text);
    let expected =
        "c.toml:1: model[0].file: is missing; fix: name the model file: file = \"model.onnx\"";
    assert_eq!(missing, [expected]);
    let bad = "file = \"none.onnx\"\ndims = { seq = 0 }\ninput_shape = 4\njitter = 0\n";
    assert_eq!(
        problems(&format!("{text}{bad}")),
        [
            "c.toml:6: model[0].file: there is no file none.onnx; fix: give a path relative to this cluster file, or an absolute one",
            "c.toml:7: model[0].dims: has an entry that is 0; fix: give a whole number from 1 to 268435456",
            "c.toml:8: model[0].input_shape: is 4; fix: give a list: [1, 2]",
            "c.toml:9: model[0].jitter: does not belong to engine = \"onnx\"; fix: remove it, or name the other engine",
        ]
    );
}

#[test]
fn a_file_must_be_the_one_that_its_checksum_names() {
    let digits = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/digits/digits.onnx");
    let found = Sha256::of_file(Path::new(digits)).unwrap();
    let of =
        |key: &str| format!("[[model]]\nname = \"m\"\nslo_ms = 50\nfile = \"{digits}\"\n{key}\n");
    let checked = check(&of(&format!("sha256 = \"{found}\""))).cluster.unwrap();
    assert_eq!(checked.models[0].checked_files(), [(Path::new(digits), Some(found))]);
    let other = Sha256::of(b"another");
    let expected = format!(
        "c.toml:5: model[0].sha256: is not that of {digits}, which is {found}; fix: copy the right file to this host, or correct \
         the key"
    );
    assert_eq!(problems(&of(&format!("sha256 = \"{other}\""))), [expected]);
    let text = problems(&of("sha256 = \"abc\""));
    assert!(text[0].contains("sha256: is no SHA-256; fix: give the 64 hexadecimal"), "{text:?}");
    let text = problems(&model_with(&format!("sha256 = \"{found}\"")));
    assert!(text[0].contains("sha256: does not belong to engine = \"emulated\""), "{text:?}");
}

#[test]
fn one_model_more_than_a_scheduler_serves_is_refused() {
    let model = |i| {
        format!(
            "[[model]]\nname = \"m{i}\"\nalpha_ms = 1\nbeta_ms = 5\nslo_ms = 25\ninput_bytes = 8\n"
        )
    };
    let mut text: String = (1..baton_topo::MODELS_MAX).map(model).collect();
    text += &model_with("");
    assert!(check(&text).cluster.is_ok());
    assert_eq!(
        problems(&(model(0) + &text)),
        [
            "c.toml:1: model: 16385 models are too many; fix: keep to 16384; split them over schedulers"
        ]
    );
}
