//! What `baton sim fuzz --draw` says to people.

use std::fmt::Write as _;

use baton_sim::fuzz::served::{ServedRow, ServedSummary};

use super::fuzz_text::{QUANTILES, quantile_line, worst};

/// A scenario in one line.
pub(super) fn line(row: &ServedRow) -> String {
    let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |v| format!("{v:.4}"));
    format!(
        "#{} {} of {}, {:.0} of {:.0} tasks/s{}; {}",
        row.index,
        number(row.ratio),
        row.best.as_deref().unwrap_or("none"),
        row.score_rps,
        row.best_rps,
        row.over_cheapest.map_or_else(String::new, |over| format!(", {over:.4} of the cheapest's")),
        row.description
    )
}

/// All there is to say of one row, of several a summary.
pub(super) fn text(rows: &[ServedRow], summary: &ServedSummary) -> String {
    if let [row] = rows {
        return one(row);
    }
    let mut text = format!("{} scenarios\n\n{QUANTILES}", summary.scenarios);
    text += &quantile_line("served over the best", &summary.ratio);
    if summary.over_cheapest.count > 0 {
        text += &quantile_line("in time over the cheapest", &summary.over_cheapest);
    }
    text += &worst("Least served over the best", &summary.worst);
    if summary.over_cheapest.count > 0 {
        text += &worst("Least in time over the cheapest", &summary.worst_over_cheapest);
    }
    text
}

fn one(row: &ServedRow) -> String {
    let mut text = format!(
        "{}\n\n{}\n\n{:<16} {:>10} {:>10} {:>9} {:>9} {:>9}\n",
        row.description,
        line(row),
        "policy",
        "score/s",
        "in time/s",
        "satisfied",
        "accuracy",
        "cold"
    );
    let known = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |v| format!("{v:.3}"));
    for of in &row.policies {
        let _infallible = writeln!(
            text,
            "{:<16} {:>10.1} {:>10.1} {:>9.4} {:>9} {:>9}",
            of.policy,
            of.score_rps,
            of.goodput_rps,
            of.satisfied,
            known(of.mean_accuracy),
            known(of.cold_satisfied)
        );
    }
    text
}
