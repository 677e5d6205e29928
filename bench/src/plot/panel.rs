//! One panel of a figure: frame, axes, and what is in it.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::draw::{
    Area, Drawn, INK, MEDIUM, PALE, SMALL, colour, draw_dashed, draw_line, draw_mark, draw_paper,
    pixels, plot_error, share, thickness, write, write_upwards,
};
use super::figure::{Axis, BLUE, Bar, Colour, Content, Line, Panel, Reference, VERMILLION};

const GRID: RGBColor = RGBColor(226, 226, 226);
/// Room above the frame for a title, and for labels of references between the two.
const TITLE: i32 = 60;
const LABELS: i32 = 28;
const TOP: i32 = 16;
const BELOW: i32 = 88;
const RIGHT: i32 = 34;
/// Width of a letter of the small font, about.
const LETTER: f64 = 12.0;

/// The plotting area in pixels, and how data lands in it.
struct Frame<'a> {
    left: i32,
    top: i32,
    right: i32,
    bottom: i32,
    x: &'a Axis,
    y: &'a Axis,
}

impl Frame<'_> {
    fn x(&self, value: f64) -> i32 {
        place(value, self.x, f64::from(self.left), f64::from(self.right))
    }

    fn y(&self, value: f64) -> i32 {
        place(value, self.y, f64::from(self.bottom), f64::from(self.top))
    }

    fn at(&self, (x, y): (f64, f64)) -> (i32, i32) {
        (self.x(x), self.y(y))
    }
}

/// Values beyond the axis land on its end.
fn place(value: f64, axis: &Axis, start: f64, end: f64) -> i32 {
    let part = ((value - axis.from) / (axis.to - axis.from)).clamp(0.0, 1.0);
    pixels(start + part * (end - start))
}

/// Draws a panel into (x, y, width, height).
pub(crate) fn draw_panel(
    area: &Area<'_>,
    panel: &Panel,
    (x, y, width, height): (i32, i32, i32, i32),
) -> Drawn {
    let longest = panel.y.ticks.iter().map(|(_, label)| label.chars().count()).max().unwrap_or(0);
    let label_room = if panel.y.label.is_empty() { 8 } else { 46 };
    let frame = Frame {
        left: x + label_room + pixels(longest as f64 * LETTER) + 14,
        top: y + room_above(panel),
        right: x + width - RIGHT,
        bottom: y + height - BELOW,
        x: &panel.x,
        y: &panel.y,
    };
    draw_axes(area, panel, &frame, x)?;
    match &panel.content {
        Content::Lines { lines, references } => draw_lines(area, &frame, lines, references),
        Content::Bars(bars) => draw_bars(area, &frame, bars),
        Content::Heat(cells) => draw_heat(area, &frame, cells),
    }
}

fn room_above(panel: &Panel) -> i32 {
    let labelled =
        |reference: &Reference| matches!(reference, Reference::At(_, label) if !label.is_empty());
    let labels = match &panel.content {
        Content::Lines { references, .. } => references.iter().any(labelled),
        Content::Bars(_) | Content::Heat(_) => false,
    };
    (if panel.title.is_empty() { TOP } else { TITLE }) + (if labels { LABELS } else { 0 })
}

fn draw_axes(area: &Area<'_>, panel: &Panel, frame: &Frame<'_>, left: i32) -> Drawn {
    let &Frame { left: start, top, right: end, bottom, .. } = frame;
    let middle = i32::midpoint(start, end);
    write(
        area,
        &panel.title,
        (start, top - room_above(panel) + TITLE / 2),
        MEDIUM,
        INK,
        HPos::Left,
    )?;
    write(area, &panel.x.label, (middle, bottom + 64), SMALL, INK, HPos::Center)?;
    if !panel.y.label.is_empty() {
        let at = (left + 20, i32::midpoint(top, bottom));
        write_upwards(area, &panel.y.label, at, SMALL)?;
    }
    let grid = !matches!(panel.content, Content::Heat(_));
    for (value, label) in &panel.x.ticks {
        let x = frame.x(*value);
        if grid {
            draw_line(area, &[(x, top), (x, bottom)], GRID, 1)?;
        }
        write(area, label, (x, bottom + 26), SMALL, PALE, HPos::Center)?;
    }
    for (value, label) in &panel.y.ticks {
        let y = frame.y(*value);
        if matches!(panel.content, Content::Lines { .. }) {
            draw_line(area, &[(start, y), (end, y)], GRID, 1)?;
        }
        write(area, label, (start - 12, y), SMALL, PALE, HPos::Right)?;
    }
    draw_line(area, &[(start, top), (start, bottom), (end, bottom)], PALE, 2)
}

