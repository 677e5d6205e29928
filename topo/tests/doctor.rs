//! The doctor against recorded hosts: its words to the letter, and what each change does to them.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod recorded;

use baton_topo::TransportChoice;
use baton_topo::doctor::{Check, Cuda, Need, Report, Status, Verbs, VerbsLimits, examine};
use baton_topo::machine::{Sysroot, SysrootError};
use recorded::{INFINIBAND, NO_RDMA, ROCE, SOFT_ROCE, Tree};

const NO_CUDA: Cuda = Cuda::NotAsked("not queried");
const NOT_ASKED: Verbs = Verbs::NotAsked("could not read it: not queried");

fn healthy_card() -> VerbsLimits {
    VerbsLimits {
        device: "mlx5_0".to_owned(),
        port: 1,
        gid: "gid 0 (fe80::1, InfiniBand)".to_owned(),
        mtu_bytes: 4096,
        queue_pairs: 131_072,
        requests: 32_768,
        completions: 4_194_303,
        initiator_depth: 16,
        responder_depth: 16,
        responder_budget: 2_097_152,
    }
}

/// The report on `tree` after `changes`.
fn report(name: &str, tree: &str, changes: &str, need: &Need, verbs: &Verbs) -> Report {
    examined(&Tree::unpack(name, tree, changes), need, verbs)
}

fn examined(tree: &Tree, need: &Need, verbs: &Verbs) -> Report {
    examine(&Sysroot::open(tree.path()).unwrap(), need, verbs, &NO_CUDA)
}

fn infiniband(name: &str, changes: &str) -> Report {
    report(name, INFINIBAND, changes, &Need::by_default(), &Verbs::Told(healthy_card()))
}

fn roce(name: &str, changes: &str) -> Report {
    report(name, ROCE, changes, &Need::by_default(), &NOT_ASKED)
}

#[track_caller]
fn find<'a>(report: &'a Report, check: &str, of: &str) -> &'a Check {
    let mut found = report
        .checks
        .iter()
        .filter(|line| line.check == check && line.of.as_deref().unwrap_or("") == of);
    let one = found.next().unwrap_or_else(|| panic!("no `{check}` of `{of}` in\n{report}"));
    assert!(found.next().is_none(), "`{check}` of `{of}` twice in\n{report}");
    one
}

#[track_caller]
fn expect(report: &Report, check: &str, of: &str, status: Status, seen: &str) {
    let line = find(report, check, of);
    assert_eq!((line.status, line.seen.as_str()), (status, seen));
}

fn golden(name: &str, tree: &str, verbs: &Verbs, expected: &str) -> Report {
    let report = report(name, tree, "", &Need::by_default(), verbs);
    let said = format!("{report}\n");
    assert!(said == expected, "said:\n{said}\nexpected:\n{expected}");
    report
}

#[test]
fn a_healthy_infiniband_host() {
    let verbs = Verbs::Told(healthy_card());
    let expected = include_str!("fixtures/infiniband.doctor.txt");
    let report = golden("healthy", INFINIBAND, &verbs, expected);
    assert!(report.passed());
    assert_eq!((report.warnings, report.failures, report.could_not_read), (0, 0, 0));
}

#[test]
fn a_misconfigured_roce_host() {
    let expected = include_str!("fixtures/roce-misconfigured.doctor.txt");
    let report = golden("misconfigured", ROCE, &NOT_ASKED, expected);
    assert!(!report.passed());
}

#[test]
fn a_host_without_rdma_is_fine_with_tcp() {
    let expected = include_str!("fixtures/no-rdma.doctor.txt");
    assert!(golden("without", NO_RDMA, &NOT_ASKED, expected).passed());
}

/// A host that exists: a device without a PCI card behind it, a table with gaps, counters of a driver of its own.
#[test]
fn a_recorded_host_with_soft_roce() {
    let expected = include_str!("fixtures/soft-roce.doctor.txt");
    let report = golden("soft-roce", SOFT_ROCE, &NOT_ASKED, expected);
    assert!(report.passed());
    expect(&report, "rdma device", "", Status::Ok, "2 devices: rxe0, rxe1; rxe0 is used");
}

