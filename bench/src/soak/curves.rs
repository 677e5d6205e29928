//! The soak's curves: latency, memory and handles over time.

use super::report::{Sample, SoakReport, reading};
use crate::plot::{
    self, Axis, BLUE, Content, Figure, GREEN, Key, Line, Look, Mark, ORANGE, Panel, PlotError, Row,
    Style, VERMILLION, highest,
};
use crate::processes::ProcessUsage;

const HEIGHT: i32 = 420;
/// A process each, in the order of the samples.
const STYLES: [Style; 4] = [
    Style { colour: BLUE, mark: Mark::Circle, light: false },
    Style { colour: VERMILLION, mark: Mark::Square, light: false },
    Style { colour: ORANGE, mark: Mark::Triangle, light: false },
    Style { colour: GREEN, mark: Mark::Diamond, light: false },
];

/// The SVG document.
pub(super) fn svg(report: &SoakReport) -> Result<String, PlotError> {
    let names: Vec<String> = report.samples.first().map_or_else(Vec::new, |first| {
        first.usage.iter().map(|usage| usage.process.clone()).collect()
    });
    let key =
        |(name, style): (&String, Style)| Key { label: name.clone(), look: Look::Series(style) };
    let mib = |usage: &ProcessUsage| usage.resident_kib;
    let panels = vec![
        latency(report),
        by_process(report, &names, "resident memory, MiB", 1024.0, mib),
        by_process(report, &names, "open file descriptors", 1.0, |usage| usage.handles),
    ];
    plot::svg(&Figure {
        title: format!("A cluster at {} of what its GPUs do at best", report.load),
        caption: format!(
            "{} tasks, {} not answered in time; an interval of {} s each; latency: p50 (lower) and p99",
            report.ending.submitted,
            report.ending.submitted - report.ending.completed + report.late,
            report.every_s
        ),
        legend: names.iter().zip(STYLES).map(key).collect(),
        rows: vec![Row { height: HEIGHT, panels }],
    })
}

fn latency(report: &SoakReport) -> Panel {
    let p50 = curve(report, |sample| sample.tasks.p50_ms);
    let p99 = curve(report, |sample| sample.tasks.p99_ms);
    let lines = [p50, p99].map(|points| line(STYLES[3], points));
    panel(report, "latency, ms", lines.into())
}

fn by_process(
    report: &SoakReport,
    names: &[String],
    label: &str,
    unit: f64,
    of: fn(&ProcessUsage) -> u64,
) -> Panel {
    let of_one = |(name, style): (&String, Style)| {
        line(style, curve(report, |sample| Some(reading(sample, name, of)? / unit)))
    };
    panel(report, label, names.iter().zip(STYLES).map(of_one).collect())
}

/// Minutes from the start to each interval's end, and its value.
fn curve(report: &SoakReport, of: impl Fn(&Sample) -> Option<f64>) -> Vec<(f64, f64)> {
    let minutes = |i: usize| (i + 1) as f64 * report.every_s / 60.0;
    let samples = report.samples.iter().enumerate();
    samples.filter_map(|(i, sample)| Some((minutes(i), of(sample)?))).collect()
}

fn line(style: Style, points: Vec<(f64, f64)>) -> Line {
    Line { style, points, mark_every: 0 }
}

fn panel(report: &SoakReport, label: &str, lines: Vec<Line>) -> Panel {
    Panel {
        title: String::new(),
        x: Axis::up_to("minutes", report.seconds / 60.0),
        y: Axis::up_to(label, 1.05 * highest(&lines)),
        content: Content::Lines { lines, references: Vec::new() },
    }
}
