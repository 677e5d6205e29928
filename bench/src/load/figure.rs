//! A run as a picture: what came and what became of it over time, latencies, and the trials of a search.

use std::io;
use std::path::{Path, PathBuf};

use super::report::Report;
use super::search::Knee;
use super::timeline::{Part, Timeline};
use crate::plot::{
    self, Axis, BLUE, Content, Figure, GREEN, GREY, Key, Line, Look, Mark, ORANGE, Panel,
    PlotError, Reference, Row, Style, VERMILLION, highest,
};

/// The report cannot be drawn or written.
#[derive(Debug, thiserror::Error)]
pub enum ReportError {
    /// A figure that is none.
    #[error(transparent)]
    Plot(#[from] PlotError),
    /// The system says no.
    #[error("{}: {source}", path.display())]
    Write {
        /// The file.
        path: PathBuf,
        /// The system's answer.
        source: io::Error,
    },
}

const HEIGHT: i32 = 440;
const OFFERED: Style = Style { colour: GREY, mark: Mark::Circle, light: true };
const GOOD: Style = Style { colour: GREEN, mark: Mark::Circle, light: false };
const LATE: Style = Style { colour: ORANGE, mark: Mark::Triangle, light: false };
const LOST: Style = Style { colour: VERMILLION, mark: Mark::Square, light: false };
const LATENCY: Style = Style { colour: BLUE, mark: Mark::Diamond, light: false };

/// Writes a page with the table if the name ends in `.html`, and otherwise the SVG alone.
///
/// # Errors
/// See [`ReportError`].
pub fn write(
    path: &Path,
    title: &str,
    report: &Report,
    timeline: Option<&Timeline>,
    knee: Option<&Knee>,
) -> Result<(), ReportError> {
    let svg = svg(title, report, timeline, knee)?;
    let is_page = path.extension().is_some_and(|ending| ending == "html");
    let text = if is_page { page(title, &report.to_string(), &svg) } else { svg };
    std::fs::write(path, text)
        .map_err(|source| ReportError::Write { path: path.to_owned(), source })
}

fn page(title: &str, table: &str, svg: &str) -> String {
    let [title, table] = [title, table].map(escaped);
    format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\n\
         <style>body {{ max-width: 1100px; margin: 2em auto; font-family: sans-serif }} svg {{ width: 100%; height: auto }}</style>\n\
         </head><body>\n{svg}\n<pre>{table}</pre>\n</body></html>\n"
    )
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

fn svg(
    title: &str,
    report: &Report,
    timeline: Option<&Timeline>,
    knee: Option<&Knee>,
) -> Result<String, PlotError> {
    let mut panels = Vec::new();
    if let Some(timeline) = timeline {
        panels.extend([rates(timeline), latencies(timeline)]);
        panels.extend(accuracies(timeline));
    }
    let mut rows = vec![Row { height: HEIGHT, panels }];
    if let Some(knee) = knee {
        rows.push(Row { height: HEIGHT, panels: vec![trials(knee)] });
    }
    rows.retain(|row| !row.panels.is_empty());
    let keys = [
        ("offered", OFFERED),
        ("in time", GOOD),
        ("late", LATE),
        ("lost", LOST),
        ("latency", LATENCY),
    ];
    let key =
        |(label, style): (&str, Style)| Key { label: label.to_owned(), look: Look::Series(style) };
    plot::svg(&Figure {
        title: title.to_owned(),
        caption: caption(report),
        legend: keys.map(key).into(),
        rows,
    })
}

fn caption(report: &Report) -> String {
    let totals = &report.totals;
    let kept =
        if report.schedule_kept { "" } else { "RUN NOT TO BE USED, THE GENERATOR WAS LATE: " };
    format!(
        "{kept}{} tasks in {:.1} s, {:.1}/s in time, bad rate {:.2} %, p99 {:.2} ms; latency: p50 (lower) and p99",
        totals.submitted,
        report.circumstances.seconds,
        totals.goodput_rps,
        totals.bad_rate * 100.0,
        totals.p99_ms.unwrap_or(0.0)
    )
}

fn rates(timeline: &Timeline) -> Panel {
    let line = |style, of: fn(&Part) -> u64| {
        let point = |(at, part): (f64, &Part)| (at, of(part) as f64 / timeline.seconds());
        Line { style, points: timeline.parts().map(point).collect(), mark_every: 0 }
    };
    let lines = vec![
        line(GOOD, |part| part.good),
        line(LATE, |part| part.late),
        line(LOST, |part| part.lost),
        line(OFFERED, |part| part.submitted),
    ];
    panel(timeline, "tasks per second", lines)
}

fn latencies(timeline: &Timeline) -> Panel {
    let line = |q: f64| {
        let points = timeline.parts().filter_map(|(at, part)| Some((at, part.quantile_ms(q)?)));
        Line { style: LATENCY, points: points.collect(), mark_every: 0 }
    };
    panel(timeline, "latency, ms", vec![line(0.5), line(0.99)])
}

/// Nothing without variants.
fn accuracies(timeline: &Timeline) -> Option<Panel> {
    let points = timeline.parts().filter_map(|(at, part)| Some((at, part.mean_accuracy()?)));
    let points: Vec<(f64, f64)> = points.collect();
    let fold = |of: fn(f64, f64) -> f64| points.iter().map(|point| point.1).reduce(of);
    let (least, most) = (fold(f64::min)?, fold(f64::max)?);
    let line = Line { style: GOOD, points, mark_every: 0 };
    let label = "accuracy of the answers, %";
    Some(Panel { y: Axis::around(label, least, most), ..panel(timeline, label, vec![line]) })
}

fn panel(timeline: &Timeline, label: &str, lines: Vec<Line>) -> Panel {
    let seconds = timeline.parts().count() as f64 * timeline.seconds();
    Panel {
        title: String::new(),
        x: Axis::up_to("seconds, by when a task was due", seconds),
        y: Axis::up_to(label, 1.05 * highest(&lines)),
        content: Content::Lines { lines, references: Vec::new() },
    }
}

/// Bad rates over the offered rates.
fn trials(knee: &Knee) -> Panel {
    let points: Vec<(f64, f64)> = knee
        .points
        .iter()
        .filter_map(|point| Some((point.rate_rps, point.bad_rate? * 100.0)))
        .collect();
    let most = points.iter().map(|point| point.0).fold(0.0, f64::max);
    let bound = (1.0 - knee.share) * 100.0;
    let lines = vec![Line { style: LOST, points, mark_every: 1 }];
    let label = format!("{:.0}/s", knee.rate_rps);
    Panel {
        title: format!("At most {bound:.2} % bad up to {:.1} tasks/s", knee.rate_rps),
        x: Axis::up_to("offered, tasks per second", most),
        y: Axis::up_to("bad tasks of the worst model, %", highest(&lines).max(2.0 * bound)),
        content: Content::Lines {
            lines,
            references: vec![
                Reference::At(knee.rate_rps, label),
                Reference::Through(vec![(0.0, bound), (most, bound)]),
            ],
        },
    }
}

#[cfg(test)]
mod tests {
    use baton_core::Nanos;

