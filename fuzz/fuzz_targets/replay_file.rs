//! Bytes through the reader of recorded arrivals. What is accepted has tasks and a rate.
#![no_main]

use std::path::Path;

use baton_sim::{Replay, ReplayOptions};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|file: &[u8]| {
    let options = ReplayOptions::new(&["a", "b", "b"]);
    match Replay::read(Path::new("arrivals.csv"), file, &options) {
        Ok(replay) => {
            assert!(replay.len() > 0);
            assert!(replay.rate_rps() > 0.0);
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
