//! One batch slot on the device: its memory on both sides, its events, and the operations on them.

use baton_types::Nanos;

use super::{Job, Times, Work};
use crate::driver::{
    CudaError, DeviceBlock, DeviceMemory, Driver, Event, HostBlock, HostSource, Kernel, RowsAt,
    Stream,
};
use crate::kernel::{CHECKSUM_BYTES, header_bytes};

/// How large a batch may be.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Room {
    /// Bytes of all rows.
    pub row_bytes: usize,
    /// How many.
    pub rows: u32,
    /// Bytes of all answers.
    pub answer_bytes: usize,
}

impl Room {
    /// Of batches whose answers are checksums.
    pub fn of_checksums(rows: u32, row_bytes: usize) -> Self {
        Self { row_bytes, rows, answer_bytes: rows as usize * CHECKSUM_BYTES }
    }

    /// Room for either.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self {
            row_bytes: self.row_bytes.max(other.row_bytes),
            rows: self.rows.max(other.rows),
            answer_bytes: self.answer_bytes.max(other.answer_bytes),
        }
    }
}

/// How far a batch has come.
#[derive(Debug)]
pub(super) enum Stage {
    /// Its rows are on their way or there. Also: there is no batch.
    Prepared,
    /// Submitted, and not launched.
    Gated,
    /// Launched; when its end was seen.
    Launched { ended: Option<Nanos> },
    /// Submitted, and too late.
    Expired,
    /// Submitted, and not to be executed.
    Refused(String),
    /// The driver refused a call; nothing of it is under way.
    Failed(String),
}

/// Memory for a batch.
#[derive(Clone, Copy, Debug)]
struct Memory {
    rows: DeviceBlock,
    header: DeviceBlock,
    answers: DeviceBlock,
    host_header: HostBlock,
    host_answers: HostBlock,
    room: Room,
}

/// One batch slot.
#[derive(Debug)]
pub(super) struct Place<J> {
    pub(super) job: Option<J>,
    pub(super) stage: Stage,
    /// How long it is to execute.
    pub(super) time: Nanos,
    memory: Option<Memory>,
    /// The copy of the rows begins; has ended.
    coming: Event,
    here: Event,
    /// The execution begins; has ended. The end has two events in turn, so that the next batch's execution leaves the end of
    /// this one until the gap behind it is known.
    started: Event,
    done: [Event; 2],
    turn: usize,
    /// The copy of the answers has ended.
    back: Event,
}

impl<J> Place<J> {
    pub(super) fn new(driver: &mut impl Driver) -> Result<Self, CudaError> {
        Ok(Self {
            job: None,
            stage: Stage::Prepared,
            time: Nanos::ZERO,
            memory: None,
            coming: driver.event()?,
            here: driver.event()?,
            started: driver.event()?,
            done: [driver.event()?, driver.event()?],
            turn: 0,
            back: driver.event()?,
        })
    }

    /// Makes room, unless there is enough. Keeps what it had if there is no more.
    pub(super) fn reserve(
        &mut self,
        driver: &mut impl Driver,
        room: Room,
    ) -> Result<(), CudaError> {
        let has = self.memory.as_ref().map(|memory| memory.room);
        if has.is_some_and(|has| has.with(room) == has) {
            return Ok(());
        }
        let memory = Memory::allocate(driver, room)?;
        match self.memory.replace(memory) {
            Some(before) => before.free(driver),
            None => Ok(()),
        }
    }

    fn memory(&self) -> Memory {
        self.memory.expect("reserved when the pipeline was made")
    }

    pub(super) fn header_source(&self) -> HostSource {
        HostSource::Block(self.memory().host_header)
    }

    /// The header, unless it is empty, and the rows go to the device.
    pub(super) fn copy_in(
        &self,
        driver: &mut impl Driver,
        stream: Stream,
        header: &[u8],
        rows: HostSource,
        bytes: usize,
    ) -> Result<(), CudaError> {
        let memory = self.memory();
        if !header.is_empty() {
            driver.write(memory.host_header, header);
            driver.copy_in(stream, memory.header, self.header_source(), header.len())?;
        }
        driver.record(self.coming, stream)?;
        driver.copy_in(stream, memory.rows, rows, bytes)?;
        driver.record(self.here, stream)
    }

    /// Executes its batch once the rows are there.
    pub(super) fn execute<D: Driver>(
        &mut self,
        driver: &mut D,
        stream: Stream,
        kernel: Kernel,
    ) -> Result<(), CudaError>
    where
        J: Job<D::Graph>,
    {
        self.begin(driver, stream)?;
        let job = self.job.as_ref().expect("what is launched was prepared");
        let (count, memory) = (job.lens().len() as u32, self.memory());
        match job.work() {
            Work::Checksum => driver.launch(stream, kernel, count, &memory.arguments())?,
            Work::Graph(program) => {
                let rows = (memory.rows, job.stride() as usize);
                program.launch(driver, stream, rows, memory.answers, count)?;
            }
        }
        driver.record(self.done(), stream)
    }

