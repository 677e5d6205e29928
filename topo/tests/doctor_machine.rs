//! `baton topo show` on recorded hosts: the drawing to the letter, and what the plan makes of changes.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod recorded;

use baton_topo::machine::{Machine, Relation, Sysroot};
use recorded::{INFINIBAND, NO_RDMA, ROCE, Tree};

fn machine(name: &str, tree: &str, changes: &str) -> Machine {
    let tree = Tree::unpack(name, tree, changes);
    Machine::read(&Sysroot::open(tree.path()).unwrap()).unwrap()
}

#[test]
fn drawings() {
    for (name, tree, expected) in [
        ("draw-infiniband", INFINIBAND, include_str!("fixtures/infiniband.topo.txt")),
        ("draw-roce", ROCE, include_str!("fixtures/roce-misconfigured.topo.txt")),
        ("draw-without", NO_RDMA, include_str!("fixtures/no-rdma.topo.txt")),
    ] {
        let said = machine(name, tree, "").drawing().to_string();
        assert!(said == expected, "said:\n{said}\nexpected:\n{expected}");
    }
}

#[test]
fn every_gpu_is_given_its_nearest_card() {
    let machine = machine("nearest", INFINIBAND, "");
    let nearest: Vec<_> = machine
        .gpus
        .iter()
        .map(|gpu| {
            machine.nearest_nic(gpu).map(|(nic, relation)| (nic.name.as_str(), relation)).unwrap()
        })
        .collect();
    assert_eq!(
        nearest,
        [("mlx5_0", Relation::Pix), ("mlx5_0", Relation::Pxb), ("mlx5_1", Relation::Phb)]
    );
}

#[test]
fn no_core_is_given_twice_and_each_is_on_the_right_node() {
    let machine = machine("cores", INFINIBAND, "");
    let plan = machine.plan();
    assert_eq!(plan.backends.len(), 2);
    for backend in &plan.backends {
        let mut cores = backend.cores.clone();
        assert_eq!(cores.len(), backend.gpus.len() + 1);
        assert!(cores.iter().all(|core| machine.cpus.node_of(*core) == backend.node));
        cores.sort_unstable();
        cores.dedup();
        assert_eq!(cores.len(), backend.gpus.len() + 1);
    }
    assert_eq!(plan.scheduler.cores, [1, 2, 3]);
    assert_eq!(plan.scheduler.model_threads, 1);
}

#[test]
fn isolated_cores_are_taken_first_and_forbidden_ones_never() {
    let isolated = machine("isolated", INFINIBAND, "sys/devices/system/cpu/isolated = 1,3,5-7,9");
    let cores: Vec<_> = isolated.plan().backends.into_iter().map(|backend| backend.cores).collect();
    // Node 0 has two isolated cores and needs three: nothing is pinned rather than shared.
    assert_eq!(cores, [vec![], vec![5, 6]]);
    let allowed =
        machine("allowed", INFINIBAND, "proc/self/status = Cpus_allowed_list:\t0-3,5,7-15");
    assert_eq!(allowed.plan().backends[1].cores, [5, 7]);
}

/// As in a container that is shown a part of its host.
#[test]
fn a_core_whose_first_thread_is_not_online_is_its_second() {
    let machine = machine("offline", INFINIBAND, "sys/devices/system/cpu/online = 1-15");
    let cores: Vec<_> = machine.cpus.nodes.iter().flat_map(|node| node.cores.iter()).collect();
    assert_eq!(cores, [1, 2, 3, 8, 4, 5, 6, 7]);
}

#[test]
fn a_device_whose_node_is_not_known_is_pinned_nowhere() {
    let machine = machine(
        "node",
        INFINIBAND,
        "sys/devices/pci0000:97/0000:97:03.0/0000:9c:00.0/numa_node = -1",
    );
    let plan = machine.plan();
    let unknown = plan.backends.iter().find(|backend| backend.node.is_none()).unwrap();
    assert!(unknown.cores.is_empty());
    assert_eq!(unknown.reason, "the GPUs' NUMA node is not known: left to the kernel");
    let drawn = machine.to_string();
    assert!(drawn.contains("on no node the host tells:\n  GPU GPU2"), "{drawn}");
    let card = "sys/devices/pci0000:16/0000:16:01.0/0000:17:00.0/0000:18:00.0/0000:19:00.0";
    let drawn = self::machine("card", INFINIBAND, &format!("{card}/numa_node = -1")).to_string();
    assert!(drawn.contains("on no node the host tells:\n  NIC mlx5_0"), "{drawn}");
}

