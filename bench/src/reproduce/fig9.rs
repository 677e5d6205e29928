//! Fig. 9: queueing delay.

use serde_json::json;

use super::ReproduceError;
use super::distribution::{self, Distribution, find};
use super::experiment::{Claim, Experiment, Findings};
use super::grid::rounded;
use super::markdown::{rate, table};
use super::policies::OURS;
use super::runner::Runner;
use super::table4::Model;
use crate::plot::Reference;

pub(crate) const EXPERIMENT: Experiment = Experiment {
    name: "fig9",
    title: "Fig. 9: queueing delay",
    setup: "The runs of Fig. 8: the time from a task's arrival to the start of its batch (§5.2.3), \
            of tasks that were executed. The dashed line is half of the objective, the longest \
            wait of Nexus according to the paper.",
    remark: REMARK,
    seeds: 3,
    run,
};

const REMARK: &str = "The paper's finding holds. A task of a deferred policy waits about as long \
    as its batch takes to fill, a fraction of what a GPU of its own would need to come round; \
    that is what is left for larger batches. Nexus' tasks wait for the turn of one GPU, up to \
    half of the objective. With 5 ms of outstanding work Clockwork's tasks wait at least those 5 \
    ms; without it they wait no longer than others. The very longest waits are single tasks in \
    moments of overload.";

fn run(runner: &mut Runner) -> Result<Findings, ReproduceError> {
    let distributions = distribution::measure(runner)?;
    let half = |model: &Model| vec![Reference::At(model.slo_ms / 2.0, "SLO / 2".to_owned())];
    Ok(Findings {
        points: distribution::json(&distributions, |distribution| {
            let delays = distribution.delays().into_iter();
            let pairs: Vec<(f64, f64)> = delays.map(|(ms, part)| (part, rounded(ms, 3))).collect();
            vec![("queueing_ms_by_part", json!(pairs))]
        }),
        figure: distribution::figure(
            "Fig. 9: queueing delay at each policy's own goodput, 8 GPUs",
            "queueing delay, ms, at most",
            &distributions,
            Distribution::delays,
            half,
        ),
        claims: claims(&distributions),
        tables: tables(&distributions),
        rankings: Vec::new(),
    })
}

fn claims(distributions: &[Distribution]) -> Vec<Claim> {
    let ms = |model: usize, policy: &str, part: f64| {
        find(distributions, model, policy).map_or(0.0, |s| s.delay_ms(part))
    };
    let over = |model| {
        let median = |policy: &str| {
            let factors = ["clockwork:5", "nexus:1"]
                .map(|other| ms(model, other, 0.5) / ms(model, policy, 0.5).max(1e-9));
            format!("`{policy}` {:.1} and {:.1}", factors[0], factors[1])
        };
        OURS.map(median).join(", ")
    };
    let longest = |model: usize, slo_ms: f64| {
        let part = |policy| format!("`{policy}` {:.2}", ms(model, policy, 1.0) / slo_ms);
        ["nexus:1", "clockwork:5", "symphony", "baton"].map(part).join(", ")
    };
    let claim = |paper, here| Claim { paper, place: "§5.2.3", here };
    vec![
        claim(
            "Symphony's queueing delay is 2 to 3 times shorter than the baselines'",
            format!(
                "medians of `clockwork:5` and `nexus:1` over that of: ResNet50 {}; \
                 InceptionResNetV2 {}",
                over(0),
                over(1)
            ),
        ),
        claim(
            "the longest wait in Nexus is about half of the objective; in Clockwork no shorter (ResNet50)",
            format!(
                "longest over objective: ResNet50 {}; InceptionResNetV2 {}",
                longest(0, 25.0),
                longest(1, 70.0)
            ),
        ),
    ]
}

fn tables(distributions: &[Distribution]) -> String {
    let headings =
        ["model", "policy", "goodput, tasks/s", "median, ms", "p90, ms", "p99, ms", "longest, ms"];
    let row = |distribution: &Distribution| {
        let ms = |part| format!("{:.2}", distribution.delay_ms(part));
        vec![
            distribution.model.title(),
            format!("`{}`", distribution.policy.name),
            rate(distribution.report.goodput_rps),
            ms(0.5),
            ms(0.9),
            ms(0.99),
            ms(1.0),
        ]
    };
    table(&headings.map(str::to_owned), &distributions.iter().map(row).collect::<Vec<_>>())
}
