//! Text through the reader of Triton's `config.pbtxt`. What is understood has notes that can be shown.
#![no_main]

use baton_topo::triton::understand;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    for note in understand(text).unwrap_or_default() {
        assert!(!note.to_string().is_empty());
    }
});
