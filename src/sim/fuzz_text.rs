//! What `baton sim fuzz` says to people.

use std::fmt::Write as _;

use baton_sim::fuzz::{Again, PolicyGoodput, Quantiles, Row, Summary, Worst};

/// A scenario in one line.
pub(super) fn line(row: &Row) -> String {
    let number = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |v| format!("{v:.3}"));
    let again = row.again.as_ref().map_or_else(String::new, again);
    let mean = |at: usize| row.latency.get(at).map(|at| at.mean_ms / at.eager_mean_ms);
    format!(
        "#{} {} of {}{again}, {:.0} of {:.0} tasks/s ({:.2} of the bound); mean latency {} {} {} of \
         eager's; rarest {}; {}",
        row.index,
        number(row.ratio),
        row.best.as_deref().unwrap_or("none"),
        row.goodput_rps,
        row.best_rps,
        row.goodput_rps / row.analytic_bound_rps,
        number(mean(0)),
        number(mean(1)),
        number(mean(2)),
        row.rarest_tasks,
        row.description,
    )
}

/// What other seeds say.
fn again(again: &Again) -> String {
    let error = again.error.map_or_else(String::new, |error| format!(" ± {error:.3}"));
    format!(" (with {} other seeds {:.3}{error})", again.seeds, again.ratio)
}

/// All there is to say of one row, of several a summary.
pub(super) fn text(rows: &[Row], summary: &Summary) -> String {
    if let [row] = rows {
        return one(row);
    }
    let mut text = format!(
        "{} scenarios, {} of them without a good rate, {} with a good rate above a bad one\n\n{}",
        summary.scenarios, summary.without_goodput, summary.good_above_bad, QUANTILES
    );
    let mut add = |name: String, quantiles: &Quantiles| {
        text += &quantile_line(&name, quantiles);
    };
    add("goodput over the best".to_owned(), &summary.ratio);
    add("the same, few tasks decide".to_owned(), &summary.ratio_light);
    for latency in &summary.latency {
        add(format!("mean over eager's at {}", latency.load), &latency.mean);
    }
    for latency in &summary.latency {
        add(format!("p99 over eager's at {}", latency.load), &latency.p99);
        add("the same, as few bad".to_owned(), &latency.p99_alike);
    }
    add("bad rate at 0.1, more".to_owned(), &summary.low_load);
    text += &worst("Least goodput over the best", &summary.worst);
    text += &worst("The same where a few tasks decide", &summary.worst_light);
    text += &worst("Largest mean latency over eager's, at the lowest load", &summary.slowest);
    text += &worst("Bad rate at 0.1 over the best policy's", &summary.worst_low_load);
    text
}

pub(super) const QUANTILES: &str =
    "                               min     1%     5%    25%    50%    75%    95%    99%    max\n";

pub(super) fn quantile_line(name: &str, of: &Quantiles) -> String {
    if of.count == 0 {
        return format!("{name:<27} no scenario has it\n");
    }
    let values = [of.min, of.p1, of.p5, of.p25, of.p50, of.p75, of.p95, of.p99, of.max];
    let values: String = values.iter().map(|value| format!(" {value:>6.3}")).collect();
    format!("{name:<27}{values}\n")
}

pub(super) fn worst(title: &str, worst: &[Worst]) -> String {
    let mut text = format!("\n{title}:\n");
    if worst.is_empty() {
        text += "none\n";
    }
    for Worst { value, against, description, replay, .. } in worst {
        let _infallible = writeln!(text, "{value:>9.5} {against}: {description}\n        {replay}");
    }
    text
}

fn one(row: &Row) -> String {
    let mut text = format!(
        "{}\n\n{}, of the bound of {:.0} tasks/s:\n",
        row.description,
        line(row),
        row.analytic_bound_rps
    );
    for PolicyGoodput { policy, goodput_rps, good_above_bad } in &row.policies {
        let Some(rps) = goodput_rps else {
            let _infallible = writeln!(text, "{policy:<16} not searched: another's is higher");
            continue;
        };
        let above = if *good_above_bad { "  (above a bad rate)" } else { "" };
        let ratio = rps / row.analytic_bound_rps;
        let _infallible = writeln!(text, "{policy:<16} {rps:>12.1} {ratio:>7.4}{above}");
    }
    for at in &row.latency {
        let _infallible = writeln!(
            text,
            "at {}: mean {:.3} ms, eager {:.3}; p99 {:.3} ms, eager {:.3}; bad {:.5}, eager {:.5}",
            at.load,
            at.mean_ms,
            at.eager_mean_ms,
            at.p99_ms,
            at.eager_p99_ms,
            at.bad_rate,
            at.eager_bad_rate
        );
    }
    if let Some(low) = &row.low_load {
        let _infallible = writeln!(
            text,
            "bad rate at 0.1: {:.5}, least {:.5} ({})",
            low.bad_rate, low.best_bad_rate, low.best
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_scenario_has_is_not_zero() {
        let zero = 0.0;
        let mut of = Quantiles {
            count: 0,
            min: zero,
            p1: zero,
            p5: zero,
            p25: zero,
            p50: zero,
            p75: zero,
            p95: zero,
            p99: zero,
            max: zero,
        };
        assert!(quantile_line("few", &of).ends_with(" no scenario has it\n"));
        of.count = 1;
        assert_eq!(quantile_line("few", &of).matches("0.000").count(), 9);
    }
}
