//! A world in which one backend is stepped by hand: a scheduler and frontends made of bare
//! endpoints, executors that finish when the test says so, and a clock that moves when told.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod actions;
mod catalogue;
mod catalogue_failures;
mod catalogue_process;
mod hand;
mod in_flight;
mod in_flight_walks;
mod join;
mod loading;
mod party;
mod patience;
mod process;
mod pulls;
mod rejoin;
mod serve;
mod world;
