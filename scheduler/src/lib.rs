//! The scheduler process: ModelThreads, the RankThread and the ControlThread around `baton-core`.
//!
//! ```text
//!  frontends ─Submit─▶ ModelThread ─board─▶ RankThread
//!                        │    ▲  ◀──grant ring──┘ ▲
//!                        │    └─ ActionDone ──────┘ (slot updates)
//!                        └─Action─▶ backends
//!  members ─join, ping, leave─▶ ControlThread ─commands─▶ both
//! ```
//!
//! Threads share nothing but the structures in `link`; none of them ever holds payload bytes.
#![forbid(unsafe_code)]

mod board;
mod cache;
mod catalog;
mod commands;
mod control;
mod counters;
mod dispatch;
mod hot_path;
mod in_flight;
mod latencies;
pub mod limits;
mod link;
mod mail;
mod metrics;
mod migration;
mod model_config;
mod model_thread;
mod peers;
mod process;
mod profiles;
mod rank_thread;
mod ring;
mod roster;
mod sync;
mod task_board;

pub use commands::{ModelCommand, Notice, RankCommand};
pub use control::ControlThread;
pub use counters::{ControlThreadCounters, Counter, ModelThreadCounters, RankThreadCounters};
pub use hot_path::{HotPath, RankPlace};
pub use link::CommandSender;
pub use metrics::SchedulerMetrics;
pub use migration::load_board::LoadBoard;
pub use model_thread::ModelThread;
pub use process::{
    Assembly, SchedulerCounters, SchedulerError, SchedulerHandle, start, start_within,
};
pub use rank_thread::RankThread;
pub use task_board::{TaskBoard, TaskBoards};
