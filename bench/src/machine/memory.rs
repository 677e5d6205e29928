//! Resident memory, as `/proc` tells it.

/// Resident memory of the process with this number, KiB; `None` once it has ended, or where the
/// system does not tell.
pub(crate) fn resident_kib(process: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    line.trim().strip_suffix("kB")?.trim().parse().ok()
}

/// Resident memory of this process, KiB.
pub(crate) fn own_resident_kib() -> Option<u64> {
    resident_kib(std::process::id())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_written_is_resident() {
        let before = own_resident_kib().unwrap();
        let block = std::hint::black_box(vec![1u8; 32 << 20]);
        let after = own_resident_kib().unwrap();
        assert!(after >= before + (16 << 10), "{before} KiB, then {after} KiB");
        drop(block);
    }
}
