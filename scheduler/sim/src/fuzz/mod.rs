//! Scenarios drawn at random, and how a policy does on each beside the best of the others.
//! This is about goodput; [`served`] is about scenarios with a rate of their own.
//!
//! ```text
//!  seed, index ─▶ DrawnScenario ─▶ Contest ─▶ Row ─▶ Summary
//!                 (a file's text)   │  ▲
//!                            Search ─▶ Judge: runs of every seed, left as soon as they are decided
//! ```
//!
//! What is drawn, what the search finds and how sure that is: `docs/simulator.md`.

mod again;
mod contest;
mod draw;
mod faults;
mod judge;
mod latency;
mod search;
pub mod served;
mod spans;
mod summary;
mod text;

pub use again::Again;
pub use contest::{Contest, PolicyGoodput, Row};
pub use draw::{DrawnScenario, Limits, draw_scenario};
pub use latency::{AtLoad, LowLoad};
pub use summary::{LatencySummary, Quantiles, Summary, Worst};