    /// Executes the kernel for one row that is no batch's, and copies it on the device: what the driver loads when it is first
    /// used is there then.
    pub(super) fn execute_row(
        &mut self,
        driver: &mut impl Driver,
        stream: Stream,
        kernel: Kernel,
    ) -> Result<(), CudaError> {
        self.begin(driver, stream)?;
        let memory = self.memory();
        driver.launch(stream, kernel, 1, &memory.arguments())?;
        let at = |block| RowsAt { memory: DeviceMemory::Block(block), offset: 0, stride: 1 };
        driver.copy_rows(stream, at(memory.rows), at(memory.header), 1, 1)?;
        driver.record(self.done(), stream)
    }

    fn begin(&mut self, driver: &mut impl Driver, stream: Stream) -> Result<(), CudaError> {
        self.turn = 1 - self.turn;
        driver.wait(stream, self.here)?;
        driver.record(self.started, stream)
    }

    /// The end of its execution.
    pub(super) fn done(&self) -> Event {
        self.done[self.turn]
    }

    /// The answers come back once the execution has ended.
    pub(super) fn copy_out(
        &self,
        driver: &mut impl Driver,
        stream: Stream,
        bytes: usize,
    ) -> Result<(), CudaError> {
        let memory = self.memory();
        driver.wait(stream, self.done())?;
        driver.copy_out(stream, memory.host_answers, memory.answers, bytes)?;
        driver.record(self.back, stream)
    }

    pub(super) fn is_here(&self, driver: &mut impl Driver) -> Result<bool, CudaError> {
        driver.has_ended(self.here)
    }

    pub(super) fn is_done(&self, driver: &mut impl Driver) -> Result<bool, CudaError> {
        driver.has_ended(self.done())
    }

    pub(super) fn is_back(&self, driver: &mut impl Driver) -> Result<bool, CudaError> {
        driver.has_ended(self.back)
    }

    /// Once the answers are back. `before`: the end of the execution before.
    pub(super) fn times(
        &self,
        driver: &mut impl Driver,
        before: Option<Event>,
    ) -> Result<Times, CudaError> {
        Ok(Times {
            copy_in: driver.elapsed(self.coming, self.here)?,
            waited: driver.elapsed(self.here, self.started)?,
            execution: driver.elapsed(self.started, self.done())?,
            copy_out: driver.elapsed(self.done(), self.back)?,
            gap: before.map(|done| driver.elapsed(done, self.started)).transpose()?,
        })
    }

    /// The beginning of the answers, which are back.
    pub(super) fn read(&self, driver: &mut impl Driver, into: &mut [u8]) {
        driver.read(self.memory().host_answers, into);
    }

    /// Bytes of its batch's answers.
    pub(super) fn answer_bytes<G>(&self) -> usize
    where
        J: Job<G>,
    {
        self.job.as_ref().map_or(0, |job| job.lens().len() * job.work().answer_stride())
    }

    /// Hands the answers, which are back, to the batch.
    pub(super) fn take_answers<D: Driver>(&mut self, driver: &mut D, scratch: &mut Vec<u8>)
    where
        J: Job<D::Graph>,
    {
        scratch.resize(self.answer_bytes(), 0);
        self.read(driver, scratch);
        if let Some(job) = &mut self.job {
            job.take(scratch);
        }
    }
}

impl Memory {
    /// All of it or nothing.
    fn allocate(driver: &mut impl Driver, room: Room) -> Result<Self, CudaError> {
        let (mut device, mut host) = (Vec::new(), Vec::new());
        let (header, answers) = (header_bytes(room.rows), room.answer_bytes);
        let made = Self::allocate_all(driver, room, (header, answers), (&mut device, &mut host));
        if made.is_err() {
            // The error that counts is the one of the allocation.
            device.into_iter().for_each(|block| drop(driver.free(block)));
            host.into_iter().for_each(|block| drop(driver.free_host(block)));
        }
        made
    }

    fn allocate_all(
        driver: &mut impl Driver,
        room: Room,
        (header, answers): (usize, usize),
        (device, host): (&mut Vec<DeviceBlock>, &mut Vec<HostBlock>),
    ) -> Result<Self, CudaError> {
        // Room for a header at least, which is tried out as a row.
        for bytes in [room.row_bytes.max(header), header, answers] {
            device.push(driver.allocate(bytes)?);
        }
        for bytes in [header, answers] {
            host.push(driver.allocate_host(bytes)?);
        }
        Ok(Self {
            rows: device[0],
            header: device[1],
            answers: device[2],
            host_header: host[0],
            host_answers: host[1],
            room,
        })
    }

    /// Of the kernel.
    fn arguments(&self) -> [DeviceBlock; 3] {
        [self.rows, self.header, self.answers]
    }

    fn free(self, driver: &mut impl Driver) -> Result<(), CudaError> {
        driver.free(self.rows)?;
        driver.free(self.header)?;
        driver.free(self.answers)?;
        driver.free_host(self.host_header)?;
        driver.free_host(self.host_answers)
    }
}
