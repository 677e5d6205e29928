//! Text through the reader of cluster files. Whatever it is, the answer is a cluster or a list of
//! problems that is not empty, and every problem can be shown.
#![no_main]

use std::path::Path;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    let checked = baton_topo::check_text(Path::new("fuzz/cluster.toml"), text);
    for warning in &checked.warnings {
        assert!(!warning.to_string().is_empty());
    }
    match checked.cluster {
        Ok(cluster) => assert!(!cluster.models.is_empty()),
        Err(problems) => {
            assert!(!problems.is_empty(), "refused without a reason");
            assert!(problems.iter().all(|problem| !problem.to_string().is_empty()));
        }
    }
});
