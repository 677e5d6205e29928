//! The whole figure: title, caption and legend, and below them the panels.

use plotters::prelude::*;
use plotters::style::text_anchor::HPos;

use super::PlotError;
use super::draw::{
    Area, Drawn, INK, LARGE, MEDIUM, PALE, SMALL, colour, draw_dashed, draw_line, draw_mark,
    draw_paper, pixels, plot_error, share, thickness, write,
};
use super::figure::{Figure, Key, Look, VERMILLION};
use super::panel::draw_panel;

/// Width of every figure. Pages scale it down, which is why the letters look large here.
const WIDTH: i32 = 1600;
const MARGIN: i32 = 28;
const TITLE_Y: i32 = 40;
const CAPTION_Y: i32 = 80;
const LEGEND_Y: i32 = 124;
const LEGEND_LINE: i32 = 36;

/// The SVG document.
pub(crate) fn svg(figure: &Figure) -> Result<String, PlotError> {
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
