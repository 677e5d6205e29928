//! Figures that the benches draw: rows of panels with lines, bars or cells, as SVG.
//!
//! A bench describes a `Figure`; `svg` draws it. The same figure gives the same bytes.

mod draw;
mod figure;
mod panel;
mod svg;

pub(crate) use figure::{
    Axis, BLACK, BLUE, Bar, Colour, Content, Figure, GREEN, GREY, Key, Line, Look, Mark, ORANGE,
    PURPLE, Panel, Reference, Row, SKY_BLUE, Style, VERMILLION, highest, stairs,
};
pub(crate) use svg::svg;

/// A figure that cannot be drawn.
#[derive(Debug, thiserror::Error)]
#[error("the figure cannot be drawn: {0}")]
pub struct PlotError(String);
