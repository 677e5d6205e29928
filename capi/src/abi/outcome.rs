//! An outcome as a struct of numbers, and in words.

use std::ffi::{CStr, c_char};
use std::sync::Arc;

use baton_client::{DropReason, EndRecord, EndedBy, FailReason, Nanos, Outcome, Timing};

use super::pointers::{Buffer, InStruct, Out, Sized};
use super::reply::REPLIES;
use super::structs::{OutcomeStruct, ReplyHandle};
use super::text;
use crate::status::{OK, Refusal, Result, call};

pub(super) const COMPLETED: i32 = 1;
pub(super) const DROPPED: i32 = 2;
pub(super) const FAILED: i32 = 3;
pub(super) const BY_SCHEDULER: i32 = 1;
pub(super) const BY_BACKEND: i32 = 2;
pub(super) const BY_CLIENT: i32 = 3;

/// Writes it, and keeps the reply under a handle of its own.
pub(super) fn put(out: Sized<OutcomeStruct>, outcome: Outcome) -> Result<()> {
    out.put(match outcome {
        Outcome::Completed(reply) => {
            let (timing, is_late) = (*reply.timing(), reply.late());
            let reply = ReplyHandle { id: REPLIES.insert(Arc::new(reply))? };
            completed(&timing, is_late, reply)
        }
        Outcome::Dropped(reason, record) => unanswered(DROPPED, reason.code(), &record),
        Outcome::Failed(reason, record) => unanswered(FAILED, reason.code(), &record),
    });
    Ok(())
}

const NOTHING: OutcomeStruct = OutcomeStruct {
    struct_size: 0,
    kind: 0,
    reason: 0,
    ended_by: 0,
    is_late: 0,
    resubmitted: 0,
    batch_size: 0,
    gpu: 0,
    reply: ReplyHandle { id: 0 },
    submitted_ns: 0,
    deadline_ns: 0,
    started_ns: 0,
    finished_ns: 0,
    ended_ns: 0,
    clock_error_ns: 0,
    retry_after_ns: 0,
    is_cold: 0,
    reserved: 0,
};

fn completed(timing: &Timing, is_late: bool, reply: ReplyHandle) -> OutcomeStruct {
    OutcomeStruct {
        kind: COMPLETED,
        ended_by: BY_BACKEND,
        is_late: is_late.into(),
        batch_size: timing.batch_size,
        gpu: timing.gpu.0,
        reply,
        submitted_ns: timing.submitted.0,
        deadline_ns: timing.deadline.0,
        started_ns: timing.started.0,
        finished_ns: timing.finished.0,
        ended_ns: timing.landed.0,
        clock_error_ns: timing.clock_error.0,
        is_cold: timing.cold.into(),
        ..NOTHING
    }
}

