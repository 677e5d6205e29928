//! Batches on their way through a device, ordered by events alone.
//!
//! ```text
//!   stream in    rows of n+1 ──here──┐
//!   stream run   execution of n ─────┴─▶ execution of n+1 ──done──┐
//!   stream out   answers of n                                     └─▶ answers of n+1 ──back──▶ the host
//! ```
//! Each batch slot has memory of its own on both sides, so a copy waits for no other batch. What orders the operations:
//!
//! | after | comes | by |
//! |---|---|---|
//! | the copy of a batch's rows | its execution | the run stream waits for `here` |
//! | its execution | the copy of its answers | the out stream waits for `done` |
//! | the copy of its answers | they are read, and the batch comes back | the host sees the end of `back` |
//! | the copy of its rows | a batch that was not executed comes back | the host sees the end of `here` |
//!
//! The next batch is launched behind the one that executes if that should end in time for it. Otherwise it is held at the
//! *gate* until the end is seen, because a launch cannot be taken back. For the same reason no batch is launched before its
//! rows are there: it would start when they come, however late that is.
//!
//! The host never waits, but after an error: then for all streams, so that nothing is under way that is not accounted for.
//! A device on which nothing ends for [`PATIENCE`] is lost, and its batches never come back: it may still read their rows.

mod batch;
mod place;
mod work;

use std::collections::VecDeque;

use baton_types::Nanos;

use crate::driver::{CudaError, Driver, Event, Kernel, Lane, Stream};
use crate::kernel::{CHECKSUM, CHECKSUM_BYTES, header};
pub use batch::{Back, End, Job, Times};
pub use place::Room;
use place::{Place, Stage};
pub use work::{Program, Tensor, Work};

/// Executions that may be on the device: one, and one behind it.
const LAUNCHED_MAX: usize = 2;
/// How much longer than planned an execution may last before the device counts as lost.
pub const PATIENCE: Nanos = Nanos::from_millis(10_000);
/// `CUDA_ERROR_LAUNCH_TIMEOUT`.
const LAUNCH_TIMEOUT: i32 = 702;

/// The batches of one device, by batch slot.
pub struct Pipeline<D: Driver, J: Job<D::Graph>> {
    driver: D,
    kernel: Kernel,
    /// By [`Lane`].
    streams: [Stream; 3],
    places: Vec<Place<J>>,
    /// Batch slots, as they were submitted.
    submitted: VecDeque<usize>,
    withdrawn: VecDeque<usize>,
    room: Room,
    /// When what was launched should have ended.
    free_at: Nanos,
    /// When the last execution was seen to have ended.
    ended_at: Nanos,
    /// Its end, by the device's clock.
    last_done: Option<Event>,
    /// Set once every call fails, or nothing ends any more.
    lost: Option<CudaError>,
    /// Nothing ends any more: what is under way may still read rows.
    is_hung: bool,
    scratch: Vec<u8>,
}

impl<D: Driver, J: Job<D::Graph>> Pipeline<D, J> {
    /// Batch slots without memory, and the kernel.
    ///
    /// # Errors
    /// The driver's.
    pub fn new(mut driver: D, slots: usize) -> Result<Self, CudaError> {
        let streams = [Lane::In, Lane::Run, Lane::Out].map(|lane| driver.stream(lane));
        let [Ok(rows), Ok(run), Ok(out)] = streams else {
            return Err(streams.into_iter().find_map(Result::err).expect("one is an error"));
        };
        let kernel = driver.load(&CHECKSUM)?;
        let places = (0..slots).map(|_| Place::new(&mut driver)).collect::<Result<_, _>>()?;
        let (submitted, withdrawn) =
            (VecDeque::with_capacity(slots), VecDeque::with_capacity(slots));
        let (free_at, ended_at, room) = (Nanos::ZERO, Nanos::ZERO, Room::default());
        let (lost, is_hung, last_done, scratch) = (None, false, None, Vec::new());
        let streams = [rows, run, out];
        let mut pipeline = Self {
            driver,
            kernel,
            streams,
            places,
            submitted,
            withdrawn,
            room,
            free_at,
            ended_at,
            last_done,
            lost,
            is_hung,
            scratch,
        };
        pipeline.reserve(Room::of_checksums(1, 0))?;
        Ok(pipeline)
    }