#[test]
fn without_a_device_rdma_fails_and_only_rdma() {
    let tree = Tree::unpack("transports", NO_RDMA, "");
    for (transport, status) in [
        (TransportChoice::Rdma, Status::Failure),
        (TransportChoice::Auto, Status::NotApplicable),
        (TransportChoice::Tcp, Status::NotApplicable),
    ] {
        let mut need = Need::by_default();
        need.fabric.transport = transport;
        let report = examined(&tree, &need, &NOT_ASKED);
        assert_eq!(find(&report, "rdma device", "").status, status, "{transport}");
        assert_eq!(report.passed(), status != Status::Failure, "{transport}");
    }
}

#[test]
fn tcp_looks_at_no_device() {
    let mut need = Need::by_default();
    need.fabric.transport = TransportChoice::Tcp;
    let report = report("tcp", ROCE, "", &need, &NOT_ASKED);
    assert_eq!(find(&report, "memlock", "").status, Status::NotApplicable);
    assert!(report.checks.iter().all(|line| !line.check.starts_with("rdma port")));
    assert!(report.passed());
}

#[test]
fn transparent_huge_pages_that_are_switched_off_are_worth_a_warning() {
    let file = "sys/kernel/mm/transparent_hugepage/enabled";
    let off = infiniband("thp-off", &format!("{file} = always madvise [never]"));
    let line = find(&off, "huge pages", "");
    assert_eq!(line.status, Status::Warning, "{line}");
    assert!(line.seen.starts_with("slabs and batch rows in normal pages; transparent: never"));
    assert_eq!(line.fix.as_deref(), Some(format!("echo madvise > /{file}").as_str()));
    let reserved = "sys/devices/system/node/node0/hugepages/hugepages-1048576kB/nr_hugepages = 2";
    let absent = infiniband("thp-absent", &format!("{file} !\n{reserved}"));
    let line = find(&absent, "huge pages", "");
    assert_eq!((line.status, &line.fix), (Status::Ok, &None), "{line}");
    assert!(line.seen.contains("normal pages; transparent: not built in"), "{line}");
    assert!(line.seen.contains("2 of 1048576kB"), "{line}");
}

/// Each line of advice, followed on the misconfigured host, ends its finding.
#[test]
fn advice_that_is_followed_helps() {
    let before = roce("before", "");
    let device = "sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0";
    let port = format!("{device}/infiniband/mlx5_0/ports/1");
    let memlock = "proc/self/limits = Max locked memory         unlimited            unlimited            bytes";
    let advice = [
        ("memlock", "", memlock.to_owned()),
        ("clock source", "", "sys/devices/system/clocksource/clocksource0/current_clocksource = tsc".into()),
        ("tcp receive buffer", "", "proc/sys/net/ipv4/tcp_rmem = 4096\t131072\t16777216".into()),
        ("tcp ports", "", "proc/sys/net/ipv4/ip_local_port_range = 32768 60999".into()),
        ("rdma user access", "mlx5_0", "dev/infiniband/uverbs0 = (a character device)".into()),
        ("gid", "mlx5_0 port 1", format!("{port}/gid_attrs/ndevs/3 = enp59s0f0")),
        ("mtu", "mlx5_0 port 1", format!("{device}/net/enp59s0f0/mtu = 4200")),
        ("pcie link", "mlx5_0", format!("{device}/current_link_width = 16")),
        ("cores near the card", "mlx5_0", "proc/self/status = Cpus_allowed_list:\t0-7".into()),
        (
            "rdma port",
            "mlx5_1 port 1",
            "sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.1/infiniband/mlx5_1/ports/1/state = 4: ACTIVE".into(),
        ),
    ];
    let changes = advice.each_ref().map(|(_, _, change)| change.as_str()).join("\n");
    let after = roce("after", &changes);
    for (check, of, _) in advice {
        let was = find(&before, check, of);
        assert!(matches!(was.status, Status::Warning | Status::Failure), "{check}: {was}");
        assert!(was.fix.is_some() && was.expected.is_some(), "{check}");
        let now = find(&after, check, of);
        assert_eq!((now.status, &now.fix), (Status::Ok, &None), "{check}: {now}");
    }
    assert!(after.passed());
}

