//! The documentation names no command and no option that is not there.

use std::fs;
use std::path::{Path, PathBuf};

use clap::Command;

use super::command;

/// The pages that describe the present.
fn pages() -> Vec<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let entries = |folder| fs::read_dir(root.join(folder)).expect("a folder of the repository");
    let files = [".", "docs", "docs/decisions", "examples/migrate"].into_iter().flat_map(entries);
    let paths = files.map(|entry| entry.expect("a file").path());
    let is_page = |path: &PathBuf| {
        path.extension().is_some_and(|ending| ending == "md") && !path.ends_with("CHANGELOG.md")
    };
    paths.filter(is_page).collect()
}

/// The lines of blocks, and what stands between backticks elsewhere.
fn code(text: &str) -> Vec<String> {
    let (mut lines, mut prose, mut is_block) = (Vec::new(), String::new(), false);
    for line in text.lines() {
        if line.starts_with("```") {
            is_block = !is_block;
        } else if is_block || line.starts_with("    ") {
            lines.push(line.to_owned());
        } else {
            prose = prose + line + " ";
        }
    }
    lines.extend(prose.split('`').skip(1).step_by(2).map(str::to_owned));
    lines
}

/// The options that the command of this line lacks.
fn unknown_options(all: &Command, line: &str) -> Vec<String> {
    let of_command = |line: &str| -> Vec<String> {
        let words: Vec<&str> = line.split([' ', '[', ']', '|', '=', ',']).collect();
        // Not a package of cargo's, nor the policy of that name.
        let is_start = |pair: &[&str]| pair[0] == "baton" && all.find_subcommand(pair[1]).is_some();
        let Some(start) = words.windows(2).position(is_start) else { return Vec::new() };
        let (mut at, mut options) = (all, Vec::new());
        for word in &words[start + 1..] {
            match word.strip_prefix("--") {
                Some(option) => options.push(option),
                None => at = at.find_subcommand(word).unwrap_or(at),
            }
        }
        let is_known = |option: &str| at.get_arguments().any(|arg| arg.get_long() == Some(option));
        let unknown = options.into_iter().filter(|option| !option.is_empty() && !is_known(option));
        unknown.map(|option| format!("{} --{option}", at.get_name())).collect()
    };
    let parts = line.split(" | ").flat_map(|part| part.split(['#', ';', '&', '(']));
    parts.flat_map(of_command).collect()
}

#[test]
fn options_of_the_documentation_are_there() {
    let (all, mut unknown) = (command(), Vec::new());
    for page in pages() {
        let text = fs::read_to_string(&page).expect("a page");
        let found = code(&text).into_iter().flat_map(|line| unknown_options(&all, &line));
        unknown.extend(found.map(|what| format!("{}: {what}", page.display())));
    }
    assert_eq!(unknown, [] as [String; 0]);
}

#[test]
fn what_is_not_there_is_found_and_what_is_there_is_not() {
    let all = command();
    assert_eq!(unknown_options(&all, "baton sim --cluster c.toml"), ["sim --cluster"]);
    assert_eq!(
        unknown_options(&all, "x && baton status --config c --wach # --all"),
        ["status --wach"]
    );
    for known in [
        "baton load --url=U [--goodput 0.99|--json] | jq --raw-output",
        "cargo run -p baton --test x",
        "eager, baton --all",
    ] {
        assert!(unknown_options(&all, known).is_empty(), "{known}");
    }
    assert_eq!(code("a `b\nc` d\n```\ne `f`\n```\n"), ["e `f`", "b c"]);
}
