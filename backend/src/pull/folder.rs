//! The folder of pulled model files, each named by its SHA-256.
//!
//! A file is there whole and right, or it is not there. What no model needs any more stays for the next start, and goes,
//! what was pulled longest ago first, when there is no room for another one.

use std::collections::BTreeSet;
use std::fs::{self, File, TryLockError};
use std::io::{self, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use baton_topo::{ModelFolderSpec, Sha256, pulled_file};

use super::server::{Download, Patience, Resumed};
use super::{GiveUp, PullError};

/// Protocol Buffers allow no more in one message, so no ONNX file is longer.
const FILE_BYTES_MAX: u64 = 2 << 30;
const PATIENCE: Patience = Patience {
    step: Duration::from_secs(15),
    whole: Duration::from_secs(1800),
    pause: Duration::from_millis(500),
};
/// A file that is not whole yet ends so.
const PART: &str = "part";

/// See the module documentation.
#[derive(Debug)]
pub struct ModelFolder {
    path: PathBuf,
    /// What the files may take together.
    bytes_max: u64,
    ca: Option<PathBuf>,
    patience: Patience,
    /// Locked as long as this process lives: the files are its own.
    _lock: File,
}

/// A file that is in the folder.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Pulled {
    /// Where.
    pub path: PathBuf,
    /// What came from the server; 0: it was there.
    pub bytes: u64,
}

/// Where a backend of this name keeps its files.
///
/// # Errors
/// The cluster file does not say, and this user has no folder for caches.
pub(super) fn path_of(spec: &ModelFolderSpec, backend: &str) -> Result<PathBuf, PullError> {
    let of =
        |variable: &str| std::env::var_os(variable).filter(|v| !v.is_empty()).map(PathBuf::from);
    let cache = || of("XDG_CACHE_HOME").or_else(|| Some(of("HOME")?.join(".cache")));
    let usual = || Some(cache()?.join("baton").join(backend));
    spec.path.clone().or_else(usual).ok_or(PullError::NoFolder)
}

impl ModelFolder {
    /// Makes the folder if it is not there, and takes it for this process.
    ///
    /// # Errors
    /// It cannot be made or written, or another process has it.
    pub fn open(path: PathBuf, spec: &ModelFolderSpec) -> Result<Self, PullError> {
        Self::open_with(path, spec, PATIENCE)
    }

    fn open_with(
        path: PathBuf,
        spec: &ModelFolderSpec,
        patience: Patience,
    ) -> Result<Self, PullError> {
        let failed = |source| disk(&path, &source);
        fs::create_dir_all(&path).map_err(failed)?;
        let lock = File::create(path.join("lock")).map_err(failed)?;
        lock.try_lock().map_err(|error| match error {
            TryLockError::WouldBlock => PullError::Taken { folder: path.clone() },
            TryLockError::Error(error) => disk(&path, &error),
        })?;
        for (file, _, _) in files(&path, PART)? {
            fs::remove_file(file).map_err(failed)?;
        }
        let (bytes_max, ca) = (spec.bytes, spec.ca.clone());
        Ok(Self { path, bytes_max, ca, patience, _lock: lock })
    }

    /// Sees to it that the file is here. With `expected`, one that is here already is read and compared, and not pulled again.
    /// Files of `in_use` stay. Blocks as long as that takes, or until `give_up` is set.
    ///
    /// # Errors
    /// It could not be pulled, is another one, or there is no room for it. Nothing of it is left then.
    pub fn pull(
        &self,
        url: &str,
        expected: Option<Sha256>,
        in_use: &BTreeSet<PathBuf>,
        give_up: &GiveUp,
    ) -> Result<Pulled, PullError> {
        if let Some(path) = expected.and_then(|sha256| self.kept(sha256)) {
            return Ok(Pulled { path, bytes: 0 });
        }
        let download = Download::begin(url, self.ca.as_deref(), self.patience)?;
        let bytes = download.bytes;
        if bytes > FILE_BYTES_MAX {
            return Err(PullError::TooLarge { url: url.to_owned(), bytes });
        }
        self.make_room(bytes, in_use)?;
        let part = Part::new(&self.path)?;
        part.write(download, expected.is_some(), give_up)?;
        let found = Sha256::of_file(&part.path).map_err(|error| disk(&part.path, &error))?;
        if let Some(expected) = expected.filter(|expected| *expected != found) {
            return Err(PullError::Different { url: url.to_owned(), expected, found });
        }
        if give_up.is_set() {
            return Err(PullError::GivenUp);
        }
        let path = pulled_file(&self.path, found);
        fs::rename(&part.path, &path).map_err(|error| disk(&path, &error))?;
        Ok(Pulled { path, bytes })
    }

