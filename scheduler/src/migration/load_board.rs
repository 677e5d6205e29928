//! What each model is asked for: written by the ModelThreads when they are asked, read by the
//! ControlThread.

use baton_core::ModelId;

use crate::counters::Counter;

/// What one model is asked for, as of its last report.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub(crate) struct ModelLoad {
    /// Requests it has had.
    pub(crate) requests: u64,
    /// Those of them that its quota refused.
    pub(crate) refused: u64,
    /// Those of its tasks that were given up.
    pub(crate) lost: u64,
    /// Those that ended without having been in a batch, for whatever reason.
    pub(crate) ended: u64,
    /// Of these, those that found its queue full.
    pub(crate) queue_full: u64,
    /// Those that wait.
    pub(crate) waiting: u64,
    /// Slots that its traffic keeps busy in efficient batches, in 1/65536:
    /// [`baton_core::ModelState::load`].
    pub(crate) slots: u64,
}

/// The load of each model. The thread on which the model lives writes it; the migration channel by which a
/// model moves orders the last write of its former home before the first of the new one.
#[derive(Debug)]
pub struct LoadBoard(Box<[[Counter; 7]]>);

impl LoadBoard {
    /// For `models` models.
    pub fn new(models: usize) -> Self {
        Self((0..models).map(|_| Default::default()).collect())
    }

    pub(crate) fn write(&self, model: ModelId, load: ModelLoad) {
        let ModelLoad { requests, refused, lost, ended, queue_full, waiting, slots } = load;
        let values = [requests, refused, lost, ended, queue_full, waiting, slots];
        let entry = &self.0[model.0 as usize];
        entry.iter().zip(values).for_each(|(counter, value)| counter.set(value));
    }

    /// As last written.
    pub(crate) fn of(&self, model: ModelId) -> ModelLoad {
        let entry = self.0[model.0 as usize].each_ref();
        let [requests, refused, lost, ended, queue_full, waiting, slots] = entry.map(Counter::get);
        ModelLoad { requests, refused, lost, ended, queue_full, waiting, slots }
    }

    /// Of every model.
    pub(crate) fn read(&self) -> impl Iterator<Item = ModelLoad> + '_ {
        (0..self.0.len() as u32).map(|model| self.of(ModelId(model)))
    }
}
