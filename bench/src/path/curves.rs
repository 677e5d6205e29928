//! The figure: what a task costs each process, over the tasks per second.

use super::costs::OfProcesses;
use super::report::PathReport;
use crate::plot::{
    self, Axis, BLACK, BLUE, Content, Figure, GREEN, Key, Line, Look, Mark, ORANGE, Panel,
    PlotError, Row, Style, highest,
};

const HEIGHT: i32 = 520;
/// Room on either side of the rates, in powers of ten.
const MARGIN: f64 = 0.15;

/// A series: its label, its look, its figure.
type Series = (&'static str, Style, fn(&OfProcesses) -> f64);

const SERIES: [Series; 4] = [
    ("all three", style(BLACK, Mark::Diamond), |cpu| cpu.sum),
    ("client", style(BLUE, Mark::Circle), |cpu| cpu.client),
    ("scheduler", style(ORANGE, Mark::Square), |cpu| cpu.scheduler),
    ("backend", style(GREEN, Mark::Triangle), |cpu| cpu.backend),
];

const fn style(colour: plot::Colour, mark: Mark) -> Style {
    Style { colour, mark, light: false }
}

/// The SVG document.
pub(super) fn svg(reports: &[PathReport]) -> Result<String, PlotError> {
    let key =
        |(label, style, _): Series| Key { label: label.to_owned(), look: Look::Series(style) };
    let line = |(_, style, of): Series| {
        let point = |report: &PathReport| (report.tasks_per_s.log10(), of(&report.cpu_us_per_task));
        Line { style, points: reports.iter().map(point).collect(), mark_every: 1 }
    };
    let lines: Vec<Line> = SERIES.map(line).into();
    let panel = Panel {
        title: String::new(),
        x: rates(reports),
        y: Axis::up_to("CPU time per task, µs", 1.05 * highest(&lines)),
        content: Content::Lines { lines, references: Vec::new() },
    };
    plot::svg(&Figure {
        title: "What a task costs the processes on its path".to_owned(),
        caption: caption(reports),
        legend: SERIES.map(key).into(),
        rows: vec![Row { height: HEIGHT, panels: vec![panel] }],
    })
}

/// Logarithmic, a tick at every rate that was measured.
fn rates(reports: &[PathReport]) -> Axis {
    let tick = |report: &PathReport| {
        let rate = report.tasks_per_s;
        let label = match rate {
            ..1e3 => format!("{rate:.0}"),
            ..1e4 => format!("{:.1} k", rate / 1e3),
            _ => format!("{:.0} k", rate / 1e3),
        };
        (rate.log10(), label)
    };
    let ticks: Vec<(f64, String)> = reports.iter().map(tick).collect();
    let places = || ticks.iter().map(|(at, _)| *at);
    let from = places().fold(f64::INFINITY, f64::min) - MARGIN;
    let to = places().fold(f64::NEG_INFINITY, f64::max) + MARGIN;
    Axis { label: "tasks answered per second".to_owned(), from, to, ticks }
}

fn caption(reports: &[PathReport]) -> String {
    let Some(PathReport { mode, bytes, batch, slots, seconds, .. }) = reports.first() else {
        return String::new();
    };
    format!(
        "{mode}, inputs of {bytes} bytes, batches of {batch} at most, {slots} emulated GPU slots, \
         loopback TCP, {seconds:.0} s each"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::Pace;
    use crate::path::report::tests::report;

    #[test]
    fn one_pace_and_several_are_drawn() {
        let at = |tasks_per_s| {
            let rate = Pace::Poisson { rate: tasks_per_s };
            PathReport { tasks_per_s, ..report(rate, 0) }
        };
        let several = svg(&[1e3, 1e4, 1e5].map(at)).unwrap();
        assert!(["1.0 k", "10 k", "100 k", "scheduler"].iter().all(|text| several.contains(text)));
        assert!(svg(&[at(500.0)]).unwrap().starts_with("<svg"));
    }
}
