//! A batch's description, and what becomes of it.

use baton_types::Nanos;

use super::work::Work;
use crate::driver::HostSource;

/// A batch, as the pipeline sees it. It holds its rows' memory until it comes back.
pub trait Job<G> {
    /// What executes it: the same from one call to the next.
    fn work(&self) -> Work<'_, G>;
    /// Where its rows begin.
    fn rows(&self) -> HostSource;
    /// From one row's beginning to the next's, bytes.
    fn stride(&self) -> u32;
    /// How long each row is; at least one row.
    fn lens(&self) -> &[u32];
    /// It is not started later.
    fn start_by(&self) -> Nanos;
    /// Takes the answers: as many as it has rows, as its work leaves them.
    fn take(&mut self, answers: &[u8]);
}

/// How long a batch took on the device, by the device's clock.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Times {
    /// Its rows, to the device.
    pub copy_in: Nanos,
    /// From then to its start.
    pub waited: Nanos,
    /// Its execution.
    pub execution: Nanos,
    /// Its answers, back.
    pub copy_out: Nanos,
    /// From the end of the execution before to its start. `None`: there was none before, or it failed.
    pub gap: Option<Nanos>,
}

/// What became of a batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum End {
    /// It was executed.
    Executed {
        /// On the host's clock: the end, less what the execution took.
        started: Nanos,
        /// When the host saw the end.
        finished: Nanos,
        /// By the device's clock.
        times: Times,
    },
    /// It could not start in time.
    Expired,
    /// It was withdrawn.
    Withdrawn,
    /// It has no answers, for this reason.
    Failed(String),
}

/// A batch that came back: no operation reads its rows.
#[derive(Debug)]
pub struct Back<J> {
    /// Its batch slot.
    pub slot: usize,
    /// The batch, with its answers if it was executed.
    pub job: J,
    /// What became of it.
    pub end: End,
}
