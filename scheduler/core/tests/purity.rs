//! What this crate and `baton-types` must not contain, checked by reading their sources: clocks, threads, locks, sockets,
//! wall time, hashing, output. `no_std` and `forbid(unsafe_code)` do most of it; this names the rest.

use std::fs;
use std::path::{Path, PathBuf};

/// What a line may not contain, and why.
const FORBIDDEN: [(&str, &str); 14] = [
    ("std::", "the core is no_std: it runs wherever a driver takes it"),
    ("Instant", "time is an argument"),
    ("SystemTime", "time is an argument"),
    ("Duration", "spans are Nanos"),
    ("Mutex", "one thread owns a state machine"),
    ("RwLock", "one thread owns a state machine"),
    ("Atomic", "one thread owns a state machine"),
    ("thread_local", "state is explicit"),
    ("static mut", "state is explicit"),
    ("HashMap", "state is indexed by dense ids"),
    ("BTreeMap", "allocates per insertion"),
    ("Rc<", "ownership is a tree"),
    ("unsafe {", "no unsafe code here"),
    ("println", "effects go into the sink"),
];

/// The part of a source file that ships.
fn shipped(path: &Path) -> String {
    let text = fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let tests = text.find("#[cfg(test)]\nmod tests").unwrap_or(text.len());
    text[..tests].to_owned()
}

fn sources() -> Vec<PathBuf> {
    let core = Path::new(env!("CARGO_MANIFEST_DIR"));
    ["src", "../../types/src"]
        .into_iter()
        .flat_map(|folder| sources_in(&core.join(folder)))
        .collect()
}

fn sources_in(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).expect("the crate has sources");
    let paths = entries.map(|entry| entry.expect("readable").path());
    paths.flat_map(|path| if path.is_dir() { sources_in(&path) } else { vec![path] }).collect()
}

fn violations(name: &str, text: &str) -> Vec<String> {
    let of_line = |(i, line): (usize, &str)| {
        let code = line.split("//").next().unwrap_or_default().to_owned();
        let found = FORBIDDEN.iter().filter(move |(word, _)| code.contains(word));
        found.map(move |(word, why)| format!("{name}:{}: `{word}`: {why}", i + 1)).collect()
    };
    text.lines().enumerate().flat_map(|line| -> Vec<String> { of_line(line) }).collect()
}

#[test]
fn the_core_reads_no_clock_and_shares_nothing() {
    let sources = sources();
    assert!(sources.len() >= 40, "the scan sees the sources: {sources:?}");
    let found: Vec<String> = sources
        .iter()
        .flat_map(|path| violations(&path.display().to_string(), &shipped(path)))
        .collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_scan_would_notice() {
    let text = "use core::fmt;\nlet now = std::time::Instant::now(); // a clock\n// a Mutex\n";
    let found = violations("x.rs", text);
    assert_eq!(found.len(), 2, "{found:?}");
    assert!(found.iter().all(|line| line.starts_with("x.rs:2: ")));
}

#[test]
fn both_crates_declare_their_purity() {
    let core = Path::new(env!("CARGO_MANIFEST_DIR"));
    for (folder, allowed) in [(".", "baton-types.workspace = true"), ("../../types", "")] {
        let lib = shipped(&core.join(folder).join("src/lib.rs"));
        assert!(lib.contains("#![no_std]") && lib.contains("#![forbid(unsafe_code)]"), "{folder}");
        let manifest =
            fs::read_to_string(core.join(folder).join("Cargo.toml")).expect("a manifest");
        let dependencies =
            manifest.split("[dependencies]").nth(1).and_then(|rest| rest.split('[').next());
        assert_eq!(dependencies.map(str::trim), Some(allowed), "{folder} depends on too much");
    }
}

#[test]
fn no_source_file_grows_beyond_four_hundred_lines() {
    for path in sources() {
        let lines = shipped(&path).lines().count();
        assert!(lines <= 400, "{} has {lines} lines", path.display());
    }
}
