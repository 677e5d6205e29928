//! A [`Report`] for people.

use std::cmp::Reverse;
use std::fmt;

use super::caches::ColdFigures;
use super::report::{CacheFigures, Circumstances, ModelReport, Report, Totals};
use super::tally::{Reasons, VariantTally};
use crate::machine::percent;

/// With names of up to fourteen letters and six digits a row fits a terminal of 80 columns.
const HEADINGS: [&str; 10] =
    ["model", "tasks", "late", "lost", "good/s", "p50 ms", "p99 ms", "SLO ms", "/SLO", "batch"];
/// What the headings mean.
const LEGEND: &str = "late: answered after its deadline; lost: dropped or failed, without an answer\n\
                      good/s: answers in time per second; /SLO: p99 over it; batch: its mean size";

/// Of more models, those with the most tasks have rows.
const ROWS_MAX: usize = 30;

/// The table per model, the reasons, accuracy, and the conservation line.
pub(crate) fn write(f: &mut fmt::Formatter<'_>, report: &Report) -> fmt::Result {
    let of_model = |model: &ModelReport| {
        row(&model.name, &model.totals, model.slo_ms, decimal(model.mean_batch))
    };
    let total = row("all", &report.totals, None, String::new());
    let (shown, others) = busiest(&report.models, |model| model.totals.submitted);
    let of_shown: Vec<&str> = shown.iter().map(|model| model.name.as_str()).collect();
    let rows: Vec<[String; 10]> = shown.into_iter().map(of_model).chain([total]).collect();
    let widths: Vec<usize> = (0..HEADINGS.len())
        .map(|c| rows.iter().map(|row| row[c].len()).chain([HEADINGS[c].len()]).max().unwrap_or(0))
        .collect();
    write_row(f, &HEADINGS.map(str::to_owned), &widths)?;
    for row in &rows {
        write_row(f, row, &widths)?;
    }
    if others > 0 {
        writeln!(f, "{others} more models with fewer tasks have no row; --json has them all")?;
    }
    writeln!(f, "{LEGEND}\n")?;
    write_all_reasons(f, &report.models, &of_shown)?;
    write_summary(f, report)
}

/// Of models with the most tasks, those that have rows in a text, in their order; and how many have none.
pub fn busiest<M>(models: &[M], tasks: fn(&M) -> u64) -> (Vec<&M>, usize) {
    let mut order: Vec<usize> = (0..models.len()).collect();
    order.sort_by_key(|&at| Reverse(tasks(&models[at])));
    order.truncate(ROWS_MAX);
    order.sort_unstable();
    let others = models.len() - order.len();
    (order.into_iter().map(|at| &models[at]).collect(), others)
}

/// Those without rows are summed up.
fn write_all_reasons(
    f: &mut fmt::Formatter<'_>,
    models: &[ModelReport],
    with_rows: &[&str],
) -> fmt::Result {
    let mut others = [Reasons::new(), Reasons::new()];
    for model in models {
        let reasons = [&model.dropped_by_reason, &model.failed_by_reason];
        if with_rows.contains(&model.name.as_str()) {
            write_reasons(f, &model.name, "dropped", reasons[0])?;
            write_reasons(f, &model.name, "failed", reasons[1])?;
            continue;
        }
        for (sum, reasons) in others.iter_mut().zip(reasons) {
            reasons
                .iter()
                .for_each(|(reason, tasks)| *sum.entry(reason.clone()).or_default() += tasks);
        }
    }
    write_reasons(f, "the others", "dropped", &others[0])?;
    write_reasons(f, "the others", "failed", &others[1])
}

/// Nothing without caches.
fn write_cache(
    f: &mut fmt::Formatter<'_>,
    Report { totals, circumstances, .. }: &Report,
) -> fmt::Result {
    write_cold_answers(f, totals)?;
    write_cold(f, circumstances)?;
    let Some(CacheFigures { models, room, copies, cold, cold_in_time, loads, loader_busy }) =
        circumstances.cache
    else {
        return Ok(());
    };
    let (in_time, busy) = (100.0 * cold_in_time as f64 / cold.max(1) as f64, 100.0 * loader_busy);
    writeln!(
        f,
        "{models} models, room for {room}, {copies} copies at the end; {loads} LOADs, loaders {busy:.0} % busy"
    )?;
    writeln!(
        f,
        "{cold} tasks came while no slot held their model; {in_time:.1} % of them were served in time"
    )
}

/// Nothing without caches.
fn write_cold(f: &mut fmt::Formatter<'_>, circumstances: &Circumstances) -> fmt::Result {
    let Some(ColdFigures { cold_rps, cold_satisfied, loads_per_s }) = circumstances.cold else {
        return Ok(());
    };
    let in_time = percent(cold_satisfied, "-");
    writeln!(
        f,
        "{cold_rps:.1} tasks/s came while no slot held their model, {in_time} of them were served in time; {loads_per_s:.1} LOADs/s"
    )
}

