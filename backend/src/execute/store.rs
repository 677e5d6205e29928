//! Model files in the host's memory, for LOADs to be made from: those of the cluster file from before the backend joins, those
//! of a model that is added from its addition to its removal. Read by every loader.
//!
//! Files are taken in the order in which their models come until the budget is used up. Those beyond it, and those whose weights
//! are partly in other files, are read from the file system for each LOAD. Copies of one file are kept once.

use std::borrow::Borrow;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use baton_topo::{ModelSpec, Sha256, is_whole_model};
use baton_types::ModelId;

use super::EngineError;

/// See the module documentation. Clones share the memory.
#[derive(Clone, Default, Debug)]
pub struct HostStore {
    /// Locked by threads that load, and for a look-up only.
    shared: Arc<Mutex<Shelf>>,
}

#[derive(Default, Debug)]
struct Shelf {
    files: BTreeMap<PathBuf, Used<Name>>,
    contents: BTreeMap<Name, Used<Arc<[u8]>>>,
    /// Whose files they are. A file leaves with the last of its models.
    models: BTreeMap<ModelId, Vec<PathBuf>>,
    left_bytes: u64,
}

/// Of a content: its length and checksum.
type Name = (usize, u32);

/// Something that goes with its last user: a file's are models, a content's are files.
#[derive(Debug)]
struct Used<T> {
    what: T,
    users: usize,
}

/// Why a file is not what its model is loaded from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum FileFault {
    /// It cannot be read: why.
    Unreadable(String),
    /// It has another content.
    Different { expected: Sha256, found: Sha256 },
}

impl FileFault {
    pub(super) fn of(self, model: &ModelSpec, file: &Path) -> EngineError {
        let (model, file) = (model.name.clone(), file.display().to_string());
        match self {
            Self::Unreadable(problem) => EngineError::Unreadable { model, file, problem },
            Self::Different { expected, found } => {
                EngineError::Different { model, file, expected, found }
            }
        }
    }
}

/// Whether the file can be read, and has the content that it must have.
pub(super) fn check(file: &Path, sha256: Option<Sha256>) -> Result<(), FileFault> {
    let unreadable = |error: std::io::Error| FileFault::Unreadable(error.to_string());
    match sha256 {
        None => std::fs::File::open(file).map(drop).map_err(unreadable),
        Some(expected) => is_as(expected, Sha256::of_file(file).map_err(unreadable)?),
    }
}

fn is_as(expected: Sha256, found: Sha256) -> Result<(), FileFault> {
    if found == expected { Ok(()) } else { Err(FileFault::Different { expected, found }) }
}

impl HostStore {
    /// Reads the files of `models`, as far as `budget_bytes` go. Loading complains again about what is wrong with one.
    pub fn fill<'a>(models: impl Iterator<Item = &'a ModelSpec>, budget_bytes: u64) -> Self {
        let store = Self::default();
        store.shelf().left_bytes = budget_bytes;
        let (mut files, mut taken) = (0, 0);
        for model in models {
            files += model.files().len();
            match store.add(model) {
                Ok(here) => taken += here,
                Err(error) => tracing::warn!(%error, "a model's files are not kept in memory"),
            }
        }
        if files > 0 {
            let mib = (budget_bytes - store.shelf().left_bytes) >> 20;
            tracing::info!(taken, mib, from_disk = files - taken, "model files are in memory");
        }
        store
    }

    fn shelf(&self) -> MutexGuard<'_, Shelf> {
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reads the files of a model, as far as there is room, and checks those that have a checksum. Returns how many are here.
    ///
    /// # Errors
    /// A file cannot be read, or is another one; then none is here for this model.
    pub(super) fn add(&self, model: &ModelSpec) -> Result<usize, EngineError> {
        let mut taken = 0;
        for (file, sha256) in model.checked_files() {
            match self.take(model.id, file, sha256) {
                Ok(is_here) => taken += usize::from(is_here),
                Err(fault) => {
                    self.remove(model.id);
                    return Err(fault.of(model, file));
                }
            }
        }
        Ok(taken)
    }

    /// The model is no longer loaded. Returns what is here for no other one. A LOAD that reads it meanwhile has it to the end.
    pub(super) fn remove(&self, model: ModelId) -> Vec<Arc<[u8]>> {
        self.shelf().remove(model)
    }

    /// The content of a file, if it is here.
    pub fn get(&self, file: &Path) -> Option<Arc<[u8]>> {
        self.shelf().content(file)
    }

    /// Whether both files are here and have the same content.
    pub(super) fn is_same(&self, a: &Path, b: &Path) -> bool {
        match (self.get(a), self.get(b)) {
            (Some(a), Some(b)) => Arc::ptr_eq(&a, &b),
            _ => false,
        }
    }

    /// True if the file is here. It is read without the lock, so that no LOAD waits for the disk.
    fn take(&self, model: ModelId, file: &Path, sha256: Option<Sha256>) -> Result<bool, FileFault> {
        if let Some(content) = self.get(file) {
            // Another model has it, which may not have said what it is.
            sha256.map_or(Ok(()), |expected| is_as(expected, Sha256::of(&content)))?;
            return Ok(self.shelf().note(model, file));
        }
        let unreadable = |error: std::io::Error| FileFault::Unreadable(error.to_string());
        let bytes = std::fs::metadata(file).map_err(unreadable)?.len();
        if !self.shelf().may_take(bytes) {
            return check(file, sha256).map(|()| false);
        }
        let read = std::fs::read(file).map_err(unreadable)?;
        sha256.map_or(Ok(()), |expected| is_as(expected, Sha256::of(&read)))?;
        let (name, is_whole) = ((read.len(), crc32fast::hash(&read)), is_whole_model(&read));
        let mut shelf = self.shelf();
        let is_here = shelf.knows(name, &read) || shelf.keep(name, read, is_whole);
        if is_here {
            shelf.put(file, name);
        }
        Ok(shelf.note(model, file))
    }
}