#[test]
fn a_port_and_a_link_are_judged_by_what_they_are_used_for() {
    let device = "sys/devices/pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0/0000:19:00.0";
    for (change, status) in [
        ("current_link_speed = 8.0 GT/s PCIe", Status::Warning),
        ("current_link_speed = Unknown", Status::NotApplicable),
        ("max_link_width = 255", Status::NotApplicable),
        ("current_link_width = 0", Status::NotApplicable),
    ] {
        let report = infiniband("link", &format!("{device}/{change}"));
        assert_eq!(find(&report, "pcie link", "mlx5_0").status, status, "{change}");
    }
    let down =
        ["state = 1: DOWN", "phys_state = 3: Disabled", "link_layer = InfiniBand", "rate = 10"]
            .map(|line| format!("{device}/infiniband/mlx5_0/ports/2/{line}"));
    let report = infiniband("ports", &down.join("\n"));
    assert_eq!(find(&report, "rdma port", "mlx5_0 port 2").status, Status::Warning);
}

#[test]
fn inputs_of_one_host_take_an_open_file_for_each_model() {
    let limit = |files: &str| format!("proc/self/limits = Max open files  {files}  1048576  files");
    let seen = |models, files: &str| {
        let need = Need { models, ..Need::by_default() };
        let report = report("one-host", NO_RDMA, &limit(files), &need, &NOT_ASKED);
        let line = find(&report, "inputs of one host", "");
        assert_eq!(line.fix.is_some(), line.status == Status::Warning);
        assert!(line.expected.as_deref().unwrap().contains(&format!("{models} model")));
        (line.status, line.seen.clone())
    };
    assert_eq!(seen(896, "1024"), (Status::Ok, "at most 1024 open files".to_owned()));
    assert_eq!(seen(897, "1024"), (Status::Warning, "at most 1024 open files".to_owned()));
    assert_eq!(seen(897, "unlimited"), (Status::Ok, "open files without limit".to_owned()));
}

#[test]
fn inputs_of_one_host_come_out_of_shared_memory_where_nothing_else_is_asked_for() {
    let of = |tree, transport| {
        let mut need = Need::by_default();
        need.fabric.transport = transport;
        find(&report("where-from", tree, "", &need, &NOT_ASKED), "inputs of one host", "").status
    };
    assert_eq!(of(NO_RDMA, TransportChoice::Auto), Status::Ok);
    assert_eq!(of(NO_RDMA, TransportChoice::Tcp), Status::NotApplicable);
    assert_eq!(of(ROCE, TransportChoice::Auto), Status::NotApplicable);
    assert_eq!(of(ROCE, TransportChoice::Rdma), Status::NotApplicable);
}

#[test]
fn what_cannot_be_read_is_said_and_fails_nothing() {
    let port = "sys/devices/pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0/0000:19:00.0/infiniband/mlx5_0/ports/1";
    let unreadable = [
        ("memlock", "", "proc/self/limits".to_owned()),
        (
            "clock source",
            "",
            "sys/devices/system/clocksource/clocksource0/current_clocksource".into(),
        ),
        ("governor", "", "sys/devices/system/cpu/cpu3/cpufreq/scaling_governor".into()),
        ("tcp send buffer", "", "proc/sys/net/ipv4/tcp_wmem".into()),
        ("steal", "", "proc/stat".into()),
        ("error counters", "mlx5_0 port 1", format!("{port}/hw_counters/out_of_sequence")),
    ];
    // A folder in a file's place: there, and not to be read.
    let changes = unreadable.each_ref().map(|(_, _, file)| format!("{file}/")).join("\n");
    let report = infiniband("unread", &changes);
    for (check, of, file) in unreadable {
        let line = find(&report, check, of);
        assert_eq!(line.status, Status::CouldNotRead, "{line}");
        let known = file.replace(port, "/sys/class/infiniband/mlx5_0/ports/1");
        let path = format!("/{}", known.trim_start_matches('/'));
        assert_eq!(line.seen, format!("could not read {path}: it is not a file"));
    }
    assert!(report.passed());
}

#[test]
fn a_machine_that_cannot_be_read_is_said_too() {
    let report = infiniband("no-cpus", "sys/devices/system/cpu/online !");
    let seen = "could not read /sys/devices/system/cpu/online: there is no such file";
    expect(&report, "machine", "", Status::CouldNotRead, seen);
    assert_eq!(find(&report, "tcp congestion control", "").status, Status::Ok);
}

#[test]
fn nonsense_in_a_file_is_not_taken_for_a_value() {
    let report = infiniband("nonsense", "proc/sys/net/ipv4/tcp_rto_min_us = soon");
    let seen = "could not read /proc/sys/net/ipv4/tcp_rto_min_us: `soon` was not expected there";
    expect(&report, "tcp minimum rto", "", Status::CouldNotRead, seen);
}