    /// The file, if it is here and what it should be.
    fn kept(&self, sha256: Sha256) -> Option<PathBuf> {
        let path = pulled_file(&self.path, sha256);
        let found = Sha256::of_file(&path).ok()?;
        if found != sha256 {
            tracing::warn!(file = %path.display(), "it has changed since it was pulled; pulling it again");
            return None;
        }
        Some(path)
    }

    /// Removes what is not in use, what was pulled longest ago first, until there is room for this many bytes more.
    fn make_room(&self, bytes: u64, in_use: &BTreeSet<PathBuf>) -> Result<(), PullError> {
        let mut here = files(&self.path, "onnx")?;
        here.sort_by_key(|&(_, _, written)| written);
        let mut taken: u64 = here.iter().map(|(_, bytes, _)| bytes).sum();
        for (file, size, _) in here.into_iter().filter(|(file, _, _)| !in_use.contains(file)) {
            if taken + bytes <= self.bytes_max {
                break;
            }
            tracing::info!(file = %file.display(), "removed: no model has it, and another one needs its room");
            fs::remove_file(&file).map_err(|error| disk(&file, &error))?;
            taken -= size;
        }
        let free_bytes = self.bytes_max.saturating_sub(taken);
        match bytes <= free_bytes {
            true => Ok(()),
            false => {
                let folder = self.path.clone();
                Err(PullError::Full { folder, needs_bytes: bytes, free_bytes })
            }
        }
    }
}

/// A file that is not whole yet. It goes when this does.
struct Part {
    path: PathBuf,
    file: File,
}

impl Part {
    fn new(folder: &Path) -> Result<Self, PullError> {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("{number}.{PART}"));
        let file = File::create(&path).map_err(|error| disk(&path, &error))?;
        Ok(Self { path, file })
    }

    /// `is_known`: the whole will be compared with what it should be.
    fn write(
        &self,
        mut download: Download,
        is_known: bool,
        give_up: &GiveUp,
    ) -> Result<(), PullError> {
        let mut file = &self.file;
        let failed = |error| disk(&self.path, &error);
        loop {
            let received = download.receive(|piece| {
                if give_up.is_set() {
                    return Err(PullError::GivenUp);
                }
                file.write_all(piece).map_err(failed)
            });
            let Err(cut @ PullError::Cut { .. }) = received else { return received };
            if download.resume(cut, is_known, give_up)? == Resumed::Anew {
                file.set_len(0).map_err(failed)?;
                file.rewind().map_err(failed)?;
            }
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        // It has another name once it is whole.
        if let Err(error) = fs::remove_file(&self.path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(file = %self.path.display(), %error, "it cannot be removed");
        }
    }
}

/// The folder's files with this ending: path, size, when it was written.
fn files(folder: &Path, ending: &str) -> Result<Vec<(PathBuf, u64, SystemTime)>, PullError> {
    let failed = |error| disk(folder, &error);
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.extension().is_some_and(|e| e == ending) {
            let about = fs::metadata(&path).map_err(failed)?;
            found.push((path, about.len(), about.modified().map_err(failed)?));
        }
    }
    Ok(found)
}

fn disk(path: &Path, error: &io::Error) -> PullError {
    PullError::Disk { path: path.to_owned(), problem: error.to_string() }
}

#[cfg(test)]
#[path = "folder_tests.rs"]
mod tests;

#[cfg(test)]
#[path = "resume_tests.rs"]
mod resume_tests;
