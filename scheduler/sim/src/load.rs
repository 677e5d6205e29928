//! How the load changes over time, and what that does to a process of arrivals.
//!
//! A process with mean gap 1 is stretched so that its rate follows the shape (time rescaling): the
//! k-th arrival at operational time u happens at the t for which ∫₀ᵗ rate = u. Poisson stays
//! Poisson, bursts stay bursts, and a seed means the same draws whatever the shape.

use std::f64::consts::PI;

use baton_core::Nanos;
use serde::Deserialize;

use crate::scenario_file::{ScenarioError, check};

/// The arrival rate's course, as factors. Only their proportion matters: the rate of a run is the
/// mean over its measured span. Seconds count from the beginning of the run, warm-up included.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(tag = "shape", rename_all = "lowercase", deny_unknown_fields)]
pub enum Load {
    /// Each factor from its second on; before the first point, the first factor.
    Steps {
        /// (second, factor), seconds rising.
        points: Vec<(f64, f64)>,
    },
    /// Straight lines between the points; level before the first and after the last.
    Ramp {
        /// (second, factor), seconds rising.
        points: Vec<(f64, f64)>,
    },
    /// 1 + amplitude · sin(2π·t / period).
    Sine {
        /// Seconds from crest to crest.
        period_s: f64,
        /// From 0, level, to 1, which touches zero.
        amplitude: f64,
    },
}

/// Points a shape may have.
const POINTS_MAX: usize = 10_000;

impl Load {
    /// Checks the numbers, and that anything arrives between `from` and `until`. `key` names the
    /// shape in errors.
    pub(crate) fn check(&self, key: &str, from: Nanos, until: Nanos) -> Result<(), ScenarioError> {
        match self {
            Self::Steps { points } | Self::Ramp { points } => check_points(key, points)?,
            Self::Sine { period_s, amplitude } => {
                check(&format!("{key}.period_s"), *period_s, 0.001, 1e6)?;
                check(&format!("{key}.amplitude"), *amplitude, 0.0, 1.0)?;
            }
        }
        let arrives = self.curve().mean(from.0 as f64, until.0 as f64) > 1e-9;
        arrives.then_some(()).ok_or_else(|| ScenarioError::Silence { key: key.to_owned() })
    }

    /// The course with mean 1 between `from` and `until`.
    pub(crate) fn pace(&self, from: Nanos, until: Nanos) -> Pace {
        let curve = self.curve();
        let mean = curve.mean(from.0 as f64, until.0 as f64);
        Pace { curve, mean }
    }

    /// The highest factor over the mean between `from` and `until`.
    pub(crate) fn peak(&self, from: Nanos, until: Nanos) -> f64 {
        let highest = match self {
            Self::Steps { points } | Self::Ramp { points } => {
                points.iter().map(|&(_, factor)| factor).fold(0.0, f64::max)
            }
            Self::Sine { amplitude, .. } => 1.0 + amplitude,
        };
        highest / self.curve().mean(from.0 as f64, until.0 as f64)
    }

    fn curve(&self) -> Curve {
        match self {
            Self::Steps { points } => Curve::Pieces(pieces(points, |_, _| 0.0)),
            Self::Ramp { points } => Curve::Pieces(pieces(points, |(t, f), (next_t, next_f)| {
                (next_f - f) / (next_t - t)
            })),
            &Self::Sine { period_s, amplitude } => {
                Curve::Wave { unit: period_s * 1e9 / (2.0 * PI), amplitude }
            }
        }
    }
}

fn check_points(key: &str, points: &[(f64, f64)]) -> Result<(), ScenarioError> {
    let key = format!("{key}.points");
    check(&format!("number of {key}"), points.len() as f64, 1.0, POINTS_MAX as f64)?;
    let mut earliest = 0.0;
    for &(second, factor) in points {
        check(&key, second, earliest, 1e7)?;
        check(&key, factor, 0.0, 1e6)?;
        earliest = second + 1e-6;
    }
    Ok(())
}

/// What turns operational time into time; nanoseconds.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Pace {
    curve: Curve,
    mean: f64,
}

impl Pace {
    /// When a process with mean rate 1 that is at `operational_ns` really is; infinite if that is
    /// never, because nothing arrives from some moment on. Rises with its argument.
    pub(crate) fn real_ns(&self, operational_ns: f64) -> f64 {
        self.curve.inverse(operational_ns * self.mean)
    }
}

/// The factors as a function of time.
#[derive(Clone, PartialEq, Debug)]
enum Curve {
    /// In the order of time; the first from 0 on, the last level and for ever.
    Pieces(Vec<Piece>),
    /// `unit`: a period over 2π.
    Wave { unit: f64, amplitude: f64 },
}

/// factor(t) = `factor` + `slope` · (t − `from`).
#[derive(Clone, Copy, PartialEq, Debug)]
struct Piece {
    from: f64,
    /// ∫ factor up to `from`.
    area: f64,
    factor: f64,
    slope: f64,
}

/// `slope` is asked for each pair of neighbours, seconds.
fn pieces(points: &[(f64, f64)], slope: impl Fn((f64, f64), (f64, f64)) -> f64) -> Vec<Piece> {
    let mut pieces = vec![Piece { from: 0.0, area: 0.0, factor: points[0].1, slope: 0.0 }];
    for (at, &point) in points.iter().enumerate() {
        let before = pieces.last().expect("the first is there from the start");
        let from = point.0 * 1e9;
        let area = before.area_at(from);
        let slope = points.get(at + 1).map_or(0.0, |&next| slope(point, next) / 1e9);
        pieces.push(Piece { from, area, factor: point.1, slope });
    }
    pieces
}