    /// The driver.
    pub fn driver(&self) -> &D {
        &self.driver
    }

    /// The driver, for what has nothing to do with batches.
    pub fn driver_mut(&mut self) -> &mut D {
        &mut self.driver
    }

    /// The batch in a batch slot.
    pub fn job(&self, slot: usize) -> Option<&J> {
        self.places[slot].job.as_ref()
    }

    /// Every batch slot has room for such batches from now on; one that holds a batch, from the next one on.
    ///
    /// # Errors
    /// The driver's. Batch slots keep the room that they had.
    pub fn reserve(&mut self, room: Room) -> Result<(), CudaError> {
        let room = self.room.with(room);
        for place in &mut self.places {
            if place.job.is_none() {
                place.reserve(&mut self.driver, room)?;
            }
        }
        self.room = room;
        Ok(())
    }

    /// Executes one row and returns it with its answer. Waits for the device; call while no batch is here.
    ///
    /// # Errors
    /// The driver's.
    pub fn try_out(&mut self) -> Result<(Vec<u8>, [u8; CHECKSUM_BYTES]), CudaError> {
        header(0, 20, &[20], &mut self.scratch);
        let [input, run, output] = self.streams;
        let (place, driver) = (&mut self.places[0], &mut self.driver);
        place.copy_in(driver, input, &self.scratch, place.header_source(), self.scratch.len())?;
        place.execute_row(driver, run, self.kernel)?;
        place.copy_out(driver, output, CHECKSUM_BYTES)?;
        self.streams.iter().try_for_each(|&stream| driver.synchronize(stream))?;
        let mut answer = [0; CHECKSUM_BYTES];
        place.read(driver, &mut answer);
        Ok((self.scratch.clone(), answer))
    }

    /// Begins to copy a batch's rows to the device. It is to execute for as long as `time`.
    pub fn prepare(&mut self, slot: usize, job: J, time: Nanos) {
        let place = &mut self.places[slot];
        debug_assert!(place.job.is_none(), "a batch slot holds one batch");
        (place.stage, place.time) = (Stage::Prepared, time);
        if let Some(error) = &self.lost {
            place.stage = Stage::Failed(error.to_string());
            place.job = Some(job);
            return;
        }
        let (driver, stream) = (&mut self.driver, self.streams[0]);
        let copied = Self::bring(driver, stream, place, &job, self.room, &mut self.scratch);
        place.job = Some(job);
        if let Err(error) = copied {
            self.fail(slot, error);
        }
    }

    fn bring(
        driver: &mut D,
        stream: Stream,
        place: &mut Place<J>,
        job: &J,
        room: Room,
        scratch: &mut Vec<u8>,
    ) -> Result<(), CudaError> {
        let bytes = job.stride() as usize * job.lens().len();
        let (rows, work) = (job.lens().len(), job.work());
        let answer_bytes = rows * work.answer_stride();
        let needed = Room { row_bytes: bytes, rows: rows as u32, answer_bytes };
        place.reserve(driver, room.with(needed))?;
        match work {
            Work::Checksum => header(place.time.0, job.stride(), job.lens(), scratch),
            Work::Graph(_) => scratch.clear(),
        }
        place.copy_in(driver, stream, scratch, job.rows(), bytes)
    }

    /// A prepared batch executes next, behind what was submitted before.
    pub fn submit(&mut self, slot: usize, now: Nanos) {
        self.submitted.push_back(slot);
        if matches!(self.places[slot].stage, Stage::Prepared) {
            self.places[slot].stage = Stage::Gated;
        }
        self.advance(now);
    }

