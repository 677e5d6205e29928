//! A figure as data: rows of panels under one legend.

/// Red, green, blue.
pub(crate) type Colour = (u8, u8, u8);

// Okabe and Ito's colours, which colour-blind people tell apart too.
pub(crate) const BLACK: Colour = (0, 0, 0);
pub(crate) const BLUE: Colour = (0, 114, 178);
pub(crate) const SKY_BLUE: Colour = (86, 180, 233);
pub(crate) const GREEN: Colour = (0, 158, 115);
pub(crate) const ORANGE: Colour = (230, 159, 0);
pub(crate) const VERMILLION: Colour = (213, 94, 0);
pub(crate) const PURPLE: Colour = (204, 121, 167);
pub(crate) const GREY: Colour = (130, 130, 130);

/// The shape of a data point.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mark {
    Circle,
    Square,
    Triangle,
    Diamond,
    /// A triangle on its tip.
    Wedge,
}

/// How a series is drawn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Style {
    pub(crate) colour: Colour,
    pub(crate) mark: Mark,
    /// Thin, with hollow marks.
    pub(crate) light: bool,
}

/// See the module documentation.
pub(crate) struct Figure {
    pub(crate) title: String,
    /// Below the title, smaller.
    pub(crate) caption: String,
    pub(crate) legend: Vec<Key>,
    pub(crate) rows: Vec<Row>,
}

/// An entry of the legend.
pub(crate) struct Key {
    pub(crate) label: String,
    pub(crate) look: Look,
}

pub(crate) enum Look {
    Series(Style),
    /// The paper's value in a chart of bars.
    Paper,
    /// A dashed line.
    Reference,
}

/// Panels side by side, of equal width.
pub(crate) struct Row {
    /// Pixels of 1600 across.
    pub(crate) height: i32,
    pub(crate) panels: Vec<Panel>,
}

pub(crate) struct Panel {
    pub(crate) title: String,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
    pub(crate) content: Content,
}

pub(crate) enum Content {
    Lines {
        lines: Vec<Line>,
        references: Vec<Reference>,
    },
    /// One horizontal bar for each tick of the y axis, which counts from 0.
    Bars(Vec<Bar>),
    /// One cell for each tick of x and y, which count from 0: `[y][x]`, relative to 1.
    Heat(Vec<Vec<Option<f64>>>),
}

/// A linear axis. For a logarithmic one scale the data and label the ticks.
#[derive(Clone, Debug)]
pub(crate) struct Axis {
    pub(crate) label: String,
    pub(crate) from: f64,
    pub(crate) to: f64,
    pub(crate) ticks: Vec<(f64, String)>,
}

pub(crate) struct Line {
    pub(crate) style: Style,
    pub(crate) points: Vec<(f64, f64)>,
    /// One point in this number carries a mark; 0 means none.
    pub(crate) mark_every: usize,
}

/// A dashed line across the panel.
pub(crate) enum Reference {
    /// At this x, with a label at its top.
    At(f64, String),
    /// Through these points.
    Through(Vec<(f64, f64)>),
}

pub(crate) struct Bar {
    pub(crate) colour: Colour,
    pub(crate) light: bool,
    pub(crate) value: f64,
    /// Beside the bar.
    pub(crate) note: String,
    pub(crate) paper: Option<f64>,
}

impl Axis {
    /// From `from` to `to`, a tick every `step`, written with `digits` after the point.
    pub(crate) fn linear(label: &str, from: f64, to: f64, step: f64, digits: usize) -> Self {
        let count = ((to - from) / step + 1e-9) as usize;
        let at = |i: usize| from + i as f64 * step;
        let ticks = (0..=count).map(|i| (at(i), format!("{:.digits$}", at(i)))).collect();
        Self { label: label.to_owned(), from, to, ticks }
    }

    /// From 0 to a round number above `most`, with five or so ticks.
    pub(crate) fn up_to(label: &str, most: f64) -> Self {
        let most = most.max(1e-6);
        let power = 10_f64.powf((most / 5.0).log10().floor());
        let steps = [1.0, 2.0, 2.5, 5.0, 10.0].map(|step| step * power);
        let step = steps.into_iter().find(|step| step * 6.0 >= most).unwrap_or(10.0 * power);
        let digits = if step >= 1.0 && step.fract() == 0.0 {
            0
        } else {
            (-step.log10().floor()).max(0.0) as usize + usize::from(step / power == 2.5)
        };
        Self::linear(label, 0.0, (most / step - 1e-9).ceil() * step, step, digits)
    }

