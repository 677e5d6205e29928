//! The kernel's source as C, on the CPU.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use baton_cuda::header;
use baton_types::SplitMix64;

#[test]
fn each_row_is_answered_with_its_checksum_whatever_its_length() {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("checksum");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels/checksum.cu");
    let built = Command::new("cc")
        .args(["-x", "c", "-O1", "-DBATON_HOST", "-o"])
        .args([&program, &source])
        .status()
        .expect("a C compiler, as for the rest of Baton");
    assert!(built.success());
    let lens = [0, 1, 3, 4, 5, 255, 256, 257, 511, 512, 1_000, 65_535, 150_528];
    let (stride, mut random) = (150_528, SplitMix64::new(1));
    let mut input = Vec::new();
    header(1_000, stride, &lens, &mut input);
    let head = input.len();
    input.extend((0..lens.len() * stride as usize).map(|_| random.next_u64() as u8));
    let mut child = Command::new(&program)
        .arg(lens.len().to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(&input).unwrap();
    let output = String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap();
    let answers: Vec<u64> = output.lines().map(|line| line.parse().unwrap()).collect();
    let rows = input[head..].chunks(stride as usize).zip(lens);
    let right: Vec<u64> =
        rows.map(|(row, len)| crc32fast::hash(&row[..len as usize]).into()).collect();
    assert_eq!(answers, right);
}
