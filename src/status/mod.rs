//! `baton status`: how a running cluster fares, once or again and again.

mod text;

use std::error::Error;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use baton_client::Operator;
use baton_client::status::ClusterStatus;
use rustix::termios::tcgetwinsize;

use crate::CommandResult;
use crate::args::StatusArgs;
use crate::model::connect;
use crate::output::say;
use crate::process::stop_flag;
use text::as_text;

/// How long the scheduler may take to answer.
const ANSWER: Duration = Duration::from_secs(5);
/// How often the picture is drawn anew.
const REDRAW: Duration = Duration::from_secs(1);
/// How often to look whether a signal has come.
const STOP_INTERVAL: Duration = Duration::from_millis(50);

pub(crate) fn run(args: &StatusArgs) -> CommandResult {
    if !args.watch {
        say(&shown(&ask(args)?, args.json))?;
        return Ok(ExitCode::SUCCESS);
    }
    let stop = stop_flag()?;
    let mut picture = Picture::new();
    // What is wrong from the beginning is an error; a scheduler that goes may come back.
    let mut status = Ok(ask(args)?);
    while !stop.load(Ordering::Relaxed) {
        let text = match &status {
            Ok(status) => shown(status, args.json),
            Err(problem) if args.json => serde_json::json!({ "error": problem }).to_string(),
            Err(problem) => format!("{problem}\n"),
        };
        picture.draw(&text)?;
        rest(&stop);
        if !stop.load(Ordering::Relaxed) {
            status = ask(args).map_err(|error| error.to_string());
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// On a connection of its own each time: the scheduler may be another one by then.
fn ask(args: &StatusArgs) -> Result<ClusterStatus, Box<dyn Error>> {
    let mut operator: Operator = connect(&args.of)?;
    Ok(operator.status(ANSWER)?)
}

fn rest(stop: &AtomicBool) {
    for _ in 0..REDRAW.as_millis() / STOP_INTERVAL.as_millis() {
        if !stop.load(Ordering::Relaxed) {
            std::thread::park_timeout(STOP_INTERVAL);
        }
    }
}

fn shown(status: &ClusterStatus, json: bool) -> String {
    if json {
        serde_json::to_string(status).expect("texts and numbers have a JSON form")
    } else {
        as_text(status)
    }
}

/// Where a text takes the place of the one before: a terminal. Elsewhere they follow each other, an empty line between them.
struct Picture {
    is_terminal: bool,
    is_first: bool,
}

/// The cursor to the beginning of the first line.
const HOME: &str = "\x1b[H";
/// Erase to the end of the line.
const END_OF_LINE: &str = "\x1b[K";
/// Erase everything below.
const BELOW: &str = "\x1b[J";
/// Erase everything.
const CLEAR: &str = "\x1b[2J";

impl Picture {
    fn new() -> Self {
        Self { is_terminal: std::io::stdout().is_terminal(), is_first: true }
    }

    fn draw(&mut self, text: &str) -> std::io::Result<()> {
        let is_first = std::mem::take(&mut self.is_first);
        if !self.is_terminal {
            let between = if is_first || text.starts_with('{') { "" } else { "\n" };
            return say(&format!("{between}{}\n", text.trim_end()));
        }
        let size = tcgetwinsize(std::io::stdout()).map(|size| (size.ws_row, size.ws_col));
        let (rows, columns) = size.ok().filter(|size| size.0 > 1).unwrap_or((u16::MAX, u16::MAX));
        let clear = if is_first { CLEAR } else { "" };
        let drawn = fitted(text, rows.into(), columns.into());
        say(&format!("{clear}{HOME}{}{BELOW}\n", drawn.join(&format!("{END_OF_LINE}\n"))))
    }
}

/// The lines that a terminal has room for: one is left for the cursor.
fn fitted(text: &str, rows: usize, columns: usize) -> Vec<String> {
    let lines: Vec<&str> = text.lines().collect();
    let cut = |line: &&str| line.chars().take(columns).collect::<String>();
    let room = rows - 1;
    if lines.len() <= room {
        return lines.iter().map(cut).collect();
    }
    let mut shown: Vec<String> = lines[..room - 1].iter().map(cut).collect();
    shown.push(cut(&format!(
        "… {} more lines; a larger window shows them",
        lines.len() - room + 1
    )
    .as_str()));
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use text::tests::status;

    #[test]
    fn the_json_has_the_keys_that_scripts_read() {
        let json: serde_json::Value =
            serde_json::from_str(&shown(&status(), true)).expect("it is JSON");
        for key in ["models", "members", "gpus", "gpus_needed", "policy", "version", "uptime_s"] {
            assert!(json.get(key).is_some(), "{key} is missing: {json}");
        }
        let model = &json["models"][0];
        for key in ["name", "queue", "rate_rps", "bad_rate", "mean_batch", "p50_ms", "p99_ms"] {
            assert!(model.get(key).is_some(), "{key} is missing: {model}");
        }
    }

    #[test]
    fn a_picture_fits_into_the_terminal() {
        assert_eq!(fitted("ab\ncd\n", 3, 80), ["ab", "cd"]);
        assert_eq!(fitted("äbc\nd", 9, 2), ["äb", "d"]);
        let cut = fitted("1\n2\n3\n4\n5", 4, 80);
        assert_eq!(cut, ["1", "2", "… 3 more lines; a larger window shows them"]);
    }
}
