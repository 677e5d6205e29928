//! What a process holds.

use serde::Serialize;

use crate::machine::resident_kib;

/// What a process holds at one moment.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct ProcessUsage {
    /// Whose.
    pub process: String,
    /// Resident memory, KiB.
    pub resident_kib: u64,
    /// Open file descriptors.
    pub handles: u64,
}

impl ProcessUsage {
    /// Of the process with this number; `None` once it has ended.
    pub(crate) fn of(name: &str, process: u32) -> Option<Self> {
        let resident_kib = resident_kib(process)?;
        let handles = std::fs::read_dir(format!("/proc/{process}/fd")).ok()?.count() as u64;
        Some(Self { process: name.to_owned(), resident_kib, handles })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_memory_and_handles() {
        let usage = ProcessUsage::of("me", std::process::id()).unwrap();
        assert!(usage.resident_kib > 0 && usage.handles >= 3, "{usage:?}");
        assert_eq!(ProcessUsage::of("absent", u32::MAX), None);
    }
}
