//! The doctor on CUDA: the driver, and each device.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

mod recorded;

use baton_topo::doctor::{Cuda, CudaDevice, CudaState, Need, Status, Verbs, examine};
use baton_topo::machine::Sysroot;
use recorded::{NO_RDMA, Tree};

const NO_CUDA: Cuda = Cuda::NotAsked("not queried");
const NOT_ASKED: Verbs = Verbs::NotAsked("could not read it: not queried");

/// The lines on CUDA, of a cluster that needs this number of devices.
fn cuda_lines(cuda_devices: u32, cuda: &Cuda) -> Vec<(Status, String)> {
    let tree = Tree::unpack("cuda", NO_RDMA, "");
    let need = Need { cuda_devices, ..Need::by_default() };
    let report = examine(&Sysroot::open(tree.path()).unwrap(), &need, &NOT_ASKED, cuda);
    let lines = report.checks.iter().filter(|check| check.check.starts_with("cuda"));
    lines.map(|check| (check.status, check.to_string())).collect()
}

#[test]
fn a_missing_cuda_driver_is_a_failure_where_a_model_needs_one() {
    let missing = Cuda::Refused("no CUDA driver found: no libcuda.so.1; install it".into());
    let [(status, line)] = &cuda_lines(0, &missing)[..] else { panic!("one line") };
    assert_eq!(*status, Status::NotApplicable);
    assert!(line.contains("no CUDA driver found: no libcuda.so.1"), "{line}");
    let [(status, line)] = &cuda_lines(1, &missing)[..] else { panic!("one line") };
    assert_eq!(*status, Status::Failure);
    assert!(line.contains("fix: install it"), "{line}");
    assert_eq!(cuda_lines(1, &NO_CUDA)[0].0, Status::CouldNotRead);
}

fn cuda_device(capability: (u32, u32), state: Result<CudaState, String>) -> CudaDevice {
    let (name, memory_bytes, direct) = ("H200".into(), 141 << 30, true);
    let (export, registered) = (Err("not supported".to_owned()), Vec::new());
    CudaDevice { name, memory_bytes, capability, direct, export, registered, state }
}

#[test]
fn what_makes_a_cuda_device_uneven_is_a_warning() {
    let lines = |state| {
        let devices = vec![cuda_device((9, 0), Ok(state))];
        cuda_lines(1, &Cuda::Told { driver: "libcuda.so.1, for CUDA 12.4".into(), devices })
    };
    let fine = CudaState {
        clock_mhz: Some((1_980, 1_980)),
        others: Some(0),
        is_persistent: Some(true),
        link_width: Some((16, 16)),
        is_mig: Some(false),
        ..CudaState::default()
    };
    let warnings = |lines: &[(Status, String)]| -> Vec<String> {
        let warnings = lines.iter().filter(|(status, _)| *status == Status::Warning);
        warnings.map(|(_, line)| line.clone()).collect()
    };
    assert_eq!(warnings(&lines(fine.clone())), [""; 0]);
    let bad = CudaState {
        clock_mhz: Some((1_200, 1_980)),
        held_down_by: vec!["temperature"],
        temperature_c: Some(91),
        others: Some(1),
        is_persistent: Some(false),
        link_width: Some((8, 16)),
        is_mig: Some(true),
    };
    let (all, found) = (lines(bad.clone()), warnings(&lines(bad)));
    let said = [
        "1200 of 1980 MHz, 91 °C, held down by: temperature",
        "1 other process;",
        "off;",
        "8 lanes;",
    ];
    assert_eq!(found.len(), said.len(), "{found:?}");
    for (line, words) in found.iter().zip(said) {
        assert!(line.contains(words) && line.contains("fix: "), "{words}: {line}");
    }
    assert!(all.iter().any(|(_, line)| line.contains("MIG devices") && line.contains("UUID")));
    assert!(all.iter().any(|(_, line)| line.contains("nvidia-peermem")), "{all:?}");
}

#[test]
fn memory_given_to_network_cards_is_reported_for_each_of_them() {
    let direct = |device: CudaDevice| -> Vec<(Status, String)> {
        let told = Cuda::Told { driver: "libcuda.so.1".into(), devices: vec![device] };
        let lines = cuda_lines(0, &told).into_iter();
        lines.filter(|(_, line)| line.contains("cuda direct")).collect()
    };
    let fine = cuda_device((9, 0), Err("no NVML".into()));
    let (good, none) = (Status::Ok, Status::NotApplicable);
    let registered = vec![
        ("mlx5_0".to_owned(), Ok(())),
        ("rxe0".to_owned(), Err("registering a dma-buf on rxe0: not supported".to_owned())),
    ];
    let lines = direct(CudaDevice { export: Ok(2 << 20), registered, ..fine.clone() });
    let expected = [
        (good, "cuda direct 0: 2 MiB of its memory given out as a dma-buf"),
        (good, "cuda direct 0 and mlx5_0: registered 2 MiB of the device's memory"),
        (none, "cuda direct 0 and rxe0: registering a dma-buf on rxe0: not supported"),
    ];
    assert_eq!(lines.len(), expected.len(), "{lines:?}");
    for ((status, line), (expected, words)) in lines.iter().zip(expected) {
        assert!(*status == expected && line.contains(words), "{words}: {line}");
    }
    let [(status, line)] = &direct(CudaDevice { direct: false, ..fine })[..] else {
        panic!("one line")
    };
    assert!(*status == none && line.ends_with("cuda direct 0: not supported"), "{line}");
}

#[test]
fn each_cuda_device_is_listed_and_judged() {
    let device = |capability| cuda_device(capability, Err("no NVML".into()));
    let told = |devices| Cuda::Told { driver: "libcuda.so.1, for CUDA 12.4".into(), devices };
    let lines = cuda_lines(2, &told(vec![device((9, 0)), device((7, 0))]));
    let statuses: Vec<Status> = lines.iter().map(|(status, _)| *status).collect();
    let (fine, unread, none) = (Status::Ok, Status::CouldNotRead, Status::NotApplicable);
    assert_eq!(statuses, [fine, fine, fine, unread, none, Status::Failure, unread, none]);
    assert!(lines[2].1.contains("H200, 141 GiB, compute capability 9.0"), "{lines:?}");
    let lines = cuda_lines(2, &told(vec![device((9, 0))]));
    assert_eq!(lines[1].0, Status::Failure, "two are needed");
}