#[test]
fn memlock_is_judged_by_what_is_needed() {
    let limits = "proc/self/limits = Max locked memory  1048576 1048576 bytes";
    let tree = Tree::unpack("memlock", INFINIBAND, limits);
    let verbs = Verbs::Told(healthy_card());
    for (locked_bytes, status) in [(1 << 20, Status::Warning), ((1 << 20) + 1, Status::Failure)] {
        let need = Need { locked_bytes, ..Need::by_default() };
        let report = examined(&tree, &need, &verbs);
        assert_eq!(find(&report, "memlock", "").status, status, "{locked_bytes}");
    }
}

#[test]
fn the_capability_counts_in_the_first_user_namespace_only() {
    let limited = "proc/self/limits = Max locked memory  65536 65536 bytes\n\
                   proc/self/status = CapEff:\t0000000000004000";
    let seen = "64 KiB, which CAP_IPC_LOCK of this process lifts";
    expect(&infiniband("capable", limited), "memlock", "", Status::Ok, seen);
    let elsewhere = format!("{limited}\nproc/self/uid_map = 0 100000 65536");
    expect(&infiniband("contained", &elsewhere), "memlock", "", Status::Failure, "64 KiB");
}

#[test]
fn read_depth_is_divided_among_peers() {
    let tree = Tree::unpack("depth", INFINIBAND, "");
    let told = |change: fn(&mut VerbsLimits)| {
        let mut card = healthy_card();
        change(&mut card);
        examined(&tree, &Need::by_default(), &Verbs::Told(card))
    };
    // The whole device answers 64 READs: 4 for each of 16 peers.
    let report = told(|card| card.responder_budget = 64);
    let seen = "asks 16, answers 4 (16 per queue pair, 64 in all)";
    expect(&report, "read depth", "mlx5_0", Status::Warning, seen);
    let report = told(|card| card.initiator_depth = 1);
    assert_eq!(find(&report, "read depth", "mlx5_0").status, Status::Warning);
    let report = told(|card| card.queue_pairs = 16);
    assert_eq!(find(&report, "device limits", "mlx5_0").status, Status::Failure);
    let report = told(|card| card.mtu_bytes = 2048);
    expect(&report, "mtu", "mlx5_0 port 1", Status::Warning, "packets of 2048 bytes");
}

#[test]
fn a_library_that_refuses_is_a_failure_with_its_own_advice() {
    let words = "libibverbs.so.1 cannot be loaded (not found); install rdma-core";
    let verbs = Verbs::Refused(words.to_owned());
    let report = report("refused", INFINIBAND, "", &Need::by_default(), &verbs);
    let line = find(&report, "rdma library", "");
    assert_eq!(line.status, Status::Failure);
    assert_eq!(line.seen, "libibverbs.so.1 cannot be loaded (not found)");
    assert_eq!(line.fix.as_deref(), Some("install rdma-core"));
}

#[test]
fn the_device_and_address_asked_for_are_looked_at() {
    let tree = Tree::unpack("asked", ROCE, "");
    let mut need = Need::by_default();
    need.fabric.verbs.device = Some("mlx5_1".to_owned());
    let seen = "2 devices: mlx5_0, mlx5_1; mlx5_1 is used";
    let other = examined(&tree, &need, &NOT_ASKED);
    expect(&other, "rdma device", "", Status::Ok, seen);
    assert_eq!(find(&other, "rdma port", "mlx5_1 port 1").status, Status::Failure);

    need.fabric.verbs.device = Some("mlx5_7".to_owned());
    let missing = examined(&tree, &need, &NOT_ASKED);
    expect(&missing, "rdma device", "", Status::Failure, "2 devices: mlx5_0, mlx5_1");

    need.fabric.verbs.device = None;
    need.fabric.verbs.gid_index = Some(1);
    let asked = examined(&tree, &need, &NOT_ASKED);
    let seen = "gid 1 (fe80::e42:a1ff:fe5d:b2c, RoCE v2)";
    expect(&asked, "gid", "mlx5_0 port 1", Status::Ok, seen);
    // A leftover: no interface of this host has the address.
    need.fabric.verbs.gid_index = Some(3);
    let leftover = examined(&tree, &need, &NOT_ASKED);
    expect(&leftover, "gid", "mlx5_0 port 1", Status::Failure, "entry 3 cannot be used");
}

