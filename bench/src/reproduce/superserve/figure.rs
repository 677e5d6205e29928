//! The figure: accuracy by load, attainment under stress, accuracy and load over time.

use super::cells::{Column, STRESS};
use super::measured::Measured;
use super::timeline::{COURSES, Timeline};
use super::{All, Carried};
use crate::plot::{Axis, Content, Figure, Key, Line, Look, Panel, Row, highest};

/// Who is in the panels by cell.
const COMPARED: [Column; 5] =
    [Column::Ours, Column::SlackFit, Column::MaxBatch, Column::MaxAccuracy, Column::Alone(0)];

pub(super) fn figure(all: &All) -> Figure {
    let key = |column: Column| Key {
        label: column.label().replace('`', ""),
        look: Look::Series(column.policy().style()),
    };
    Figure {
        title: "SuperServe: accuracy instead of deadlines".to_owned(),
        caption: String::new(),
        legend: COMPARED.map(key).into_iter().collect(),
        rows: vec![
            row(vec![by_cell("Figs. 8 to 11a, App. B: R2", all, false, true)]),
            row(vec![by_cell("R1", all, false, false)]),
            row(vec![
                by_cell("Under stress: R1", all, true, false),
                by_cell("R2", all, true, true),
            ]),
            row(all
                .courses
                .iter()
                .zip(&COURSES)
                .map(|(c, of)| over_time(of.title, c, true))
                .collect()),
            row(all.courses.iter().map(|course| over_time("", course, false)).collect()),
            row(vec![
                carried("Fig. 5c: one variant; P0, then 2·P0", "variant", &all.by_variant),
                carried("Fig. 11b: batches of eight", "GPUs", &all.by_gpus),
            ]),
        ],
    }
}

fn row(panels: Vec<Panel>) -> Row {
    Row { height: 380, panels }
}

fn by_cell(title: &str, all: &All, stress: bool, is_accuracy: bool) -> Panel {
    let cells: Vec<&Measured> =
        all.cells.iter().filter(|cell| (cell.cell.figure == STRESS) == stress).collect();
    let numbers: Vec<String> = (1..=cells.len()).map(|number| number.to_string()).collect();
    let line = |column: Column| {
        let of = |(at, cell): (usize, &&Measured)| {
            let outcome = cell.of(column)?;
            Some((at as f64, if is_accuracy { outcome.r2 } else { outcome.r1 }))
        };
        let points = cells.iter().enumerate().filter_map(of).collect();
        Line { style: column.policy().style(), points, mark_every: 1 }
    };
    Panel {
        title: title.to_owned(),
        x: Axis::categories("row of the table", &numbers),
        y: if is_accuracy {
            Axis::linear("accuracy, %", 73.0, 81.0, 2.0, 0)
        } else {
            Axis::linear("answered in time", 0.0, 1.0, 0.2, 1)
        },
        content: Content::Lines { lines: COMPARED.map(line).into(), references: Vec::new() },
    }
}

/// Accuracy, or executed tasks per second.
fn over_time(title: &str, course: &[Timeline], is_accuracy: bool) -> Panel {
    let line = |timeline: &Timeline| Line {
        style: timeline.column.policy().style(),
        points: if is_accuracy { timeline.accuracy.clone() } else { timeline.rate.clone() },
        mark_every: 0,
    };
    let lines: Vec<Line> = course.iter().map(line).collect();
    let end = lines.iter().flat_map(|line| &line.points).map(|point| point.0).fold(0.0, f64::max);
    Panel {
        title: title.to_owned(),
        x: Axis::up_to("s", end),
        y: if is_accuracy {
            Axis::linear("accuracy, %", 73.0, 81.0, 2.0, 0)
        } else {
            Axis::up_to("executed tasks/s", highest(&lines))
        },
        content: Content::Lines { lines, references: Vec::new() },
    }
}

fn carried(title: &str, axis: &str, rows: &[Carried]) -> Panel {
    // What is in parentheses has no room.
    let name = |row: &Carried| row.what.split(" (").next().unwrap_or_default().to_owned();
    let names: Vec<String> = rows.iter().map(name).collect();
    let points = rows.iter().enumerate().map(|(at, row)| (at as f64, row.rate_rps)).collect();
    let lines = vec![Line { style: Column::Ours.policy().style(), points, mark_every: 1 }];
    Panel {
        title: title.to_owned(),
        x: Axis::categories(axis, &names),
        y: Axis::up_to("tasks/s in time", highest(&lines)),
        content: Content::Lines { lines, references: Vec::new() },
    }
}
