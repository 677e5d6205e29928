//! Tables and numbers as Markdown.

use std::fmt::Write as _;

/// A table; the first column to the left, the others to the right.
pub(crate) fn table(headings: &[String], rows: &[Vec<String>]) -> String {
    let mut text = line(headings);
    text.push_str("|---|");
    text.push_str(&"---:|".repeat(headings.len().saturating_sub(1)));
    text.push('\n');
    for row in rows {
        debug_assert_eq!(row.len(), headings.len(), "a row has a cell for every heading");
        text.push_str(&line(row));
    }
    text
}

fn line(cells: &[String]) -> String {
    let mut line = "|".to_owned();
    for cell in cells {
        write!(line, " {cell} |").expect("memory takes every line");
    }
    line.push('\n');
    line
}

/// A rate: whole, in groups of three digits.
pub(crate) fn rate(value: f64) -> String {
    let digits = format!("{value:.0}");
    let mut grouped = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

/// A ratio.
pub(crate) fn ratio(value: f64) -> String {
    format!("{value:.3}")
}

/// A part as a percentage.
pub(crate) fn percent(value: f64) -> String {
    format!("{:.0} %", value * 100.0)
}

/// By how much more or less, as a percentage.
pub(crate) fn change(value: f64) -> String {
    format!("{:+.0} %", (value - 1.0) * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_grouped_by_thousands() {
        let texts = [0.4, 999.0, 1_000.0, 61_350.7, 1_234_567.0].map(rate);
        assert_eq!(texts, ["0", "999", "1,000", "61,351", "1,234,567"]);
    }
}