    /// From a round number below `least` to one above `most`, for values far from 0.
    pub(crate) fn around(label: &str, least: f64, most: f64) -> Self {
        let step =
            [0.1, 0.2, 0.5, 1.0, 2.0, 5.0].into_iter().find(|step| step * 5.0 >= most - least);
        let step = step.unwrap_or(10.0);
        let (from, to) = ((least / step).floor() * step, (most / step).floor() * step + step);
        Self::linear(label, from, to, step, usize::from(step < 1.0))
    }

    /// From the tenth below `least` to 1, for values that lie close together.
    pub(crate) fn up_to_one(label: &str, least: f64) -> Self {
        let from = ((least - 0.02).clamp(0.0, 0.8) * 10.0).floor() / 10.0;
        Self::linear(label, from, 1.0, 0.1, 1)
    }

    /// Powers of two, evenly spaced; scale the data with `log2`.
    pub(crate) fn log2(label: &str, points: &[f64]) -> Self {
        let ticks: Vec<(f64, String)> = points.iter().map(|&p| (p.log2(), p.to_string())).collect();
        let ends = ticks.first().zip(ticks.last()).map_or((0.0, 1.0), |(a, b)| (a.0, b.0));
        Self { label: label.to_owned(), from: ends.0 - 0.1, to: ends.1 + 0.1, ticks }
    }

    /// Categories at 0, 1, …, each one wide.
    pub(crate) fn categories(label: &str, names: &[String]) -> Self {
        let ticks = names.iter().enumerate().map(|(i, name)| (i as f64, name.clone())).collect();
        Self { label: label.to_owned(), from: -0.5, to: names.len() as f64 - 0.5, ticks }
    }

    /// The same from the top down.
    pub(crate) fn downwards(label: &str, names: &[String]) -> Self {
        let axis = Self::categories(label, names);
        Self { from: axis.to, to: axis.from, ..axis }
    }
}

/// The highest value of the lines; 0 without any.
pub(crate) fn highest(lines: &[Line]) -> f64 {
    lines.iter().flat_map(|line| &line.points).map(|point| point.1).fold(0.0, f64::max)
}

/// Points of a cumulative distribution as a flight of stairs.
pub(crate) fn stairs(points: &[(f64, f64)]) -> Vec<(f64, f64)> {
    let before = std::iter::once(0.0).chain(points.iter().map(|point| point.1));
    points.iter().zip(before).flat_map(|(&(x, y), before)| [(x, before), (x, y)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stairs_rise_at_the_value() {
        assert_eq!(
            stairs(&[(3.0, 0.2), (4.0, 1.0)]),
            [(3.0, 0.0), (3.0, 0.2), (4.0, 0.2), (4.0, 1.0)]
        );
    }

    #[test]
    fn an_axis_around_its_data_has_ticks_on_round_numbers() {
        for (least, most, ends) in
            [(73.82, 80.16, (72.0, 82.0)), (95.7, 95.7, (95.7, 95.8)), (0.0, 100.0, (0.0, 110.0))]
        {
            let axis = Axis::around("x", least, most);
            assert!(
                (axis.from - ends.0).abs() < 1e-9 && (axis.to - ends.1).abs() < 1e-9,
                "{axis:?}"
            );
            assert!((2..=12).contains(&axis.ticks.len()), "{axis:?}");
        }
    }

    #[test]
    fn an_axis_covers_its_data_with_a_few_round_ticks() {
        for most in [0.03, 0.9, 1.0, 7.0, 24.3, 26.0, 100.0, 12_345.0] {
            let axis = Axis::up_to("x", most);
            assert!(axis.to >= most && axis.to < most * 1.6, "{most}: {axis:?}");
            assert!((4..=8).contains(&axis.ticks.len()), "{most}: {axis:?}");
            for (at, label) in &axis.ticks {
                let written: f64 = label.parse().unwrap();
                assert!((written - at).abs() < 1e-9 * axis.to, "{most}: {axis:?}");
            }
        }
    }
}
