//! How long the inputs of batches take to come. The scheduler plans by it.
//!
//! The GPU slots of a backend share what brings their inputs: the port of this host, those of the frontends, the thread
//! that copies. A batch is therefore charged from the moment at which the one before it was complete, whichever slot that
//! was for, or from its own first READ if that came later: what each adds to the time in which anything was fetched.

use baton_types::Nanos;

use crate::config::BATCH_SLOTS;

/// When the inputs of a batch were there, and what they are charged.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fetched {
    /// On this process's clock.
    pub(crate) at: Nanos,
    /// At least 1 ns.
    pub(crate) took: Nanos,
}

/// Of one backend. All times are this process's.
#[derive(Clone, Debug)]
pub(crate) struct FetchTime {
    /// Per GPU slot and batch slot: when the READs of its batch were posted.
    began: Vec<[Nanos; BATCH_SLOTS]>,
    /// When the batch that was complete last was.
    complete: Nanos,
}

impl FetchTime {
    /// Of a backend with this number of GPU slots.
    pub(crate) fn new(gpus: usize) -> Self {
        Self { began: vec![[Nanos::ZERO; BATCH_SLOTS]; gpus], complete: Nanos::ZERO }
    }

    /// The READs of the batch in this batch slot are posted.
    pub(crate) fn begin(&mut self, gpu: usize, batch_slot: usize, now: Nanos) {
        self.began[gpu][batch_slot] = now;
    }

    /// The last of them has ended.
    pub(crate) fn end(&mut self, gpu: usize, batch_slot: usize, now: Nanos) -> Fetched {
        let since = self.began[gpu][batch_slot].max(self.complete);
        self.complete = now;
        Fetched { at: now, took: (now - since).max(Nanos(1)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn took(time: &mut FetchTime, gpu: usize, now: u64) -> u64 {
        let Fetched { at, took } = time.end(gpu, 1, Nanos(now));
        assert_eq!(at, Nanos(now));
        took.0
    }

    #[test]
    fn a_batch_alone_is_charged_from_its_first_read() {
        let mut time = FetchTime::new(2);
        time.begin(0, 1, Nanos(100));
        assert_eq!(took(&mut time, 0, 130), 30);
        time.begin(1, 1, Nanos(150));
        assert_eq!(took(&mut time, 1, 155), 5, "nothing was fetched in between");
    }

    #[test]
    fn batches_that_are_fetched_together_are_charged_the_time_both_took() {
        let mut time = FetchTime::new(2);
        time.begin(0, 1, Nanos(100));
        time.begin(1, 1, Nanos(110));
        assert_eq!(
            (took(&mut time, 0, 180), took(&mut time, 1, 200)),
            (80, 20),
            "100 to 200 in all"
        );
        assert_eq!(took(&mut time, 1, 200), 1, "0 would say that nothing was measured");
    }
}
