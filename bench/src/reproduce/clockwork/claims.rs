//! What the paper says of its figures, beside what is true here.

use baton_sim::Report;

use super::super::experiment::Claim;
use super::super::markdown::{percent, rate};
use super::Measured;
use super::studies::{in_time, satisfied};

/// Whose values stand beside the paper's words.
const SHOWN: [&str; 2] = ["clockwork:5", "baton"];

/// What the paper says, where, and what is true here.
type Said = (&'static str, &'static str, fn(&Seen<'_>) -> String);

const SAID: [Said; 13] = [
    ("15 models with 16 clients each: about 800 r/s with an objective of 500 ms", "§6.1", |seen| {
        seen.each("fig5", "500", |run| Some(format!("{} r/s", rate(run.goodput_rps))))
    }),
    ("the memory of the GPU is full with 201 models", "§6.2", |_| {
        "196, of 7 pages each".to_owned()
    }),
    ("beyond that the link is used all the time", "§6.2", |seen| {
        seen.each("fig6", "300", |run| run.loader_utilization.map(percent))
    }),
    ("cold starts reach 70 %", "§6.2", |seen| {
        seen.each("fig6", "3600", |run| cold_share(run).map(percent))
    }),
    ("with many active models the minor one has its 200 r/s again", "§6.2", |seen| {
        seen.each("fig6", "3600", |run| Some(format!("{} r/s", rate(in_time(run, "minor")?))))
    }),
    ("no answer comes after its objective", "§6.2", |seen| {
        let late = |run: &Report| run.models.iter().map(|model| model.late).sum::<u64>();
        seen.each("fig6", "3600", |run| Some(format!("{} late", late(run))))
    }),
    (
        "nearly all in time from objectives of 10 ms at 600 r/s, 22 ms at 1,200 and 74 ms at 2,400",
        "§6.3",
        |seen| seen.tightest(),
    ),
    ("as many with 48 models as with 12", "§6.3", |seen| {
        let at = |study| seen.each(study, "9.8", |run| Some(format!("{:.3}", run.satisfied)));
        format!("600 r/s, 9.8 ms: {} with 12; {} with 48", at("fig7-12-600"), at("fig7-48-600"))
    }),
    ("latency clients do not suffer from batch clients", "§6.4", |seen| {
        let part = |run: &Report| Some(format!("{:.3}", satisfied(run, "latency")?));
        format!("25 ms beside 12 × 16 clients: {}", seen.each("fig8-12", "25", part))
    }),
    ("9,638 r/s offered and served; 58 of 208 million tasks failed", "§6.5", |seen| {
        seen.each("fig9-24", "9.638", |run| Some(format!("{:.5} satisfied", run.satisfied)))
    }),
    ("126 r/s are cold", "§6.5", |seen| {
        seen.each("fig9-24", "9.638", |run| Some(format!("{} r/s", rate(run.cold_rps?))))
    }),
    (
        "40 workers carry what is offered up to about 40,000 r/s, when all are fully used",
        "Fig. 11",
        |seen| {
            let most = |run: &Report| {
                Some(format!("{} r/s of {}", rate(run.goodput_rps), rate(run.offered_rps)))
            };
            seen.each("fig11-40", "22.9", most)
        },
    ),
    (
        "linear in the workers up to 110 and 103,387 r/s, beyond which the controller is the limit",
        "Fig. 11",
        |seen| {
            let at = |gpus| {
                seen.each("fig11", gpus, |run| Some(format!("{} r/s", rate(run.goodput_rps))))
            };
            format!(
                "10 GPUs: {}; 110: {}; 150: {}. Virtual time has no limit of the scheduler's: `baton bench sched` measures it",
                at("10"),
                at("110"),
                at("150")
            )
        },
    ),
];

/// Of the major model's tasks in time, those that were cold; the minor one is never cold for long.
fn cold_share(run: &Report) -> Option<f64> {
    let major_rps = in_time(run, "major")?;
    (major_rps > 0.0).then_some(())?;
    Some(run.cold_rps? * run.cold_satisfied? / major_rps)
}

pub(super) fn claims(measured: &[Measured]) -> Vec<Claim> {
    let seen = Seen(measured);
    let claim = |&(paper, place, here): &Said| Claim { paper, place, here: here(&seen) };
    SAID.iter().map(claim).collect()
}

struct Seen<'a>(&'a [Measured]);

impl Seen<'_> {
    /// A text for each policy that ran there.
    fn each(&self, study: &str, at: &str, text: impl Fn(&Report) -> Option<String>) -> String {
        let point = self.0.iter().find(|m| m.study.name == study && m.point.at == at);
        let of = |policy: &&str| Some(format!("`{policy}` {}", text(point?.run(policy)?)?));
        let texts: Vec<String> = SHOWN.iter().filter_map(of).collect();
        if texts.is_empty() {
            "not measured in this precision".to_owned()
        } else {
            texts.join(", ")
        }
    }

    /// Of each rate of Fig. 7, the smallest objective from which on .999 of the tasks are in time.
    fn tightest(&self) -> String {
        let of = |policy: &str, study: &str| {
            let points = self.0.iter().filter(|m| m.study.name == study).rev();
            let met = |m: &&Measured| m.run(policy).is_some_and(|run| run.satisfied >= 0.999);
            points.take_while(met).last().map_or_else(|| "none".to_owned(), |m| m.point.at.clone())
        };
        let each = |policy: &str| {
            let rates = ["fig7-12-600", "fig7-12-1200", "fig7-12-2400"];
            format!("`{policy}` {}", rates.map(|study| of(policy, study)).join(", "))
        };
        format!("from {} ms", SHOWN.map(each).join("; "))
    }
}
