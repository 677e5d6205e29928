//! What a model executes on.

use std::fmt;
use std::str::FromStr;

/// Devices of one host that a driver may number.
const DEVICES_MAX: u32 = 256;

/// A kind of device, and which one of it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Device {
    /// The cores.
    Cpu,
    /// An NVIDIA GPU, by the number that the CUDA driver gives it.
    Cuda(u32),
}

/// A text that names no device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("write cpu, or cuda:N with the number of a GPU, such as cuda:0")]
pub struct NoDevice;

impl FromStr for Device {
    type Err = NoDevice;

    fn from_str(text: &str) -> Result<Self, NoDevice> {
        if text == "cpu" {
            return Ok(Self::Cpu);
        }
        let number = text.strip_prefix("cuda:").and_then(|number| number.parse().ok());
        number.filter(|number| *number < DEVICES_MAX).map(Self::Cuda).ok_or(NoDevice)
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("cpu"),
            Self::Cuda(number) => write!(f, "cuda:{number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_read_as_it_is_written() {
        for device in [Device::Cpu, Device::Cuda(0), Device::Cuda(255)] {
            assert_eq!(device.to_string().parse(), Ok(device));
        }
        for text in ["", "gpu", "cuda", "cuda:", "cuda:-1", "cuda:256", "cuda:x", "CPU"] {
            assert_eq!(text.parse::<Device>(), Err(NoDevice), "{text}");
        }
    }
}
