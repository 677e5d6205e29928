//! Text through the reader of scenario files, and each of its lines through the readers of command
//! line arguments. What is accepted can be simulated: it has a bound.
#![no_main]

use baton_sim::{PolicyName, Rates, Scenario, Vary, analytic_bound_rps};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    for line in text.lines() {
        let _ = line.parse::<PolicyName>().is_ok();
        let _ = line.parse::<Rates>().is_ok();
        let _ = line.parse::<Vary>().is_ok();
    }
    match Scenario::parse(text) {
        Ok(scenario) => {
            let bound_rps = analytic_bound_rps(&scenario);
            assert!(bound_rps >= 0.0, "a bound of {bound_rps}");
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
