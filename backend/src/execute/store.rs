//! Model files in the host's memory, for LOADs to be made from. Filled once, before a backend joins; read by every loader.
//!
//! Files are taken in the order of the cluster file until the budget is used up. Those beyond it, and those whose weights
//! are partly in other files, are read from the file system for each LOAD. Copies of one file are kept once.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use baton_topo::{ModelSpec, is_whole_model};

/// See the module documentation. Clones share the memory.
#[derive(Clone, Default, Debug)]
pub struct HostStore {
    files: Arc<BTreeMap<PathBuf, Arc<[u8]>>>,
}

/// What filling comes to.
#[derive(Default)]
struct Filling {
    files: BTreeMap<PathBuf, Arc<[u8]>>,
    /// By length and checksum.
    contents: BTreeMap<(usize, u32), Arc<[u8]>>,
    left_bytes: u64,
}

impl HostStore {
    /// Reads the files of `models`, as far as `budget_bytes` go.
    pub fn fill<'a>(models: impl Iterator<Item = &'a ModelSpec>, budget_bytes: u64) -> Self {
        let mut filling = Filling { left_bytes: budget_bytes, ..Filling::default() };
        let (mut taken, mut all) = (0, 0);
        for file in models.flat_map(ModelSpec::files) {
            all += 1;
            taken += u32::from(filling.take(file));
        }
        if all > 0 {
            let mib = (budget_bytes - filling.left_bytes) >> 20;
            let from_disk = all - taken;
            tracing::info!(taken, mib, from_disk, "model files are in memory");
        }
        Self { files: Arc::new(filling.files) }
    }

    /// The content of a file, if it is here.
    pub fn get(&self, file: &Path) -> Option<&Arc<[u8]>> {
        self.files.get(file)
    }

    /// Whether both files are here and have the same content.
    pub(super) fn is_same(&self, a: &Path, b: &Path) -> bool {
        match (self.get(a), self.get(b)) {
            (Some(a), Some(b)) => Arc::ptr_eq(a, b),
            _ => false,
        }
    }
}

impl Filling {
    /// True if the file is here. One that cannot be read is what loading complains about.
    fn take(&mut self, file: &Path) -> bool {
        if self.files.contains_key(file) {
            return true;
        }
        let bytes = std::fs::metadata(file).map_or(u64::MAX, |metadata| metadata.len());
        let may_be_copy = || self.contents.keys().any(|&(length, _)| length as u64 == bytes);
        if bytes > self.left_bytes && !may_be_copy() {
            return false;
        }
        let Ok(read) = std::fs::read(file) else { return false };
        let content = self.known(&read).or_else(|| self.keep(read));
        content.is_some_and(|content| self.files.insert(file.to_owned(), content).is_none())
    }

    fn known(&self, read: &[u8]) -> Option<Arc<[u8]>> {
        let content = self.contents.get(&(read.len(), crc32fast::hash(read)))?;
        (content[..] == *read).then(|| Arc::clone(content))
    }

    fn keep(&mut self, read: Vec<u8>) -> Option<Arc<[u8]>> {
        let left_bytes = self.left_bytes.checked_sub(read.len() as u64)?;
        if !is_whole_model(&read) {
            return None;
        }
        let (name, content) = ((read.len(), crc32fast::hash(&read)), Arc::from(read));
        self.contents.insert(name, Arc::clone(&content));
        self.left_bytes = left_bytes;
        Some(content)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    const DIGITS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/digits/digits.onnx");
    const WORDS: &str =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/digits-super/digits-super.onnx");

    /// A folder with two copies of the digits, another model, and a file that is no model.
    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("baton-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a scratch folder");
        for (name, from) in [("a", DIGITS), ("b", DIGITS), ("c", WORDS), ("d", "Cargo.toml")] {
            let from = Path::new(env!("CARGO_MANIFEST_DIR")).join(from);
            std::fs::copy(from, folder.join(name)).expect("it is copied");
        }
        folder
    }

    fn filled(folder: &Path, left_bytes: u64) -> (Vec<bool>, Filling) {
        let mut filling = Filling { left_bytes, ..Filling::default() };
        let names = ["a", "b", "c", "d", "e", "a"];
        (names.map(|name| filling.take(&folder.join(name))).to_vec(), filling)
    }

    #[test]
    fn copies_are_kept_once_and_what_is_no_whole_model_not_at_all() {
        let folder = folder("store-copies");
        let bytes = |name: &str| std::fs::metadata(folder.join(name)).expect("a file").len();
        let (taken, filling) = filled(&folder, 10 << 20);
        assert_eq!(taken, [true, true, true, false, false, true]);
        assert_eq!(filling.left_bytes, (10 << 20) - bytes("a") - bytes("c"), "b is a copy of a");
        let store = HostStore { files: Arc::new(filling.files) };
        let same = |one: &str, other: &str| store.is_same(&folder.join(one), &folder.join(other));
        assert!(same("a", "b") && !same("a", "c") && !same("d", "d"), "d is not there");
        assert_eq!(store.get(&folder.join("a")).expect("taken").len() as u64, bytes("a"));
        std::fs::remove_dir_all(folder).expect("it is ours");
    }

    #[test]
    fn what_exceeds_the_budget_stays_in_its_file_and_smaller_ones_behind_it_still_fit() {
        let folder = folder("store-budget");
        let bytes = std::fs::metadata(folder.join("a")).expect("a file").len();
        assert_eq!(filled(&folder, bytes).0, [true, true, false, false, false, true]);
        assert_eq!(filled(&folder, bytes - 1).0, [false; 6]);
        std::fs::remove_dir_all(folder).expect("it is ours");
    }
}
