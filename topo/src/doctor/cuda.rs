//! The CUDA driver and its devices, as the caller found them.

use super::line::{Advice, Check, Status};
use super::{Cuda, CudaDevice, CudaState, Need, bytes, counted};

/// What `cuda direct` expects.
const ANY: &str = "any: inputs are read into host memory";

/// Nothing but a cluster file with `cuda` models makes a missing driver a failure.
pub(super) fn checks(need: &Need, cuda: &Cuda) -> Vec<Check> {
    let expected = "driver 525 or later, for CUDA 12.0";
    let advice = |fix: &str| Advice::new("cuda driver", expected, fix);
    let (driver, devices) = match cuda {
        Cuda::NotAsked(_) if need.cuda_devices == 0 => return Vec::new(),
        Cuda::NotAsked(why) => return vec![advice("").unread(*why)],
        Cuda::Refused(words) if need.cuda_devices == 0 => {
            let seen = words.rsplit_once("; ").map_or(words.as_str(), |(seen, _)| seen);
            return vec![Check::not_applicable("cuda driver", seen)];
        }
        Cuda::Refused(words) => {
            let (seen, fix) = words.rsplit_once("; ").unwrap_or((words, "see docs/gpu.md"));
            return vec![advice(fix).found(Status::Failure, seen)];
        }
        Cuda::Told { driver, devices } => (driver, devices),
    };
    let mut checks = vec![advice("").found(Status::Ok, driver)];
    let enough = Advice::new(
        "cuda devices",
        format!("{} at least", need.cuda_devices),
        "lower `gpus` of that [[backend]], or see what CUDA_VISIBLE_DEVICES leaves",
    );
    let has_enough = devices.len() >= need.cuda_devices as usize;
    checks.push(enough.judged(has_enough, Status::Failure, devices.len().to_string()));
    checks.extend(devices.iter().enumerate().flat_map(device));
    checks
}

fn device((number, device): (usize, &CudaDevice)) -> Vec<Check> {
    let (major, minor) = device.capability;
    let seen = format!(
        "{}, {}, compute capability {major}.{minor}",
        device.name,
        bytes(device.memory_bytes)
    );
    let fix = "serve `cuda` models on Turing cards or later";
    let advice = Advice::new("cuda device", "compute capability 7.5 at least", fix);
    let mut checks = vec![advice.judged(device.capability >= (7, 5), Status::Failure, seen)];
    match &device.state {
        Ok(state) => checks.extend(of_state(state)),
        Err(why) => checks.push(Advice::new("cuda clocks", "what NVML tells", "").unread(why)),
    }
    checks.push(exported(device));
    let mut checks: Vec<Check> =
        checks.into_iter().map(|check| check.of(number.to_string())).collect();
    checks.extend(
        device
            .registered
            .iter()
            .map(|(card, result)| registered(device, result).of(format!("{number} and {card}"))),
    );
    checks
}

/// Could network cards write its memory (GPUDirect)? For information: Baton copies through the host's.
fn exported(device: &CudaDevice) -> Check {
    let advice = Advice::new("cuda direct", ANY, "");
    match (&device.export, device.direct) {
        (Ok(given), _) => advice
            .found(Status::Ok, format!("{} of its memory given out as a dma-buf", bytes(*given))),
        (Err(why), true) => Check::not_applicable(
            "cuda direct",
            format!("{why}. nvidia-peermem could give its memory to network cards"),
        ),
        (Err(why), false) => Check::not_applicable("cuda direct", why.as_str()),
    }
}

/// Does this card take it?
fn registered(device: &CudaDevice, result: &Result<(), String>) -> Check {
    let given = device.export.as_ref().map_or(0, |given| *given);
    match result {
        Ok(()) => Advice::new("cuda direct", ANY, "")
            .found(Status::Ok, format!("registered {} of the device's memory", bytes(given))),
        Err(why) => Check::not_applicable("cuda direct", why.as_str()),
    }
}

/// What makes executions last longer than planned, or unevenly. Nothing of it keeps a backend from serving.
fn of_state(state: &CudaState) -> Vec<Check> {
    let mut checks = Vec::new();
    let mut judge = |advice: Advice, good, seen: String| {
        checks.push(advice.judged(good, Status::Warning, seen));
    };
    if let Some((now, most)) = state.clock_mhz {
        let heat = state.temperature_c.map_or_else(String::new, |heat| format!(", {heat} °C"));
        let held = state.held_down_by.join(", ");
        let why = if held.is_empty() { held } else { format!(", held down by: {held}") };
        let fix = "cool it or raise its power limit; until then batches last longer than ℓ(b)";
        let advice = Advice::new("cuda clocks", "nothing that holds them down", fix);
        judge(advice, why.is_empty(), format!("{now} of {most} MHz{heat}{why}"));
    }
    if let Some(others) = state.others {
        let what = if others == 1 { "other process" } else { "other processes" };
        let fix = "leave the device to one backend: how long batches last depends on who computes";
        let advice = Advice::new("cuda users", "none but this backend", fix);
        judge(advice, others == 0, format!("{others} {what}"));
    }
    if let Some(is_persistent) = state.is_persistent {
        let seen = if is_persistent { "on" } else { "off" };
        let fix = "nvidia-smi -pm 1: the first start after a pause is slow otherwise";
        judge(Advice::new("cuda persistence", "on", fix), is_persistent, seen.into());
    }
    if let Some((now, most)) = state.link_width {
        let fix = "seat the card anew, or choose a slot with all lanes: copies take longer";
        let advice = Advice::new("cuda link", counted(most as usize, "lane"), fix);
        judge(advice, now >= most, counted(now as usize, "lane"));
    }
    if state.is_mig == Some(true) {
        let seen = "cut into MIG devices: name one by its UUID, `devices` of a [[backend]]";
        checks.push(Check::not_applicable("cuda mig", seen));
    }
    checks
}
