//! Where a run keeps its cluster file and its children's logs.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use super::error::ProcessError;

/// What a cluster file says of a network that is this host's.
pub(crate) const ONE_HOST: &str = "\
# Processes share what may be two cores: plan with timers that run late.
[network]
jitter_us = 2000
response_us = 2000
";

/// A folder of this run's own, removed at the end.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    keep: bool,
}

/// A cluster file that was written for children.
#[derive(Debug)]
pub(crate) struct ClusterFile {
    /// The file.
    pub(crate) path: PathBuf,
    /// Names of the backends in it.
    pub(crate) backends: Vec<String>,
}

impl Folder {
    /// A new one; `keep` leaves it behind.
    pub(crate) fn create(keep: bool) -> Result<Self, ProcessError> {
        let path = std::env::temp_dir().join(format!("baton-demo-{}", std::process::id()));
        let folder = Self { path, keep };
        fs::create_dir_all(&folder.path).map_err(|source| folder.error(source))?;
        Ok(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a file into it.
    pub(crate) fn write(&self, name: &str, content: &[u8]) -> Result<PathBuf, ProcessError> {
        let file = self.path.join(name);
        fs::write(&file, content).map_err(|source| self.error(source))?;
        Ok(file)
    }

    /// Writes the cluster file, in which there are these backends.
    pub(crate) fn write_cluster(
        &self,
        text: &str,
        backends: Vec<String>,
    ) -> Result<ClusterFile, ProcessError> {
        Ok(ClusterFile { path: self.write("cluster.toml", text.as_bytes())?, backends })
    }

    fn error(&self, source: io::Error) -> ProcessError {
        ProcessError::Folder { dir: self.path.clone(), source }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if self.keep {
            return;
        }
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(folder = %self.path.display(), %error, "could not be removed");
        }
    }
}