    use super::*;
    use crate::load::report::Circumstances;
    use crate::load::search::{Ask, Search, Seen};
    use crate::load::tally::tests::sample;
    use crate::load::timeline::End;

    fn knee() -> Knee {
        let mut search = Search::new(0.99, 0.02, 100.0, 1e6);
        while let Some(ask @ Ask { rate_rps, .. }) = search.next() {
            let bad_rate = if rate_rps > 300.0 { 0.2 } else { 0.0 };
            search
                .saw(ask, Seen { submitted: 9_000, bad_rate, bad_error: 0.0, schedule_kept: true });
        }
        search.knee()
    }

    fn timeline() -> Timeline {
        let mut timeline = Timeline::new(Nanos::ZERO, 10.0);
        for ms in 0..9_000 {
            let due = Nanos::from_millis(ms);
            timeline.submitted(due);
            let latency = Nanos::from_micros(900 + ms % 100);
            timeline.ended(due, if ms % 50 == 0 { End::Lost } else { End::Good(latency) });
        }
        timeline
    }

    #[test]
    fn accuracy_has_a_panel_where_variants_answer() {
        let report = Report::new(&[], Circumstances { seconds: 10.0, ..Circumstances::default() });
        let mut timeline = timeline();
        let word = "accuracy of the answers, %";
        assert!(!svg("t", &report, Some(&timeline), None).unwrap().contains(word));
        for (second, accuracy) in [(1, 80.16), (1, 78.0), (2, 73.82)] {
            timeline.answered(Nanos::from_millis(1_000 * second), accuracy);
        }
        let panel = accuracies(&timeline).unwrap();
        let Content::Lines { lines, .. } = panel.content else { panic!("lines") };
        assert_eq!(lines[0].points, [(1.5, 79.08), (2.5, 73.82)]);
        assert!((65.0..73.82).contains(&panel.y.from) && (79.08..90.0).contains(&panel.y.to));
        assert!(svg("t", &report, Some(&timeline), None).unwrap().contains(word));
    }

    #[test]
    fn a_report_is_a_drawing_or_a_page_with_one_and_both_are_well_formed() {
        let circumstances = Circumstances { seconds: 10.0, ..Circumstances::default() };
        let report = Report::new(&[sample("a<b")], circumstances);
        let folder = std::env::temp_dir();
        for ending in ["svg", "html"] {
            let path = folder.join(format!("baton-load-{}.{ending}", std::process::id()));
            write(&path, "a & b", &report, Some(&timeline()), Some(&knee())).unwrap();
            let text = std::fs::read_to_string(&path).unwrap();
            std::fs::remove_file(&path).unwrap();
            let xml =
                text.trim_start_matches("<!DOCTYPE html>").replace("<meta charset=\"utf-8\">", "");
            let document =
                roxmltree::Document::parse(&xml).unwrap_or_else(|e| panic!("{ending}: {e}"));
            let has = |word: &str| {
                document
                    .descendants()
                    .any(|node| node.text().is_some_and(|text| text.contains(word)))
            };
            assert!(has("tasks per second") && has("latency, ms") && has("bad tasks"), "{ending}");
            assert_eq!(has("a<b"), ending == "html", "the page has the table");
        }
    }

    #[test]
    fn a_run_without_parts_and_one_whose_generator_was_late_say_so() {
        let report = Report::new(&[], Circumstances { seconds: 1.0, ..Circumstances::default() });
        assert!(svg("t", &report, None, None).is_ok());
        let late = Report { schedule_kept: false, ..report };
        assert!(caption(&late).starts_with("RUN NOT TO BE USED"));
    }
}
