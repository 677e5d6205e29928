//! What executes a batch: the kernel that answers with checksums, or a graph with memory of its own.

use crate::driver::{CudaError, DeviceBlock, DeviceMemory, Driver, RowsAt, Stream};
use crate::kernel::CHECKSUM_BYTES;

/// What executes a batch.
#[derive(Debug)]
pub enum Work<'a, G> {
    /// The kernel that answers with checksums, for as long as planned.
    Checksum,
    /// A graph.
    Graph(&'a Program<G>),
}

impl<G> Work<'_, G> {
    /// Bytes from one answer's beginning to the next's.
    pub(super) fn answer_stride(&self) -> usize {
        match self {
            Self::Checksum => CHECKSUM_BYTES,
            Self::Graph(program) => program.answer_stride,
        }
    }
}

/// A graph, and where it reads and writes.
#[derive(Debug)]
pub struct Program<G> {
    /// It executes as many rows as it was captured with, however many of them a batch has: rows do not depend on each other.
    pub graph: G,
    /// What it reads.
    pub inputs: Vec<Tensor>,
    /// What it writes.
    pub outputs: Vec<Tensor>,
    /// Bytes from one answer's beginning to the next's.
    pub answer_stride: usize,
}

/// A tensor of a graph: one row behind the other, with room for as many as the graph executes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Tensor {
    /// On the device.
    pub address: u64,
    /// Bytes of a row.
    pub row_bytes: usize,
    /// Where it begins in a row of the batch, or in an answer, bytes.
    pub offset: usize,
}

impl Tensor {
    fn place(&self) -> RowsAt {
        RowsAt { memory: DeviceMemory::At(self.address), offset: 0, stride: self.row_bytes }
    }

    fn within(&self, block: DeviceBlock, stride: usize) -> RowsAt {
        RowsAt { memory: DeviceMemory::Block(block), offset: self.offset, stride }
    }
}

impl<G> Program<G> {
    /// Brings `count` rows to where the graph reads, executes it, and takes what it wrote.
    pub(super) fn launch<D: Driver<Graph = G>>(
        &self,
        driver: &mut D,
        stream: Stream,
        (rows, stride): (DeviceBlock, usize),
        answers: DeviceBlock,
        count: u32,
    ) -> Result<(), CudaError> {
        for input in &self.inputs {
            let from = input.within(rows, stride);
            driver.copy_rows(stream, input.place(), from, input.row_bytes, count)?;
        }
        driver.launch_graph(stream, &self.graph)?;
        for output in &self.outputs {
            let to = output.within(answers, self.answer_stride);
            driver.copy_rows(stream, to, output.place(), output.row_bytes, count)?;
        }
        Ok(())
    }
}
