//! What the paper says of its figures, beside what is true here.

use super::super::experiment::Claim;
use super::super::markdown::rate;
use super::All;
use super::cells::Column;
use super::measured::{Measured, Outcome};

/// What the paper says, where, and what is true here.
type Said = (&'static str, &'static str, fn(&All) -> String);

const SHOWN: [Column; 2] = [Column::SlackFit, Column::Ours];

const SAID: [Said; 10] = [
    ("8 GPUs carry about 2,000 to 8,000 tasks/s, from 80 % to 74 % accuracy", "Fig. 5c", |all| {
        let of = |row: &super::Carried| format!("{}: {}", row.what, rate(row.rate_rps));
        all.by_variant.iter().map(of).collect::<Vec<_>>().join("; ")
    }),
    ("R1 above 0.999 on all nine bursty traces", "§6.2.1", |all| {
        least(all, &["Fig. 8", "Figs. 8, 11c"])
    }),
    ("up to 4.33 points more accurate than INFaaS at the same R1", "§6.2.1", |all| {
        above_cheapest(all, "7050, CV² 8")
    }),
    ("2.06 times the R1 of a fixed model of the same accuracy", "§6.2.1", |all| {
        times_alone(all, "7050, CV² 8")
    }),
    ("R1 from 0.991 to 1.0 on the ramps", "§6.2.2", |all| least(all, &["Fig. 9"])),
    (
        "4.65 points above INFaaS, and 2.85 times the R1 of a fixed model, on Microsoft's trace",
        "§6.3",
        |all| {
            format!(
                "synthetic trace: {}; {}",
                above_cheapest(all, "spikes"),
                times_alone(all, "spikes")
            )
        },
    ),
    ("R1 stays at 0.999 while half of the GPUs are lost", "§6.4", |all| least(all, &["Fig. 11a"])),
    ("linear in GPUs, to about 33,000 images/s at an R1 of 0.999", "§6.4", |all| {
        let last = all.by_gpus.last().expect("there is a number of GPUs");
        format!("{} images/s with {} GPUs", rate(last.rate_rps), last.what)
    }),
    ("`maxbatch` loses up to 5 % at a CV² of 8", "A.5", |all| {
        let of = |outcome: &Outcome| format!("{:.4}", outcome.r1);
        at(all, "7050, CV² 8").and_then(|cell| cell.of(Column::MaxBatch)).map_or_else(missing, of)
    }),
    (
        "values that are wanted of SlackFit, MaxAcc and the variants alone, and of `baton`",
        "not the paper",
        |all| {
            let [others, ours] = [false, true].map(|is_ours| kept(all, is_ours));
            format!("{} of {} and {} of {} hold", others.0, others.1, ours.0, ours.1)
        },
    ),
];

pub(super) fn claims(all: &All) -> Vec<Claim> {
    let claim = |&(paper, place, here): &Said| Claim { paper, place, here: here(all) };
    SAID.iter().map(claim).collect()
}

fn missing() -> String {
    "not in this run".to_owned()
}

fn at<'a>(all: &'a All, load: &str) -> Option<&'a Measured> {
    all.cells.iter().find(|measured| measured.cell.at == load)
}

/// The least R1 of the figures' cells, of each that is shown.
fn least(all: &All, figures: &[&str]) -> String {
    let cells = || all.cells.iter().filter(|measured| figures.contains(&measured.cell.figure));
    if cells().next().is_none() {
        return missing();
    }
    let of = |column: Column| {
        let least = cells().filter_map(|cell| cell.of(column)).map(|o| o.r1).fold(1.0, f64::min);
        format!("{} {least:.4}", column.label())
    };
    format!("at least: {}", SHOWN.map(of).join("; "))
}

fn above_cheapest(all: &All, load: &str) -> String {
    let Some(cell) = at(all, load) else { return missing() };
    let Some(cheapest) = cell.of(Column::Alone(0)) else { return missing() };
    let of = |column| cell.of(column).map(|outcome| outcome.r2 - cheapest.r2);
    let text = |column: Column| Some(format!("{} {:+.2}", column.label(), of(column)?));
    SHOWN.into_iter().filter_map(text).collect::<Vec<_>>().join("; ")
}

/// R1 over that of 79.44 alone, the cheapest that is as accurate.
fn times_alone(all: &All, load: &str) -> String {
    let Some(cell) = at(all, load) else { return missing() };
    let Some(alone) = cell.of(Column::Alone(4)) else { return missing() };
    let of = |column| cell.of(column).map(|outcome| outcome.r1 / alone.r1.max(1e-9));
    let text = |column: Column| Some(format!("{} {:.2} times", column.label(), of(column)?));
    SHOWN.into_iter().filter_map(text).collect::<Vec<_>>().join("; ")
}

/// How many of the values that are wanted hold, and how many there are.
fn kept(all: &All, is_ours: bool) -> (usize, usize) {
    let mut count = (0, 0);
    for measured in &all.cells {
        for outcome in &measured.outcomes {
            if (outcome.column == Column::Ours) != is_ours {
                continue;
            }
            for (wanted, value) in
                measured.cell.wanted(outcome.column).into_iter().zip([outcome.r1, outcome.r2])
            {
                count.1 += usize::from(wanted.is_some());
                count.0 += usize::from(wanted.is_some_and(|wanted| wanted.holds(value)));
            }
        }
    }
    count
}
