//! Whose memory a slab's inputs lie in.

use std::sync::Once;

use crate::memory::region::Region;
use crate::memory::slab::SlabSet;

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

impl SlabSet {
    /// Lets the kernel give the pages of at most `most` bytes of inputs now, those from byte `from` on. `from` is a sum of what
    /// earlier calls returned, and `most` whole pages. Returns how many bytes these were; 0: there are none left, or the kernel has no more pages.
    pub fn prefault(&self, from: usize, most: usize) -> usize {
        let mut before = from;
        for slab in &self.slabs {
            let left = slab.inputs.bytes().saturating_sub(before);
            if left > 0 {
                let len = left.min(most);
                return slab.inputs.prefault(before, len).map_or(0, |()| len);
            }
            before -= slab.inputs.bytes();
        }
        0
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::slab::SlabSpec;

    #[test]
    fn pages_come_ahead_in_the_order_of_the_slabs_until_there_are_none_left() {
        let spec = |model, slots| SlabSpec {
            model: baton_types::ModelId(model),
            slots,
            input_bytes: 4_000,
            output_bytes: 8,
        };
        let specs = [spec(0, 10), spec(1, 1), spec(2, 5)];
        let set = SlabSet::new_at(0, &specs, 0, Backing::Shared).unwrap();
        let bytes: Vec<usize> = set.inputs().map(|(_, region)| region.bytes()).collect();
        let resident = |set: &SlabSet| -> Vec<usize> {
            let blocks =
                |region: &Region| rustix::fs::fstat(region.file().unwrap()).unwrap().st_blocks;
            set.inputs().map(|(_, region)| blocks(region) as usize * 512).collect()
        };
        assert_eq!(resident(&set), [0, 0, 0]);
        let (mut from, mut steps) = (0, Vec::new());
        while let got @ 1.. = set.prefault(from, 5 * 4_096) {
            (from, steps) = (from + got, [steps, vec![got]].concat());
            assert_eq!(resident(&set).iter().sum::<usize>(), from, "these and no others");
        }
        assert_eq!(resident(&set), bytes, "{steps:?}");
        assert!(steps.iter().all(|step| *step <= 5 * 4_096), "{steps:?}");
        assert_eq!(set.prefault(from, 4_096), 0);
    }
}
