//! Baton's own kernels: PTX that is committed beside its source, in `kernels/`.

/// Bytes of a checksum.
pub const CHECKSUM_BYTES: usize = 8;
/// Rows of a batch have one block each.
pub(crate) const THREADS: u32 = 256;
/// Words of a header before the rows' lengths.
const HEADER_WORDS: usize = 4;

/// A kernel as PTX. Every argument of it has 64 bits; those of kernels that batches name are addresses.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KernelSource {
    /// What it is called in the PTX.
    pub name: &'static str,
    /// ISA 8.0 for `sm_75`: drivers from 525 on, cards from Turing on.
    pub ptx: &'static str,
    /// How many arguments it takes.
    pub arguments: usize,
}

/// Answers each row with its CRC-32, zero-extended to 64 bits, and lasts as long as the header says. Arguments: rows, header,
/// answers (8 bytes each).
pub const CHECKSUM: KernelSource = KernelSource {
    name: "checksum_rows",
    ptx: concat!(include_str!("../kernels/checksum.ptx"), "\0"),
    arguments: 3,
};

/// Copies rows from one place of the device to another. Arguments: where to, the distance of rows there, where from, the
/// distance there, the bytes of each; a row of blocks for each row.
pub(crate) const COPY: KernelSource = KernelSource {
    name: "copy_rows",
    ptx: concat!(include_str!("../kernels/copy.ptx"), "\0"),
    arguments: 5,
};
/// Bytes that a thread copies at once.
const WIDTH: usize = 16;
/// Blocks for a row: more would be no faster.
const COPY_BLOCKS_MAX: usize = 64;

/// How many blocks copy a row of that many bytes.
pub(crate) fn copy_blocks(bytes: usize) -> u32 {
    bytes.div_ceil(WIDTH * THREADS as usize).clamp(1, COPY_BLOCKS_MAX) as u32
}

/// What a kernel needs to know of its batch, as it lies in memory: how long to take, how the rows lie, and their lengths.
/// Written over `into`, whose memory is used again.
pub fn header(time_ns: u64, stride: u32, lens: &[u32], into: &mut Vec<u8>) {
    into.clear();
    let words = [time_ns as u32, (time_ns >> 32) as u32, stride, 0];
    words.iter().chain(lens).for_each(|word| into.extend_from_slice(&word.to_le_bytes()));
}

/// Bytes of the header of a batch of `rows`.
pub(crate) fn header_bytes(rows: u32) -> usize {
    4 * (HEADER_WORDS + rows as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each kernel with its file and what that holds.
    const KERNELS: [(&KernelSource, &str, &str); 2] = [
        (&CHECKSUM, "checksum.cu", include_str!("../kernels/checksum.cu")),
        (&COPY, "copy.cu", include_str!("../kernels/copy.cu")),
    ];

    #[test]
    fn the_ptx_was_made_from_its_source() {
        for (kernel, file, source) in KERNELS {
            let digest = format!("crc32 {:08x} ", crc32fast::hash(source.as_bytes()));
            let first = kernel.ptx.lines().next().unwrap();
            let is_fresh = first.starts_with(&format!("// made from {file} "));
            let fix = "stale PTX: run `python3 cuda/kernels/make-ptx.py`";
            assert!(is_fresh && first.contains(&digest), "{file}: {fix}");
        }
    }

    #[test]
    fn the_ptx_is_for_old_drivers_and_its_arguments_are_what_launches_give() {
        for (kernel, ..) in KERNELS {
            assert!(kernel.ptx.contains("\n.version 8.0\n"), "driver 525");
            assert!(kernel.ptx.contains("\n.target sm_75\n"), "Turing");
            let entry = kernel.ptx.split(".entry ").nth(1).unwrap();
            let (name, rest) = entry.split_once('(').unwrap();
            let arguments: Vec<&str> = rest.split_once(')').unwrap().0.split(',').collect();
            assert_eq!((name, arguments.len()), (kernel.name, kernel.arguments));
            assert!(arguments.iter().all(|argument| argument.trim().starts_with(".param .u64")));
            assert!(kernel.ptx.contains(&format!(".maxntid {THREADS}, 1, 1")));
            assert_eq!(kernel.ptx.matches(".entry ").count(), 1);
        }
    }

    #[test]
    fn rows_have_a_block_for_what_its_threads_copy_at_once_and_a_bound() {
        let blocks = [0, 1, 4_096, 4_097, 150_528, 100 << 20].map(copy_blocks);
        assert_eq!(blocks, [1, 1, 1, 2, 37, 64]);
    }

    #[test]
    fn a_header_says_time_stride_and_lengths() {
        let mut bytes = vec![9; 3];
        header((7 << 32) + 5, 16, &[16, 3], &mut bytes);
        let words: Vec<u32> =
            bytes.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
        assert_eq!(words, [5, 7, 16, 0, 16, 3]);
        assert_eq!(bytes.len(), header_bytes(2));
    }
}
