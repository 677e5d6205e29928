//! `baton doctor` and `baton topo show` as scripts use them: what is on stdout, and the status.

#[path = "../topo/tests/recorded/mod.rs"]
mod recorded;
mod support;

use std::process::Output;

use recorded::{NO_RDMA, ROCE, Tree};
use serde_json::Value;
use support::{Folder, run};

fn doctor(tree: &Tree, more: &[&str]) -> Output {
    let root = tree.path().display().to_string();
    run(&[&["doctor", "--sysroot", &root], more].concat())
}

fn json(output: &Output) -> Value {
    serde_json::from_slice(&output.stdout).expect("stdout is one JSON object")
}

#[test]
fn the_status_is_0_with_warnings_and_1_with_failures() {
    let fine = doctor(&Tree::unpack("cli-fine", NO_RDMA, ""), &["--json"]);
    assert_eq!((fine.status.code(), &json(&fine)["warnings"]), (Some(0), &1.into()));
    let broken = doctor(&Tree::unpack("cli-broken", ROCE, ""), &["--json"]);
    assert_eq!((broken.status.code(), &json(&broken)["failures"]), (Some(1), &2.into()));
    assert!(broken.stderr.is_empty(), "findings are results: {broken:?}");
}

#[test]
fn a_cluster_file_says_what_is_needed() {
    let tree = Tree::unpack("cli-config", NO_RDMA, "");
    let folder = Folder::new("doctor-config");
    let file = folder.write("cluster.toml", "[network]\ntransport = \"rdma\"\n[[model]]\nname = \"m\"\nalpha_ms = 1\nbeta_ms = 1\nslo_ms = 50\n[[backend]]\nname = \"b\"\n");
    let output = doctor(&tree, &["--config", &file]);
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{text}");
    assert!(
        text.contains("FAILURE  rdma device: none; expected one, as transport = \"rdma\" asks\n"),
        "{text}"
    );
}

#[test]
fn another_hosts_library_is_not_asked() {
    let output = doctor(&Tree::unpack("cli-library", ROCE, ""), &[]);
    let text = String::from_utf8_lossy(&output.stdout);
    let line =
        "unread   rdma library: could not read it: libibverbs looks at this host, not at --sysroot";
    assert!(text.contains(line), "{text}");
}

#[test]
fn this_host_is_examined_whatever_it_is() {
    let output = run(&["doctor", "--json"]);
    assert!(matches!(output.status.code(), Some(0 | 1)), "{output:?}");
    let report = json(&output);
    assert_eq!(output.status.success(), report["failures"] == 0, "{report}");
}

#[test]
fn the_machine_is_drawn() {
    let tree = Tree::unpack("cli-topo", ROCE, "");
    let root = tree.path().display().to_string();
    let output = run(&["topo", "show", "--sysroot", &root, "--json"]);
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert_eq!(json(&output)["nics"][0]["name"], "mlx5_0");
    let text = run(&["topo", "show", "--sysroot", &root]).stdout;
    let expected = include_str!("../topo/tests/fixtures/roce-misconfigured.topo.txt");
    assert_eq!(String::from_utf8_lossy(&text), expected);
}

#[test]
fn a_folder_that_is_no_tree_is_an_error() {
    let folder = Folder::new("doctor-empty");
    for command in [&["doctor"][..], &["topo", "show"]] {
        let root = folder.path().display().to_string();
        let output = run(&[command, &["--sysroot", &root]].concat());
        assert_eq!((output.status.code(), output.stdout.len()), (Some(1), 0));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let expected = format!(
            "baton: {root} holds neither sys/ nor proc/; give the root of a recorded tree, or leave --sysroot out\n"
        );
        assert_eq!(said, expected);
    }
}
