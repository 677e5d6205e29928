//! Where a host is read from: `/`, or a tree recorded from another host.

use std::cmp::Ordering;
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// No file read here is longer; one that is has no business in such a tree.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// The root of `/sys` and `/proc`.
#[derive(Clone, Debug)]
pub struct Sysroot {
    /// Without links, so that whatever leads out of it is noticed.
    root: PathBuf,
}

/// Why a folder cannot serve as root.
#[derive(Debug, thiserror::Error)]
pub enum SysrootError {
    /// It cannot be opened.
    #[error("{path}: {source}; give the root of a recorded tree, or leave --sysroot out")]
    Unreadable {
        /// The folder.
        path: PathBuf,
        /// The system's words.
        source: io::Error,
    },
    /// It is not the tree of a host.
    #[error(
        "{path} holds neither sys/ nor proc/; give the root of a recorded tree, or leave --sysroot out"
    )]
    Empty {
        /// The folder.
        path: PathBuf,
    },
}

/// Something that is there but could not be read.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("could not read {path}: {why}")]
pub struct Unread {
    /// What was asked for, as on the host itself.
    pub path: String,
    /// What went wrong.
    pub why: String,
}

impl Sysroot {
    /// The tree below `dir`.
    ///
    /// # Errors
    /// The folder does not exist, or holds neither `sys` nor `proc`.
    pub fn open(dir: &Path) -> Result<Self, SysrootError> {
        let root = fs::canonicalize(dir)
            .map_err(|source| SysrootError::Unreadable { path: dir.into(), source })?;
        let any = ["sys", "proc"].iter().any(|name| root.join(name).is_dir());
        if any { Ok(Self { root }) } else { Err(SysrootError::Empty { path: dir.into() }) }
    }

    /// True if it is this host's own.
    pub fn is_this_host(&self) -> bool {
        self.root == Path::new("/")
    }

    /// True if there is something at `path`.
    pub fn has(&self, path: &str) -> bool {
        matches!(self.locate(path), Ok(Some(_)))
    }

    /// A file's text without the white space around it; `None` if the file does not exist.
    ///
    /// # Errors
    /// It is there and cannot be read.
    pub fn text(&self, path: &str) -> Result<Option<String>, Unread> {
        let Some(at) = self.locate(path)? else { return Ok(None) };
        // A pipe would block, and nothing of a host's tree is one.
        if !at.is_file() {
            return Err(unread(path, "it is not a file"));
        }
        let mut bytes = Vec::new();
        File::open(at)
            .and_then(|file| file.take(FILE_BYTES_MAX).read_to_end(&mut bytes))
            .map_err(|error| unread(path, &error))?;
        Ok(Some(String::from_utf8_lossy(&bytes).trim().to_owned()))
    }

    /// As [`Sysroot::text`]; no such file is an error too.
    ///
    /// # Errors
    /// It is not there, or cannot be read.
    pub fn needed(&self, path: &str) -> Result<String, Unread> {
        self.text(path)?.ok_or_else(|| unread(path, "there is no such file"))
    }

    /// A file that holds one value; `None` if the file does not exist.
    ///
    /// # Errors
    /// It is there and cannot be read, or holds something else.
    pub fn value<T: FromStr>(&self, path: &str) -> Result<Option<T>, Unread> {
        let Some(text) = self.text(path)? else { return Ok(None) };
        let parsed = text.parse().ok();
        parsed.map(Some).ok_or_else(|| unread(path, &format!("`{text}` was not expected there")))
    }

    /// The names in a folder, numbers in them by size; none if the folder does not exist.
    ///
    /// # Errors
    /// It is there and cannot be listed.
    pub fn names(&self, path: &str) -> Result<Vec<String>, Unread> {
        let Some(at) = self.locate(path)? else { return Ok(Vec::new()) };
        let entries = fs::read_dir(at).map_err(|error| unread(path, &error))?;
        let mut names: Vec<String> =
            entries.flatten().map(|entry| entry.file_name().to_string_lossy().into()).collect();
        names.sort_by(|a, b| natural(a, b));
        Ok(names)
    }

    /// Where `path` leads with all links followed, as on the host itself; `None` if nowhere.
    pub fn resolved(&self, path: &str) -> Option<String> {
        let at = self.locate(path).ok()??;
        Some(format!("/{}", at.strip_prefix(&self.root).ok()?.display()))
    }

    fn locate(&self, path: &str) -> Result<Option<PathBuf>, Unread> {
        match fs::canonicalize(self.root.join(path.trim_start_matches('/'))) {
            Ok(at) if at.starts_with(&self.root) => Ok(Some(at)),
            Ok(_) => Err(unread(path, "it leads out of the tree")),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(unread(path, &error)),
        }
    }
}

fn unread(path: &str, why: &(impl ToString + ?Sized)) -> Unread {
    Unread { path: path.to_owned(), why: why.to_string() }
}

/// `mlx5_2` before `mlx5_10`.
fn natural(a: &str, b: &str) -> Ordering {
    let parts = |name: &str| -> (String, Option<u64>) {
        let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let (stem, number) = name.split_at(name.len() - digits);
        (stem.to_owned(), number.parse().ok())
    };
    parts(a).cmp(&parts(b)).then_with(|| a.cmp(b))
}
