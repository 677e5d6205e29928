//! Recorded trees, unpacked where a test can point at them.
//!
//! One line per file: `PATH = TEXT`, or `PATH:` and lines that begin with `| `; `PATH -> TARGET` for a
//! link; `PATH/` for an empty folder. A path that comes twice has what came last; `PATH !` removes it.

#![allow(clippy::unwrap_used, reason = "a failing helper fails the test")]
#![allow(dead_code, reason = "every test file uses another part")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

pub(crate) const INFINIBAND: &str = include_str!("../fixtures/infiniband.tree");
pub(crate) const ROCE: &str = include_str!("../fixtures/roce-misconfigured.tree");
/// Soft-RoCE in QEMU, recorded by `record.sh`; the others are written after the kernel's documentation.
pub(crate) const SOFT_ROCE: &str = include_str!("../fixtures/soft-roce.tree");
pub(crate) const NO_RDMA: &str = include_str!("../fixtures/no-rdma.tree");

/// An unpacked tree; gone when dropped.
pub(crate) struct Tree(PathBuf);

impl Tree {
    /// Unpacks `tree`, then `changes`, in a folder of its own: tests may share a process.
    pub(crate) fn unpack(name: &str, tree: &str, changes: &str) -> Self {
        static UNPACKED: AtomicU32 = AtomicU32::new(0);
        let nth = UNPACKED.fetch_add(1, Ordering::Relaxed);
        let folder = format!("{name}-{}-{nth}", std::process::id());
        let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(folder);
        let _left_by_an_earlier_run = fs::remove_dir_all(&root);
        fs::create_dir_all(&root).unwrap();
        let mut lines = tree.lines().chain(changes.lines()).peekable();
        while let Some(line) = lines.next() {
            if let Some(path) = line.strip_suffix(':') {
                let mut text = String::new();
                while let Some(more) = lines.next_if(|line| line.starts_with('|')) {
                    text.push_str(more.trim_start_matches('|').strip_prefix(' ').unwrap_or(""));
                    text.push('\n');
                }
                write(&root.join(path), &text);
            } else {
                entry(&root, line);
            }
        }
        Self(root)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _already_gone = fs::remove_dir_all(&self.0);
    }
}

fn entry(root: &Path, line: &str) {
    if line.is_empty() || line.starts_with('#') {
        return;
    }
    if let Some((path, target)) = line.split_once(" -> ") {
        let at = root.join(path);
        fs::create_dir_all(at.parent().unwrap()).unwrap();
        // What it leads to may only be named later.
        fs::create_dir_all(at.parent().unwrap().join(target)).unwrap();
        symlink(target, at).unwrap();
    } else if let Some(path) = line.strip_suffix(" !") {
        fs::remove_file(root.join(path)).unwrap();
    } else if let Some(path) = line.strip_suffix('/') {
        let _not_there = fs::remove_file(root.join(path));
        fs::create_dir_all(root.join(path)).unwrap();
    } else {
        let (path, text) =
            line.split_once(" =").unwrap_or_else(|| panic!("not understood: {line}"));
        write(&root.join(path), &format!("{}\n", text.trim_start()));
    }
}

fn write(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}