impl Shelf {
    /// Whether there is room for that, or what is here may be a copy of them.
    fn may_take(&self, bytes: u64) -> bool {
        bytes <= self.left_bytes || self.contents.keys().any(|&(length, _)| length as u64 == bytes)
    }

    fn content(&self, file: &Path) -> Option<Arc<[u8]>> {
        let name = self.files.get(file)?.what;
        Some(Arc::clone(&self.contents[&name].what))
    }

    /// The model has the file. False if it is not here any more.
    fn note(&mut self, model: ModelId, file: &Path) -> bool {
        let Some(here) = self.files.get_mut(file) else { return false };
        here.users += 1;
        self.models.entry(model).or_default().push(file.to_owned());
        true
    }

    fn knows(&self, name: Name, read: &[u8]) -> bool {
        self.contents.get(&name).is_some_and(|content| content.what[..] == *read)
    }

    /// True if there is room for it.
    fn keep(&mut self, name: Name, read: Vec<u8>, is_whole: bool) -> bool {
        let left_bytes = self.left_bytes.checked_sub(read.len() as u64);
        let Some(left_bytes) = left_bytes.filter(|_| is_whole) else { return false };
        if self.contents.contains_key(&name) {
            return false;
        }
        self.contents.insert(name, Used { what: Arc::from(read), users: 0 });
        self.left_bytes = left_bytes;
        true
    }

    /// The file has this content, which is here. Another loader may have put it there meanwhile.
    fn put(&mut self, file: &Path, name: Name) {
        if !self.files.contains_key(file) {
            self.contents.get_mut(&name).expect("kept").users += 1;
            self.files.insert(file.to_owned(), Used { what: name, users: 0 });
        }
    }

    /// What no other model has goes, and its bytes are free.
    fn remove(&mut self, model: ModelId) -> Vec<Arc<[u8]>> {
        let files = self.models.remove(&model).unwrap_or_default();
        files.iter().filter_map(|file| self.leave(file)).collect()
    }

    /// One of its models leaves the file. Returns the content if no file has it any more.
    fn leave(&mut self, file: &Path) -> Option<Arc<[u8]>> {
        let name = take_leave(&mut self.files, file)?;
        let content = take_leave(&mut self.contents, &name)?;
        self.left_bytes += name.0 as u64;
        Some(content)
    }
}