/// Nothing without any.
fn write_cold_answers(f: &mut fmt::Formatter<'_>, totals: &Totals) -> fmt::Result {
    let Some(mean_ms) = totals.cold_mean_ms else { return Ok(()) };
    let cold = totals.cold;
    writeln!(
        f,
        "{cold} answers came to tasks that had waited for a LOAD, {mean_ms:.2} ms in the mean"
    )
}

/// Nothing of a model without variants.
fn write_variants(f: &mut fmt::Formatter<'_>, model: &ModelReport) -> fmt::Result {
    let Some(mean) = model.mean_accuracy else { return Ok(()) };
    writeln!(f, "{}: accuracy {mean:.2} % by its variants", model.name)?;
    for variant in &model.variants {
        let share = 100.0 * variant.tasks as f64 / model.totals.completed.max(1) as f64;
        let VariantTally { name, accuracy, tasks } = variant;
        writeln!(f, "  {name:<12} {accuracy:6.2} %  {tasks:>8} answers  {share:5.1} %")?;
    }
    Ok(())
}

fn write_summary(f: &mut fmt::Formatter<'_>, report: &Report) -> fmt::Result {
    let Report { totals, circumstances, .. } = report;
    for model in &report.models {
        if let Some(accuracy) = model.totals.accuracy {
            let (name, share) = (&model.name, accuracy * 100.0);
            writeln!(f, "{name}: {share:.1} % of the answers name the right class")?;
        }
    }
    for model in &report.models {
        write_variants(f, model)?;
    }
    if report.unchecked_answers > 0 {
        writeln!(f, "{} answers could not be checked: no reference", report.unchecked_answers)?;
    }
    write_cache(f, report)?;
    let Circumstances { engines, transport, lost, steal_fraction, .. } = circumstances;
    for name in lost {
        writeln!(f, "LOST: {name} died during the run")?;
    }
    let engines = match engines.as_slice() {
        [] => "no engine has answered".to_owned(),
        engines => format!("engines {} over {transport}", engines.join(" and ")),
    };
    let bad = totals.bad_rate * 100.0;
    let steal = percent(*steal_fraction, "unknown");
    if circumstances.gpu.as_deref() == Some("fake") {
        writeln!(f, "FAKE GPU: the driver was Baton's own, without a device")?;
    }
    let error =
        report.bad_rate_error.map_or_else(String::new, |error| format!(" ± {:.2}", 200.0 * error));
    writeln!(f, "{engines}; bad rate {bad:.2}{error} %; CPU stolen {steal}")?;
    if !report.schedule_kept {
        let late = report.sent_late as f64 * 100.0 / totals.submitted as f64;
        writeln!(
            f,
            "SCHEDULE NOT KEPT: {late:.1} % of the tasks were submitted late, so these figures are not to be used"
        )?;
    }
    let Totals { submitted, completed, dropped, failed, wrong_answers, .. } = totals;
    let ended = completed + dropped + failed;
    let (word, sign, sum) = match report.conserved {
        true => ("conserved", "=", String::new()),
        false => ("NOT CONSERVED", "≠", format!(" (= {ended})")),
    };
    writeln!(
        f,
        "{word}: {submitted} submitted {sign} {completed} completed + {dropped} dropped + {failed} failed{sum}; \
         {wrong_answers} wrong"
    )
}

fn row(name: &str, totals: &Totals, slo_ms: Option<f64>, batch: String) -> [String; 10] {
    let of_slo = totals.p99_ms.zip(slo_ms).map(|(p99_ms, slo_ms)| p99_ms / slo_ms);
    [
        name.to_owned(),
        totals.submitted.to_string(),
        totals.late.to_string(),
        (totals.dropped + totals.failed).to_string(),
        format!("{:.1}", totals.goodput_rps),
        decimal(totals.p50_ms),
        decimal(totals.p99_ms),
        slo_ms.map_or_else(String::new, |slo_ms| format!("{slo_ms:.1}")),
        slo_ms.map_or_else(String::new, |_| decimal(of_slo)),
        batch,
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

/// One line, unless there are none.
pub(crate) fn write_reasons(
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::tally::tests::sample;

    #[test]
    fn the_busiest_models_have_rows_wherever_they_stand() {
        let tasks: Vec<u64> = (0..100).map(|at| if at == 99 { 7 } else { at / 50 }).collect();
        let (shown, others) = busiest(&tasks, |&tasks| tasks);
        assert_eq!((shown.len(), others), (30, 70));
        assert_eq!((*shown[0], *shown[28], *shown[29]), (1, 1, 7));
        assert_eq!(busiest(&[0, 0, 1], |&tasks| tasks), (vec![&0, &0, &1], 0));
    }

    #[test]
    fn models_without_rows_share_a_line_of_reasons() {
        let tallies: Vec<_> = (0..33).map(|at| sample(&format!("m-{at}"))).collect();
        let text = Report::new(&tallies, Circumstances::default()).to_string();
        assert!(text.contains("\nm-29: dropped: window 2\n") && !text.contains("\nm-30: dropped"));
        assert!(text.contains("\nthe others: dropped: window 6\n"), "{text}");
        assert!(
            text.contains("\nthe others: failed: backend_lost 3, slab_exhausted 3\n"),
            "{text}"
        );
    }
}
