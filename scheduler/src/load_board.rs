//! How many requests each model has had: written by the ModelThreads when they are asked, read by the
//! ControlThread.

use baton_core::ModelId;

use crate::counters::Counter;

/// One number for each model. The thread on which the model lives writes it; the passage by which a
/// model moves orders the last write of its former home before the first of the new one.
#[derive(Debug)]
pub struct LoadBoard(Box<[Counter]>);

impl LoadBoard {
    /// For `models` models.
    pub fn new(models: usize) -> Self {
        Self((0..models).map(|_| Counter::default()).collect())
    }

    /// The model has had this many requests.
    pub(crate) fn write(&self, model: ModelId, requests: u64) {
        self.0[model.0 as usize].set(requests);
    }

    /// As last written, of every model.
    pub(crate) fn read(&self) -> impl Iterator<Item = u64> + '_ {
        self.0.iter().map(Counter::get)
    }
}
