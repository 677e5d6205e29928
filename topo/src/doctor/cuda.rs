//! The CUDA driver and its devices, as the caller found them.

use super::line::{Advice, Check, Status};
use super::{Cuda, Need, bytes};

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
    checks.extend(devices.iter().enumerate().map(|(number, device)| {
        let (major, minor) = device.capability;
        let seen = format!(
            "{}, {}, compute capability {major}.{minor}",
            device.name,
            bytes(device.memory_bytes)
        );
        let fix = "serve `cuda` models on Turing cards or later";
        let advice = Advice::new("cuda device", "compute capability 7.5 at least", fix);
        advice.judged(device.capability >= (7, 5), Status::Failure, seen).of(number.to_string())
    }));
    checks
}
