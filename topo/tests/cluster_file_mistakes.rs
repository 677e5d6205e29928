//! The cluster file, from the outside: every kind of mistake is named with its line, key and fix.
#[path = "cluster_file_mistakes/batch.rs"]
mod batch;
mod checking;
#[path = "cluster_file_mistakes/models.rs"]
mod models;
#[path = "cluster_file_mistakes/variants.rs"]
mod variants;
#[path = "cluster_file_mistakes/weights.rs"]
mod weights;

use std::path::Path;

use baton_topo::{check_cluster, check_cluster_on};
use checking::{check, lines, model_with};

fn problems(text: &str) -> Vec<String> {
    lines(&check(text).cluster.expect_err("the file is bad"))
}

fn warnings(text: &str) -> Vec<String> {
    lines(&check(text).warnings)
}

#[test]
fn each_bad_value_outside_the_models_is_explained() {
    let cases = [
        (
            "[scheduler]\nmetrics = \"8002\"",
            ":10: scheduler.metrics: \"8002\" is not an address and port; fix: write \"127.0.0.1:8002\", or leave it out",
        ),
        (
            "[scheduler]\nlisten = \"localhost\"",
            ":10: scheduler.listen: \"localhost\" is not an address and port; fix: write \"127.0.0.1:7700\" or \"[::1]:7700\"",
        ),
        (
            "[reconnect]\nfirst_ms = 900",
            ":9: reconnect.longest_ms: is below first_ms; fix: raise it, or lower first_ms",
        ),
        (
            "[scheduler]\nmodel_threads = 0",
            ":10: scheduler.model_threads: is 0; fix: give a whole number from 1 to 64",
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
            ":10: scheduler.etcd: \"http://a:2379/v3\" is no endpoint; fix: write \"http://127.0.0.1:2379\", or https:// with etcd_ca",
        ),
        (
            "[scheduler]\netcd = [\"http://a_b:2379\"]",
            ":10: scheduler.etcd: \"http://a_b:2379\" is no endpoint; fix: write \"http://127.0.0.1:2379\", or https:// with etcd_ca",
        ),
        (
            "[scheduler]\netcd = [\"http://:2379\"]",
            ":10: scheduler.etcd: \"http://:2379\" is no endpoint; fix: write \"http://127.0.0.1:2379\", or https:// with etcd_ca",
        ),
        (
            "[scheduler]\netcd = [\"http://a:0\"]",
            ":10: scheduler.etcd: \"http://a:0\" is no endpoint; fix: write \"http://127.0.0.1:2379\", or https:// with etcd_ca",
        ),
        (
            "[scheduler]\netcd = [\"https://a:2379\"]",
            ":9: scheduler.etcd_ca: is missing; fix: name the PEM file; docs/operating.md says how to make one",
        ),
        (
            "[scheduler]\netcd = [\"https://a:2379\"]\netcd_ca = \"nowhere.pem\"",
            ":11: scheduler.etcd_ca: there is no file nowhere.pem; fix: give a path relative to this cluster file, or an absolute one",
        ),
        (
            "[scheduler]\netcd = [\"https://a:2379\", \"http://b:2379\"]\netcd_ca = \"Cargo.toml\"",
            ":10: scheduler.etcd: has http:// and https:// endpoints; fix: write https:// everywhere",
        ),
        (
            "[scheduler]\netcd = [\"https://a:2379\"]\netcd_ca = \"Cargo.toml\"\netcd_cert = \"src/lib.rs\"",
            ":9: scheduler.etcd_key: is missing; fix: name the PEM file; docs/operating.md says how to make one",
        ),
        (
            "[scheduler]\netcd = [\"http://a:2379\"]\netcd_ca = \"ca.pem\"",
            ":11: scheduler.etcd_ca: is of no use with http:// endpoints; fix: write the endpoints with https://, or remove it",
        ),
        (
            "[scheduler]\netcd_key = \"own.key\"",
            ":10: scheduler.etcd_key: is of no use without etcd; fix: remove it, or add etcd = […]",
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
            ":9: model_defaults: is not a key of this table; fix: remove it, or use one of: scheduler, network, rdma, tls, frontend, reconnect, model, backend, gateway",
        ),
        (
            "[[backend]]\nname = \"x\"\ngpus = 1000000000",
            ":11: backend[1].gpus: is 1000000000; fix: give a whole number from 1 to 256",
        ),
        (
            "[[backend]]\nname = \"x\"\ndevices = [\"cuda:0\"]",
            ":11: backend[1].devices: has a name that is no UUID of a GPU; fix: write GPU-… or MIG-… as `nvidia-smi -L` lists them",
        ),
        (
            "[[backend]]\nname = \"x\"\ndevices = [\"card0\"]",
            ":11: backend[1].devices: has a name that is no UUID of a GPU; fix: write GPU-… or MIG-… as `nvidia-smi -L` lists them",
        ),
        (
            "[[backend]]\nname = \"x\"\ndevices = [\"GPU-b 2\"]",
            ":11: backend[1].devices: has a name that is no UUID of a GPU; fix: write GPU-… or MIG-… as `nvidia-smi -L` lists them",
        ),
        (
            "[[backend]]\nname = \"x\"\ndevices = [\"MIG-a1\", \"GPU-b2\"]",
            ":11: backend[1].devices: has a MIG device among others, and a process sees one; fix: give each MIG device a [[backend]] of its own",
        ),
        (
            "[[backend]]\nname = \"x\"\ngpus = 2\ndevices = [\"GPU-b2\"]",
            ":11: backend[1].gpus: is 2, and `devices` names 1; fix: leave it out, or name as many devices",
        ),
        (
            "[[backend]]\nname = \"x\"\nmodel_memory_mib = 0",
            ":11: backend[1].model_memory_mib: is 0; fix: give a whole number from 1 to 16777216",
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
fn a_file_may_have_as_many_models_as_there_is_room_for() {
    let second = "[[model]]\nname = \"n\"\nlatency_ms = [1]\nslo_ms = 9\n";
    let room =
        |models: u32| format!("{}{second}[scheduler]\nmodels_max = {models}\n", model_with(""));
    assert!(check(&room(2)).cluster.is_ok());
    assert_eq!(
        problems(&room(1)),
        [
            "c.toml:14: scheduler.models_max: 1 is less than the 2 models of this file; fix: give at least 2, or remove the key"
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
fn a_heading_with_single_brackets_that_comes_twice_is_one_mistake() {
    let table = |name: &str| format!("[{name}]\nname = \"{name}\"\nslo_ms = 2\n");
    let found = problems(&["model", "model", "backend", "model"].map(table).concat());
    let twice = "model: [model] comes twice; fix: write [[model]] once for every model";
    assert_eq!(found, [format!("c.toml:4: {twice}"), format!("c.toml:10: {twice}")]);
}

#[test]
fn what_is_legal_but_odd_is_a_warning() {
    assert_eq!(warnings(&model_with("")), [""; 0]);
    let equal = model_with("max_rps = 10\nfrontend_max_rps = 10\nexpected_rps = 10");
    assert_eq!(warnings(&equal), [""; 0]);
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
    let hasty = model_with("") + "[network]\njitter_us = 20000\n";
    let [hasty] = &warnings(&hasty)[..] else { panic!("{:?}", warnings(&hasty)) };
    assert!(
        hasty.contains("no task waits for others; fix: set jitter_us in [network] to at most"),
        "{hasty}"
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
fn what_the_processes_would_stumble_over_is_found_here() {
    let backend = |lines: &str| format!("[[backend]]\nname = \"wide\"\n{lines}\n");
    let cases = [
        (
            "[scheduler]\nlisten = \"127.0.0.1:7\"\nmetrics = \"127.0.0.1:7\"\n".to_owned(),
            "scheduler.metrics: is the address of listen; fix: give another port",
        ),
        (
            "[scheduler]\nmodel_threads = 65\n".to_owned(),
            "scheduler.model_threads: is 65; fix: give a whole number from 1 to 64",
        ),
    ];
    for (lines, expected) in cases {
        let found = problems(&(model_with("") + &lines));
        assert!(found.iter().any(|problem| problem.contains(expected)), "{lines}: {found:#?}");
    }
    let found = problems(&(model_with("input_bytes = 1048576") + &backend("gpus = 256")));
    assert!(
        found[0].contains("the batch buffers of 256 GPU slots take 64 GiB of 64 GiB at most, ")
            && found[0].ends_with("because of model m; fix: lower it, or that model's batch_max"),
        "{found:#?}"
    );
}

#[test]
fn an_address_that_members_cannot_look_for_is_a_warning() {
    let with = |lines: &str| warnings(&(model_with("") + "[scheduler]\n" + lines));
    let chosen = with("listen = \"127.0.0.1:0\"\n");
    assert!(chosen[0].contains("members that read this file look for port 0"), "{chosen:?}");
    let both = with("listen = \"127.0.0.1:0\"\nmetrics = \"127.0.0.1:0\"\n");
    assert_eq!(both, chosen, "the system chooses two");
    let vague = with("listen = \"0.0.0.0:7700\"\n");
    assert!(vague[0].contains("0.0.0.0:7700 names no host"), "{vague:?}");
    let etcd = "etcd = [\"http://127.0.0.1:1\"]\n";
    for listen in ["0.0.0.0:7700", "127.0.0.1:0"] {
        let vague = with(&format!("listen = \"{listen}\"\n{etcd}"));
        assert!(vague[0].contains("cannot tell members through etcd where it is"), "{vague:?}");
    }
    assert_eq!(with(etcd), [""; 0]);
}

#[test]
fn cores_that_this_host_does_not_have_are_a_warning() {
    let file = std::env::temp_dir().join(format!("baton-cores-{}.toml", std::process::id()));
    let text = model_with("") + "[scheduler]\ncores = [1, 900]\n";
    std::fs::write(&file, text).expect("a temporary file");
    let found = |cpus: &str| {
        let cpus = cpus.parse().expect("a list of CPUs");
        lines(&check_cluster_on(&file, &cpus).warnings)
    };
    let (few, many) = (found("0-1"), found("0-1023"));
    std::fs::remove_file(&file).expect("it is there");
    assert_eq!(many, [""; 0]);
    assert_eq!(few.len(), 1, "{few:?}");
    assert!(few[0].contains("scheduler.cores: this host has no CPU 900: "), "{few:?}");
    assert!(few[0].ends_with("use CPUs of 0-1, or check the file on the host that is meant"));
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
            "tls.backends: is empty: it allows no member; fix: list a name, or remove the key",
        ),
        (
            "backends = [\"a b\"]",
            "tls.backends: has an entry that is the string \"a b\"; fix: give DNS names as certificates have them: [\"gpu-1.example\", \"*.web.example\"]",
        ),
        (
            "backends = [\"*.\"]",
            "tls.backends: has an entry that is the string \"*.\"; fix: give DNS names",
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
    let said = warnings(&(model_with("") + "[tls]\nbackends = []\n"));
    assert!(!said.iter().any(|line| line.contains("tls.backends: is missing")), "{said:?}");
}
