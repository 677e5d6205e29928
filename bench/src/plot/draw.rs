//! The strokes that figures consist of: text, lines and marks.

use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::PlotError;
use super::figure::{Colour, Mark, Style};

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(crate) type Drawn = Result<(), PlotError>;

pub(crate) const FONT: &str = "Helvetica, Arial, sans-serif";
pub(crate) const LARGE: i32 = 40;
pub(crate) const MEDIUM: i32 = 29;
pub(crate) const SMALL: i32 = 25;
pub(crate) const INK: RGBColor = RGBColor(34, 34, 34);
pub(crate) const PALE: RGBColor = RGBColor(110, 110, 110);

pub(crate) fn pixels(value: f64) -> i32 {
    value.round() as i32
}

/// The width that each of `parts` gets; all of it if there is none.
pub(crate) fn share(width: i32, parts: usize) -> i32 {
    pixels(f64::from(width) / parts.max(1) as f64)
}

pub(crate) fn plot_error(error: impl std::fmt::Display) -> PlotError {
    PlotError(error.to_string())
}

pub(crate) fn colour((red, green, blue): Colour) -> RGBColor {
    RGBColor(red, green, blue)
}

pub(crate) fn thickness(style: Style) -> u32 {
    if style.light { 2 } else { 4 }
}

/// Text centred on its line.
pub(crate) fn write(
    area: &Area<'_>,
    text: &str,
    at: (i32, i32),
    size: i32,
    ink: RGBColor,
    side: HPos,
) -> Drawn {
    let style = (FONT, size).into_font().color(&ink).pos(Pos::new(side, VPos::Center));
    area.draw(&Text::new(text.to_owned(), at, style)).map_err(plot_error)
}

/// Text that reads upwards.
pub(crate) fn write_upwards(area: &Area<'_>, text: &str, at: (i32, i32), size: i32) -> Drawn {
    let font = (FONT, size).into_font().transform(FontTransform::Rotate270);
    let style = font.color(&INK).pos(Pos::new(HPos::Center, VPos::Center));
    area.draw(&Text::new(text.to_owned(), at, style)).map_err(plot_error)
}

pub(crate) fn draw_line(
    area: &Area<'_>,
    points: &[(i32, i32)],
    ink: RGBColor,
    thickness: u32,
) -> Drawn {
    area.draw(&PathElement::new(points, ink.stroke_width(thickness))).map_err(plot_error)
}

pub(crate) fn draw_dashed(area: &Area<'_>, points: &[(i32, i32)]) -> Drawn {
    let style = PALE.stroke_width(2);
    area.draw(&DashedPathElement::new(points.iter().copied(), 10, 8, style)).map_err(plot_error)
}

/// The paper's value: a black diamond with a white edge.
pub(crate) fn draw_paper(area: &Area<'_>, at: (i32, i32)) -> Drawn {
    draw_polygon(area, &corners(Mark::Diamond, at, 13), WHITE)?;
    draw_polygon(area, &corners(Mark::Diamond, at, 10), INK)
}

pub(crate) fn draw_mark(area: &Area<'_>, at: (i32, i32), style: Style) -> Drawn {
    let ink = colour(style.colour);
    let sizes = if style.light { [(8, ink), (5, WHITE)] } else { [(9, WHITE), (8, ink)] };
    for (size, ink) in sizes {
        match style.mark {
            Mark::Circle => area.draw(&Circle::new(at, size, ink.filled())).map_err(plot_error)?,
            mark => draw_polygon(area, &corners(mark, at, size), ink)?,
        }
    }
    Ok(())
}

fn draw_polygon(area: &Area<'_>, corners: &[(i32, i32)], ink: RGBColor) -> Drawn {
    area.draw(&Polygon::new(corners, ink.filled())).map_err(plot_error)
}

fn corners(mark: Mark, (x, y): (i32, i32), size: i32) -> Vec<(i32, i32)> {
    let wide = size + 2;
    match mark {
        Mark::Triangle => vec![(x - wide, y + size), (x + wide, y + size), (x, y - wide)],
        Mark::Wedge => vec![(x - wide, y - size), (x + wide, y - size), (x, y + wide)],
        Mark::Diamond => vec![(x - wide, y), (x, y - wide), (x + wide, y), (x, y + wide)],
        Mark::Circle | Mark::Square => {
            let half = size - 1;
            vec![
                (x - half, y - half),
                (x + half, y - half),
                (x + half, y + half),
                (x - half, y + half),
            ]
        }
    }
}