    /// As [`Pipeline::submit`], of a batch that cannot be executed: it comes back in its turn, for this reason.
    pub fn refuse(&mut self, slot: usize, problem: String) {
        self.submitted.push_back(slot);
        let place = &mut self.places[slot];
        if matches!(place.stage, Stage::Prepared) {
            place.stage = Stage::Refused(problem);
        }
    }

    /// A prepared batch comes back as soon as its rows are not read.
    pub fn withdraw(&mut self, slot: usize) {
        self.withdrawn.push_back(slot);
    }

    /// Whether something is here that will come back without another call.
    pub fn is_busy(&self) -> bool {
        !self.submitted.is_empty() || !self.withdrawn.is_empty()
    }

    /// The error after which nothing more can be executed by this process. What has not come back when [`Pipeline::poll`]
    /// returns nothing then, never will.
    pub fn lost(&self) -> Option<&CudaError> {
        self.lost.as_ref()
    }

    /// The next batch that comes back.
    pub fn poll(&mut self, now: Nanos) -> Option<Back<J>> {
        self.see_ends(now);
        self.advance(now);
        if let Some(back) = self.poll_withdrawn() {
            return Some(back);
        }
        let slot = *self.submitted.front()?;
        let end = match &self.places[slot].stage {
            Stage::Launched { ended: Some(at) } => self.finish(slot, *at)?,
            Stage::Expired => self.copied(slot)?.map_or_else(End::Failed, |()| End::Expired),
            Stage::Refused(problem) => {
                let problem = problem.clone();
                let _ = self.copied(slot)?;
                End::Failed(problem)
            }
            Stage::Failed(problem) => End::Failed(problem.clone()),
            Stage::Prepared | Stage::Gated | Stage::Launched { ended: None } => return None,
        };
        self.submitted.pop_front();
        Some(self.give_back(slot, end))
    }

    fn poll_withdrawn(&mut self) -> Option<Back<J>> {
        let slot = *self.withdrawn.front()?;
        // However that went: nothing reads its rows.
        let _ = self.copied(slot)?;
        self.withdrawn.pop_front();
        Some(self.give_back(slot, End::Withdrawn))
    }

    fn give_back(&mut self, slot: usize, end: End) -> Back<J> {
        let place = &mut self.places[slot];
        place.stage = Stage::Prepared;
        let job = place.job.take().expect("what is submitted or withdrawn was prepared");
        Back { slot, job, end }
    }

    /// Notes which executions have ended.
    fn see_ends(&mut self, now: Nanos) {
        for index in 0..self.submitted.len() {
            let slot = self.submitted[index];
            match self.places[slot].stage {
                Stage::Launched { ended: None } => {}
                Stage::Gated | Stage::Prepared => return,
                _ => continue,
            }
            match self.places[slot].is_done(&mut self.driver) {
                Ok(false) => return self.give_up_if_hung(now),
                Ok(true) => {
                    self.places[slot].stage = Stage::Launched { ended: Some(now) };
                    self.free_at = now + self.running().fold(Nanos::ZERO, |sum, time| sum + time);
                }
                Err(error) => self.fail(slot, error),
            }
        }
    }

    /// Something should have ended.
    fn give_up_if_hung(&mut self, now: Nanos) {
        if now > self.free_at + PATIENCE {
            let seconds = PATIENCE.0 / 1_000_000_000;
            let name = format!("an execution has not ended {seconds} s after it should have");
            let error = CudaError { call: "cuEventQuery", code: LAUNCH_TIMEOUT, name };
            self.lost.get_or_insert(error);
            self.is_hung = true;
            self.driver.abandon();
        }
    }