fn unanswered(kind: i32, reason: u8, record: &EndRecord) -> OutcomeStruct {
    OutcomeStruct {
        kind,
        reason: i32::from(reason),
        ended_by: match record.by {
            EndedBy::Scheduler => BY_SCHEDULER,
            EndedBy::Backend => BY_BACKEND,
            EndedBy::Client => BY_CLIENT,
        },
        resubmitted: record.resubmitted,
        submitted_ns: record.submitted.0,
        deadline_ns: record.deadline.0,
        ended_ns: record.ended.0,
        retry_after_ns: record.retry_after.0,
        ..NOTHING
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_outcome_explain(
    outcome: InStruct<OutcomeStruct>,
    text: Buffer,
    room: usize,
    needed: Out<usize>,
) -> i32 {
    call(|| {
        let words = explained(&outcome.given()?)?;
        text.put(&words, room);
        needed.put_if_given(words.len() + 1);
        Ok(OK)
    })
}

fn explained(outcome: &OutcomeStruct) -> Result<String> {
    let code = u8::try_from(outcome.reason).unwrap_or(0);
    let unanswered = match outcome.kind {
        COMPLETED => {
            return REPLIES.with(outcome.reply.id, |reply| reply.timing().explain().to_string());
        }
        DROPPED => DropReason::from_code(code).map(|why| Outcome::Dropped(why, record(outcome))),
        FAILED => FailReason::from_code(code).map(|why| Outcome::Failed(why, record(outcome))),
        _ => None,
    };
    let unknown = || Refusal::argument("this is no outcome: give one that a call has filled");
    Ok(unanswered.ok_or_else(unknown)?.explain().to_string())
}

fn record(outcome: &OutcomeStruct) -> EndRecord {
    EndRecord {
        submitted: Nanos(outcome.submitted_ns),
        deadline: Nanos(outcome.deadline_ns),
        ended: Nanos(outcome.ended_ns),
        by: match outcome.ended_by {
            BY_SCHEDULER => EndedBy::Scheduler,
            BY_BACKEND => EndedBy::Backend,
            _ => EndedBy::Client,
        },
        resubmitted: outcome.resubmitted,
        retry_after: Nanos(outcome.retry_after_ns),
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn baton_reason_name(kind: i32, reason: i32) -> *const c_char {
    let code = u8::try_from(reason).unwrap_or(0);
    text(match kind {
        COMPLETED => Some(c"completed"),
        DROPPED => DropReason::from_code(code).map(drop_name),
        FAILED => FailReason::from_code(code).map(fail_name),
        _ => None,
    })
}

fn drop_name(reason: DropReason) -> &'static CStr {
    match reason {
        DropReason::Deadline => c"deadline",
        DropReason::Window => c"window",
        DropReason::DeadlinePassed => c"deadline_passed",
        DropReason::QueueFull => c"queue_full",
        DropReason::Cancelled => c"cancelled",
        DropReason::FrontendLost => c"frontend_lost",
        DropReason::NoBackend => c"no_backend",
        DropReason::Shutdown => c"shutdown",
        DropReason::Quota => c"quota",
        DropReason::ModelRemoved => c"model_removed",
        DropReason::Accuracy => c"accuracy",
    }
}

fn fail_name(reason: FailReason) -> &'static CStr {
    match reason {
        FailReason::BackendLost => c"backend_lost",
        FailReason::StaleGeneration => c"stale_generation",
        FailReason::FetchTimeout => c"fetch_timeout",
        FailReason::FetchFailed => c"fetch_failed",
        FailReason::Engine => c"engine",
        FailReason::UnknownModel => c"unknown_model",
        FailReason::WrongSize => c"wrong_size",
        FailReason::SchedulerLost => c"scheduler_lost",
        FailReason::LeaseExpired => c"lease_expired",
    }
}

#[cfg(test)]
mod tests {
    use baton_client::GpuId;

    use super::super::tests::read;
    use super::*;

    /// What [`baton_outcome_explain`] makes its words of.
    #[test]
    fn a_record_comes_back_from_its_struct() {
        for by in [EndedBy::Scheduler, EndedBy::Backend, EndedBy::Client] {
            let there = EndRecord {
                submitted: Nanos(1),
                deadline: Nanos(2),
                ended: Nanos(3),
                by,
                resubmitted: 4,
                retry_after: Nanos(5),
            };
            assert_eq!(record(&unanswered(DROPPED, 1, &there)), there);
        }
    }

    #[test]
    fn each_figure_of_an_answer_has_its_field() {
        let timing = Timing {
            submitted: Nanos(1),
            started: Nanos(2),
            finished: Nanos(3),
            landed: Nanos(4),
            deadline: Nanos(5),
            clock_error: Nanos(6),
            batch_size: 7,
            gpu: GpuId(8),
            variant: 9,
            cold: true,
        };
        let answered = |is_late, cold| {
            let timing = Timing { cold, ..timing };
            let all = completed(&timing, is_late, ReplyHandle { id: 10 });
            let moments = [all.submitted_ns, all.started_ns, all.finished_ns, all.ended_ns];
            assert_eq!((all.kind, all.ended_by), (COMPLETED, BY_BACKEND));
            assert_eq!((moments, all.deadline_ns, all.clock_error_ns), ([1, 2, 3, 4], 5, 6));
            assert_eq!((all.batch_size, all.gpu, all.reply.id), (7, 8, 10));
            assert_eq!((all.reason, all.resubmitted, all.retry_after_ns), (0, 0, 0));
            [all.is_late, all.is_cold]
        };
        assert_eq!(answered(true, false), [1, 0]);
        assert_eq!(answered(false, true), [0, 1]);
    }

    #[test]
    fn every_reason_has_its_own_name() {
        let name = |kind, reason: i32| read(baton_reason_name(kind, reason));
        for &why in DropReason::ALL {
            assert_eq!(name(DROPPED, why.code().into()), why.as_str());
        }
        for &why in FailReason::ALL {
            assert_eq!(name(FAILED, why.code().into()), why.as_str());
        }
        assert_eq!(name(COMPLETED, 0), "completed");
        assert_eq!([name(0, 1), name(DROPPED, -1), name(FAILED, 256 + 1)], ["unknown"; 3]);
    }
}
