//! Cluster files as text, and what is said of them.

use std::path::Path;

use baton_topo::{Checked, Problem, check_text};

/// Line numbers in the tests count from the first line of the text given.
pub(crate) fn check(text: &str) -> Checked {
    check_text(Path::new("c.toml"), text)
}

pub(crate) fn lines(problems: &[Problem]) -> Vec<String> {
    problems.iter().map(ToString::to_string).collect()
}

/// The smallest cluster file, with one more line in its model.
pub(crate) fn model_with(line: &str) -> String {
    format!(
        "[[model]]\nname = \"m\"\nalpha_ms = 1\nbeta_ms = 5\nslo_ms = 25\n{line}\n[[backend]]\nname = \"b\"\n"
    )
}