    /// What each execution takes that was launched and has not been seen to end.
    fn running(&self) -> impl Iterator<Item = Nanos> + '_ {
        let places = self.submitted.iter().map(|&slot| &self.places[slot]);
        places
            .filter(|place| matches!(place.stage, Stage::Launched { ended: None }))
            .map(|place| place.time)
    }

    /// Launches what may be launched now.
    fn advance(&mut self, now: Nanos) {
        if self.is_hung {
            return;
        }
        for index in 0..self.submitted.len() {
            let slot = self.submitted[index];
            if !matches!(self.places[slot].stage, Stage::Gated) {
                continue;
            }
            let start_by = self.places[slot].job.as_ref().map_or(Nanos::ZERO, |job| job.start_by());
            let may_launch = match self.running().count() {
                0 if now > start_by => {
                    self.places[slot].stage = Stage::Expired;
                    continue;
                }
                0 => true,
                running => running < LAUNCHED_MAX && self.free_at.max(now) <= start_by,
            };
            // Without its rows it waits for them here, where its window still counts.
            let is_here = may_launch.then(|| self.copied(slot)).flatten();
            match is_here {
                Some(Ok(())) => self.launch(slot, now),
                Some(Err(_)) => {}
                None => return,
            }
        }
    }

    fn launch(&mut self, slot: usize, now: Nanos) {
        let [_, run, out] = self.streams;
        let (place, driver) = (&mut self.places[slot], &mut self.driver);
        let bytes = place.answer_bytes();
        let launched = place.execute(driver, run, self.kernel);
        match launched.and_then(|()| place.copy_out(driver, out, bytes)) {
            Ok(()) => {
                place.stage = Stage::Launched { ended: None };
                self.free_at = self.free_at.max(now) + place.time;
            }
            Err(error) => self.fail(slot, error),
        }
    }

    /// `None` while the copy of a batch's rows is under way; then how that went.
    fn copied(&mut self, slot: usize) -> Option<Result<(), String>> {
        if let Stage::Failed(problem) = &self.places[slot].stage {
            return Some(Err(problem.clone()));
        }
        match self.places[slot].is_here(&mut self.driver) {
            Ok(is_here) => is_here.then_some(Ok(())),
            Err(error) => {
                let problem = error.to_string();
                self.fail(slot, error);
                Some(Err(problem))
            }
        }
    }

    /// Reads the answers once they are back.
    fn finish(&mut self, slot: usize, finished: Nanos) -> Option<End> {
        let place = &mut self.places[slot];
        let times = match place.is_back(&mut self.driver) {
            Ok(false) => return None,
            Ok(true) => place.times(&mut self.driver, self.last_done),
            Err(error) => Err(error),
        };
        let times = match times {
            Ok(times) => times,
            Err(error) => {
                let problem = error.to_string();
                self.fail(slot, error);
                return Some(End::Failed(problem));
            }
        };
        place.take_answers(&mut self.driver, &mut self.scratch);
        let started = (finished - times.execution).max(self.ended_at).min(finished);
        (self.ended_at, self.last_done) = (finished, Some(place.done()));
        Some(End::Executed { started, finished, times })
    }

    /// A batch has failed. Afterwards no operation is under way, or the device is lost and none ever will be.
    fn fail(&mut self, slot: usize, error: CudaError) {
        self.places[slot].stage = Stage::Failed(error.to_string());
        self.last_done = None;
        if self.is_hung {
            return;
        }
        // All of them, whatever one says: a lost device may still be ending what it had begun.
        let ends = self.streams.map(|stream| self.driver.synchronize(stream));
        let sticky = error.is_sticky().then_some(error);
        let Some(error) = sticky.or_else(|| ends.into_iter().find_map(Result::err)) else { return };
        for place in self.places.iter_mut().filter(|place| place.job.is_some()) {
            place.stage = Stage::Failed(error.to_string());
        }
        self.lost.get_or_insert(error);
    }
}

impl<D: Driver, J: Job<D::Graph>> Drop for Pipeline<D, J> {
    /// The batches that are still here hold memory that copies may read.
    fn drop(&mut self) {
        if self.is_hung {
            let jobs = self.places.iter_mut().filter_map(|place| place.job.take());
            return jobs.for_each(std::mem::forget);
        }
        for stream in self.streams {
            // A device that refuses this reads nothing any more.
            let _ = self.driver.synchronize(stream);
        }
    }
}