#[test]
fn packets_follow_from_the_interface_as_in_the_kernel() {
    let mtu = "sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/net/enp59s0f0/mtu";
    for (has, status, seen) in [
        (4192, Status::Ok, "packets of 4096 bytes, as enp59s0f0 has 4192"),
        (4191, Status::Warning, "packets of 2048 bytes, as enp59s0f0 has 4191"),
        (351, Status::Failure, "no packet fits: enp59s0f0 has 351"),
    ] {
        let report = roce("packets", &format!("{mtu} = {has}"));
        expect(&report, "mtu", "mlx5_0 port 1", status, seen);
    }
}

#[test]
fn the_device_knows_its_packets_better_than_we_do() {
    let card = VerbsLimits { mtu_bytes: 2048, ..healthy_card() };
    let report = report("told", ROCE, "", &Need::by_default(), &Verbs::Told(card));
    let seen = "packets of 2048 bytes, as enp59s0f0 has 1500";
    expect(&report, "mtu", "mlx5_0 port 1", Status::Warning, seen);
}

const CLUSTER: &str = r#"
[network]
transport = "rdma"
[frontend]
slots_per_model = SLOTS
[[model]]
name = "small"
latency_ms = [1, 2, 3, 4]
slo_ms = 50
input_bytes = 1000
[[model]]
name = "large"
latency_ms = [1, 2]
slo_ms = 50
input_bytes = 3000
[[backend]]
name = "two"
gpus = 2
credit_bytes = 70000
"#;

#[test]
fn the_largest_process_of_a_cluster_decides() {
    let need = |slots: &str| {
        let text = CLUSTER.replace("SLOTS", slots);
        let checked = baton_topo::check_text(std::path::Path::new("c.toml"), &text);
        Need::of(&checked.cluster.unwrap())
    };
    // Two GPUs, each with four batches of 2 · 3000 bytes; less in a frontend with one slot per model.
    let backend = need("1");
    assert_eq!((backend.locked_bytes, backend.locked_by.as_str()), (48_000, "backend two"));
    assert_eq!((backend.credit_bytes, backend.fabric.transport), (70_000, TransportChoice::Rdma));
    let frontend = need("20");
    let by = frontend.locked_by.as_str();
    assert_eq!((frontend.locked_bytes, by), (80_000, "a frontend of all models"));
}

#[test]
fn json_has_the_same_keys_for_every_line() {
    let report = roce("json", "");
    let json = serde_json::to_value(&report).unwrap();
    let keys = |value: &serde_json::Value| -> Vec<String> {
        value.as_object().unwrap().keys().cloned().collect()
    };
    let counts = ["ok", "warnings", "failures", "not_applicable", "could_not_read"];
    let mut expected: Vec<String> =
        ["checks"].into_iter().chain(counts).map(str::to_owned).collect();
    expected.sort();
    let mut found = keys(&json);
    found.sort();
    assert_eq!(found, expected);
    let lines = json["checks"].as_array().unwrap();
    let all: u64 = counts.iter().map(|count| json[count].as_u64().unwrap()).sum();
    assert_eq!(all, lines.len() as u64);
    for line in lines {
        let mut found = keys(line);
        found.sort();
        assert_eq!(found, ["check", "expected", "fix", "of", "seen", "status"], "{line}");
        let status = line["status"].as_str().unwrap();
        let known = ["ok", "warning", "failure", "not_applicable", "could_not_read"];
        assert!(known.contains(&status), "{line}");
    }
}

#[test]
fn a_folder_that_is_no_tree_is_refused() {
    let tree = Tree::unpack("empty", "", "");
    let error = Sysroot::open(tree.path()).unwrap_err();
    assert!(matches!(error, SysrootError::Empty { .. }), "{error}");
    let error = Sysroot::open(&tree.path().join("missing")).unwrap_err();
    assert!(matches!(error, SysrootError::Unreadable { .. }), "{error}");
}

#[test]
fn links_do_not_lead_out_of_a_tree() {
    let tree = Tree::unpack("escape", NO_RDMA, "proc/stat !");
    std::os::unix::fs::symlink("/proc/stat", tree.path().join("proc/stat")).unwrap();
    let report =
        examine(&Sysroot::open(tree.path()).unwrap(), &Need::by_default(), &NOT_ASKED, &NO_CUDA);
    let seen = "could not read /proc/stat: it leads out of the tree";
    expect(&report, "steal", "", Status::CouldNotRead, seen);
}
