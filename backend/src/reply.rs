//! Answers every task of an executed batch: outputs for the rows that executed, the reason for the
//! rows that were left out.
//!
//! In: a batch slot in Replying. Out: `TaskResult` and `TaskEnd` messages, each exactly once. A frontend
//! that takes none of its answers holds up the batch slot, and no answer to another, but only for
//! [`REPLY_BOUND`]: then the backend disconnects it, and its tasks end by their leases. A frontend that takes
//! them slowly has that time for each answer, while the batch has not waited for [`BATCH_BOUND`]. Time for
//! which this process was stopped does not count, nor does what long answers take on a slow link ([`on_the_way`]).

use baton_rdma::wire::{RefuseCode, TaskEnd, TaskResult};
use baton_rdma::{ConnId, SendError, Transport};
use baton_types::{FrontendId, Nanos, TaskId};

use crate::counters::Counters;
use crate::execute::Outputs;
use crate::peers::Peers;
use crate::slot::{Answer, BatchSlot};

/// How long a batch may wait for a frontend that takes no answer, from its return from the executor on, or from the last
/// answer that the frontend took.
pub(crate) const REPLY_BOUND: Nanos = Nanos::from_millis(20);
/// How long for all of them together, from its return on.
pub(crate) const BATCH_BOUND: Nanos = Nanos::from_millis(200);
/// For each byte of an answer on the slowest link, one of 1 Gb/s.
const NS_PER_BYTE: u64 = 8;
/// While a batch waits, at most this much time between two attempts counts as time awake.
pub(crate) const LOOK: Nanos = Nanos::from_millis(5);
/// How soon a frontend that was full is tried again.
pub(crate) const RETRY_AFTER: Nanos = Nanos::from_micros(500);
/// `TaskEnd.kind` of a failed task.
const FAILED: u8 = 2;

/// What every answer of a batch has in common.
pub(crate) struct Stamp {
    /// Execution start, scheduler clock.
    pub(crate) started: Nanos,
    /// Execution end, scheduler clock.
    pub(crate) finished: Nanos,
    /// The scheduler's number of the GPU slot.
    pub(crate) gpu: u32,
    /// Rows that executed.
    pub(crate) batch_size: u32,
    /// The variant that executed.
    pub(crate) variant: u16,
}

/// Sends the answers that it can: those to a frontend without room wait, those to others do not. True once every
/// task of the batch is answered or cannot be.
pub(crate) fn answer_all<T: Transport>(
    slot: &mut BatchSlot,
    outputs: &Outputs,
    stamp: &Stamp,
    now: Nanos,
    peers: &mut Peers,
    transport: &mut T,
    counters: &mut Counters,
) -> bool {
    let since = slot.replies_since();
    let until = since + BATCH_BOUND + on_the_way(outputs.bytes());
    let mut without_room: Option<FrontendId> = None;
    let is_answered = slot.answer(|answer| {
        let frontend = task_of(answer).frontend();
        if without_room == Some(frontend) {
            return false;
        }
        let Some(conn) = peers.conn(frontend) else {
            counters.answers_lost += 1;
            return true;
        };
        match send((conn, peers.hears_cold(frontend)), answer, outputs, stamp, transport) {
            Ok(bytes) => {
                counters.answers_sent += 1;
                peers.took_answer(frontend, now + on_the_way(bytes));
            }
            Err(SendError::Full)
                if now <= until.min(patience(since, peers.last_took(frontend))) =>
            {
                without_room = Some(frontend);
                return false;
            }
            Err(error) => {
                counters.answers_lost += 1;
                give_up(conn, error, transport, counters);
            }
        }
        true
    });
    debug_assert!(is_answered || now <= until, "no batch waits for longer");
    is_answered
}

/// Until when a batch whose answers leave from `since` on waits for a frontend without room, if it may wait at all. The
/// frontend's last answer, of this or of another batch, was there at `took` at the latest.
fn patience(since: Nanos, took: Nanos) -> Nanos {
    since.max(took) + REPLY_BOUND
}

/// How long bytes take on the slowest link.
fn on_the_way(bytes: usize) -> Nanos {
    Nanos(bytes as u64 * NS_PER_BYTE)
}

fn task_of(answer: Answer) -> TaskId {
    match answer {
        Answer::Output(task, _) => task.id,
        Answer::Failed(task, _) => task,
    }
}

/// Returns how long the answer is.
fn send<T: Transport>(
    (conn, hears_cold): (ConnId, bool),
    answer: Answer,
    outputs: &Outputs,
    stamp: &Stamp,
    transport: &mut T,
) -> Result<usize, SendError> {
    let (task, is_cold, output) = match answer {
        Answer::Output(task, row) => (task.id, task.is_cold, outputs.row(row)),
        Answer::Failed(task, reason) => (task, false, Err(reason)),
    };
    match output {
        Ok(output) => {
            let result = TaskResult {
                task: task.0.into(),
                started_ns: stamp.started.0.into(),
                finished_ns: stamp.finished.0.into(),
                batch_size: (stamp.batch_size as u16).into(),
                variant: stamp.variant.into(),
                gpu: stamp.gpu.into(),
            };
            let result = if is_cold && hears_cold { result.cold() } else { result };
            transport.reply(conn, &result, output).map(|()| output.len())
        }
        Err(reason) => {
            let end = TaskEnd {
                task: task.0.into(),
                kind: FAILED,
                reason: reason.code(),
                retry_ms: 0.into(),
            };
            transport.send(conn, &end, &[]).map(|()| 0)
        }
    }
}

#[cold]
fn give_up<T: Transport>(
    conn: ConnId,
    error: SendError,
    transport: &mut T,
    counters: &mut Counters,
) {
    if error == SendError::Full {
        counters.frontends_slow += 1;
        transport.close(conn, RefuseCode::Limit, "does not take its answers; read faster");
    }
}
