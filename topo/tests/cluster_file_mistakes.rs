//! The cluster file, from the outside: every kind of mistake is named with its line, key and fix.
mod checking;

use std::path::Path;

use baton_topo::check_cluster;
use checking::{check, lines, model_with};

fn problems(text: &str) -> Vec<String> {
    lines(&check(text).cluster.expect_err("the file is bad"))
}

fn warnings(text: &str) -> Vec<String> {
    lines(&check(text).warnings)
}

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
        ("input_bytes = 0", "input_bytes: is 0; fix: give a whole number from 1 to 67108864"),
        (
            "input_bytes = \"big\"",
            "input_bytes: is the string \"big\"; fix: give a whole number from 1 to 67108864",
        ),
        ("output_bytes = 16", "output_bytes: is 16; fix: give a whole number from 8 to 8"),
        ("jitter = nan", "jitter: is nan; fix: give a number from 0 to 1"),
        ("jitter = inf", "jitter: is inf; fix: give a number from 0 to 1"),
        ("jitter = true", "jitter: is true; fix: give a number from 0 to 1"),
        ("jitter = 1979-05-27", "jitter: is a date; fix: give a number from 0 to 1"),
        ("engine = \"cuda\"", "engine: is \"cuda\"; fix: write `emulated` or `onnx`"),
        ("engine = 3", "engine: is 3; fix: give a string in quotes"),
        (
            "slow_ms = 3",
            "slow_ms: is not a key of this table; fix: remove it, or use one of: name, subcluster, latency_ms, alpha_ms, beta_ms, batch_max, slo_ms, expected_rps, queue_capacity, max_rps, frontend_max_rps, engine, file, input_shape, output_bytes, jitter, input_bytes",
        ),
        (
            "file = \"m.onnx\"",
            "file: does not belong to engine = \"emulated\"; fix: remove it, or name the other engine",
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
            vec![":5: model[0].batch_max: is 2; fix: give a whole number from 1 to 1"],
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
            "alpha_ms = 1\nbeta_ms = 5\nslo_ms = 25\nbatch_max = 1\ninput_bytes = 67108864",
            vec![
                ":7: model[0].input_bytes: 256 slots of 67108872 bytes need more than 4 GiB in every frontend; fix: set slots_per_model in [frontend] to at most 63",
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
fn each_bad_value_outside_the_models_is_explained() {
    let cases = [
        (
            "[scheduler]\nlisten = \"localhost\"",
            ":10: scheduler.listen: \"localhost\" is not an address and port; fix: write \"127.0.0.1:7700\" or \"[::1]:7700\"",
        ),
        (
            "[scheduler]\nmodel_threads = 0",
            ":10: scheduler.model_threads: is 0; fix: give a whole number from 1 to 256",
        ),
        (
            "[scheduler]\nidle = \"sleep\"",
            ":10: scheduler.idle: is \"sleep\"; fix: write one of `spin`, `yield`, `park`",
        ),
        (
            "[scheduler]\npolicy = \"fifo\"",
            ":10: scheduler.policy: is \"fifo\"; fix: write one of `baton`, `symphony`, `eager`",
        ),
        (
            "[scheduler]\nmember_timeout_ms = 1",
            ":10: scheduler.member_timeout_ms: is 1; fix: give a number from 200 to 60000",
        ),
        (
            "[scheduler]\ncores = [0, -1]",
            ":10: scheduler.cores: has an entry that is -1; fix: give a whole number from 0 to 4095",
        ),
        (
            "[scheduler]\netcd = \"http://127.0.0.1:2379\"",
            ":10: scheduler.etcd: is the string \"http://127.0.0.1:2379\"; fix: give a list: [1, 2]",
        ),
        ("[scheduler]\netcd = []", ":10: scheduler.etcd: has 0 endpoints; fix: give 1 to 16"),
        (
            "[scheduler]\netcd = [3]",
            ":10: scheduler.etcd: has an entry that is 3; fix: give strings in quotes",
        ),
        (
            "[scheduler]\netcd = [\"http://a:2379/v3\"]",
            ":10: scheduler.etcd: \"http://a:2379/v3\" is no endpoint; fix: write \"http://127.0.0.1:2379\"",
        ),
        (
            "[scheduler]\netcd = [\"http://a:0\"]",
            ":10: scheduler.etcd: \"http://a:0\" is no endpoint; fix: write \"http://127.0.0.1:2379\"",
        ),
        (
            "[scheduler]\netcd = [\"https://a:2379\"]",
            ":10: scheduler.etcd: \"https://a:2379\" is no endpoint; fix: give a plain http:// endpoint: Baton speaks no TLS with etcd",
        ),
        (
            "[scheduler]\nlease_ttl_s = 5",
            ":10: scheduler.lease_ttl_s: is of no use without etcd; fix: remove it, or add etcd = […]",
        ),
        (
            "[scheduler]\netcd = [\"http://a:1\"]\nlease_ttl_s = 1",
            ":11: scheduler.lease_ttl_s: is 1; fix: give a whole number from 2 to 60",
        ),
        (
            "[network]\nctrl_us = -0.1",
            ":10: network.ctrl_us: is -0.1; fix: give a number from 0 to 1000000",
        ),
        (
            "[network]\ndelay_us = 3",
            ":10: network.delay_us: is not a key of this table; fix: remove it, or use one of: ctrl_us, data_us_per_task, response_us, jitter_us, transport",
        ),
        (
            "[network]\ntransport = \"roce\"",
            ":10: network.transport: is \"roce\"; fix: write one of `rdma`, `tcp`, `auto`",
        ),
        ("[rdma]\nretries = 7", ":10: rdma.retries: is 7; fix: give a whole number from 0 to 6"),
        (
            "[rdma]\nmtu = 1500",
            ":10: rdma.mtu: is no packet size of verbs; fix: give 256, 512, 1024, 2048 or 4096",
        ),
        (
            "[frontend]\nslots_per_model = 1000000",
            ":10: frontend.slots_per_model: is 1000000; fix: give a whole number from 1 to 65536",
        ),
        (
            "[frontend]\nlease_grace_ms = 0",
            ":10: frontend.lease_grace_ms: is 0; fix: give a number from 10 to 600000",
        ),
        ("[[frontend]]", ":9: frontend: is a list; fix: write [frontend]"),
        (
            "[model_defaults]",
            ":9: model_defaults: is not a key of this table; fix: remove it, or use one of: scheduler, network, rdma, tls, frontend, model, backend",
        ),
        (
            "[[backend]]\nname = \"x\"\ngpus = 1000000000",
            ":11: backend[1].gpus: is 1000000000; fix: give a whole number from 1 to 256",
        ),
        (
            "[[backend]]\nname = \"x\"\ncredit_bytes = 10",
            ":11: backend[1].credit_bytes: is less than one input of its sub-cluster (150528 bytes); fix: give at least 150528, or 0 for no limit",
        ),
        (
            "[[backend]]\nname = \"b\"",
            ":10: backend[1].name: \"b\" is taken (line 8); fix: give every one its own name",
        ),
        (
            "[[backend]]\ngpus = 2",
            ":9: backend[1].name: is missing; fix: name the backend: name = \"gpu-a\"",
        ),
        (
            "[[model]]\nname = \"m\"\nlatency_ms = [1]\nslo_ms = 9",
            ":10: model[1].name: \"m\" is taken (line 2); fix: give every one its own name",
        ),
    ];
    for (tail, expected) in cases {
        let text = model_with("") + tail + "\n";
        assert_eq!(problems(&text), [format!("c.toml{expected}")], "{tail}");
    }
}

#[test]
fn a_backend_cannot_join_a_sub_cluster_without_models() {
    let text = model_with("subcluster = \"gpu\"") + "subcluster = \"gpux\"\n";
    assert_eq!(
        problems(&text),
        [
            "c.toml:9: backend[0].subcluster: no model is served by sub-cluster \"gpux\"; fix: use one of: gpu"
        ]
    );
}

#[test]
fn no_model_at_all_is_a_problem() {
    let expected = ["c.toml:1: model: there is no model; fix: add a [[model]] table"];
    assert_eq!(problems(""), expected);
    assert_eq!(problems("model = []"), expected);
    assert_eq!(
        problems("model = [1]"),
        ["c.toml:1: model: holds 1; fix: write [[model]] once for every model", expected[0]]
    );
}

#[test]
fn an_onnx_model_needs_its_file_shape_and_sizes() {
    let text = "[[model]]\nname = \"m\"\nengine = \"onnx\"\nlatency_ms = [1]\nslo_ms = 9\n";
    let missing = problems(text);
    assert_eq!(missing.len(), 3, "{missing:#?}");
    for (key, line) in ["file", "input_shape", "output_bytes"].iter().zip(&missing) {
        assert!(
            line.starts_with(&format!("c.toml:1: model[0].{key}: is missing; fix: ")),
            "{line}"
        );
    }
    let bad = "file = \"none.onnx\"\ninput_shape = [65536, 65536]\noutput_bytes = 6\njitter = 0\n";
    assert_eq!(
        problems(&format!("{text}{bad}")),
        [
            "c.toml:6: model[0].file: there is no file none.onnx; fix: give a path relative to this cluster file, or an absolute one",
            "c.toml:7: model[0].input_shape: one input row must be 4 … 67108864 bytes of f32; fix: give the shape without the batch dimension",
            "c.toml:8: model[0].output_bytes: is not a multiple of 4; fix: give 4 bytes per f32 of the output",
            "c.toml:9: model[0].jitter: does not belong to engine = \"onnx\"; fix: remove it, or name the other engine",
        ]
    );
}

#[test]
fn all_problems_are_listed_in_the_order_of_the_lines() {
    let text = "[scheduler]\nidle = 1\ncpus = 2\n[[model]]\nname = \"a b\"\nslo_ms = -5\nlatency_ms = [2, 1]\n[[backend]]\ngpus = 0\n";
    let found = problems(text);
    let keys: Vec<&str> = found.iter().map(|line| line.split(": ").nth(1).unwrap()).collect();
    assert_eq!(
        keys,
        [
            "scheduler.idle",
            "scheduler.cpus",
            "model[0].name",
            "model[0].slo_ms",
            "model[0].latency_ms",
            "backend[0].name",
            "backend[0].gpus"
        ],
        "{found:#?}"
    );
}

#[test]
fn syntax_errors_are_all_listed_with_their_lines() {
    let found =
        problems("[scheduler\nlisten = \"a\"\n[[model]]\nname = \nslo_ms = 2\nslo_ms = 3\n");
    let starts: Vec<String> =
        [1, 4, 6].iter().map(|line| format!("c.toml:{line}: not TOML: ")).collect();
    assert_eq!(found.len(), starts.len(), "{found:#?}");
    for (problem, start) in found.iter().zip(&starts) {
        assert!(problem.starts_with(start), "{problem}");
        assert!(
            problem.ends_with("; fix: correct the syntax here (see https://toml.io)"),
            "{problem}"
        );
    }
}

#[test]
fn what_is_legal_but_odd_is_a_warning() {
    assert_eq!(warnings(&model_with("")), [""; 0]);
    assert_eq!(
        warnings(&model_with("max_rps = 10\nfrontend_max_rps = 11\nexpected_rps = 12")),
        [
            "c.toml:6: model[0].max_rps: of the 12/s expected, what is above 10/s will be dropped; fix: give at least 12",
            "c.toml:7: model[0].frontend_max_rps: 11/s of each frontend is more than max_rps lets all of them have; fix: give at most 10",
        ]
    );
    let alone = "[[model]]\nname = \"m\"\nlatency_ms = [10]\nslo_ms = 15\n";
    assert_eq!(
        warnings(alone),
        [
            "c.toml:1: model[0].subcluster: no backend of this file belongs to sub-cluster \"default\"; fix: add a [[backend]], or have one join under this name",
            "c.toml:4: model[0].slo_ms: 15 ms is below 2·ℓ(1): a task that finds its GPU busy misses it; fix: give at least 20",
        ]
    );
    let wide = model_with("input_bytes = 8")
        + "[[model]]\nname = \"n\"\nlatency_ms = [1]\ninput_bytes = 8\nslo_ms = 9\n";
    let seventeen = (0..15).fold(wide, |text, i| {
        text + &format!(
            "[[model]]\nname = \"m{i}\"\nlatency_ms = [1]\ninput_bytes = 8\nslo_ms = 9\n"
        )
    });
    let found = warnings(&(seventeen + "[frontend]\nslots_per_model = 65536\n"));
    assert!(
        found[0].contains("frontend.slots_per_model: a frontend cannot use all 17 models"),
        "{found:?}"
    );
}

#[test]
fn an_unreadable_file_is_one_problem() {
    let checked = check_cluster(Path::new("/nonexistent/c.toml"));
    let found = lines(&checked.cluster.unwrap_err());
    assert_eq!(found.len(), 1);
    assert!(found[0].starts_with("/nonexistent/c.toml: cannot be read: "), "{}", found[0]);
    let endless = lines(&check_cluster(Path::new("/dev/zero")).cluster.unwrap_err());
    assert_eq!(endless, ["/dev/zero: is longer than 16 MiB; fix: name a cluster file"]);
}

#[test]
fn half_of_tls_is_none() {
    let cases = [
        ("", "tls.ca: is missing; fix: name the PEM file; docs/operating.md says how to make one"),
        ("ca = 3", "tls.ca: is 3; fix: give a string in quotes"),
        (
            "ca = \"no.pem\"",
            "tls.ca: there is no file no.pem; fix: give a path relative to this cluster file, or an absolute one",
        ),
        (
            "backends = []",
            "tls.backends: is empty: nobody may; fix: list a name, or remove the key",
        ),
        (
            "backends = [\"a b\"]",
            "tls.backends: has an entry that is the string \"a b\"; fix: give DNS names as certificates have them: [\"gpu-1.example\", \"*.web.example\"]",
        ),
        (
            "allow = [\"a\"]",
            "tls.allow: is not a key of this table; fix: remove it, or use one of: ca, cert, key, schedulers, backends, frontends",
        ),
    ];
    for (line, expected) in cases {
        let found = problems(&(model_with("") + "[tls]\n" + line + "\n"));
        assert!(found.iter().any(|problem| problem.contains(expected)), "{line}: {found:#?}");
    }
}