impl Piece {
    fn area_at(&self, t: f64) -> f64 {
        let span = t - self.from;
        self.area + span * (self.factor + span * self.slope / 2.0)
    }

    /// Where the area is `area`, which lies in this piece.
    fn inverse(&self, area: f64) -> f64 {
        let rest = area - self.area;
        if rest <= 0.0 {
            return self.from;
        }
        let end = (self.factor * self.factor + 2.0 * self.slope * rest).max(0.0).sqrt();
        self.from + 2.0 * rest / (self.factor + end)
    }
}

impl Curve {
    fn mean(&self, from: f64, until: f64) -> f64 {
        (self.area(until) - self.area(from)) / (until - from)
    }

    /// ∫₀ᵗ factor.
    fn area(&self, t: f64) -> f64 {
        match self {
            Self::Pieces(pieces) => {
                let at = pieces.partition_point(|piece| piece.from <= t).max(1) - 1;
                pieces[at].area_at(t)
            }
            Self::Wave { unit, amplitude } => t + amplitude * unit * (1.0 - (t / unit).cos()),
        }
    }

    fn inverse(&self, area: f64) -> f64 {
        match self {
            Self::Pieces(pieces) => {
                let at = pieces.partition_point(|piece| piece.area <= area).max(1) - 1;
                pieces[at].inverse(area)
            }
            Self::Wave { unit, amplitude } => {
                // The cosine moves the area by no more than 2·amplitude·unit.
                let (mut low, mut high) = ((area - 2.0 * amplitude * unit).max(0.0), area);
                while high - low > 0.5 {
                    let middle = f64::midpoint(low, high);
                    if self.area(middle) < area { low = middle } else { high = middle }
                }
                high
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: f64 = 1e9;

    fn load(text: &str) -> Load {
        #[derive(Deserialize)]
        struct File {
            load: Load,
        }
        toml::from_str::<File>(&format!("load = {text}")).unwrap().load
    }

    /// The pace with mean 1 over ten seconds.
    fn pace(text: &str) -> Pace {
        load(text).pace(Nanos::ZERO, Nanos::from_millis(10_000))
    }

    #[test]
    fn steps_stretch_time_by_their_factors() {
        let pace = pace("{ shape = 'steps', points = [[0, 1], [5, 3]] }");
        // rates 0.5 and 1.5
        for (operational, real) in [(0.0, 0.0), (1.0, 2.0), (2.5, 5.0), (4.0, 6.0), (10.0, 10.0)] {
            assert!((pace.real_ns(operational * S) - real * S).abs() < 1.0, "{operational}");
        }
    }

    #[test]
    fn a_ramp_is_level_before_and_after_and_straight_between() {
        let pace = pace("{ shape = 'ramp', points = [[2, 0], [6, 2]] }");
        // Areas: 0 until 2, 4 at 6, 12 at 10; the mean is 1.2.
        for (area, real) in [(0.25, 3.0), (1.0, 4.0), (4.0, 6.0), (8.0, 8.0), (12.0, 10.0)] {
            assert!((pace.real_ns(area / 1.2 * S) - real * S).abs() < 1.0, "{area}");
        }
    }

    #[test]
    fn a_sine_is_inverted_exactly() {
        for amplitude in [0.0, 0.5, 1.0] {
            let load = Load::Sine { period_s: 4.0, amplitude };
            let pace = load.pace(Nanos::ZERO, Nanos::from_millis(8_000));
            let Curve::Wave { .. } = pace.curve else { panic!("{:?}", pace.curve) };
            assert!((pace.mean - 1.0).abs() < 1e-9, "whole periods: {}", pace.mean);
            for step in 0..1_000 {
                let operational = f64::from(step) * 0.013 * S;
                let real = pace.real_ns(operational);
                assert!((pace.curve.area(real) - operational).abs() < 2.0, "{amplitude} {step}");
            }
        }
    }

    #[test]
    fn nothing_arrives_while_the_factor_is_zero() {
        let pace = pace("{ shape = 'steps', points = [[0, 1], [2, 0], [8, 1], [9, 0]] }");
        // Three seconds of ten have a rate of 10/3.
        assert!((pace.real_ns(20.0 / 3.0 * S - 10.0) - 2.0 * S).abs() < 10.0);
        assert!((pace.real_ns(20.0 / 3.0 * S + 10.0) - 8.0 * S).abs() < 10.0);
        assert_eq!(pace.real_ns(10.1 * S), f64::INFINITY);
    }

    #[test]
    fn what_is_no_shape_is_refused() {
        let error = |text: &str| {
            let span = (Nanos::from_millis(1_000), Nanos::from_millis(2_000));
            load(text).check("load", span.0, span.1).unwrap_err().to_string()
        };
        assert!(error("{ shape = 'steps', points = [] }").starts_with("number of load.points"));
        let falls = "{ shape = 'ramp', points = [[1, 1], [1, 2]] }";
        assert!(error(falls).starts_with("load.points = 1"), "{}", error(falls));
        assert!(error("{ shape = 'steps', points = [[0, -1]] }").contains("-1"));
        assert!(error("{ shape = 'sine', period_s = 0, amplitude = 1 }").contains("period_s"));
        assert!(error("{ shape = 'sine', period_s = 1, amplitude = 1.1 }").contains("amplitude"));
        let silent = error("{ shape = 'steps', points = [[0, 1], [0.5, 0], [3, 1]] }");
        assert!(silent.contains("measured span"), "{silent}");
    }
}
