//! A [`Report`] for people.

use std::fmt;

use super::report::{ModelReport, Report};
use super::tally::Reasons;
use crate::machine::percent;

const HEADINGS: [&str; 10] = [
    "model",
    "submitted",
    "completed",
    "late",
    "dropped",
    "failed",
    "goodput/s",
    "p50 ms",
    "p99 ms",
    "batch",
];

/// The table per model, the reasons, accuracy, and the conservation line.
pub(crate) fn write(f: &mut fmt::Formatter<'_>, report: &Report) -> fmt::Result {
    let rows: Vec<[String; 10]> =
        report.models.iter().map(row).chain([total_row(report)]).collect();
    let widths: Vec<usize> = (0..HEADINGS.len())
        .map(|c| rows.iter().map(|row| row[c].len()).chain([HEADINGS[c].len()]).max().unwrap_or(0))
        .collect();
    write_row(f, &HEADINGS.map(str::to_owned), &widths)?;
    for row in &rows {
        write_row(f, row, &widths)?;
    }
    writeln!(f)?;
    for model in &report.models {
        write_reasons(f, &model.name, "dropped", &model.dropped_by_reason)?;
        write_reasons(f, &model.name, "failed", &model.failed_by_reason)?;
    }
    write_summary(f, report)
}

fn write_summary(f: &mut fmt::Formatter<'_>, report: &Report) -> fmt::Result {
    for model in &report.models {
        if let Some(accuracy) = model.accuracy {
            writeln!(
                f,
                "{}: {:.1} % of the answers name the right class",
                model.name,
                accuracy * 100.0
            )?;
        }
    }
    if report.unchecked_answers > 0 {
        writeln!(f, "{} answers could not be checked: no reference", report.unchecked_answers)?;
    }
    for name in &report.lost {
        writeln!(f, "LOST: {name} died during the run")?;
    }
    let steal = percent(report.steal_fraction, "unknown");
    writeln!(
        f,
        "engines {} over {}; bad rate {:.2} %; CPU stolen {steal}",
        report.engines.join(" and "),
        report.transport,
        report.bad_rate * 100.0
    )?;
    let ended = report.completed + report.dropped + report.failed;
    let (sign, word) = if report.conserved { ("=", "conserved") } else { ("≠", "NOT CONSERVED") };
    writeln!(
        f,
        "{word}: {} submitted {sign} {} completed + {} dropped + {} failed (= {ended}); {} wrong answers",
        report.submitted, report.completed, report.dropped, report.failed, report.wrong_answers
    )
}

fn row(model: &ModelReport) -> [String; 10] {
    [
        model.name.clone(),
        model.submitted.to_string(),
        model.completed.to_string(),
        model.late.to_string(),
        model.dropped.to_string(),
        model.failed.to_string(),
        format!("{:.1}", model.goodput_rps),
        decimal(model.p50_ms),
        decimal(model.p99_ms),
        decimal(model.mean_batch),
    ]
}

fn total_row(report: &Report) -> [String; 10] {
    [
        "all".to_owned(),
        report.submitted.to_string(),
        report.completed.to_string(),
        report.late.to_string(),
        report.dropped.to_string(),
        report.failed.to_string(),
        format!("{:.1}", report.goodput_rps),
        decimal(report.p50_ms),
        decimal(report.p99_ms),
        String::new(),
    ]
}

fn decimal(value: Option<f64>) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}"))
}

/// Names to the left, numbers to the right.
fn write_row(f: &mut fmt::Formatter<'_>, row: &[String; 10], widths: &[usize]) -> fmt::Result {
    write!(f, "{:<width$}", row[0], width = widths[0])?;
    for (cell, width) in row.iter().zip(widths).skip(1) {
        write!(f, "  {cell:>width$}")?;
    }
    writeln!(f)
}

fn write_reasons(
    f: &mut fmt::Formatter<'_>,
    model: &str,
    what: &str,
    reasons: &Reasons,
) -> fmt::Result {
    if reasons.is_empty() {
        return Ok(());
    }
    let list: Vec<String> = reasons.iter().map(|(reason, n)| format!("{reason} {n}")).collect();
    writeln!(f, "{model}: {what}: {}", list.join(", "))
}