/// One user less; what had no other is gone from there.
fn take_leave<K, Q, T>(there: &mut BTreeMap<K, Used<T>>, key: &Q) -> Option<T>
where
    K: Ord + Borrow<Q>,
    Q: Ord + ?Sized,
{
    let used = there.get_mut(key).expect("it is there as long as it has users");
    used.users -= 1;
    if used.users > 0 {
        return None;
    }
    there.remove(key).map(|used| used.what)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use baton_topo::EngineSpec;

    use super::*;
    use crate::test_models::captured;

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

    /// A store, and which files it has taken for one model each; `None`: it was refused.
    fn filled(folder: &Path, left_bytes: u64) -> (Vec<Option<bool>>, HostStore) {
        let store = HostStore::default();
        store.shelf().left_bytes = left_bytes;
        let take = |(id, name): (u32, &str)| store.take(ModelId(id), &folder.join(name), None).ok();
        let taken = (0..).zip(["a", "b", "c", "d", "e", "a"]).map(take).collect();
        (taken, store)
    }

    #[test]
    fn copies_are_kept_once_and_what_is_no_whole_model_not_at_all() {
        let folder = folder("store-copies");
        let bytes = |name: &str| std::fs::metadata(folder.join(name)).expect("a file").len();
        let (taken, store) = filled(&folder, 10 << 20);
        let taken: Vec<bool> = taken.into_iter().flatten().collect();
        assert_eq!(taken, [true, true, true, false, true], "e is not there");
        let left_bytes = || store.shelf().left_bytes;
        assert_eq!(left_bytes(), (10 << 20) - bytes("a") - bytes("c"), "b is a copy of a");
        let same = |one: &str, other: &str| store.is_same(&folder.join(one), &folder.join(other));
        assert!(same("a", "b") && !same("a", "c") && !same("d", "d"), "d is not there");
        assert_eq!(store.get(&folder.join("a")).expect("taken").len() as u64, bytes("a"));
        std::fs::remove_dir_all(folder).expect("it is ours");
    }

    #[test]
    fn a_store_is_filled_with_the_files_of_its_models() {
        let folder = folder("store-filled");
        let file = folder.join("a");
        let mut model = ModelSpec { id: ModelId(5), ..captured(0) };
        if let EngineSpec::Onnx { file: of, .. } = &mut model.engine {
            of.clone_from(&file);
        }
        let store = HostStore::fill([&model, &captured(0)].into_iter(), 10 << 20);
        let bytes = std::fs::metadata(&file).expect("a file").len();
        assert_eq!(store.shelf().left_bytes, (10 << 20) - bytes, "the other one is not there");
        assert!(store.get(&file).is_some());
        std::fs::remove_dir_all(folder).expect("it is ours");
    }

    #[test]
    fn what_exceeds_the_budget_stays_in_its_file_and_smaller_ones_behind_it_still_fit() {
        let folder = folder("store-budget");
        let bytes = std::fs::metadata(folder.join("a")).expect("a file").len();
        let taken = |budget| filled(&folder, budget).0.into_iter().flatten().collect::<Vec<bool>>();
        assert_eq!(taken(bytes), [true, true, false, false, true]);
        assert_eq!(taken(bytes - 1), [false; 5]);
        let (_, full) = filled(&folder, bytes);
        let may_take = |bytes| full.shelf().may_take(bytes);
        assert!(may_take(bytes) && may_take(0), "it may be a copy");
        assert!(!may_take(bytes + 1), "it is not even read");
        std::fs::remove_dir_all(folder).expect("it is ours");
    }

    #[test]
    fn a_file_leaves_with_the_last_of_its_models_and_its_bytes_are_free() {
        let folder = folder("store-leave");
        let (_, store) = filled(&folder, 10 << 20);
        let has = || ["a", "b", "c"].map(|name| store.get(&folder.join(name)).is_some());
        assert!(store.remove(ModelId(0)).is_empty());
        assert_eq!(has(), [true; 3], "model 5 has a");
        store.remove(ModelId(5));
        assert_eq!(has(), [false, true, true]);
        let words = store.get(&folder.join("c")).expect("it is there").len() as u64;
        let digits = store.get(&folder.join("b")).expect("it is there").len() as u64;
        assert_eq!(store.shelf().left_bytes, (10 << 20) - words - digits, "b has a's content");
        (1..5).map(ModelId).for_each(|model| drop(store.remove(model)));
        assert_eq!((has(), store.shelf().left_bytes), ([false; 3], 10 << 20));
        let is_taken = store.take(ModelId(9), &folder.join("a"), None);
        assert_eq!(is_taken, Ok(true), "there is room again");
        std::fs::remove_dir_all(folder).expect("it is ours");
    }

    #[test]
    fn another_content_is_refused_whether_there_is_room_or_not_and_also_if_the_file_is_here() {
        let folder = folder("store-different");
        let (file, other) = (folder.join("a"), Sha256::of(b"another"));
        let found = Sha256::of_file(&file).expect("it can be read");
        let different = Err(FileFault::Different { expected: other, found });
        for budget in [10 << 20, 0] {
            let store = HostStore::default();
            store.shelf().left_bytes = budget;
            let take = |sha256| store.take(ModelId(1), &file, Some(sha256));
            assert_eq!((take(other), take(found)), (different.clone(), Ok(budget > 0)));
            assert_eq!(take(other), different, "it is the file of another model");
        }
        std::fs::remove_dir_all(folder).expect("it is ours");
    }
}
