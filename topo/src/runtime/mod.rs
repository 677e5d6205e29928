//! The base of every Baton thread: the clock, agents and how they run, wake-ups, and deadlines that a thread
//! that was stopped cannot overrun.

mod agent;
mod awake;
mod clock;
mod lease_deadline;
mod shared_thread;
mod waker;

pub use agent::{
    Agent, Idle, Placement, SLEEP_MAX, park_thread, prepare_thread, run, wait_readable,
};
pub use awake::{AwakeTime, PARK_MAX, is_gone};
pub use clock::Clock;
pub use lease_deadline::{Fenced, LeaseDeadline};
pub use shared_thread::SharedThread;
pub use waker::Waker;
