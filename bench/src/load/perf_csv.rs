//! Runs as perf_analyzer writes them, so that what reads its files reads these.
//!
//! Times are microseconds. "Client Send" and "Client Recv" are 0: the latency is one span here. Where a server says nothing of its
//! time, its columns are 0 and all of the latency is the network's and the server's.

use std::fmt::Write as _;
use std::io;
use std::path::{Path, PathBuf};

use super::report::Report;

/// Mean times of a server, by its own statistics, µs.
#[derive(Clone, Copy, PartialEq, Default, Debug)]
pub struct ServerTimes {
    /// Waiting.
    pub queue_us: f64,
    /// Before the execution.
    pub compute_input_us: f64,
    /// Executing.
    pub compute_infer_us: f64,
    /// After it.
    pub compute_output_us: f64,
}

/// The file cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct CsvError {
    path: PathBuf,
    source: io::Error,
}

const COLUMNS: &str = "Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,\
    Server Compute Input,Server Compute Infer,Server Compute Output,Client Recv,\
    p50 latency,p90 latency,p95 latency,p99 latency";

/// Writes one line for each run. `loads` are what they were given: tasks per second, or tasks under way.
///
/// # Errors
/// The file cannot be written.
pub fn write(
    path: &Path,
    is_closed: bool,
    runs: &[(f64, &Report, Option<ServerTimes>)],
) -> Result<(), CsvError> {
    let text = text(is_closed, runs);
    std::fs::write(path, text).map_err(|source| CsvError { path: path.to_owned(), source })
}

fn text(is_closed: bool, runs: &[(f64, &Report, Option<ServerTimes>)]) -> String {
    let load = if is_closed { "Concurrency" } else { "Request Rate" };
    let mut text = format!("{load},{COLUMNS}\n");
    for (load, report, times) in runs {
        let totals = &report.totals;
        let answered = totals.completed as f64 / report.circumstances.seconds;
        let ServerTimes { queue_us, compute_input_us, compute_infer_us, compute_output_us } =
            times.unwrap_or_default();
        let server = queue_us + compute_input_us + compute_infer_us + compute_output_us;
        let us = |ms: Option<f64>| ms.unwrap_or(0.0) * 1e3;
        let network = (us(totals.mean_ms) - server).max(0.0);
        let _ = writeln!(
            text,
            "{load},{answered:.2},0,{network:.0},{queue_us:.0},{compute_input_us:.0},{compute_infer_us:.0},\
             {compute_output_us:.0},0,{:.0},{:.0},{:.0},{:.0}",
            us(totals.p50_ms),
            us(totals.p90_ms),
            us(totals.p95_ms),
            us(totals.p99_ms)
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::report::Circumstances;
    use crate::load::tally::tests::sample;

    #[test]
    fn a_run_is_a_line_with_a_cell_for_each_column() {
        let circumstances = Circumstances { seconds: 2.0, ..Circumstances::default() };
        let report = Report::new(&[sample("a")], circumstances);
        let times =
            ServerTimes { queue_us: 1_000.0, compute_infer_us: 4_000.4, ..ServerTimes::default() };
        let text = text(false, &[(50.0, &report, Some(times)), (100.0, &report, None)]);
        let lines: Vec<Vec<&str>> = text.lines().map(|line| line.split(',').collect()).collect();
        assert_eq!(lines.len(), 3);
        assert!(lines.iter().all(|cells| cells.len() == 13), "{text}");
        assert_eq!((lines[0][0], lines[0][12]), ("Request Rate", "p99 latency"));
        // Four answers, of 10, 20, 30 and 60 ms, in 2 s.
        // The histogram has three digits.
        let network: f64 = lines[1][3].parse().unwrap();
        assert!((network - 25_000.0).abs() < 50.0, "{text}");
        assert_eq!(lines[1][..3], ["50", "2.00", "0"]);
        assert_eq!(lines[1][4..9], ["1000", "0", "4000", "0", "0"]);
        assert!(lines[1][9].parse::<f64>().unwrap() >= 20_000.0);
        let all: f64 = lines[2][3].parse().unwrap();
        assert!((all - 30_000.0).abs() < 50.0, "{text}");
    }
}
