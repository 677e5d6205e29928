//! Fig. 10: how far predictions are off, of executions and LOADs that vary.

use baton_sim::{Errors, Predictions, Run, Scenario, analytic_bound_rps, run_predictions};
use serde_json::{Value, json};

use super::super::ReproduceError;
use super::super::experiment::Claim;
use super::super::grid::rounded;
use super::super::markdown::table;
use super::super::precision::Precision;
use super::studies::azure;
use crate::plot::{
    Axis, BLACK, Colour, Content, Key, Line, Look, Mark, ORANGE, Panel, Row, Style, highest,
};

/// What was run, and what came of it.
pub(super) struct Fig10 {
    scenario: String,
    seen: Predictions,
}

/// GPUs and tasks per second of §6.5.
const GPUS: u32 = 24;
const RATE_RPS: f64 = 9_638.0;
/// Of the errors of a kind.
const PARTS: [(&str, f64); 5] =
    [("50", 0.5), ("90", 0.9), ("99", 0.99), ("99.9", 0.999), ("99.99", 0.9999)];

/// A kind of error, its title, and whose prediction it is.
type Kind = (&'static str, &'static str, fn(&Predictions) -> &Errors);

const OURS: &str = "as `baton` plans";
const OF_TEN: &str = "the largest of ten";

const KINDS: [Kind; 6] = [
    ("INFER", OURS, |seen| &seen.infer),
    ("INFER", OF_TEN, |seen| &seen.infer_of_ten),
    ("end of INFER", OURS, |seen| &seen.infer_end),
    ("LOAD", OURS, |seen| &seen.load),
    ("LOAD", OF_TEN, |seen| &seen.load_of_ten),
    ("end of LOAD", OURS, |seen| &seen.load_end),
];

impl Fig10 {
    pub(super) fn measure(precision: Precision) -> Result<Self, ReproduceError> {
        let varying = "overrun_ms = 0.015\nload_overrun_ms = 0.07\n";
        let scenario = azure(GPUS, precision.cache_spans_s(), varying);
        let run =
            Run { policy: "baton".parse().expect("a policy's name"), rate_rps: RATE_RPS, seed: 1 };
        let seen = run_predictions(&Scenario::parse(&scenario)?, run)?;
        Ok(Self { scenario, seen })
    }

    fn errors(&self, of: &str) -> impl Iterator<Item = (&'static str, &Errors)> {
        let seen = &self.seen;
        KINDS
            .iter()
            .filter(move |(kind, ..)| *kind == of)
            .map(|&(_, whose, errors)| (whose, errors(seen)))
    }

    pub(super) fn json(&self) -> Result<Value, ReproduceError> {
        let us = |of: &dyn Fn(f64) -> Option<f64>| {
            PARTS.map(|(_, part)| of(part).map(|us| rounded(us, 2)))
        };
        let kind = |&(kind, whose, errors): &Kind| {
            let errors = errors(&self.seen);
            let (count, under) = errors.underpredicted();
            json!({
                "action": kind,
                "prediction": whose,
                "count": count,
                "underpredicted": rounded(under, 5),
                "over_us": us(&|part| errors.over_us(part)),
                "under_us": us(&|part| errors.under_us(part)),
            })
        };
        Ok(json!({
            "study": "fig10",
            "axis": "part of the errors, %",
            "at": PARTS.map(|(name, _)| name),
            "rate_rps": RATE_RPS,
            "analytic_bound_rps": rounded(analytic_bound_rps(&Scenario::parse(&self.scenario)?), 1),
            "errors": KINDS.iter().map(kind).collect::<Vec<_>>(),
            "scenario": self.scenario,
        }))
    }

    pub(super) fn claims(&self) -> [Claim; 3] {
        let p99 = |of: &str| {
            let text = |(whose, errors): (&str, &Errors)| {
                let us = |value: Option<f64>| {
                    value.map_or_else(|| "–".to_owned(), |us| format!("{us:.0}"))
                };
                format!("{whose} {} and {} µs", us(errors.over_us(0.99)), us(errors.under_us(0.99)))
            };
            self.errors(of).map(text).collect::<Vec<_>>().join(", ")
        };
        let claim = |paper, of| Claim { paper, place: "Fig. 10", here: p99(of) };
        [
            claim(
                "INFER: 99 % of overpredictions are below 144 µs, of underpredictions below 55 µs",
                "INFER",
            ),
            claim("LOAD: 431 and 348 µs", "LOAD"),
            claim("when an INFER ends: 99 % within about 1 ms", "end of INFER"),
        ]
    }

    pub(super) fn table(&self) -> String {
        let mut headings = vec![
            "action".to_owned(),
            "prediction".into(),
            "actions".into(),
            "took longer, %".into(),
        ];
        headings.extend(PARTS.map(|(name, _)| format!("{name} %")));
        let row = |&(kind, whose, errors): &Kind| {
            let errors = errors(&self.seen);
            let (count, under) = errors.underpredicted();
            let us =
                |value: Option<f64>| value.map_or_else(|| "–".to_owned(), |us| format!("{us:.0}"));
            let cell =
                |(_, part)| format!("{} · {}", us(errors.over_us(part)), us(errors.under_us(part)));
            let first = [
                kind.to_owned(),
                whose.to_owned(),
                count.to_string(),
                format!("{:.2}", under * 1e2),
            ];
            first.into_iter().chain(PARTS.map(cell)).collect()
        };
        let rows: Vec<Vec<String>> = KINDS.iter().map(row).collect();
        format!(
            "**Fig. 10: prediction errors**: overpredicted by at most · underpredicted by at most, µs, of this part of each.\n\n{}",
            table(&headings, &rows)
        )
    }

    /// A panel for each action, and a line for each prediction on either side.
    pub(super) fn row(&self) -> Row {
        let panel = |of: &'static str| {
            let side = |whose: &str, errors: &Errors, is_over: bool| {
                let us = |part| if is_over { errors.over_us(part) } else { errors.under_us(part) };
                let at = |(i, &(_, part)): (usize, &(&str, f64))| Some((i as f64, us(part)?));
                let points = PARTS.iter().enumerate().filter_map(at).collect();
                Line { style: style(whose, is_over), points, mark_every: 1 }
            };
            let both = |(whose, errors)| [side(whose, errors, true), side(whose, errors, false)];
            let lines: Vec<Line> = self.errors(of).flat_map(both).collect();
            Panel {
                title: format!("Fig. 10: {of}"),
                x: Axis::categories(
                    "part of the errors, %",
                    &PARTS.map(|(name, _)| name.to_owned()),
                ),
                y: Axis::up_to("error, µs", highest(&lines)),
                content: Content::Lines { lines, references: Vec::new() },
            }
        };
        Row {
            height: 380,
            panels: ["INFER", "end of INFER", "LOAD", "end of LOAD"].map(panel).into(),
        }
    }

    /// What its lines are.
    pub(super) fn keys() -> [Key; 4] {
        let key = |(label, whose, is_over): (&str, &str, bool)| Key {
            label: label.to_owned(),
            look: Look::Series(style(whose, is_over)),
        };
        [
            ("Fig. 10: baton, over", OURS, true),
            ("under", OURS, false),
            ("largest of ten, over", OF_TEN, true),
            ("under", OF_TEN, false),
        ]
        .map(key)
    }
}

fn style(whose: &str, is_over: bool) -> Style {
    let colour: Colour = if whose == OURS { BLACK } else { ORANGE };
    let mark = if is_over { Mark::Circle } else { Mark::Wedge };
    Style { colour, mark, light: !is_over }
}
