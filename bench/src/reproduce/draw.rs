//! A [`Figure`] as SVG. The same figure gives the same bytes.

use plotters::coord::Shift;
use plotters::element::DashedPathElement;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::ReproduceError;
use super::draw_panel::draw_panel;
use super::figure::{Colour, Figure, Key, Look, Mark, Style, VERMILLION};

pub(crate) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
pub(crate) type Drawn = Result<(), ReproduceError>;

/// Width of every figure. Pages scale it down, which is why the letters look large here.
const WIDTH: i32 = 1600;
const MARGIN: i32 = 28;
const TITLE_Y: i32 = 40;
const CAPTION_Y: i32 = 80;
const LEGEND_Y: i32 = 124;
const LEGEND_LINE: i32 = 36;
pub(crate) const FONT: &str = "Helvetica, Arial, sans-serif";
pub(crate) const LARGE: i32 = 40;
pub(crate) const MEDIUM: i32 = 29;
pub(crate) const SMALL: i32 = 25;
pub(crate) const INK: RGBColor = RGBColor(34, 34, 34);
pub(crate) const PALE: RGBColor = RGBColor(110, 110, 110);

/// The SVG document.
pub(crate) fn svg(figure: &Figure) -> Result<String, ReproduceError> {
    let keys = place_keys(&figure.legend);
    let legend_end = keys.last().map_or(CAPTION_Y, |&(_, y)| y) + LEGEND_LINE;
    let height = legend_end + figure.rows.iter().map(|row| row.height).sum::<i32>() + MARGIN / 2;
    let mut text = String::new();
    {
        let backend = SVGBackend::with_string(&mut text, (WIDTH as u32, height as u32));
        let area = backend.into_drawing_area();
        area.fill(&WHITE).map_err(plot_error)?;
        draw_heading(&area, figure)?;
        for (key, &at) in figure.legend.iter().zip(&keys) {
            draw_key(&area, key, at)?;
        }
        let mut y = legend_end;
        for row in &figure.rows {
            let width = share(WIDTH - 2 * MARGIN, row.panels.len());
            let mut x = MARGIN;
            for panel in &row.panels {
                draw_panel(&area, panel, (x, y, width, row.height))?;
                x += width;
            }
            y += row.height;
        }
        area.present().map_err(plot_error)?;
    }
    Ok(text)
}

pub(crate) fn pixels(value: f64) -> i32 {
    value.round() as i32
}

/// The width that each of `parts` gets; all of it if there is none.
pub(crate) fn share(width: i32, parts: usize) -> i32 {
    pixels(f64::from(width) / parts.max(1) as f64)
}

pub(crate) fn plot_error(error: impl std::fmt::Display) -> ReproduceError {
    ReproduceError::Plot(error.to_string())
}

fn draw_heading(area: &Area<'_>, figure: &Figure) -> Drawn {
    let loud = figure.caption.contains("RUN");
    let (red, green, blue) = VERMILLION;
    let caption = if loud { RGBColor(red, green, blue) } else { PALE };
    write(area, &figure.title, (MARGIN, TITLE_Y), LARGE, INK, HPos::Left)?;
    write(area, &figure.caption, (MARGIN, CAPTION_Y), SMALL, caption, HPos::Left)
}

/// Where the entries of the legend start, line by line.
fn place_keys(keys: &[Key]) -> Vec<(i32, i32)> {
    let (mut x, mut y) = (MARGIN, LEGEND_Y);
    let place = |key: &Key| {
        let width = pixels(96.0 + 13.0 * key.label.chars().count() as f64);
        if x + width > WIDTH - MARGIN {
            (x, y) = (MARGIN, y + LEGEND_LINE);
        }
        let at = (x, y);
        x += width;
        at
    };
    keys.iter().map(place).collect()
}

fn draw_key(area: &Area<'_>, key: &Key, (x, y): (i32, i32)) -> Drawn {
    match key.look {
        Look::Series(style) => {
            draw_line(area, &[(x, y), (x + 48, y)], colour(style.colour), thickness(style))?;
            draw_mark(area, (x + 24, y), style)?;
        }
        Look::Paper => draw_paper(area, (x + 24, y))?,
        Look::Reference => draw_dashed(area, &[(x, y), (x + 48, y)])?,
    }
    write(area, &key.label, (x + 58, y), MEDIUM, INK, HPos::Left)
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
