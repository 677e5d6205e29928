//! An outcome on its way from the I/O thread to the ticket: a few words, and no memory of the slab.

use baton_types::{DropReason, FailReason, GpuId, Nanos};

use crate::outcome::{EndRecord, EndedBy, Timing};

/// An outcome whose answer, if there is one, is still in its slot. The ticket takes it from there.
///
/// When the task was submitted and its deadline do not travel with it: the ticket knows them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum End {
    Completed(Timing),
    Dropped(DropReason, EndRecord),
    Failed(FailReason, EndRecord),
}

/// As many words as [`End::words`] needs.
pub(crate) const WORDS: usize = 6;

const COMPLETED: u64 = 0;
const DROPPED: u64 = 1;
const FAILED: u64 = 2;

const BY: [EndedBy; 3] = [EndedBy::Scheduler, EndedBy::Backend, EndedBy::Client];

impl End {
    /// The first word has the kind, the reason or whether it was cold, the process or the variant, and a count, from the low bits to
    /// the high ones.
    pub(crate) fn words(&self) -> [u64; WORDS] {
        match self {
            Self::Completed(timing) => [
                completed(timing),
                timing.landed.0,
                timing.started.0,
                timing.finished.0,
                timing.clock_error.0,
                timing.gpu.0.into(),
            ],
            Self::Dropped(reason, record) => record_words(DROPPED, reason.code(), record),
            Self::Failed(reason, record) => record_words(FAILED, reason.code(), record),
        }
    }

    /// What [`End::words`] made, with zero where the ticket knows better.
    ///
    /// # Panics
    /// They are others.
    pub(crate) fn from_words(words: [u64; WORDS]) -> Self {
        const OURS: &str = "the words are those of an end";
        let [first, ..] = words;
        let reason = (first >> 8) as u8;
        match first & 0xff {
            COMPLETED => Self::Completed(timing(words)),
            DROPPED => Self::Dropped(DropReason::from_code(reason).expect(OURS), record(words)),
            _ => Self::Failed(FailReason::from_code(reason).expect(OURS), record(words)),
        }
    }
}

fn completed(timing: &Timing) -> u64 {
    let (cold, variant) = (u64::from(timing.cold), u64::from(timing.variant));
    COMPLETED | cold << 8 | variant << 16 | u64::from(timing.batch_size) << 32
}

fn record_words(kind: u64, reason: u8, record: &EndRecord) -> [u64; WORDS] {
    let by = record.by as u64;
    let first = kind | u64::from(reason) << 8 | by << 16 | u64::from(record.resubmitted) << 32;
    [first, record.ended.0, record.retry_after.0, 0, 0, 0]
}

fn record([first, ended, retry_after, ..]: [u64; WORDS]) -> EndRecord {
    let by = BY[usize::from((first >> 16) as u8)];
    let record = EndRecord::new(Nanos(ended), by, (first >> 32) as u32);
    EndRecord { retry_after: Nanos(retry_after), ..record }
}

fn timing([first, landed, started, finished, clock_error, gpu]: [u64; WORDS]) -> Timing {
    Timing {
        submitted: Nanos::ZERO,
        started: Nanos(started),
        finished: Nanos(finished),
        landed: Nanos(landed),
        deadline: Nanos::ZERO,
        clock_error: Nanos(clock_error),
        batch_size: (first >> 32) as u32,
        gpu: GpuId(gpu as u32),
        variant: (first >> 16) as u16,
        cold: (first >> 8) as u8 != 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn through_words(end: End) -> End {
        End::from_words(end.words())
    }

    proptest! {
        #[test]
        fn every_end_arrives_as_it_was(
            moments in any::<[u64; 4]>(), counts in any::<[u32; 2]>(), by in 0..BY.len(),
            (variant, cold) in any::<(u16, bool)>(),
        ) {
            let [landed, started, finished, clock_error] = moments.map(Nanos);
            let (submitted, deadline) = (Nanos::ZERO, Nanos::ZERO);
            let [batch_size, gpu] = counts;
            let gpu = GpuId(gpu);
            let timing = Timing {
                submitted, started, finished, landed, deadline, clock_error, batch_size, gpu,
                variant, cold,
            };
            prop_assert_eq!(through_words(End::Completed(timing)), End::Completed(timing));
            let retry_after = started;
            let record = EndRecord { retry_after, ..EndRecord::new(landed, BY[by], batch_size) };
            for &reason in DropReason::ALL {
                let end = End::Dropped(reason, record);
                prop_assert_eq!(through_words(end), end);
            }
            for &reason in FailReason::ALL {
                let end = End::Failed(reason, record);
                prop_assert_eq!(through_words(end), end);
            }
        }
    }
}
