//! Stories of one client, told step by step; time moves only when the story says so.

mod ahead;
mod catalogue;
mod catalogue_again;
mod clocks;
mod completions;
mod concurrent;
mod ending;
mod joining;
mod orderly_stop;
mod random;
mod rejoining;
mod same_host;
mod serving;
mod shared;
mod waiting;
mod world;