fn draw_lines(
    area: &Area<'_>,
    frame: &Frame<'_>,
    lines: &[Line],
    references: &[Reference],
) -> Drawn {
    for reference in references {
        match reference {
            Reference::At(x, label) => {
                let x = frame.x(*x);
                draw_dashed(area, &[(x, frame.top), (x, frame.bottom)])?;
                write(area, label, (x, frame.top - 16), SMALL, PALE, HPos::Center)?;
            }
            Reference::Through(points) => {
                let points: Vec<_> = points.iter().map(|&point| frame.at(point)).collect();
                draw_dashed(area, &points)?;
            }
        }
    }
    // The first line is the most important one: it lies on top.
    for line in lines.iter().rev() {
        let mut points: Vec<_> = line.points.iter().map(|&point| frame.at(point)).collect();
        let marked: Vec<_> = match line.mark_every {
            0 => Vec::new(),
            every => points.iter().copied().skip(every / 2).step_by(every).collect(),
        };
        points.dedup();
        draw_line(area, &points, colour(line.style.colour), thickness(line.style))?;
        for at in marked {
            draw_mark(area, at, line.style)?;
        }
    }
    Ok(())
}

fn draw_bars(area: &Area<'_>, frame: &Frame<'_>, bars: &[Bar]) -> Drawn {
    let one = frame.x(1.0);
    draw_dashed(area, &[(one, frame.top), (one, frame.bottom)])?;
    let half = share(frame.bottom - frame.top, bars.len()) * 36 / 100;
    for (i, bar) in bars.iter().enumerate() {
        let (y, end) = (frame.y(i as f64), frame.x(bar.value));
        let fill = tint(bar.colour, if bar.light { 0.45 } else { 1.0 });
        let rectangle = Rectangle::new([(frame.left, y - half), (end, y + half)], fill.filled());
        area.draw(&rectangle).map_err(plot_error)?;
        if let Some(paper) = bar.paper {
            draw_paper(area, (frame.x(paper), y))?;
        }
        write(area, &bar.note, (one.max(end) + 16, y), SMALL, INK, HPos::Left)?;
    }
    Ok(())
}

fn draw_heat(area: &Area<'_>, frame: &Frame<'_>, cells: &[Vec<Option<f64>>]) -> Drawn {
    // Four digits and a third of their width between neighbours.
    let size = SMALL.min((frame.x(1.0) - frame.x(0.0)) / 3);
    for (row, values) in cells.iter().enumerate() {
        for (column, value) in values.iter().enumerate() {
            let Some(value) = *value else { continue };
            let (x, y) = (column as f64, row as f64);
            let corners = [frame.at((x - 0.5, y + 0.5)), frame.at((x + 0.5, y - 0.5))];
            let fill = heat(value);
            area.draw(&Rectangle::new(corners, fill.filled())).map_err(plot_error)?;
            let dark = u32::from(fill.0) + u32::from(fill.1) + u32::from(fill.2) < 380;
            let ink = if dark { WHITE } else { INK };
            write(area, &format!("{value:.2}"), frame.at((x, y)), size, ink, HPos::Center)?;
        }
    }
    Ok(())
}

/// Vermillion below 1, white at 1, blue above; full at 0.5 and 2.
fn heat(value: f64) -> RGBColor {
    let strength = value.max(0.01).log2().clamp(-1.0, 1.0);
    tint(if strength < 0.0 { VERMILLION } else { BLUE }, strength.abs())
}

/// The colour at this strength, on white.
fn tint((red, green, blue): Colour, strength: f64) -> RGBColor {
    let mix = |to: u8| (255.0 + (f64::from(to) - 255.0) * strength).round() as u8;
    RGBColor(mix(red), mix(green), mix(blue))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_land_between_the_ends_of_the_axis_and_beyond_it_on_them() {
        let up = Axis::linear("", 2.0, 4.0, 1.0, 0);
        let places = |axis: &Axis, values: [f64; 4]| values.map(|v| place(v, axis, 100.0, 200.0));
        assert_eq!(places(&up, [2.0, 3.0, 4.5, 0.0]), [100, 150, 200, 100]);
        let down = Axis::downwards("", &["a".to_owned(), "b".to_owned()]);
        assert_eq!(places(&down, [1.5, 1.0, 0.0, -9.0]), [100, 125, 175, 200]);
    }

    #[test]
    fn heat_is_white_where_nothing_changes() {
        assert_eq!(heat(1.0), RGBColor(255, 255, 255));
        assert_eq!((heat(2.0), heat(9.0)), (RGBColor(0, 114, 178), RGBColor(0, 114, 178)));
        assert_eq!(heat(0.0), RGBColor(213, 94, 0));
    }
}
