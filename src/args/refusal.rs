//! What to do about a wrong command line: clap says what is wrong with it, and this adds the fix where clap has none.

use std::error::Error as _;
use std::net::AddrParseError;
use std::num::{ParseFloatError, ParseIntError};

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Command, Error};

use super::examples;

/// The error with a fix, of the words behind `baton`.
pub(super) fn with_fix(mut error: Error, command: &Command, words: &[String]) -> Error {
    let (below, path) = meant(command, words);
    let has_guess = error.get(ContextKind::SuggestedArg).is_some();
    let fixes = match error.kind() {
        // The guess may be far from what was meant.
        ErrorKind::InvalidSubcommand => vec![commands(below)],
        ErrorKind::UnknownArgument if path.is_empty() => {
            vec!["options come behind a command: baton scheduler --config cluster.toml".to_owned()]
        }
        ErrorKind::UnknownArgument if !has_guess => {
            vec![format!("'baton {path} --help' lists the options")]
        }
        ErrorKind::MissingRequiredArgument => examples::of(&path),
        ErrorKind::ValueValidation => format_of(&error).into_iter().collect(),
        _ => Vec::new(),
    };
    suggest(&mut error, fixes);
    error
}

/// The command that the words name, and its path below `baton`.
fn meant<'a>(command: &'a Command, words: &[String]) -> (&'a Command, String) {
    let (mut command, mut path) = (command, Vec::new());
    for word in words {
        let Some(below) = command.find_subcommand(word) else { break };
        command = below;
        path.push(word.as_str());
    }
    (command, path.join(" "))
}

fn commands(of: &Command) -> String {
    let shown = of.get_subcommands().filter(|command| !command.is_hide_set());
    let names: Vec<&str> = shown.map(Command::get_name).collect();
    format!("choose from {}", names.join(", "))
}

/// How values are written that the standard library's parsers refuse without saying it.
fn format_of(error: &Error) -> Option<String> {
    let source = error.source()?;
    let fix = if source.is::<ParseIntError>() {
        "give a whole number, without a unit"
    } else if source.is::<ParseFloatError>() {
        "give a number, without a unit"
    } else if source.is::<AddrParseError>() {
        "give an IP address and a port, such as 127.0.0.1:7700 or [::1]:7700"
    } else {
        return None;
    };
    Some(fix.to_owned())
}

fn suggest(error: &mut Error, fixes: Vec<String>) {
    if fixes.is_empty() {
        return;
    }
    let mut all = match error.remove(ContextKind::Suggested) {
        Some(ContextValue::StyledStrs(before)) => before,
        _ => Vec::new(),
    };
    all.extend(fixes.into_iter().map(StyledStr::from));
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(all));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::command;

    fn said(line: &str) -> String {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let error = command().try_get_matches_from(&words).expect_err(line);
        with_fix(error, &command(), &words[1..]).to_string()
    }

    #[test]
    fn the_mistakes_of_a_first_day_are_answered_with_the_fix() {
        for (line, wanted) in [
            ("baton shceduler", &["'shceduler'", "'scheduler'"][..]),
            ("baton start", &["'start'", "choose from scheduler, backend, gateway, status, model"]),
            ("baton model ad", &["'ad'", "'add'"]),
            ("baton model delete x", &["'delete'", "choose from add, set, remove, list"]),
            ("baton scheduler", &["--config <FILE>", "baton scheduler --config cluster.toml"]),
            (
                "baton backend --config x",
                &["--name <NAME>", "baton backend --config cluster.toml --name"],
            ),
            ("baton load", &["--config <FILE>", "--url <URL>", "baton load --url grpc://"]),
            ("baton sim run --policy baton", &["--scenario <FILE>", "baton sim run --cluster"]),
            ("baton load --config x --seed ten", &["'ten'", "--seed", "give a whole number"]),
            (
                "baton model add f --name m --slo-ms 5ms --config x",
                &["'5ms'", "--slo-ms", "give a number, without"],
            ),
            (
                "baton status --scheduler localhost:7700",
                &["'localhost:7700'", "--scheduler", "such as 127.0.0.1:7700"],
            ),
            ("baton demo --seconds 5s", &["'5s'", "--seconds", "give a number from 0.1"]),
            ("baton demo --seconds 0", &["'0'", "--seconds", "give a number from 0.1"]),
            ("baton profile f --runs 1", &["'1'", "--runs", "5..=1000000"]),
            (
                "baton scheduler --config x --verbose",
                &["'--verbose'", "'baton scheduler --help' lists"],
            ),
            ("baton backend --conifg x --name a", &["'--conifg'", "'--config'"]),
            ("baton --config x scheduler", &["'--config'", "options come behind a command"]),
        ] {
            let said = said(line);
            assert!(
                wanted.iter().all(|words| said.contains(words)),
                "{line}: {said}\nlacks one of {wanted:?}"
            );
        }
    }

    /// No more than clap says where that names the fix.
    #[test]
    fn a_guess_of_clap_is_left_alone() {
        let said = said("baton scheduler --conifg x");
        assert_eq!(said.matches("tip:").count(), 1, "{said}");
    }
}
