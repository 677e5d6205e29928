//! How long messages and inputs take between the scheduler, the backends and the frontends.

use baton_types::Nanos;

/// Delays to plan with (Symphony App. C: `delay(bs) = d_ctrl + d_data · bs`).
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct NetworkDelay {
    /// Delivering a plan.
    pub ctrl: Nanos,
    /// Fetching one input.
    pub data_per_task: Nanos,
    /// From the end of the execution to the answer at the application; taken off every deadline.
    pub response: Nanos,
    /// How late timers and threads run. A deferred candidate is due this long before its frontrun
    /// moment: the window behind that is only as wide as one more task takes, and a driver that
    /// is later than that misses it.
    pub jitter: Nanos,
}

impl NetworkDelay {
    /// From the grant to the earliest start of a batch.
    pub fn before(&self, batch: u32) -> Nanos {
        self.ctrl + self.data_per_task.times(u64::from(batch))
    }
}
