//! Where the memory of batches comes from.

use std::sync::Arc;

use baton_rdma::{BatchBuffer, NoMemory};

use super::Outputs;

/// Gives out the memory of batch slots. An engine makes one on its thread, because only it knows which memory its device
/// copies from fastest; the I/O thread asks it, at the start and when a larger model comes.
///
/// What is given out may outlive the engine: whatever it needs in order to be given back belongs inside it.
pub trait BatchMemory: Send + std::fmt::Debug {
    /// Rows of inputs, `bytes` in all. READs land there, so a transport must be able to register it.
    ///
    /// # Errors
    /// The machine does not give that much.
    fn inputs(&self, bytes: usize) -> Result<Arc<BatchBuffer>, NoMemory>;

    /// Room for the answers to `rows` inputs, `bytes` in all.
    ///
    /// # Errors
    /// The machine does not give that much.
    fn outputs(&self, rows: u32, bytes: usize) -> Result<Outputs, NoMemory>;
}

/// Plain memory of this process, for engines that read and write it themselves.
#[derive(Clone, Copy, Default, Debug)]
pub struct HostMemory;

impl BatchMemory for HostMemory {
    fn inputs(&self, bytes: usize) -> Result<Arc<BatchBuffer>, NoMemory> {
        BatchBuffer::new(bytes)
    }

    fn outputs(&self, rows: u32, bytes: usize) -> Result<Outputs, NoMemory> {
        Outputs::with_room(rows, bytes).ok_or(NoMemory { bytes })
    }
}
