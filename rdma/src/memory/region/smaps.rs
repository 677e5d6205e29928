//! How much of a range of this process's memory lies in huge pages, as the kernel tells. Pure.

use std::ops::Range;

/// Bytes of the mappings inside `range` that lie in transparent huge pages, out of the text of
/// `/proc/self/smaps`.
pub(super) fn huge_bytes(smaps: &str, range: &Range<usize>) -> usize {
    bytes_of("AnonHugePages:", smaps, range)
}

/// The same for another line of each mapping.
pub(super) fn bytes_of(name: &str, smaps: &str, range: &Range<usize>) -> usize {
    let (mut is_inside, mut kilobytes) = (false, 0);
    for line in smaps.lines() {
        if let Some(mapping) = mapping(line) {
            is_inside = range.start <= mapping.start && mapping.end <= range.end;
        } else if is_inside && let Some(size) = line.strip_prefix(name) {
            kilobytes += size.trim().trim_end_matches(" kB").parse().unwrap_or(0);
        }
    }
    kilobytes * 1024
}

/// The addresses at the beginning of a mapping's first line: `7f3a00000000-7f3a00200000 rw-p …`.
fn mapping(line: &str) -> Option<Range<usize>> {
    let (start, end) = line.split_whitespace().next()?.split_once('-')?;
    let hex = |digits| usize::from_str_radix(digits, 16).ok();
    Some(hex(start)?..hex(end)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
7f0000000000-7f0000200000 ---p 00000000 00:00 0 
Size:               2048 kB
AnonHugePages:         0 kB
7f0000200000-7f0000a00000 rw-p 00000000 00:00 0 
Size:               8192 kB
AnonHugePages:      6144 kB
VmFlags: rd wr mr mw me ac hg 
7f0000a00000-7f0000b00000 rw-p 00000000 00:00 0                          [heap]
AnonHugePages:      1024 kB
";

    #[test]
    fn only_mappings_inside_the_range_count() {
        let ours = 0x7f00_0020_0000..0x7f00_00a0_0000;
        assert_eq!(huge_bytes(SMAPS, &ours), 6 << 20);
        assert_eq!(huge_bytes(SMAPS, &(ours.start..0x7f00_00b0_0000)), 7 << 20);
        assert_eq!(huge_bytes(SMAPS, &(ours.start + 4096..ours.end)), 0, "it began before");
        assert_eq!(huge_bytes(SMAPS, &(0..4096)), 0);
        assert_eq!(bytes_of("Size:", SMAPS, &ours), 8 << 20);
    }

    #[test]
    fn what_is_no_smaps_has_no_huge_pages() {
        let all = 0..usize::MAX;
        for text in ["", "AnonHugePages: 4 kB", "1-2 rw-p\nAnonHugePages: many kB", "x-y\n-\n"] {
            assert_eq!(huge_bytes(text, &all), 0, "{text}");
        }
    }
}
