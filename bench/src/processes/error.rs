//! Why there are no children.

use std::io;
use std::path::PathBuf;

/// A child, or what it needs, could not be had.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The folder or the files in it.
    #[error("{}: {source}", dir.display())]
    Folder {
        /// The folder.
        dir: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
    /// A process could not be started or waited for.
    #[error("{name}: {source}")]
    Process {
        /// Its name.
        name: String,
        /// The system's answer.
        source: io::Error,
    },
    /// A process ended instead of coming up.
    #[error("{name} ended before it was up ({status}); its log ends:\n{log}")]
    NotUp {
        /// Its name.
        name: String,
        /// How it ended.
        status: String,
        /// The end of its log.
        log: String,
    },
    /// A step took too long.
    #[error("{name} was not done within {seconds} s; its log ends:\n{log}")]
    Timeout {
        /// The process.
        name: String,
        /// The bound.
        seconds: u64,
        /// The end of its log.
        log: String,
    },
    /// The user asked for an end before there was load.
    #[error("interrupted")]
    Interrupted,
}
