//! The kernels' sources as C, on the CPU.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use baton_cuda::header;
use baton_types::SplitMix64;

/// The kernel of this file as a program.
fn built(kernel: &str) -> PathBuf {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(kernel);
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("kernels/{kernel}.cu"));
    let built = Command::new("cc")
        .args(["-x", "c", "-O1", "-DBATON_HOST", "-o"])
        .args([&program, &source])
        .status()
        .expect("a C compiler, as for the rest of Baton");
    assert!(built.success());
    program
}

/// What it prints for this input.
fn output_of(mut program: Command, input: Vec<u8>) -> Vec<u8> {
    let mut child = program.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(&input).unwrap());
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    assert!(output.status.success());
    output.stdout
}

#[test]
fn rows_are_copied_to_other_distances_and_nothing_else_is_written() {
    let program = built("copy");
    // Bytes, distances, and where each side begins: 16, 4 and 1 bytes at once, and what is left over.
    for (bytes, from, to) in [
        (64, (64, 0), (64, 0)),
        (100, (112, 0), (128, 0)),
        (50, (52, 4), (60, 8)),
        (33, (41, 3), (33, 0)),
        (16, (48, 8), (16, 0)),
        (0, (8, 0), (8, 0)),
        (1, (1, 0), (1, 5)),
    ] {
        let (rows, mut random) = (5_usize, SplitMix64::new(bytes as u64));
        let head = [bytes, rows, from.0, to.0, from.1, to.1].map(|word| word as u64);
        let source: Vec<u8> = (0..rows * from.0 + 16).map(|_| random.next_u64() as u8).collect();
        let mut right = vec![0xcd; rows * to.0 + 16];
        for row in 0..rows {
            let copied = &source[from.1 + row * from.0..][..bytes];
            right[to.1 + row * to.0..][..bytes].copy_from_slice(copied);
        }
        let input = head.iter().flat_map(|word| word.to_le_bytes()).chain(source).collect();
        let copied = output_of(Command::new(&program), input);
        assert_eq!(copied, right, "{bytes} bytes from {from:?} to {to:?}");
    }
}

#[test]
fn each_row_is_answered_with_its_checksum_whatever_its_length() {
    let lens = [0, 1, 3, 4, 5, 255, 256, 257, 511, 512, 1_000, 65_535, 150_528];
    let (stride, mut random) = (150_528, SplitMix64::new(1));
    let mut input = Vec::new();
    header(1_000, stride, &lens, &mut input);
    let head = input.len();
    input.extend((0..lens.len() * stride as usize).map(|_| random.next_u64() as u8));
    let rows_in = input[head..].to_vec();
    let mut program = Command::new(built("checksum"));
    program.arg(lens.len().to_string());
    let output = String::from_utf8(output_of(program, input)).unwrap();
    let answers: Vec<u64> = output.lines().map(|line| line.parse().unwrap()).collect();
    let rows = rows_in.chunks(stride as usize).zip(lens);
    let right: Vec<u64> =
        rows.map(|(row, len)| crc32fast::hash(&row[..len as usize]).into()).collect();
    assert_eq!(answers, right);
}