#[test]
fn what_else_is_on_a_gpus_card_is_no_gpu_and_neither_is_anothers_display() {
    let sound = "devices/pci0000:97/0000:97:03.0/0000:9c:00.1";
    for (class, vendor) in [("0x040300", "0x10de"), ("0x030000", "0x1a03")] {
        let changes = format!(
            "sys/bus/pci/devices/0000:9c:00.1 -> ../../../{sound}\n\
             sys/{sound}/class = {class}\nsys/{sound}/vendor = {vendor}"
        );
        assert_eq!(machine("sound", INFINIBAND, &changes).gpus.len(), 3, "{class} of {vendor}");
    }
}

#[test]
fn a_soft_device_is_where_its_interface_is() {
    let device = "sys/devices/virtual/infiniband/rxe0";
    let rxe = format!(
        "sys/class/infiniband/rxe0 -> ../../devices/virtual/infiniband/rxe0\n\
         {device}/ports/1/state = 4: ACTIVE\n{device}/ports/1/phys_state = 5: LinkUp\n\
         {device}/ports/1/link_layer = Ethernet\n{device}/ports/1/rate = 2.5 Gb/sec (1X SDR)\n\
         {device}/ports/1/gid_attrs/ndevs/0 = eth0"
    );
    let machine = machine("soft", NO_RDMA, &rxe);
    let [nic] = machine.nics.as_slice() else { panic!("{:?}", machine.nics) };
    assert_eq!((nic.name.as_str(), nic.netdevs.as_slice()), ("rxe0", &["eth0".to_owned()][..]));
    assert_eq!(nic.pci.as_ref().unwrap().address(), "0000:00:03.0");
    let (alone, _) = rxe.rsplit_once('\n').unwrap();
    let drawn = self::machine("alone", NO_RDMA, alone).to_string();
    assert!(drawn.contains("rxe0") && !drawn.contains("()"), "{drawn}");
}

#[test]
fn a_bonds_interface_comes_before_the_cards_own() {
    let port = "sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/infiniband/mlx5_0/ports/1";
    let changes = format!("{port}/gid_attrs/ndevs/0 = bond0\n{port}/gid_attrs/ndevs/1 = bond0");
    let machine = machine("bond", ROCE, &changes);
    assert_eq!(machine.nics[0].netdevs, ["bond0", "enp59s0f0"]);
    let changes = format!("{port}/gid_attrs/ndevs/0 = enp59s0f1");
    let nic = &self::machine("other", ROCE, &changes).nics[0];
    assert_eq!(nic.netdevs[0], "enp59s0f1");
    assert_eq!(nic.pci.as_ref().unwrap().address(), "0000:3b:00.0", "the card's own place");
}

#[test]
fn json_has_what_the_drawing_has() {
    let machine = machine("json", INFINIBAND, "");
    let json = serde_json::to_value(machine.drawing()).unwrap();
    let keys = ["online", "allowed", "isolated", "nodes", "nics", "gpus", "relations", "plan"];
    for key in keys {
        assert!(!json[key].is_null(), "{key}");
    }
    assert_eq!(json.as_object().unwrap().len(), keys.len());
    assert_eq!(json["nodes"][0]["cpus"][0], 0);
    assert_eq!(json["gpus"][1]["pci"], "0000:1d:00.0");
    // Six devices: two InfiniBand cards, one Ethernet card, three GPUs.
    assert_eq!(json["relations"].as_array().unwrap().len(), 15);
    assert_eq!(json["relations"][2]["relation"], "PIX");
    assert_eq!(json["plan"]["backends"][0]["device"], "mlx5_0");
}
