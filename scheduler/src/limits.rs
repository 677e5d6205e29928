//! Every bound of the scheduler process, and how they hang together.

use baton_core::PIPELINE_DEPTH;
use baton_topo::GPUS_PER_BACKEND_MAX;

/// GPU slots that may be joined at once.
pub const GPUS_MAX: u32 = 16_384;
/// Backends that may be joined at once.
pub const BACKENDS_MAX: u32 = 2048;
/// Frontends that may be joined at once; their ids are 16 bits of a task's.
pub const FRONTENDS_MAX: u32 = 1024;
/// Connections of one thread: every member's, and some that are being refused.
pub const CONNECTIONS_MAX: usize = (BACKENDS_MAX + FRONTENDS_MAX) as usize + 64;
/// Of these, most that come from one host: half of them are left to the others.
pub const HOST_CONNECTIONS_MAX: usize = CONNECTIONS_MAX / 2;
/// Bytes of a backend's name.
pub const NAME_MAX: usize = 255;
/// Commands that may wait for a thread; the ControlThread waits while there is no room.
pub const COMMANDS_MAX: usize = 8192;
/// Notices that a ModelThread can owe the ControlThread: of each member that it is not connected, that
/// a model has arrived, and what it has recorded.
pub const MODEL_NOTICES_MAX: usize = (BACKENDS_MAX + FRONTENDS_MAX) as usize + 2;
/// Notices that the RankThread can owe it: of each slot that it has drained.
pub const RANK_NOTICES_MAX: usize = GPUS_MAX as usize;
/// Notices that the RankThread and one ModelThread can owe it of each model: that it is served, that it has no tasks left, that
/// it is forgotten.
pub const NOTICES_PER_MODEL: usize = 3;
/// Tables of models that may be read at a time.
pub const READS_MAX: usize = 16;
/// Notices of what is done aside: of each table that was read, that the journal was written, and what came of a trial.
pub const ASIDE_NOTICES_MAX: usize = READS_MAX + 2;
/// What may be on its way from a model's former ModelThread to its new one; a task for which there is
/// no room is dropped (`queue_full`).
pub const MIGRATION_MAX: usize = 4096;
/// Events that the ControlThread remembers for `baton status`; it counts older ones.
pub const EVENTS_MAX: usize = 64;
/// ModelThreads.
pub const MODEL_THREADS_MAX: u32 = baton_topo::MODEL_THREADS_MAX;

/// Batches one ModelThread can have outstanding: every slot's whole pipeline.
pub const IN_FLIGHT_MAX: usize = GPUS_MAX as usize * PIPELINE_DEPTH as usize;
/// Updates a ModelThread can owe the RankThread: a plan and an end for each outstanding batch, or
/// a grant given back.
pub const GPU_UPDATES_MAX: usize = 2 * IN_FLIGHT_MAX;
/// Messages from a ModelThread to the RankThread on their way at a time; others wait in the
/// ModelThread. Both go through the whole ring again and again, so it is to stay in their caches.
pub const RANK_MAIL_RING: usize = 1024;

const _: () = assert!(HOST_CONNECTIONS_MAX < CONNECTIONS_MAX);
const _: () = assert!(FRONTENDS_MAX <= u16::MAX as u32);
const _: () = assert!(GPUS_PER_BACKEND_MAX <= GPUS_MAX);
