//! Whose memory a slab's inputs lie in.

use std::sync::Once;

use crate::memory::region::Region;

/// Whose memory the inputs lie in.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backing {
    /// This process's alone: what a network card registers, in huge pages where there are any.
    Private,
    /// A file in memory, which backends of this host may map once they have been given it
    /// ([`Transport::expose`](crate::Transport::expose)). Where the process may have no more open files, it is private memory
    /// after all, and the log says so.
    Shared,
}

impl Backing {
    /// Zeroed memory of at least `bytes` bytes; `None` if the machine does not give that much.
    pub(super) fn region(self, bytes: usize) -> Option<Region> {
        match self {
            Self::Private => Region::new(bytes),
            Self::Shared => Region::shared(bytes).or_else(|error| private(bytes, error)).ok(),
        }
    }
}

/// In place of a region that cannot be shared, if that is not for want of memory.
fn private(bytes: usize, error: rustix::io::Errno) -> Result<Region, rustix::io::Errno> {
    let region = Region::new(bytes).ok_or(error)?;
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        let remedy = "raise the limit of open files (`ulimit -n`): each model takes one";
        tracing::warn!(%error, remedy, "inputs of some models come over TCP, because their memory cannot be shared");
    });
    Ok(region)
}
